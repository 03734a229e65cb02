"""`harness bundle RUN`: the run in one file, for somebody who will measure it again elsewhere."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.bundle.manifest import BundleError
from harness.bundle.pack import Packed, pack
from harness.commands.answer import Answer, CommandError, Exit
from harness.commands.judged import open_run
from harness.commands.project import find_project
from harness.experiment import Experiment
from harness.models.recipes import RECIPES
from harness.run.files import StoreError, write_whole
from harness.run.integrity import problems
from harness.run.store import RunFolder


def run(arguments: argparse.Namespace) -> Answer:
    """Write the bundle and say its digest. A run that is no evidence is not packed: it would only travel."""
    project = find_project(Path.cwd())
    folder = open_run(arguments.run, project.results_folder(arguments.results))
    try:
        if wrong := problems(folder):
            raise CommandError(f"{folder.path} is no evidence and is not packed:\n  " + "\n  ".join(wrong))
        path = Path(arguments.output or f"{folder.head().experiment.name}-{folder.run}.bundle.tar")
        if path.exists():
            raise CommandError(f"{path} exists and is never overwritten; remove it, or name another with --output FILE")
        packed = packed_run(folder, redact=arguments.redact)
        write_whole(path, packed.content)
    except BundleError as error:
        raise CommandError(str(error)) from error
    except (StoreError, OSError) as error:
        raise CommandError(str(error), Exit.HARNESS_FAILED) from error
    return Answer(out="\n".join(said(path, packed)))


def packed_run(folder: RunFolder, *, redact: bool) -> Packed:
    """The bundle of a run, with the recipes of its models. Raise `BundleError`."""
    head = folder.head()
    return pack(folder, recipes=recipes(head.experiment, head.versions), homes=homes(), redact=redact)


def recipes(experiment: Experiment, versions: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of each model that a recipe makes: the recipe, and the digest of what it made."""
    models = versions.get("models") or {}
    named = {arm.model for arm in experiment.arms if arm.model in RECIPES}
    return {name: {**asdict(RECIPES[name]), "made": models.get(name)} for name in sorted(named) if name is not None}


def homes() -> tuple[str, ...]:
    """This user's home folder, as stated and as resolved."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    return tuple({home, os.path.realpath(home)} - {"~", "/"})


def said(path: Path, packed: Packed) -> list[str]:
    """Where it lies, its digest, what is not in it and what was replaced."""
    manifest = packed.manifest
    lines = [f"bundle: {path} ({len(packed.content)} bytes, {manifest.trials} trials)", f"SHA-256: {packed.digest}"]
    lines += [f"not in it: {what}" for what in manifest.left_out]
    lines += [f"a rerun needs: {what}" for what in manifest.needs]
    lines += [f"redacted: {one.count} x {one.kind} in {one.file}" for one in manifest.redacted]
    return [*lines, f"to repeat it elsewhere: harness rerun {path.name}"]
