"""Digests of files: of source folders, of models, and the state of a cache folder. SHA-256, in hex.

A digest names content alone: no path outside the folder, no time, no owner goes into it, so two hosts get the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.experiment.types import digest

#: Folders and files that tools leave among sources: they differ between hosts that run the same sources.
_LEFTOVERS = {"__pycache__", "build", "dist", "node_modules"}
_LEFTOVER_SUFFIXES = (".pyc", ".pyo", ".so", ".o", ".a", ".egg-info", ".dist-info")
#: What `harness model` writes beside a model: about the model, no part of it.
_MANIFEST = "harness-model.json"


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes. Raise `OSError` if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_below(folder: Path, *, sources_only: bool = False) -> Iterator[tuple[str, Path]]:
    """(relative path with `/`, path) of each file, in the order of the relative path's bytes.

    Symbolic links to folders are not followed (they may lead in circles). `sources_only` leaves out what tools
    generate: byte code, built objects, hidden files.
    """
    found = []
    for base, names, files in os.walk(folder):
        names[:] = [name for name in names if not (sources_only and _generated(name))]
        for name in files:
            if not (sources_only and _generated(name)):
                path = Path(base, name)
                found.append((path.relative_to(folder).as_posix(), path))
    return iter(sorted(found, key=lambda pair: pair[0].encode(errors="surrogateescape")))


def _generated(name: str) -> bool:
    return name in _LEFTOVERS or name.startswith(".") or name.endswith(_LEFTOVER_SUFFIXES)


def source_digest(folder: Path) -> str | None:
    """Digest over names and contents of a source folder; None if it holds no source file (or does not exist)."""
    pairs = [[name, file_digest(path)] for name, path in files_below(folder, sources_only=True) if path.is_file()]
    return digest(pairs) if pairs else None


def model_digest(path: Path, *, cache: Path | None = None) -> dict[str, Any]:
    """What a model is: `{"digest", "files", "bytes", "missing", "recipe"}`. `path`: a checkpoint folder or one file.

    Always from the files' content, never from a manifest that lies beside them: a file that was changed later is what
    runs. The manifest itself and names that start with a dot do not count; for a model that a recipe made the digest is
    the one that its manifest states. `cache`: JSON file that keeps digests by path, size and time of
    change, since 3.4 GB take 2 s (1.75 GiB/s here, cached). What cannot be read gives `digest` None and the reason.
    `recipe`: name, version, source and licence of the recipe that made it, and the digest it stated then; None for a
    model that no recipe of ours made.
    """
    nothing = {"digest": None, "files": None, "bytes": None, "recipe": recipe_of(path)}
    known = _load(cache)
    try:
        pairs = [(path.name, path)] if path.is_file() else list(files_below(path))
        pairs = [(name, file) for name, file in pairs if not _beside(name)]
        if not pairs:
            return {**nothing, "missing": "there is no file of that model: prepare it first with `harness model`"}
        digests = {name: _cached(file, known) for name, file in pairs}
        size = sum(file.stat().st_size for _, file in pairs)
    except OSError as error:
        return {**nothing, "missing": f"a file of the model cannot be read: {error.strerror}"}
    _save(cache, known)
    whole = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
    return {**nothing, "digest": whole, "files": len(digests), "bytes": size, "missing": None}


def recipe_of(path: Path) -> dict[str, Any] | None:
    """What the manifest beside a model says of how it was made."""
    try:
        value = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        return {name: value.get(name) for name in ("recipe", "version", "source", "licence", "digest")}
    except (OSError, ValueError, AttributeError):
        return None


def _beside(name: str) -> bool:
    return name == _MANIFEST or any(piece.startswith(".") for piece in name.split("/"))


def _cached(file: Path, known: dict[str, str]) -> str:
    """The file's digest, read anew if its size, times or inode changed. ctime too: mtime can be set back."""
    stat = file.stat()
    key = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}|{stat.st_ino}"
    if key not in known:
        known[key] = file_digest(file)
    return known[key]


def _load(cache: Path | None) -> dict[str, str]:
    """The cache's content; a damaged or absent cache is an empty one."""
    if cache is None:
        return {}
    try:
        value = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): v for k, v in value.items() if isinstance(v, str)} if isinstance(value, dict) else {}


def _save(cache: Path | None, known: dict[str, str]) -> None:
    """Write-then-rename. A cache that cannot be written costs time only, so that is no error."""
    if cache is None:
        return
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        draft = cache.with_name(f"{cache.name}.{os.getpid()}.part")
        draft.write_text(json.dumps(known, indent=0, sort_keys=True), encoding="utf-8")
        draft.replace(cache)


def folder_state(folder: Path) -> dict[str, Any]:
    """A cache root before or after a trial: `files`, `bytes`, `newest_s` (mtime, UTC seconds; None without a file)."""
    files, size, newest = 0, 0, None
    for _, path in files_below(folder):
        try:
            stat = path.lstat()
        except OSError:  # gone between listing and reading: not there
            continue
        files, size = files + 1, size + stat.st_size
        newest = stat.st_mtime if newest is None else max(newest, stat.st_mtime)
    return {"files": files, "bytes": size, "newest_s": newest}


def lock_digest(lines: Iterable[str]) -> str:
    """Digest of an environment's `name==version` lines, whatever their order."""
    return digest(sorted(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")))
