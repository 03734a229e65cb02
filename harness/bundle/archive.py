"""The archive itself: a plain tar, written to the same bytes on every host and read with every suspicion.

Not compressed: what zlib writes differs between its versions, the samples are compressed already, and an archive that
does not expand cannot be a bomb.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from harness.bundle.manifest import MANIFEST, MEMBER, BundleError
from harness.units import MIB, format_bytes

#: Bounds of what is read: the largest committed run has 0.5 MB of records and 30 samples of 25 kB each.
MAX_BYTES = 512 * MIB
MAX_MEMBER = 256 * MIB
MAX_MEMBERS = 10_000
#: All samples of a run together, expanded: 100 Hz over hours stays far below.
MAX_EXPANDED = 1024 * MIB


def write(members: Mapping[str, bytes]) -> bytes:
    """The archive: the manifest first, the others by name; no owner, time, or mode of this host."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(members, key=lambda name: (name != MANIFEST, name.encode())):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(members[name]), 0o644, 0
            tar.addfile(entry, io.BytesIO(members[name]))
    return buffer.getvalue()


def read(path: Path) -> tuple[dict[str, bytes], str]:
    """Every member by name, and the archive's SHA-256. Nothing is written, and nothing in it is followed.

    Raise `BundleError` for a link, a device, a folder, a name that a bundle has no use for, a name twice, and whatever
    is larger than a run can be.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BundleError(
                f"{path} has {format_bytes(path.stat().st_size)}; no bundle is over {format_bytes(MAX_BYTES)}"
            )
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error
    members: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for entry in tar:
                name = _checked(entry, members, path)  # before its content is touched
                members[name] = _content(tar, entry)
    except BundleError:
        raise
    except Exception as error:  # tarfile raises whatever a made-up header makes of it, RecursionError included
        raise BundleError(f"{path} is no bundle: {error}; `harness bundle RUN` makes one") from error
    if MANIFEST not in members:
        raise BundleError(f"{path} is no bundle: it holds no {MANIFEST}; `harness bundle RUN` makes one")
    _bounded(members, path)
    return members, hashlib.sha256(content).hexdigest()


def _checked(entry: tarfile.TarInfo, before: Mapping[str, bytes], path: Path) -> str:
    """The name of a member that may be read."""
    shown = repr(entry.name[:80])
    if entry.name != MANIFEST and MEMBER.fullmatch(entry.name) is None:
        raise BundleError(f"{path} holds {shown}: a name that no bundle has; nothing was unpacked")
    if not entry.isreg() or entry.issparse():
        raise BundleError(f"{path}: {shown} is no plain file (a link, a device, a folder): nothing was unpacked")
    if entry.name in before:
        raise BundleError(f"{path} holds {shown} twice: nothing was unpacked")
    if entry.size > MAX_MEMBER or len(before) >= MAX_MEMBERS:
        raise BundleError(f"{path}: {shown} is too large, or one file too many: nothing was unpacked")
    return entry.name


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(entry)
    content = file.read() if file is not None else b""
    if len(content) != entry.size:
        raise BundleError(f"{entry.name} ends early: {len(content)} of {entry.size} bytes; fetch the bundle again")
    return content


def _bounded(members: Mapping[str, bytes], path: Path) -> None:
    """No sample expands beyond what a run can hold; what is no gzip is read as it is."""
    left = MAX_EXPANDED
    for name, content in members.items():
        if not name.endswith(".gz"):
            continue
        expander, rest = zlib.decompressobj(wbits=31), content
        while rest and not expander.eof and left > 0:
            try:
                left -= len(expander.decompress(rest, MIB))
            except zlib.error:
                break  # a sample that is torn is a missing curve
            rest = expander.unconsumed_tail
        if expander.unused_data:  # a reader would expand it too, and nothing has counted it
            raise BundleError(f"{path}: {name} holds more than one stream, as no sample does: nothing was unpacked")
        if left <= 0:
            raise BundleError(f"{path}: {name} expands beyond {format_bytes(MAX_EXPANDED)}: nothing was unpacked")
