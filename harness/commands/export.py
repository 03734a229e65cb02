"""`harness export RUN`: a run's tables as CSV or JSON; and the way from a run to frames, for `harness.load`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from harness.commands.answer import Answer, CommandError, Exit
from harness.commands.judged import judged, open_run
from harness.commands.project import Project, find_project
from harness.report.export import json_text, table_csv, write_csv, write_json
from harness.report.frames import Frames
from harness.report.samples import looks
from harness.report.tables import Source
from harness.run.store import RunFolder


def run(arguments: argparse.Namespace) -> Answer:
    """With `--out` files, else one document on standard output: all of it as JSON, or one table as CSV."""
    project = find_project(Path.cwd())
    folder = open_run(arguments.run, project.results_folder(arguments.results))
    as_json = arguments.format == "json"
    if as_json and arguments.table:
        raise CommandError("--table goes with --format csv: JSON holds every table")
    if not arguments.out:
        source = source_of(folder, project)
        text = json_text(source) if as_json else table_csv(arguments.table or "metrics", source)
        return Answer(out=text.removesuffix("\n"))
    if arguments.table:
        raise CommandError("--table goes to standard output; with --out every table gets its file")
    out = Path(arguments.out)
    if out.resolve().is_relative_to(folder.path):
        raise CommandError(f"{out} lies in the run's own folder, which is never changed; name another with --out")
    source = source_of(folder, project)
    try:
        paths = write_json(source, out) if as_json else write_csv(source, out)
    except OSError as error:
        raise CommandError(f"cannot write into {out}: {error.strerror}", Exit.HARNESS_FAILED) from error
    return Answer(out="\n".join(map(str, paths)))


def source_of(folder: RunFolder, project: Project) -> Source:
    """A run, read and judged, as tables need it."""
    one = judged(folder, project)
    return Source(one.data, one.judgement, looks(folder.path))


def load(run: str | os.PathLike[str], results: str | os.PathLike[str] | None) -> Frames:
    """See `harness.load`."""
    project = find_project(Path.cwd())
    folder = RunFolder.open(os.fspath(run), Path(results) if results is not None else project.results)
    return Frames(source_of(folder, project))
