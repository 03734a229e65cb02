"""Whether a recorded run may go on here: only if experiment, host and versions are what they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.experiment.types import Experiment
from harness.records import converter
from harness.run.head import Head

#: Says what differs between what was recorded and now, a sentence each.
Differences = Callable[[Mapping[str, Any], Mapping[str, Any]], Sequence[str]]


class ResumeError(Exception):
    """A run that must not go on here. `differs`: a sentence for each difference."""

    def __init__(self, run: str, differs: Sequence[str]) -> None:
        self.differs = tuple(differs)
        lines = "\n".join(f"  - {sentence}" for sentence in self.differs)
        super().__init__(
            f"run {run} cannot be resumed: trials measured now could not be compared with those it holds.\n{lines}\n"
            "Remedy: undo these differences, or start a new run; what this one holds stays readable: `harness report`."
        )


def require_same(
    head: Head,
    experiment: Experiment,
    *,
    recorded: Mapping[str, Any],
    now: Mapping[str, Any],
    differences: Differences,
    damage: Sequence[str] = (),
) -> None:
    """Raise `ResumeError` with everything that forbids going on.

    `recorded`, `now`: what `differences` compares (host and provenance). `damage`: notes of records that cannot be
    trusted, see `Recorded.damaged`.
    """
    found = [*damage, *experiment_differences(head.experiment, experiment), *differences(recorded, now)]
    if found:
        raise ResumeError(head.run, found)


def experiment_differences(recorded: Experiment, now: Experiment) -> tuple[str, ...]:
    """What is not as it was: every resolved key but the question's words, the file's text and a seed that was drawn.

    Claims, rules and margins count too: they are statements made in advance, and a resumed run has seen its first data.
    """
    seed = recorded.seed if now.seed is None else now.seed
    same = replace(now, question=recorded.question, text=recorded.text, seed=seed)
    kept = replace(recorded, seed=seed if recorded.seed is None else recorded.seed)
    return tuple(value_differences(_named(kept), _named(same), "experiment"))


def value_differences(recorded: Any, now: Any, path: str) -> Iterator[str]:
    """A sentence for each leaf of two JSON values that differs, named by its path."""
    if isinstance(recorded, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*recorded, *now)):
            yield from value_differences(recorded.get(key, _ABSENT), now.get(key, _ABSENT), f"{path}.{key}")
    elif recorded != now:
        yield f"{path}: {_shown(recorded)} when the run started, {_shown(now)} now"


_ABSENT = object()


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)


def _named(experiment: Experiment) -> dict[str, Any]:
    """The experiment as a JSON value with its lists keyed by name, so that a difference is named by its arm."""
    value = dict(converter().unstructure(experiment))
    value["arms"] = {arm["name"]: arm for arm in value["arms"]}
    value["metrics"] = {metric["name"]: metric for metric in value["metrics"]}
    value["claims"] = {claim["id"]: claim for claim in value["claims"]}
    return value
