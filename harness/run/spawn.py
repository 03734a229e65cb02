"""The harness's side of the launcher and the keeper: start one arm, with its log kept."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.run.process_tree import Identity
from harness.units import MIB

_HERE: Final = Path(__file__).parent
#: A helper gets nothing of the caller's environment: an LD_PRELOAD there must not reach the measuring side either.
_HELPER_ENV: Final = {"LC_ALL": "C.UTF-8"}
_ANSWER_S: Final = 30.0
_F_SETPIPE_SZ: Final = 1031
#: What is kept of a log: this much from its start and from its end. vLLM writes 40 to 200 KiB a trial.
LOG_HEAD: Final = 4 * MIB
LOG_TAIL: Final = 4 * MIB


class HarnessFault(Exception):  # noqa: N818 - a fault of the harness or its host, told apart from the arm's errors
    """The harness could not do its part; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class NotStarted:
    """The arm's program could not be started. `step`: what failed (`exec`, `cwd`, `fork`, ...)."""

    step: str
    errno: int
    text: str = ""

    def sentence(self, argv: Sequence[str], cwd: str) -> str:
        """What failed, why, and what to do."""
        why = self.text or f"{os.strerror(self.errno)} ({errno.errorcode.get(self.errno, self.errno)})"
        if self.step == "cwd":
            return f"working folder {cwd}: {why}: make it, or name another"
        if self.step == "exec":
            return f"cannot run {argv[0]!r}: {why}: {_REMEDY.get(self.errno, 'check the command')}"
        return f"cannot start {argv[0]!r}: {self.step}: {why}"


_REMEDY: Final = {
    errno.ENOENT: "check its spelling and PATH, and that the interpreter its first line names exists",
    errno.EACCES: "make it executable",
    errno.ENOEXEC: "it is no program: name its interpreter in front, or give it a `#!` line",
    errno.E2BIG: "its arguments and environment are too long",
}


class Launch:
    """An arm that is set up and waits for `go`."""

    def __init__(
        self,
        *,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        log_fd: int,
        cgroup: Sequence[str] = (),
        rlimits: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        ours, theirs = socket.socketpair()
        self._channel = ours
        self._answers = b""
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-I", str(_HERE / "launcher.py"), str(theirs.fileno())],
                pass_fds=(theirs.fileno(), log_fd),
                env=_HELPER_ENV,
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                start_new_session=True,
            )
        self.helper = self._process.pid
        spec = {
            "argv": [_raw(argument) for argument in argv],
            "env": {_raw(name): _raw(value) for name, value in env.items()},
            "cwd": _raw(cwd),
            "log_fd": log_fd,
            "cgroup": list(cgroup),
            "rlimits": dict(rlimits or {}),
        }
        self._say(json.dumps(spec))

    def prepared(self) -> Identity | NotStarted:
        """The arm's process-to-be: forked, not yet running the arm's program."""
        answer = self._answer()
        if "pid" in answer:
            return Identity(answer["pid"], answer["start_ticks"])
        return _refusal(answer)

    def go(self) -> float | NotStarted:
        """Let it run. Returns the moment before exec, CLOCK_MONOTONIC seconds."""
        self._say("go")
        answer = self._answer()
        return float(answer["began"]) if "began" in answer else _refusal(answer)

    def close(self) -> None:
        """The launcher has left, or is made to: an arm that waits for `go` leaves with it."""
        _let_go(self._channel, self._process)

    def _say(self, line: str) -> None:
        try:
            self._channel.sendall(line.encode() + b"\n")
        except OSError as error:
            raise HarnessFault(f"the launcher left early: {error.strerror}") from error

    def _answer(self) -> dict[str, Any]:
        deadline = time.monotonic() + _ANSWER_S
        while b"\n" not in self._answers:
            left = deadline - time.monotonic()
            ready = select.select([self._channel], [], [], max(left, 0))[0]
            block = self._channel.recv(65536) if ready else b""
            if not block:
                raise HarnessFault("the launcher gave no answer" if ready else f"no answer in {_ANSWER_S:.0f} s")
            self._answers += block
        line, self._answers = self._answers.split(b"\n", 1)
        return dict(json.loads(line))


