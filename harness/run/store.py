"""The one owner of every path of a run: `<results>/<experiment>/<run id>/`.

    experiment.yaml      the file as it was read
    host.json            the host, at the start of the run
    plan.json            the experiment as resolved, the order, the seed, versions and digests; never edited
    plan-extra.jsonl     passes repeated or added while it ran; only grows
    trials.jsonl         one line per trial that ended; only grows
    samples/ logs/       raw readings and the arms' own output

The folder is created exclusively and never reused. A file that stands under its final name is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from harness.experiment.types import Experiment
from harness.plan import Plan
from harness.run.clock import stamp
from harness.run.extras import Extra, extras_of
from harness.run.files import StoreError, read_bytes, sync_folder, write_whole
from harness.run.head import Head, document, head_value, read_head
from harness.run.names import attempt_of_file, draw_run_id, trial_stem
from harness.run.trial_log import Recorded, is_object, read_objects, read_records


class UnknownRunError(Exception):
    """No run of that name, or a folder that is none. The message says what there is instead."""


@dataclass(frozen=True, kw_only=True)
class TrialPaths:
    """Where one attempt at one planned trial keeps its files. `samples` has no ending: the meter chooses it."""

    log: Path
    events: Path
    workload: Path
    samples: Path


@dataclass(frozen=True)
class RunFolder:
    """One run on disk. Reading needs nothing but the folder; writing is for one `RunWriter` at a time."""

    path: Path

    @classmethod
    def create(
        cls,
        results: Path,
        experiment: Experiment,
        plan: Plan,
        *,
        host: Mapping[str, Any],
        versions: Mapping[str, Any],
        moment: datetime,
    ) -> Self:
        """Make the folder of a new run with everything that is known before its first trial.

        Raise `StoreError` if anything of it cannot be written; then nothing of it is left.
        """
        folder = cls(_fresh_folder(results / experiment.name, moment))
        try:
            for name in ("logs", "samples"):
                (folder.path / name).mkdir()
            write_whole(folder.path / "experiment.yaml", experiment.text.encode())
            write_whole(folder.path / "host.json", document(host))
            head = Head(run=folder.run, experiment=experiment, plan=plan, versions=versions, started_at=stamp(moment))
            # last: a folder that holds plan.json holds the others too
            write_whole(folder.path / "plan.json", document(head_value(head)))
        except (OSError, ValueError, StoreError) as error:
            shutil.rmtree(folder.path, ignore_errors=True)
            if isinstance(error, OSError):
                raise StoreError.of(error, "create", folder.path) from error
            if isinstance(error, ValueError):
                raise StoreError(folder.path, f"cannot create {folder.path}: no strict JSON: {error}") from error
            raise
        return folder

    @classmethod
    def open(cls, named: str, results: Path) -> Self:
        """The run named by its folder or by its id under `results`. Raise `UnknownRunError`."""
        given = Path(named)
        found = [given] if given.is_dir() else sorted(results.glob(f"*/{_literal(named)}"))
        if not found:
            runs = sorted((path.parent.name for path in results.glob("*/*/plan.json")), reverse=True)
            there = (
                f"the latest there are {', '.join(runs[:5])}"
                if runs
                else "none are there yet; `harness run FILE` makes one"
            )
            raise UnknownRunError(f"no run {named!r}: neither a folder nor an id under {results}; {there}")
        if len(found) > 1:
            raise UnknownRunError(
                f"{named!r} names {len(found)} runs; give the path of one: {', '.join(map(str, found))}"
            )
        if not (found[0] / "plan.json").is_file():
            raise UnknownRunError(
                f"{found[0]} holds no plan.json, so no trial of it ever ran;"
                " name a folder results/EXPERIMENT/RUN, or remove this one if a run died while starting"
            )
        return cls(found[0].resolve())

    @property
    def run(self) -> str:
        """The run's id."""
        return self.path.name

    def head(self) -> Head:
        """What was fixed at the start. Raise `StoreError` if plan.json cannot be read by this version."""
        return read_head(self.path)

    def host(self) -> Mapping[str, Any]:
        """host.json; empty with no host recorded. Raise `StoreError` if it is no JSON object."""
        path = self.path / "host.json"
        content = read_bytes(path)
        if content and not is_object(content):
            raise StoreError(path, f"{path} is no JSON object. Remedy: restore it, it is never edited.")
        return dict(json.loads(content)) if content else {}

    def records(self) -> Recorded:
        """All whole records, and a note for all that is not."""
        return read_records(read_bytes(self.path / "trials.jsonl"))

    def extras(self) -> tuple[Extra, ...]:
        """Passes repeated or added while the run went on, in order. Raise `StoreError` for a line that is none."""
        path = self.path / "plan-extra.jsonl"
        content = read_bytes(path)
        try:
            return extras_of(read_objects(content))
        except Exception as error:
            what = f"{path} holds a line that is no decision: {type(error).__name__}"
            raise StoreError(path, f"{what}. Remedy: restore it, it only grows.") from error

    def paths(self, ordinal: int, arm: str, attempt: int = 1, probe: int = 0) -> TrialPaths:
        """Where that attempt, or a probe before it (from 1), keeps its files; no two share one."""
        stem = trial_stem(ordinal, arm, attempt, probe)
        return TrialPaths(
            log=self.path / "logs" / f"{stem}.log",
            events=self.path / "logs" / f"{stem}.events.jsonl",
            workload=self.path / "logs" / f"{stem}.workload.json",
            samples=self.path / "samples" / stem,
        )

    def relative(self, path: Path) -> str:
        """A path as records name it: within the run's folder, so that the folder can be moved."""
        return path.relative_to(self.path).as_posix()

    def attempts_on_disk(self) -> dict[int, int]:
        """Per planned trial the largest attempt that left a file: one that was killed left files and no record."""
        found: dict[int, int] = {}
        for file in (*(self.path / "logs").glob("*"), *(self.path / "samples").glob("*")):
            ordinal, attempt = attempt_of_file(file.name) or (0, 0)
            found[ordinal] = max(found.get(ordinal, 0), attempt)
        return {ordinal: attempt for ordinal, attempt in found.items() if ordinal}


def _fresh_folder(parent: Path, moment: datetime) -> Path:
    """A folder nobody had before: exclusive creation decides, never a look beforehand."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for _ in range(100):
            folder = parent / draw_run_id(moment)
            with suppress(FileExistsError):
                folder.mkdir()
                sync_folder(parent)
                return folder.resolve()
    except OSError as error:
        raise StoreError.of(error, "create a run in", parent) from error
    raise StoreError(parent, f"a hundred drawn run ids exist in {parent} already. Remedy: look for a broken clock.")


def _literal(name: str) -> str:
    """A name for `glob` without its wildcards; a path (absolute, or with `/`) matches nothing."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name.replace("/", "[/]"))
