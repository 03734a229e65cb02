"""Starts an arm from a tiny process, and says why if it cannot. Run as `python -S -E -I launcher.py FD`.

Why not straight from the harness: a process's `ru_maxrss` starts at the high-water mark of the memory it was forked
from, so an arm spawned by a 300 MB harness could never report less. This program holds about 8 MB, forks the arm, and
leaves; the arm comes back to the harness, which is child subreaper. `FD` is a socket with one JSON line a message: the
specification comes in; the pid of the arm-to-be goes out, set up but not yet running, so that the meter can be there
first; `go` comes in; out goes the moment before exec, or the step and errno that stopped it. An exit code of 127
therefore always is the arm's own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import sys
import time
from typing import Any, NoReturn


def main(fd: int) -> int:
    """Read the specification, start the arm, report. Errors are reported, never raised."""
    os.set_inheritable(fd, False)  # it came here by inheritance and must not go on to the arm
    with socket.socket(fileno=fd) as channel, channel.makefile("rw", encoding="utf-8", newline="\n") as lines:

        def say(answer: dict[str, Any]) -> None:
            lines.write(json.dumps(answer) + "\n")
            lines.flush()

        spec = json.loads(lines.readline())
        told, tell = os.pipe()
        held, release = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            say({"step": "fork", "errno": error.errno})
            return 0
        if pid == 0:
            os.close(release)
            become(spec, held, tell)
        os.close(tell)
        os.close(held)
        say({"pid": pid, "start_ticks": start_ticks(pid)})
        going = lines.readline().strip() == "go"
        began = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it failed before it came to wait; `told` says how
            os.write(release, b"g" if going else b"")
        os.close(release)
        problem = read_all(told)
        if problem or not going:
            os.waitpid(pid, 0)
        say(json.loads(problem) if problem else {"began": began})
    return 0


def read_all(fd: int) -> bytes:
    """Everything until the other end closes; exec closes it."""
    content = b""
    while block := os.read(fd, 4096):
        content += block
    return content


def become(spec: dict[str, Any], held: int, tell: int) -> NoReturn:
    """In the child: set up everything the arm inherits, then become the arm."""
    step = "setup"
    try:
        os.setsid()
        step = "cgroup"
        for path in spec["cgroup"]:
            with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib would double this program's start
                file.write("0")
        step = "stdio"
        redirect(spec["log_fd"])
        step = "limits"
        for name, (soft, hard) in spec["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (soft, hard))
        step = "cwd"
        os.chdir(raw(spec["cwd"]))
        step = "exec"
        if not os.read(held, 1):  # the harness died or gave up
            os._exit(127)
        default_signals()
        argv = [raw(argument) for argument in spec["argv"]]
        os.execvpe(argv[0], argv, {raw(name): raw(value) for name, value in spec["env"].items()})  # noqa: S606 - no shell wanted
    except OSError as error:
        os.write(tell, json.dumps({"step": step, "errno": error.errno or errno.EIO}).encode())
    except (ValueError, TypeError) as error:  # a NUL byte in an argument, a limit above the hard one
        os.write(tell, json.dumps({"step": step, "errno": errno.EINVAL, "text": str(error)}).encode())
    os._exit(127)


def raw(text: str) -> bytes:
    """Arguments travel as one character a byte, so that no locale, here or in the harness, can change them."""
    return text.encode("latin-1")


def redirect(log_fd: int) -> None:
    """Standard input reads nothing; output and errors go to the log. Nothing else stays open over exec (PEP 446)."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    if log_fd > 2:
        os.close(log_fd)


def default_signals() -> None:
    """A harness started under nohup or in the background ignores signals; an arm must not inherit that."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):  # reserved by the C library
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def start_ticks(pid: int) -> int:
    """Start time of a child, in clock ticks since boot: with the pid it names the process for good."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
        content = file.read()
    return int(content[content.rfind(b")") + 2 :].split()[19])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
