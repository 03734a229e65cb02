"""docs/experiment.md says what the code does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.experiment import ExperimentError, loads
from harness.experiment.schema import json_schema
from harness.experiment.vocabulary import DISTURBANCE_COUNTERS, PHASES
from harness.metrics import REGISTRY

PAGE = (Path(__file__).parent.parent / "docs" / "experiment.md").read_text(encoding="utf-8")

WRONG = """\
question: q
passes: true
passes: 3
engine: {command: {}}
arms:
  a: {command: [x], env: {X: on}}
  b: {comand: [x]}
metrics: [wall]
"""


def blocks(language: str) -> list[str]:
    """The fenced blocks of that language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def keys(schema: dict[str, Any]) -> Iterator[str]:
    """Every key that a file may have, at any depth."""
    for name, inner in schema.get("properties", {}).items():
        yield name
        yield from keys(inner)
    for part in (schema.get("items"), schema.get("additionalProperties"), *schema.get("anyOf", ())):
        if isinstance(part, dict):
            yield from keys(part)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_every_example_of_the_page_loads(text: str) -> None:
    """A reader may copy any example."""
    assert loads(text, "example.yaml").arms


def test_every_key_metric_counter_and_phase_stands_on_the_page() -> None:
    """Nothing can be written that the page does not name."""
    words = set(re.findall(r"[\w-]+", PAGE))
    assert {*keys(json_schema()), *REGISTRY, *DISTURBANCE_COUNTERS, *PHASES} <= words


def test_the_messages_of_the_page_are_those_that_are_printed() -> None:
    """The error examples are what the code says, to the letter."""
    with pytest.raises(ExperimentError) as caught:
        loads(WRONG, "x.yaml")
    assert str(caught.value) == blocks("text")[-1].strip()
