"""The text that a trial scores, and its windows, whatever the engine.

Beside the drivers, imported by path with the arms' interpreter; standard library only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.drivers.parts import Trial


def asked(trial: Trial) -> Mapping[str, Any] | None:
    """The workload's section `quality`, if this trial's metrics need it."""
    return trial.part("quality") if "quality" in trial.needs else None


def text_of(part: Mapping[str, Any]) -> str:
    """The text that the harness digested. Raise `ValueError` if the file holds another one by now."""
    raw = Path(part["path"]).read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != part["sha256"]:
        raise ValueError(
            f"workload.quality: {part['path']} changed: its SHA-256 was {part['sha256']}, now it is {found}"
        )
    return raw.decode("utf-8")


def cut(ids: Sequence[int], size: int, count: int, name: str) -> list[list[int]]:
    """The first `count` windows of `size` tokens, end to end. Raise `ValueError` if the text is too short."""
    if len(ids) < size * count:
        raise ValueError(
            f"workload.quality: the text {name} has {len(ids)} tokens; {count} windows of {size} need {size * count}:"
            f" ask for {len(ids) // size} windows at most"
        )
    return [list(ids[index * size : (index + 1) * size]) for index in range(count)]
