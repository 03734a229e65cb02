"""From a run's folder to a bundle: what another host needs to repeat it, and nothing that must stay on this one."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bundle import archive
from harness.bundle.manifest import MANIFEST, MEMBER, BundleError, Manifest, Redaction, read_manifest
from harness.bundle.scan import Finding, findings, redacted
from harness.experiment import Experiment
from harness.run.head import document
from harness.run.integrity import BUNDLED
from harness.run.names import quote_arm
from harness.run.store import RunFolder
from harness.units import format_bytes

_FILES = ("experiment.yaml", "host.json", "plan.json", "plan-extra.jsonl", "trials.jsonl")
#: These decide what runs: a word replaced in them makes another experiment.
_DECIDING = ("run/experiment.yaml", "run/plan.json")
_LEFT_OUT = ("logs/: the arms' own output names folders of the host; what a reviewer needs of it is in the records",)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A bundle. `content`: its bytes; `digest`: their SHA-256, to be told by another way than the bundle's own."""

    content: bytes
    digest: str
    manifest: Manifest


def pack(
    folder: RunFolder, *, recipes: Mapping[str, Mapping[str, Any]], homes: tuple[str, ...] = (), redact: bool = False
) -> Packed:
    """Pack a run; the same run gives the same bytes. `recipes`: what is known of how each model is made, by name.
    `homes`: home folders of this host. `redact`: replace what must not leave, on record, instead of refusing.

    Raise `BundleError` with every place that holds a secret or a home folder.
    """
    head, records = folder.head(), folder.records().records
    members = {f"run/{name}": (folder.path / name).read_bytes() for name in _FILES if (folder.path / name).is_file()}
    members |= {name: file.read_bytes() for name, file in _samples(folder) if MEMBER.fullmatch(name)}
    members |= {f"recipes/{quote_arm(name)}.json": document(dict(what)) for name, what in sorted(recipes.items())}
    members |= dict(_locks(head.versions))
    members, changed = _clean(members, homes, redact=redact)
    manifest = Manifest(
        experiment=head.experiment.name,
        run=head.run,
        trials=len(records),
        last=records[-1].digest if records else "",
        files={n: {"sha256": hashlib.sha256(c).hexdigest(), "bytes": len(c)} for n, c in sorted(members.items())},
        redacted=(*_before(folder), *changed),
        left_out=_LEFT_OUT,
        needs=tuple(_needs(head.experiment, recipes)),
    )
    content = archive.write({MANIFEST: manifest.document(), **members})
    largest = max(map(len, members.values()))
    if len(content) > archive.MAX_BYTES or largest > archive.MAX_MEMBER or len(members) >= archive.MAX_MEMBERS:
        size = f"{format_bytes(len(content))} in {len(members)} files"
        raise BundleError(f"the bundle would have {size}, more than any version reads; send the run's folder instead")
    return Packed(content=content, digest=hashlib.sha256(content).hexdigest(), manifest=manifest)


def _samples(folder: RunFolder) -> Iterator[tuple[str, Path]]:
    """Each sample under its name in a bundle. What a crash left half written (`.NAME.part`) has none."""
    for file in sorted((folder.path / "samples").glob("*")):
        yield f"run/samples/{file.name}", file


def _before(folder: RunFolder) -> tuple[Redaction, ...]:
    """What was replaced when the run came here in a bundle: its records still do not fit their digests."""
    try:
        return read_manifest((folder.path / BUNDLED).read_bytes()).redacted
    except FileNotFoundError:
        return ()


def _locks(versions: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """For each environment that arms ran in, the list that pip installs it from."""
    for name, found in sorted((versions.get("environments") or {}).items()):
        packages = found.get("packages") or {}
        lines = [
            f"# {found.get('python')}, as recorded when the run started",
            *(f"{p}=={v}" for p, v in packages.items()),
        ]
        yield f"lock/{quote_arm(name)}.txt", ("\n".join(lines) + "\n").encode()


def _needs(experiment: Experiment, recipes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for model in sorted({arm.model for arm in experiment.arms if arm.model} - recipes.keys()):
        yield f"model {model}: a folder of the host that measured, made by no recipe; have one of the same digest"
    for arm in experiment.arms:
        if arm.command and arm.control_of is None:
            yield f"arm {arm.name} runs {arm.command[0]!r} and the files its arguments name: programs are not packed"


def _clean(
    members: Mapping[str, bytes], homes: tuple[str, ...], *, redact: bool
) -> tuple[dict[str, bytes], tuple[Redaction, ...]]:
    """The members without what must not leave, and what was replaced."""
    kept, changed, refused = {}, [], []
    for name, content in members.items():
        text = _text(name, content)
        found = list(findings(text, homes))
        if not found:
            kept[name] = content
            continue
        if not redact or name in _DECIDING:
            refused += [f"  {name}:{one.line}: {one.kind}: {one.shown}" for one in found]
            continue
        kept[name] = _bytes(name, redacted(text, found))
        changed += [*_redactions(name, text, found)]
    if refused:
        raise BundleError(_refusal(refused, redact=redact))
    return kept, tuple(changed)


def _refusal(refused: list[str], *, redact: bool) -> str:
    """Every place once, and the way out."""
    places = "\n".join(dict.fromkeys(refused))
    if any(f"  {name}:" in places for name in _DECIDING):
        remedy = (
            "What the experiment file itself says cannot be replaced: it would be another experiment. Write it with"
            " relative paths and without secrets, and measure again."
        )
    elif redact:
        remedy = ""
    else:
        remedy = "Look at them; `--redact` replaces each and keeps a record of it in the bundle."
    return f"the run holds what must not leave this host:\n{places}\n{remedy}".rstrip()


def _text(name: str, content: bytes) -> str:
    """A member as text; a sample expanded. What is no text is looked at byte by byte all the same."""
    if name.endswith(".gz"):
        with suppress(OSError, EOFError, zlib.error):
            content = gzip.decompress(content)
    return content.decode(errors="surrogateescape")


def _bytes(name: str, text: str) -> bytes:
    content = text.encode(errors="surrogateescape")
    return gzip.compress(content, mtime=0) if name.endswith(".gz") else content


def _redactions(name: str, text: str, found: list[Finding]) -> Iterator[Redaction]:
    """One line a kind, with the trials whose records it changed."""
    for kind, count in sorted(Counter(one.kind for one in found).items()):
        numbers = sorted({one.line for one in found if one.kind == kind}) if name == "run/trials.jsonl" else []
        lines = text.split("\n")
        trials = tuple(number for line in numbers if (number := _trial(lines[line - 1])) is not None)
        yield Redaction(file=name, kind=kind, count=count, trials=trials)


def _trial(line: str) -> int | None:
    """Ordinal of a record's trial; None for a torn line, which is no record."""
    try:
        return int(json.loads(line)["trial"])
    except (ValueError, KeyError, TypeError):
        return None
