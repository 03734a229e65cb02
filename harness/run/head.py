"""What is fixed when a run starts, and its place on disk: plan.json and experiment.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.experiment.types import Experiment
from harness.plan import Plan
from harness.records import converter
from harness.run.files import StoreError, read_bytes

#: Version of plan.json.
#: 1 (2026-12-01): first.
PLAN_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Head:
    """What is fixed when a run starts. `versions`: whatever must be equal for the run to be resumed: versions, source
    and model digests, by name. `started_at`: UTC.
    """

    run: str
    experiment: Experiment
    plan: Plan
    versions: Mapping[str, Any]
    started_at: str


def head_value(head: Head) -> dict[str, Any]:
    """plan.json as a JSON value. The experiment's text stands in experiment.yaml and not here too."""
    return {
        "format": PLAN_FORMAT,
        "run": head.run,
        "started_at": head.started_at,
        "identity": head.experiment.identity,
        "seed": head.plan.seed,
        "experiment": converter().unstructure(replace(head.experiment, text="")),
        "plan": converter().unstructure(head.plan),
        "versions": dict(head.versions),
    }


def read_head(folder: Path) -> Head:
    """The head of the run in `folder`. Raise `StoreError` if this version cannot read it."""
    path = folder / "plan.json"
    try:
        value = json.loads(read_bytes(path))
        found = value["format"]
        head = _structured(value, read_bytes(folder / "experiment.yaml")) if found == PLAN_FORMAT else None
    except StoreError:
        raise
    except Exception as error:
        message = f"{path} is no plan: {type(error).__name__}: {error}. Remedy: restore it, it is never edited."
        raise StoreError(path, message) from error
    if head is None:
        raise StoreError(path, f"{path} has format {found}; this version of harness reads format {PLAN_FORMAT}.")
    return head


def _structured(value: Mapping[str, Any], text: bytes) -> Head:
    experiment = converter().structure(value["experiment"], Experiment)
    if experiment.name in {"", ".", ".."} or set("/\0") & set(experiment.name):
        raise ValueError(f"{experiment.name[:80]!r} names no experiment: folders and reports are called by it")
    return Head(
        run=value["run"],
        experiment=replace(experiment, text=text.decode(errors="replace")),
        plan=converter().structure(value["plan"], Plan),
        versions=value["versions"],
        started_at=value["started_at"],
    )


def document(value: Any) -> bytes:
    """Strict JSON for a whole file. Raise `ValueError` for NaN and infinities."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()
