"""Writing so that a crash, a full disk or a second writer costs at most what was being written at that moment.

Whole files are written under a temporary name, flushed and renamed; lines are appended, flushed and, if that fails,
taken back. Whatever goes wrong becomes a `StoreError` that names the path, the cause and what to do.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

_REMEDY: Final = {
    errno.ENOSPC: "free space on that file system or choose another with --results",
    errno.EDQUOT: "the disk quota is used up: free space or choose another folder with --results",
    errno.EFBIG: "a file size limit (`ulimit -f`) or the file system's own stopped it: raise it, or cap the arms' logs",
    errno.EROFS: "the file system is read-only: mount it writable or choose another folder with --results",
    errno.EACCES: "this user may not write there: change its owner or mode, or choose another folder with --results",
    errno.EPERM: "this user may not write there: change its owner or mode, or choose another folder with --results",
    errno.EIO: "the device reports an error: see the kernel's log (`dmesg`) before trusting this disk again",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
    errno.ENAMETOOLONG: "shorten the experiment's file name or choose a --results folder with a shorter path",
    errno.ENOLCK: "the file system has no locks: choose a local folder with --results",
    errno.ENOTDIR: "part of that path is a file: choose another folder with --results",
}
#: Errors that say something about the place records go to, so that going on with the next trial cannot help.
STORAGE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})


class StoreError(Exception):
    """Something could not be stored or read back. The message names the path, the cause and the remedy.

    `path`: what could not be written or read. `number`: its errno, None where no system call failed.
    """

    def __init__(self, path: Path, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.number = number

    @classmethod
    def of(cls, error: OSError, doing: str, path: Path) -> Self:
        """`cannot write PATH: No space left on device (ENOSPC). Remedy: ...`."""
        name = errno.errorcode.get(error.errno or 0, "no errno")
        remedy = _REMEDY.get(error.errno or 0, "see that the folder exists and can be written to")
        return cls(path, f"cannot {doing} {path}: {error.strerror or error} ({name}). Remedy: {remedy}.", error.errno)


class BusyError(StoreError):
    """Another process holds the lock of this file."""


def sync_folder(folder: Path) -> None:
    """Flush a folder's names: without it a new file can be gone after a power cut though its content was flushed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """`os.write` until nothing is left: a disk that is nearly full takes part of the data and reports it as success."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_whole(path: Path, data: bytes) -> None:
    """Make a new file that is there completely or not at all. Raise `StoreError`, also if the name is taken."""
    if path.exists():
        raise StoreError(path, f"{path} exists and records are never overwritten. Remedy: start a new run.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StoreError.of(error, "write", path) from error


def read_bytes(path: Path) -> bytes:
    """The file's content; empty if there is none. Raise `StoreError` if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError.of(error, "read", path) from error


class LineFile:
    """A file that only grows, by whole lines, with one writer at a time.

    The lock belongs to the open file, so the kernel lets it go when the writer dies, by any death. Opening it mends a
    torn last line: a whole line that lacks only its newline gets it, anything else is moved to `<stem>.torn-<n>`.
    """

    def __init__(self, path: Path, whole: Callable[[bytes], bool]) -> None:
        self.path = path
        self.mended: str | None = None  #: what was done to a torn last line, for people; None if there was none
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            raise StoreError.of(error, "open", path) from error
        try:
            self._lock()
            self._mend(whole)
            sync_folder(path.parent)
        except OSError as error:
            self.close()
            raise StoreError.of(error, "open", path) from error
        except BaseException:
            self.close()
            raise

    def append(self, line: bytes) -> None:
        """Append one line, newline included, and flush it to the disk. Raise `StoreError`; then nothing was added."""
        before = os.fstat(self._descriptor).st_size
        try:
            write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError as error:
            with suppress(OSError):  # giving bytes back works on a full disk; if not, the line is torn and seen as that
                os.ftruncate(self._descriptor, before)
            raise StoreError.of(error, "append to", self.path) from error

    def close(self) -> None:
        """Give the file and its lock back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = holder_of(self._descriptor)
            who = f"process {holder}" if holder else "another process"
            message = f"{self.path} is being written by {who}. Remedy: wait for that run to end, or stop it first."
            raise BusyError(self.path, message, error.errno) from error

    def _mend(self, whole: Callable[[bytes], bool]) -> None:
        content = read_bytes(self.path)
        kept, torn = split_torn(content, whole)
        if torn:
            aside = next(name for n in range(1, 10_000) if not (name := self._aside(n)).exists())
            write_whole(aside, torn)
            os.ftruncate(self._descriptor, len(kept))
            self.mended = f"{len(torn)} bytes of a torn last line of {self.path.name} were moved to {aside.name}"
        elif kept and not kept.endswith(b"\n"):
            write_all(self._descriptor, b"\n")
            self.mended = f"the last line of {self.path.name} was whole but for its newline, which was added"
        os.fsync(self._descriptor)

    def _aside(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.stem}.torn-{number}")


def split_torn(content: bytes, whole: Callable[[bytes], bool]) -> tuple[bytes, bytes]:
    """`(kept, torn)`: the torn part is what follows the last newline, unless that is a whole line already.

    A line that ends in a newline and still cannot be read is torn too if it is the last one: after a power cut a file
    can have its new length and zeros where the data should be.
    """
    end = content.rfind(b"\n") + 1
    last = content[end:]
    if last:
        return (content, b"") if whole(last) else (content[:end], last)
    start = content.rfind(b"\n", 0, max(end - 1, 0)) + 1
    line = content[start:end]
    if line.strip() and not whole(line) and b"\0" in line:
        return content[:start], line
    return content, b""


def holder_of(descriptor: int) -> int | None:
    """Pid of the process that holds the lock of an open file, from /proc/locks; None where the kernel hides it."""
    status = os.fstat(descriptor)
    # Device numbers of some file systems (btrfs, overlay) differ between stat and /proc/locks, so the inode decides.
    found: set[int] = set()
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and int(fields[5].rsplit(":", 1)[1]) == status.st_ino:
                found.add(int(fields[4]))
    return found.pop() if len(found) == 1 and found != {0} else None
