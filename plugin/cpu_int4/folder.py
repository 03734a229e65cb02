"""A model's folder appears whole or not at all: made under a hidden name beside its place, then renamed into it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cpu_int4.format import INDEX_FILE, MANIFEST_FILE

_PARTIAL: Final = "partial"  # being written; worthless once its writer is dead
_REPLACED: Final = "replaced"  # the old target of --force, on its way out
#: Weights in any format, and what describes them; all else at the top of a model's folder is copied.
_WEIGHTS: Final = re.compile(r"\.(safetensors|bin|pt|pth|ckpt|gguf|h5|msgpack|onnx|npz)$|\.index\.json$")


class FolderError(Exception):
    """The target cannot be written; the message says which and what to do."""


@contextmanager
def whole_folder(target: Path, *, source: Path, force: bool, say: Callable[[str], None]) -> Iterator[Path]:
    """Yield an empty folder to fill; once the block ends well it stands at `target`, flushed to the disk.

    If the block raises, the folder is removed. If the process is killed, it stays under a hidden name that no loader
    takes for a model; the next run for the same target removes it and says so. Raise `FolderError` if `target` exists
    and `force` is not set, or is not a model's folder.
    """
    target = target.absolute()
    clear_leftovers(target, say)  # first: it may put an old target back
    _refuse(target, source, force=force)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=_hidden(target), suffix=f".{_PARTIAL}", dir=target.parent))
    folder.chmod(0o777 & ~_umask())  # mkdtemp's 0700 is for secrets
    lock = _locked(folder)
    try:
        yield folder
        _flush(folder)
        _move(folder, target, force=force)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def clear_leftovers(target: Path, say: Callable[[str], None]) -> None:
    """Remove what killed runs for the same target left behind; put an old target back that was moved away and not yet
    replaced. Each is named to `say`.
    """
    for path in sorted(target.parent.glob(f"{_hidden(target)}*.{_REPLACED}")):
        if target.exists():
            say(f"removing {path}, the target that an earlier run replaced")
            shutil.rmtree(path, ignore_errors=True)
        else:
            say(f"putting {path} back as {target}: a run was killed while replacing it")
            path.rename(target)
    for path in sorted(target.parent.glob(f"{_hidden(target)}*.{_PARTIAL}")):
        if _abandoned(path):
            say(f"removing {path}, left by a run that was killed")
            shutil.rmtree(path, ignore_errors=True)
        else:
            say(f"{path} belongs to a run that still works on the same target")


def copy_others(source: Path, folder: Path) -> None:
    """Copy the files beside the weights: tokenizer, generation settings, code, licence. Not config.json."""
    for path in sorted(source.iterdir()):
        ours = path.name in {"config.json", MANIFEST_FILE, INDEX_FILE} or path.name.startswith(".")
        if path.is_file() and not ours and not _WEIGHTS.search(path.name):
            shutil.copyfile(path, folder / path.name)


def check_space(target: Path, needed: int) -> None:
    """Raise `FolderError` if the disk has less than `needed` bytes free."""
    place = next(parent for parent in target.absolute().parents if parent.exists())
    if (free := shutil.disk_usage(place).free) < needed:
        raise FolderError(f"{target}: needs {needed / 1e9:.2f} GB, its disk has {free / 1e9:.2f} GB free: make room")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write readable JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _refuse(target: Path, source: Path, *, force: bool) -> None:
    if target.resolve() == source.resolve() or target.resolve() in source.resolve().parents:
        raise FolderError(f"{target}: the source {source} lies there; choose another target")
    if not target.exists() and not target.is_symlink():
        return
    if not force:
        raise FolderError(f"{target}: exists; choose another target or replace it with --force")
    if target.is_symlink() or not target.is_dir():
        raise FolderError(f"{target}: is no folder; --force replaces folders only: remove it yourself")
    if any(target.iterdir()) and not (target / "config.json").is_file():
        raise FolderError(f"{target}: holds no config.json, so it is no model; --force will not delete it")


def _hidden(target: Path) -> str:
    return f".{target.name}.cpu-int4-"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _locked(folder: Path) -> int:
    """A lock on the folder that ends with the process, however that ends: whoever can take it knows we are gone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _abandoned(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _flush(folder: Path) -> None:
    for path in folder.iterdir():
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move(folder: Path, target: Path, *, force: bool) -> None:
    """Rename into place. An old target is first moved aside under a hidden name, from where a later run would put it
    back, and deleted last: at every moment the old or the new one is whole on the disk.
    """
    if not target.exists():
        folder.rename(target)
        return
    _refuse(target, folder, force=force)  # it may have come up meanwhile
    old = folder.with_suffix(f".{_REPLACED}")
    target.rename(old)
    folder.rename(target)
    shutil.rmtree(old, ignore_errors=True)
