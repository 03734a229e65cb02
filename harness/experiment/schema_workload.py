"""The part of an experiment file that says what work every arm does. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from harness.experiment.amounts import whole
from harness.experiment.kinds import Text
from harness.experiment.shapes import Key, Record

_PARTS: Final = {
    "prefill": "Requests of exactly `prompt_tokens` with one output token.",
    "decode": "Requests with exactly `new_tokens` output tokens.",
    "context": "One request that fills the context.",
    "quality": "Negative log-likelihood of a fixed text, window by window.",
}


def workload() -> Record:
    """The same work for every arm."""

    def part(name: str, *keys: Key) -> Key:
        return Key(name, Record(f"workload {name}", keys), _PARTS[name])

    prompt = Key("prompt_tokens", whole(), "Length of the prompt.", required=True)
    return Record(
        "workload",
        (
            part("prefill", prompt, Key("repeats", whole(1, 10**5), "Iterations a trial.", default="5", value=5)),
            part(
                "decode",
                prompt,
                Key("new_tokens", whole(2), "Tokens to produce, two or more.", required=True),
                Key("repeats", whole(1, 10**5), "Iterations a trial.", default="3", value=3),
            ),
            part("context", Key("tokens", whole(), "Length to which one context grows.", required=True)),
            part(
                "quality",
                Key("text", Text("a text"), "Text to score: `lee`, or a path of your own.", required=True),
                Key("windows", whole(1, 10**5), "How many windows.", default="20", value=20),
                Key("window_tokens", whole(2), "Tokens of each window.", default="256", value=256),
                Key("trials", whole(1, 100), "Trials of their own for each arm.", default="2", value=2),
            ),
        ),
    )


def workload_defaults(part: str) -> dict[str, Any]:
    """What stands in a part of the workload where the file says nothing."""
    record = next(key.kind for key in workload().keys if key.name == part)
    keys: Iterable[Key] = record.keys if isinstance(record, Record) else ()
    return {key.name: key.value for key in keys if key.value is not None}
