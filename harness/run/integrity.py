"""Are a run's records what was measured? Each thing that does not fit is a sentence; a run that has one is no evidence.

Three chains hold a run together: every record carries the digest of the one before it; the plan follows from the
experiment and the seed alone; and the next trial follows from the plan and the records so far (`schedule.open_tasks`,
the very function that a run walks by). Somebody who makes up a whole run and all its digests passes: this finds
mistakes and touched-up figures, it is no signature.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.experiment import Experiment, ExperimentError, load
from harness.plan import Plan, PlannedTrial, make_plan
from harness.records import TrialRecord
from harness.run.extras import Extra
from harness.run.files import StoreError, read_bytes
from harness.run.head import Head
from harness.run.resume import experiment_differences
from harness.run.schedule import open_tasks, whole_plan
from harness.run.store import RunFolder

#: Beside the records of a run that came in a bundle: what the bundle says of itself.
BUNDLED = "bundle.json"


def problems(folder: RunFolder) -> tuple[str, ...]:
    """Everything about a run on disk that does not fit together; empty for a run that may be believed.

    Raise `StoreError` if its plan cannot be read at all. A torn last line and a run cut short are no problems: they are
    what a crash leaves, and what is missing is missing openly.
    """
    head, recorded = folder.head(), folder.records()
    chain = recorded.notes[bool(recorded.torn) :] if recorded.damaged else ()
    words = tuple(f"trial {number}: its content " for number in redacted_trials(folder))
    chain = tuple(note for note in chain if not note.startswith(words))
    return (*chain, *_experiment(folder, head), *planned(head), *in_order(head.plan, folder.extras(), recorded.records))


def redacted_trials(folder: RunFolder) -> tuple[int, ...]:
    """Trials whose record had words replaced when the run was bundled: their own digest no longer fits, by intent."""
    try:
        found = json.loads(read_bytes(folder.path / BUNDLED) or b"{}").get("redacted", [])
        return tuple(sorted({int(trial) for one in found for trial in one["trials"]}))
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()


def _experiment(folder: RunFolder, head: Head) -> Iterator[str]:
    """The identity that plan.json states, and the file beside it, against the experiment as resolved there."""
    stated = json.loads(read_bytes(folder.path / "plan.json")).get("identity")
    if stated != head.experiment.identity:
        yield "plan.json: the experiment does not match the identity stated beside it: edited after it was written"
    try:
        written = load(folder.path / "experiment.yaml")
    except (ExperimentError, StoreError) as error:
        first = str(error).partition("\n")[0]
        yield f"experiment.yaml cannot be read by this version, so the plan cannot be checked against it: {first}"
        return
    for sentence in experiment_differences(_as_written(written, head.experiment), head.experiment):
        said = sentence.removesuffix(" now").replace(" when the run started, ", " in the file, ")
        yield f"the plan does not match its experiment: {said} in plan.json"


def _as_written(written: Experiment, resolved: Experiment) -> Experiment:
    """The file's experiment under what a command line may set (name, passes), and with the registry's words of the
    version that ran: a definition that was worded better since is no difference.
    """
    worded = {metric.name: metric for metric in resolved.metrics}
    metrics = tuple(
        worded[m.name] if m.name in worded and _same_metric(m, worded[m.name]) else m for m in written.metrics
    )
    return replace(written, name=resolved.name, passes=resolved.passes, metrics=metrics)


def _same_metric(one: object, two: object) -> bool:
    return all(getattr(one, name) == getattr(two, name) for name in ("name", "unit", "better", "kind", "resolution"))


def planned(head: Head) -> Iterator[str]:
    """The order that experiment and seed give, against the order in plan.json."""
    most = head.experiment.passes * len(head.experiment.arms)
    if most > len(head.plan.trials):  # before it is made: a stranger's file may ask for a plan without end
        yield f"the plan holds {len(head.plan.trials)} trials, and its passes and arms give at least {most}"
        return
    try:
        made = make_plan(head.experiment, head.plan.seed)
    except ValueError as error:
        yield f"plan.json: no plan follows from this experiment: {error}"
        return
    if made.trials != head.plan.trials or made.arms != head.plan.arms:
        first = next(
            (a.ordinal for a, b in zip(made.trials, head.plan.trials, strict=False) if a != b),
            min(len(made.trials), len(head.plan.trials)) + 1,
        )
        yield (
            f"the plan is not the one that its experiment and seed {head.plan.seed} give: planned trial {first} is the"
            f" first that differs ({len(head.plan.trials)} trials recorded, {len(made.trials)} follow)"
        )


def in_order(plan: Plan, extras: Sequence[Extra], records: Sequence[TrialRecord]) -> Iterator[str]:
    """Every record answers the trial that was next by the plan and the records before it. The first that does not is
    named, and no later one: after it nothing is where it should be.
    """
    known = {trial.ordinal: trial for trial in whole_plan(plan, extras).trials}
    counted = 0
    for index, record in enumerate(records):
        trial = known.get(record.planned)
        if trial is None:
            yield f"trial {record.trial}: answers planned trial {record.planned}, which the plan does not have"
            return
        if (wrong := _not_as_planned(record, trial)) is not None:
            yield wrong
            return
        if record.trial != index + 1:
            yield f"trial {record.trial} stands at place {index + 1} of the records: one is missing, added or moved"
            return
        if index and _before(record, records[index - 1]):
            yield f"trial {record.trial} began before trial {record.trial - 1} ended: not in the order of the records"
            return
        if not record.priming:
            due = next_due(plan, [extra for extra in extras if extra.after <= counted], records[:index])
            if due is not None and due != record.planned:
                yield (
                    f"trial {record.trial} ran out of the recorded order: planned trial {record.planned}"
                    f" ({record.arm}, pass {record.pass_number}) ran where planned trial {due} was next"
                )
                return
        counted += record.counted


def _not_as_planned(record: TrialRecord, trial: PlannedTrial) -> str | None:
    """In what a record is not the planned trial that it answers: a trial marked as priming would count nowhere."""
    said = (record.arm, record.pass_number, record.position)
    if said != (trial.arm, trial.pass_number, trial.position):
        return (
            f"trial {record.trial}: arm {said[0]}, pass {said[1]}, position {said[2]}; planned trial"
            f" {trial.ordinal} is arm {trial.arm}, pass {trial.pass_number}, position {trial.position}"
        )
    if record.priming != (trial.priming or record.probe_limit_bytes is not None):
        kind = "marked as priming, which no statistics count" if record.priming else "counted, not marked as priming"
        return f"trial {record.trial}: {kind}; planned trial {trial.ordinal} is not so"
    if record.scoring != trial.scoring:
        return f"trial {record.trial} and planned trial {trial.ordinal}: one of the two only scores text"
    return None


def next_due(plan: Plan, extras: Sequence[Extra], records: Sequence[TrialRecord]) -> int | None:
    """Ordinal of the planned trial that is next, priming aside (it runs again whenever a resumed run lost its caches);
    None where nothing is open.
    """
    return next((task.planned.ordinal for task in open_tasks(plan, extras, records) if not task.priming), None)


def _before(record: TrialRecord, previous: TrialRecord) -> bool:
    """By both clocks: a reboot sets CLOCK_MONOTONIC back, and a corrected clock sets UTC back."""
    return record.began < previous.ended and record.started_at < previous.started_at
