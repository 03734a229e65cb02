"""What differs between arms once nothing is inherited any more: printed before a run, repeated in the report. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from harness.experiment.problems import Path, path_text
from harness.experiment.types import Arm, Experiment


class Absent(Enum):
    """Stands for a setting that one of the two arms does not have; null is a value that a setting may have."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


@dataclass(frozen=True)
class Difference:
    """One setting in which an arm differs from the reference arm. `path`: such as `env.OMP_NUM_THREADS`."""

    arm: str
    path: str
    value: Any
    reference: str
    reference_value: Any

    @property
    def text(self) -> str:
        """`direct: quantization.direct_dequant = true (both_layouts: false)`."""
        return f"{self.arm}: {self.path} = {_shown(self.value)} ({self.reference}: {_shown(self.reference_value)})"


def differences(experiment: Experiment) -> tuple[Difference, ...]:
    """Every setting in which an arm differs from the baseline (the first arm, if none is named), arms in order."""
    reference = experiment.arm(experiment.baseline) if experiment.baseline else experiment.arms[0]
    return tuple(
        difference
        for arm in experiment.arms
        if reference.name not in {arm.name, arm.control_of}
        for difference in _between(arm, reference)
    )


def differences_text(experiment: Experiment) -> tuple[str, ...]:
    """A line for each difference, and one for each arm that has none."""
    reference = experiment.baseline or experiment.arms[0].name
    found = differences(experiment)
    lines = []
    for arm in experiment.arms:
        own = [difference.text for difference in found if difference.arm == arm.name]
        if arm.control_of is not None:
            lines.append(f"{arm.name}: the control, the same as {arm.control_of}")
        elif own:
            lines += own
        elif arm.name != reference:
            lines.append(f"{arm.name}: the same as {reference}")
    return tuple(lines)


def _between(arm: Arm, reference: Arm) -> Iterator[Difference]:
    ours, theirs = dict(_settings(arm.configuration())), dict(_settings(reference.configuration()))
    for path in [*theirs, *(path for path in ours if path not in theirs)]:
        value, other = ours.get(path, ABSENT), theirs.get(path, ABSENT)
        if _shown(value) != _shown(other):  # by text: 1, 1.0 and true are equal in Python and not to an engine
            yield Difference(arm.name, path_text(path), value, reference.name, other)


def _settings(value: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Leaves of nested maps; a list is one setting, and an unset part of the configuration is absent."""
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _settings(item, (*path, key))
        elif path or item not in (None, {}, []):
            yield (*path, key), item


def _shown(value: Any) -> str:
    return "not set" if value is ABSENT else json.dumps(value, ensure_ascii=False)