def _refusal(answer: Mapping[str, Any]) -> NotStarted:
    return NotStarted(step=str(answer["step"]), errno=int(answer["errno"]), text=str(answer.get("text", "")))


def _raw(text: str) -> str:
    return os.fsencode(text).decode("latin-1")


@dataclass(frozen=True, kw_only=True)
class LogEnd:
    """What became of a log. `total`: bytes the arm wrote; `dropped`: of these, not kept. `error`: why it is incomplete
    (disk full, say), None if nothing went wrong.
    """

    total: int
    dropped: int
    error: str | None


class LogKeeper:
    """A keeper process (keeper.py), seen from the harness. `write_fd`: where the arm's output goes."""

    def __init__(
        self,
        path: Path,
        *,
        token: str,
        owner_file: Path,
        cgroup_procs: str | None = None,
        strangers: Iterable[int] = (),
        head: int = LOG_HEAD,
        tail: int = LOG_TAIL,
    ) -> None:
        log_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        _widen(read_fd)
        self._count_fd = os.memfd_create("log bytes")
        ours, theirs = socket.socketpair()
        self._channel = ours
        spec = {
            "pipe_fd": read_fd,
            "log_fd": log_fd,
            "count_fd": self._count_fd,
            "control_fd": theirs.fileno(),
            "head": head,
            "tail": tail,
            "token": token,
            "owner_file": str(owner_file),
            "cgroup_procs": cgroup_procs,
            "strangers": list(strangers),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-I", str(_HERE / "keeper.py"), json.dumps(spec)],
            pass_fds=(read_fd, log_fd, self._count_fd, theirs.fileno()),
            env=_HELPER_ENV,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pid = self._process.pid
        theirs.close()
        os.close(log_fd)
        # The reading end stays open here too: should the keeper die, the arm blocks instead of dying of SIGPIPE, and
        # the trial is ended for the true reason.
        self._read_fd = read_fd

    def arm(self, identity: Identity) -> None:
        """Tell whose session to end should this process die."""
        self._channel.sendall(b"arm %d %d\n" % identity)

    @property
    def died(self) -> bool:
        """The keeper is gone before its time."""
        return self._process.poll() is not None

    @property
    def total(self) -> int:
        """Bytes that the arm has written so far."""
        return int.from_bytes(os.pread(self._count_fd, 8, 0), "little")

    def finish(self) -> LogEnd:
        """Write the tail, close the log. Call when the arm's processes are gone; never waits for end of file."""
        answer = b""
        try:
            self._channel.sendall(b"finish\n")
            while not answer.endswith(b"\n"):
                ready = select.select([self._channel], [], [], _ANSWER_S)[0]
                block = self._channel.recv(4096) if ready else b""
                if not block:
                    break
                answer += block
        except OSError:
            answer = b""
        total = self.total
        self._close()
        if not answer.endswith(b"\n"):
            return LogEnd(total=total, dropped=0, error="the keeper of the log ended early")
        found = json.loads(answer)
        return LogEnd(total=found["bytes"], dropped=found["dropped"], error=found["error"])

    def _close(self) -> None:
        _let_go(self._channel, self._process)
        for fd in (self.write_fd, self._read_fd, self._count_fd):
            os.close(fd)


def _let_go(channel: socket.socket, helper: subprocess.Popen[bytes]) -> None:
    """A helper leaves when its channel closes; one that does not is made to."""
    channel.close()
    try:
        helper.wait(_ANSWER_S)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.wait()


def _widen(fd: int) -> None:
    import fcntl

    try:
        fcntl.fcntl(fd, _F_SETPIPE_SZ, 1 << 20)
    except OSError:  # over the user's pipe quota: 64 KiB do, the keeper reads all the time
        return
