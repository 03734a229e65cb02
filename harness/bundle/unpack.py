"""From a bundle to a run's folder, without trust: everything is checked before anything is written, and nothing in it
is ever run from here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.bundle import archive
from harness.bundle.manifest import MANIFEST, BundleError, Manifest, read_manifest
from harness.run.integrity import BUNDLED
from harness.run.store import RunFolder


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """A run that came in a bundle. `digest`: the bundle's SHA-256."""

    folder: RunFolder
    manifest: Manifest
    digest: str

    @property
    def said(self) -> Iterator[str]:
        """What a reader should know of it, a sentence each."""
        yield f"bundle of run {self.manifest.experiment}/{self.manifest.run}, SHA-256 {self.digest}"
        if any(name.startswith("lock/") for name in self.manifest.files):
            lists = self.folder.path.parent.parent / "lock"
            yield f"packages of the environments it ran in, as pip reads them: {lists}/*.txt"
        for one in self.manifest.redacted:
            trials = (
                f" (trials {', '.join(map(str, one.trials))}: their digests cannot be checked)" if one.trials else ""
            )
            yield f"redacted when it was packed: {one.count} x {one.kind} in {one.file}{trials}"
        yield from (f"needed and not in it: {need}" for need in self.manifest.needs)


def unpack(path: Path, into: Path) -> Unpacked:
    """Unpack below `into`, in a folder named by the bundle's digest. Raise `BundleError`; then nothing was written."""
    members, digest = archive.read(path)
    manifest = read_manifest(members.pop(MANIFEST))
    if wrong := list(mismatches(manifest, members)):
        raise BundleError(f"{path} is not what its manifest says: nothing was unpacked.\n  " + "\n  ".join(wrong))
    place = into / digest[:32]
    _write(place, manifest, members)
    return Unpacked(
        folder=RunFolder((place / manifest.experiment / manifest.run).resolve()), manifest=manifest, digest=digest
    )


def mismatches(manifest: Manifest, members: Mapping[str, bytes]) -> Iterator[str]:
    """A sentence for each member that is missing, added or changed, and for records that the manifest does not know."""
    for name in sorted(manifest.files.keys() | members.keys()):
        if name not in members:
            yield f"{name} is missing"
        elif name not in manifest.files:
            yield f"{name} is not in the manifest"
        elif hashlib.sha256(members[name]).hexdigest() != manifest.files[name]["sha256"]:
            yield f"{name} was changed after it was packed"
    for name in ("run/experiment.yaml", "run/plan.json"):
        if name not in manifest.files:
            yield f"{name} is not in it: without it there is no run"
    yield from _names(manifest, members)
    yield from _records(manifest, members)


def _names(manifest: Manifest, members: Mapping[str, bytes]) -> Iterator[str]:
    """Experiment and run as the plan calls them: reports and the folder of a rerun are named by the plan."""
    try:
        plan = json.loads(members["run/plan.json"])
        said = (plan["experiment"]["name"], plan["run"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return  # no plan at all: said where it is read
    if said != (manifest.experiment, manifest.run):
        yield f"run/plan.json is of {said[0]!r}, {said[1]!r}; the manifest of {manifest.experiment}/{manifest.run}"


def _records(manifest: Manifest, members: Mapping[str, bytes]) -> Iterator[str]:
    """Number of records and digest of the last, as the manifest states them."""
    lines = [line for line in members.get("run/trials.jsonl", b"").split(b"\n") if line.strip()]
    try:
        whole = [json.loads(line) for line in lines]
        last = whole[-1]["digest"] if whole else ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return  # a torn line was torn when it was packed; the chain over the others is checked where runs are judged
    if len(whole) != manifest.trials or last != manifest.last:
        yield f"run/trials.jsonl holds {len(whole)} trials and not the {manifest.trials} that the manifest states"


def _write(place: Path, manifest: Manifest, members: Mapping[str, bytes]) -> None:
    """The files, under names of ours; whole or not at all. What lay there is of the same bundle and is replaced: it may
    have been touched since.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".unpacking-") as scratch:
            run = Path(scratch, "new", manifest.experiment, manifest.run)
            (run / "samples").mkdir(parents=True)
            (run / BUNDLED).write_bytes(manifest.document())
            for name, content in members.items():
                top, _, below = name.partition("/")
                file = run / below if top == "run" else Path(scratch, "new", name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            shutil.rmtree(place, ignore_errors=True)
            os.rename(Path(scratch, "new"), place)  # noqa: PTH104 - as written, a folder onto a name that is free
    except OSError as error:
        raise BundleError(f"cannot unpack below {place.parent}: {error.strerror}") from error
