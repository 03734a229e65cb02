"""A recorded run, read back and judged: the one way to it for `run`, `report` and `agree`."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.bundle.manifest import BundleError
from harness.bundle.unpack import Unpacked, unpack
from harness.commands.answer import CommandError, Exit
from harness.commands.project import Project
from harness.records import Reason
from harness.report import RunData, curves
from harness.report.terminal import verdict_table
from harness.run.environment import cache_dir
from harness.run.files import StoreError
from harness.run.host import conditions
from harness.run.integrity import problems, redacted_trials
from harness.run.store import RunFolder, UnknownRunError
from harness.verdict import judge
from harness.verdict.types import ClaimVerdict, Judgement


@dataclass(frozen=True)
class Judged:
    """A run and what is said of it. `results`: the results folder it lies in."""

    folder: RunFolder
    data: RunData
    judgement: Judgement

    @property
    def results(self) -> Path:
        """The results folder that holds the run's experiment folder."""
        return self.folder.path.parent.parent

    @property
    def exit_code(self) -> Exit:
        """What the run's records say, by the order of the contract."""
        failures = self.judgement.failures
        unexpected = {row.reason for row in failures if not (row.expected or row.replaced)} - {Reason.INTERRUPTED}
        if Reason.HARNESS_ERROR in unexpected:
            return Exit.HARNESS_FAILED
        if any(claim.verdict is ClaimVerdict.CONTRADICTED for claim in self.judgement.claims):
            return Exit.CLAIM_CONTRADICTED
        if unexpected:
            return Exit.TRIALS_FAILED
        return Exit.OK if self.judgement.complete else Exit.INTERRUPTED

    def table(self) -> str:
        """The verdicts for a terminal: colours where standard output is one."""
        return verdict_table(
            self.data.experiment,
            self.judgement,
            passes=self.data.passes,
            terminal=sys.stdout.isatty(),
            width=shutil.get_terminal_size((120, 24)).columns,
        )


def open_run(named: str, results: Path) -> RunFolder:
    """The run that a command line names: a folder, an id, or a bundle. Raise `CommandError`."""
    try:
        return open_bundle(named).folder if Path(named).is_file() else RunFolder.open(named, results)
    except UnknownRunError as error:
        raise CommandError(str(error)) from error


def open_bundle(named: str) -> Unpacked:
    """The run in a bundle, unpacked below the harness's own cache. Raise `CommandError`."""
    try:
        return unpack(Path(named), cache_dir() / "bundles")
    except BundleError as error:
        raise CommandError(str(error)) from error


def judged(folder: RunFolder, project: Project) -> Judged:
    """Read a run's folder and judge it. Raise `CommandError` if it cannot be read."""
    try:
        head, host, recorded, extras = folder.head(), folder.host(), folder.records(), folder.extras()
        doubts = (*recorded.notes[: bool(recorded.torn)], *problems(folder), *redacted(folder))
    except StoreError as error:
        raise CommandError(str(error), Exit.HARNESS_FAILED) from error
    data = RunData(
        experiment=head.experiment,
        run=folder.run,
        records=recorded.records,
        host=host,
        plan=head.plan,
        samples=curves(folder.path),
        folder=shown(folder.path, project),
        notes=(*doubts, *(f"Decided while it ran: {extra.why}." for extra in extras)),
    )
    return Judged(folder, data, judge(head.experiment, recorded.records, conditions(host) if host else {}))


def redacted(folder: RunFolder) -> list[str]:
    """What a bundle replaced in the records, as a note."""
    trials = ", ".join(map(str, redacted_trials(folder)))
    return [f"trials {trials}: words were replaced when the run was bundled; their digests cannot be checked"] * bool(
        trials
    )


def shown(path: Path, project: Project) -> str:
    """A path as a reader can type it: within the project, else as short as it can be said."""
    if path.is_relative_to(project.root.resolve()):
        return str(path.relative_to(project.root.resolve()))
    return f"{path.parent.name}/{path.name}"
