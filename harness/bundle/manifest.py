"""What a bundle says of itself: manifest.json, its first member. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

KIND = "harness bundle"
#: Version of the bundle's shape.
#: 1 (2026-12-01): first.
FORMAT = 1
MANIFEST = "manifest.json"

#: Names that a bundle may hold: each is written by us, none can leave the folder, none is run.
MEMBER = re.compile(
    r"run/(?:experiment\.yaml|host\.json|plan\.json|plan-extra\.jsonl|trials\.jsonl)"
    r"|run/samples/[A-Za-z0-9_%~-][A-Za-z0-9_%~.-]{0,250}"
    r"|recipes/[A-Za-z0-9_%~-][A-Za-z0-9_%~.-]{0,250}\.json"
    r"|lock/[A-Za-z0-9_%~-][A-Za-z0-9_%~.-]{0,250}\.txt"
)
#: What the name of an experiment's folder may be: one plain name.
NAME = re.compile(r"[^/\0-\x1f\x7f-\x9f.\ud800-\udfff][^/\0-\x1f\x7f-\x9f\ud800-\udfff]{0,199}")
_RUN = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")


class BundleError(Exception):
    """A bundle that cannot be made, or that is not what it says. The message names what, where and what to do."""


@dataclass(frozen=True, kw_only=True)
class Redaction:
    """Something that was replaced in a file. `kind`: what it was; `trials`: records whose content changed by it, so
    that their digest can no longer be checked.
    """

    file: str
    kind: str
    count: int
    trials: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """`files`: SHA-256 and bytes of every other member by name. `last`: digest of the last record: with it, the chain
    says that no trial is missing. `needs`: what a rerun needs that no bundle can hold, as sentences.
    """

    experiment: str
    run: str
    trials: int
    last: str
    files: Mapping[str, Mapping[str, Any]]
    redacted: tuple[Redaction, ...] = ()
    left_out: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def document(self) -> bytes:
        """manifest.json: sorted, so that the same run gives the same bytes."""
        value = {"kind": KIND, "format": FORMAT, **asdict(self)}
        return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def read_manifest(content: bytes) -> Manifest:
    """The manifest of a document. Raise `BundleError` for anything that is none, whatever it holds."""
    try:
        return _manifest(json.loads(content))
    except BundleError:
        raise
    except Exception as error:
        raise BundleError(f"{MANIFEST} cannot be read: {type(error).__name__}: {error}") from error


def _manifest(value: Any) -> Manifest:
    if (value["kind"], value["format"]) != (KIND, FORMAT):
        said = f"{value['kind']!r}, format {value['format']!r}"
        raise BundleError(f"{MANIFEST} says {said}; this version reads {KIND!r}, format {FORMAT}")
    return Manifest(
        experiment=_text(value["experiment"], NAME),
        run=_text(value["run"], _RUN),
        trials=int(value["trials"]),
        last=str(value["last"]),
        files={_text(name, MEMBER): _file(entry) for name, entry in value["files"].items()},
        redacted=tuple(map(_redaction, value["redacted"])),
        left_out=tuple(map(str, value["left_out"])),
        needs=tuple(map(str, value["needs"])),
    )


def _redaction(value: Any) -> Redaction:
    trials = tuple(int(trial) for trial in value["trials"])
    return Redaction(file=str(value["file"]), kind=str(value["kind"]), count=int(value["count"]), trials=trials)


def _text(value: Any, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise BundleError(f"{MANIFEST}: {str(value)[:80]!r} is no name that a bundle may hold")
    return value


def _file(entry: Any) -> dict[str, Any]:
    return {"sha256": _text(entry["sha256"], re.compile("[0-9a-f]{64}")), "bytes": int(entry["bytes"])}
