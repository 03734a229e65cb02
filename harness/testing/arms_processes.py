"""Fake arms whose processes leave, cling or die. Standard library only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Final, NoReturn

from harness.testing.speech import MB, done, report, touch

#: A child that lives on when its parent has left.
_SLEEPER: Final = "import time; time.sleep(300)"
#: The line that vLLM's client logs when its engine process is gone, be it after a good ending.
CORE_DIED: Final = (
    "ERROR 12-01 00:00:00 [core_client.py:598] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."
)


def leave(say_done: str = "done") -> None:
    """Starts a sleeper that inherits its output, then exits with 0 at once."""
    subprocess.Popen([sys.executable, "-c", _SLEEPER])
    report()
    if say_done == "done":
        done()


def setsid(size_mb: str = "200") -> None:
    """Starts a child in a new session that touches SIZE_MB MB and sleeps 300 s; exits with 0."""
    if os.fork() == 0:
        os.setsid()
        held = touch(int(size_mb) * MB)
        time.sleep(300)
        held.close()
        os._exit(0)
    time.sleep(0.2)
    report()
    done()


def daemon(title: str = "VLLM::EngineCore") -> None:
    """Forks twice into a new session, drops its environment, renames itself to TITLE and sleeps; exits with 0."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            program = "import sys, time; open('/proc/self/comm', 'w').write(sys.argv[1][:15]); time.sleep(300)"
            os.execve(sys.executable, [sys.executable, "-S", "-c", program, title], {})  # noqa: S606 - no shell wanted
        os._exit(0)
    time.sleep(0.3)
    report()
    done()


def stubborn(seconds: str = "300") -> None:
    """Ignores SIGTERM and SIGINT; only SIGKILL ends it before SECONDS are over."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report()
    time.sleep(float(seconds))


def stopped() -> None:
    """Starts a sleeper, stops it and then itself with SIGSTOP."""
    child = subprocess.Popen([sys.executable, "-c", _SLEEPER])
    time.sleep(0.1)
    os.kill(child.pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)


def chain(generations: str = "100000") -> None:
    """Forks a child and exits, and so does each child: nobody stays long enough to be caught by name or parent."""
    for _ in range(int(generations)):
        if os.fork():
            os._exit(0)
        time.sleep(0.002)


def die(how: str = "SIGKILL", seconds: str = "0") -> None:
    """Reports a good-looking metric first, then dies of the signal HOW or exits with the code HOW."""
    report()
    time.sleep(float(seconds))
    _die(how)


def _die(how: str) -> NoReturn:
    if how.isdigit():
        os._exit(int(how))
    signal.signal(signal.Signals[how], signal.SIG_DFL) if how not in ("SIGKILL", "SIGSTOP") else None
    os.kill(os.getpid(), signal.Signals[how])
    time.sleep(60)
    os._exit(99)


def engine_dies(how: str = "SIGILL", parent: str = "exit", code: str = "1") -> None:
    """A grandchild dies of HOW; the front-end reaps its child and then exits with CODE, or hangs (PARENT=hang)."""
    report()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(0.2)
            _die(how)
        os.waitpid(grandchild, 0)
        os._exit(1)
    os.waitpid(child, 0)
    if parent == "hang":
        time.sleep(300)
    os._exit(int(code))


def good_end_with_error(then: str = "exit") -> None:
    """Reports its metric and `done`, logs that the engine core died, then exits with 0 or hangs (THEN=hang)."""
    report()
    done()
    print(CORE_DIED, file=sys.stderr, flush=True)
    if then == "hang":
        time.sleep(300)


def error_without_metric() -> None:
    """Logs that the engine core died and exits with 0: no metric, no `done`."""
    print(CORE_DIED, file=sys.stderr, flush=True)
