"""One measurement at a time on a host: two would be each other's disturbance.

The lock is the kernel's `flock` of a file that every user can open, so it is free again the moment its holder dies, by
any death. The file is never removed: whoever waits on it would then wait on a file that nobody else can find. Another
container or virtual machine on the same hardware has its own; the disturbance counters are there for those.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.run.clock import Clock, stamp
from harness.run.files import StoreError, holder_of
from harness.run.stop import StopFlag
from harness.units import format_seconds

#: Folders where files of all users meet, best first. The first that everybody may write to (mode 1777) is taken:
#: chosen by its mode and not by trying, or root and a user would choose different ones.
SHARED: Final = ("/run/lock", "/var/lock", "/tmp")  # noqa: S108 - a meeting point of all users is what is wanted
NAME: Final = "harness-measurement.lock"
#: How often a waiting run looks, seconds. A look is one system call; trials last seconds to minutes.
LOOK_S: Final = 0.2
#: How often it says for whom it waits, seconds.
SAY_S: Final = 30.0


class HostBusyError(Exception):
    """Another run measures on this host. The message says which, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who measures now. `pid`: None where the kernel hides it. `since`: UTC."""

    pid: int | None = None
    run: str | None = None
    since: str | None = None

    @property
    def sentence(self) -> str:
        """`harness run demo (process 4711) measures on this host since 2026-12-01T12:00:00Z`."""
        who = f"another harness run{f' of {self.run}' if self.run else ''}"
        process = f" (process {self.pid})" if self.pid else ""
        return f"{who}{process} measures on this host{f' since {self.since}' if self.since else ''}"


def lock_path() -> Path:
    """Where this host's lock is; `$HARNESS_HOST_LOCK` names another file, for tests of the harness itself."""
    if stated := os.environ.get("HARNESS_HOST_LOCK"):
        return Path(stated)
    for folder in map(Path, SHARED):
        with suppress(OSError):
            mode = folder.stat().st_mode
            if mode & stat.S_IWOTH and mode & stat.S_ISVTX:
                return folder / NAME
    return Path(SHARED[-1]) / NAME


@contextmanager
def host_lock(
    run: str,
    *,
    stop: StopFlag,
    clock: Clock,
    say: Callable[[str], None],
    patience_s: float | None = None,
    path: Path | None = None,
) -> Iterator[bool]:
    """Hold the host for as long as this lasts; wait in turn for another run to end, and say for whom.

    Yields whether it is held: False only if `stop` was requested while waiting. `run`: what others are told is
    measuring. `patience_s`: seconds to wait, None for as long as the holder lives. Raise `HostBusyError` after that.
    """
    path = path or lock_path()
    descriptor = _open(path)
    try:
        held = _wait(descriptor, stop, say, patience_s)
        if held:
            _sign(descriptor, Holder(pid=os.getpid(), run=run, since=stamp(clock.utc())))
        yield held
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """Open the lock file, made for everybody. `O_CREAT` only if it is missing: kernels with `protected_regular` refuse
    it for a file of another user in a folder like /tmp.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with suppress(FileNotFoundError):
            return os.open(path, flags)
        with suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)  # past the umask: the next user's run has to open it
            return descriptor
        return os.open(path, flags)
    except OSError as error:
        raise StoreError.of(error, "open the lock between measurements", path) from error


def _wait(descriptor: int, stop: StopFlag, say: Callable[[str], None], patience_s: float | None) -> bool:
    began = time.monotonic()
    said = -SAY_S
    while not _taken(descriptor):
        waited = time.monotonic() - began
        if patience_s is not None and waited >= patience_s:
            raise HostBusyError(f"{_holder(descriptor).sentence}. Remedy: wait for it to end, or stop it.")
        if waited - said >= SAY_S:
            said = waited
            so_far = f" ({format_seconds(waited)} so far)" if waited >= SAY_S else ""
            say(f"{_holder(descriptor).sentence}; waiting for it to end{so_far}")
        if stop.wait(LOOK_S):
            return False
    return True


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(descriptor: int, holder: Holder) -> None:
    """Write down who holds it. Only for messages: a lock without it (a full disk, say) holds as well."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"run": holder.run, "pid": holder.pid, "since": holder.since}).encode(), 0)


def _holder(descriptor: int) -> Holder:
    """Who holds it: the pid from the kernel, the rest as the holder wrote it if it is the same process."""
    pid = holder_of(descriptor)
    with suppress(OSError, ValueError, AttributeError):
        signed = json.loads(os.pread(descriptor, 4096, 0))
        if pid is None or signed.get("pid") == pid:
            return Holder(pid=signed.get("pid"), run=signed.get("run"), since=signed.get("since"))
    return Holder(pid=pid)
