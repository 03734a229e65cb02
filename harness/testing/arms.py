"""Fake arms: small programs that misbehave in one stated way. `python -m harness.testing.arms NAME [ARGS]`.

Each speaks the event protocol where its story has an engine that does. Standard library only. `--list` prints the
names with what each does. An arm that reports a metric calls it `score` unless told otherwise.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Final, NoReturn

_MB: Final = 1_000_000
_PAGE: Final = 4096
#: A child that lives on when its parent has left.
_SLEEPER: Final = "import time; time.sleep(300)"
#: The line that vLLM's client logs when its engine process is gone, be it after a good ending.
CORE_DIED: Final = (
    "ERROR 12-01 00:00:00 [core_client.py:598] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."
)


def emit(event: str, **fields: object) -> None:
    """Append one event to the stream, if there is one."""
    path = os.environ.get("HARNESS_EVENTS")
    if path:
        line = json.dumps({"event": event, **fields}) + "\n"
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line)


def phase(name: str, state: str) -> None:
    """Report the begin or the end of a phase."""
    emit("phase", name=name, state=state, t=time.monotonic())


def report(value: object = 100.0, name: str = "score") -> None:
    """Report a good-looking metric, as an event and as a line of output."""
    emit("metric", name=name, value=value)
    print(f"{name}: {value}", flush=True)


def done() -> None:
    """Report that all was said."""
    emit("done", t=time.monotonic())


def touch(size: int) -> mmap.mmap:
    """Private anonymous memory of `size` bytes, every page written."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, size, _PAGE):
        memory[offset] = 1
    return memory


def ok(seconds: str = "1", value: str = "100") -> None:
    """Reports one metric, sleeps SECONDS, exits with 0."""
    report(float(value))
    time.sleep(float(seconds))
    done()


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
        held = touch(int(size_mb) * _MB)
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


def flood(size_mb: str = "300", line_mb: str = "50") -> None:
    """Writes SIZE_MB MB to standard error: progress bars, bytes that are no UTF-8, one line of LINE_MB MB; a metric."""
    bars = ("\rloading \u2588\u2588\u2588 50 %" * 2000).encode() + b"\xff\xfe" * 5000
    written, size = 0, int(size_mb) * _MB
    os.write(2, b"first line of the log\n")
    while written < size // 2:
        written += os.write(2, bars)
    block = b"x" * _MB
    for _ in range(int(line_mb)):
        written += _write_all(block)
    report()
    while written < size:
        written += os.write(2, bars)
    os.write(2, b"\nlast line of the log\n")
    done()


def _write_all(block: bytes) -> int:
    rest = block
    while rest:
        rest = rest[os.write(2, rest) :]
    return len(block)


def chatty(size: str = "1000000") -> None:
    """Says READY, then writes SIZE bytes of warnings, then reports its metric."""
    print("READY", flush=True)
    _write_all(b"warning: this is fine\n" * (int(size) // 22))
    report()
    done()


def spike(base_mb: str = "50", peak_mb: str = "400", milliseconds: str = "30", seconds: str = "5") -> None:
    """Holds BASE_MB for SECONDS, but touches PEAK_MB more for MILLISECONDS in the middle."""
    held = touch(int(base_mb) * _MB)
    time.sleep(float(seconds) / 2)
    peak = touch(int(peak_mb) * _MB)
    time.sleep(float(milliseconds) / 1000)
    peak.close()
    time.sleep(float(seconds) / 2)
    report()
    held.close()
    done()


def lastgasp(base_mb: str = "50", peak_mb: str = "400") -> None:
    """Holds BASE_MB, climbs to PEAK_MB in its last 50 ms, exits."""
    held = [touch(int(base_mb) * _MB)]
    time.sleep(1)
    report()
    done()
    held.append(touch((int(peak_mb) - int(base_mb)) * _MB))
    os._exit(0)


def shm(size_mb: str = "300", seconds: str = "2") -> None:
    """Fills SIZE_MB MB of shared memory; its own heap stays small."""
    block = shared_memory.SharedMemory(create=True, size=int(size_mb) * _MB)
    view = block.buf
    assert view is not None  # noqa: S101 - it is open
    try:
        for offset in range(0, block.size, _PAGE):
            view[offset] = 1
        time.sleep(float(seconds))
        report()
        done()
    finally:
        view.release()
        block.close()
        block.unlink()


def mapped(size_mb: str = "300", seconds: str = "2") -> None:
    """Maps a file of SIZE_MB MB read-only and reads all of it; its own heap stays small."""
    with tempfile.TemporaryFile() as file:
        for _ in range(int(size_mb)):
            file.write(b"\1" * _MB)
        file.flush()
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        checksum = sum(view[offset] for offset in range(0, len(view), _PAGE))
        time.sleep(float(seconds))
        print("pages read:", checksum)
        report()
        done()
        view.close()


def fork3(size_mb: str = "300", seconds: str = "2") -> None:
    """Touches SIZE_MB MB, then forks 3 children that only sleep: nothing is copied."""
    held = touch(int(size_mb) * _MB)
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            time.sleep(float(seconds))
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    report()
    held.close()
    done()


def churn(seconds: str = "10", rate: str = "200", size_mb: str = "20") -> None:
    """Starts RATE children a second for SECONDS, each living 5 to 20 ms and touching SIZE_MB MB."""
    until, living, number = time.monotonic() + float(seconds), set(), 0
    while time.monotonic() < until:
        number += 1
        pid = os.fork()
        if pid == 0:
            held = touch(int(float(size_mb) * _MB)) if float(size_mb) else None
            time.sleep(0.005 + 0.015 * (number % 4) / 3)
            os._exit(0 if held is None else held[0] - 1)
        living.add(pid)
        time.sleep(1 / float(rate))
        while living and (ended := os.waitpid(-1, os.WNOHANG)[0]):
            living.discard(ended)
    for pid in living:
        os.waitpid(pid, 0)
    report()
    done()


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


def value(text: str = "nan", name: str = "score") -> None:
    """Reports the metric NAME literally as TEXT (nan, inf, -1, 0, 1e309, "", missing, text); then `done`."""
    literal = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)
    path = os.environ.get("HARNESS_EVENTS")
    if path and text != "missing":
        try:
            json.loads(literal)
        except ValueError:
            literal = json.dumps(text)
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f'{{"event": "metric", "name": "{name}", "value": {literal}}}\n')
    print(f"{name}: {text}")
    done()


def position(state_file: str, base: str = "100", step: str = "0.02", cycle: str = "3") -> None:
    """Its value depends only on how many runs STATE_FILE counts: BASE * (1 + STEP * (runs modulo CYCLE))."""
    path = Path(state_file)
    runs = int(path.read_text(encoding="ascii")) if path.exists() else 0
    path.write_text(str(runs + 1), encoding="ascii")
    report(float(base) * (1 + float(step) * (runs % int(cycle))))
    done()


def raises(phase_name: str = "load", exception: str = "RuntimeError", message: str = "no such weight") -> None:
    """Begins the phase, reports an error event as a driver does, prints a traceback, exits with 1."""
    if phase_name != "none":
        phase(phase_name, "begin")
    kinds: dict[str, type[Exception]] = {
        "ImportError": ImportError,
        "ModuleNotFoundError": ModuleNotFoundError,
        "ValueError": ValueError,
        "RuntimeError": RuntimeError,
    }
    kind = kinds.get(exception) or type(exception, (Exception,), {})
    frame = "engine/config/model.py:12 in parse" if exception == "ValidationError" else f"{__file__}:1 in load"
    said = None if phase_name == "none" else phase_name
    emit("error", t=time.monotonic(), phase=said, exception=exception, message=message, frame=frame)
    raise kind(message)


def slow(phase_name: str = "decode", seconds: str = "300") -> None:
    """Begins the phase and stays busy in it for SECONDS."""
    phase(phase_name, "begin")
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        sum(range(10000))
        time.sleep(0.01)
    phase(phase_name, "end")
    report()
    done()


def silent(seconds: str = "300") -> None:
    """Begins `decode` and does nothing at all for SECONDS."""
    phase("decode", "begin")
    time.sleep(float(seconds))


def show(path: str) -> None:
    """Writes its environment, arguments' folder and open descriptors to PATH as JSON."""
    seen = {
        "env": dict(os.environ),
        "cwd": str(Path.cwd()),
        "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),  # noqa: PTH208 - names are all that is needed
        "ignored": [s.name for s in (signal.SIGINT, signal.SIGPIPE) if signal.getsignal(s) == signal.SIG_IGN],
        "session": os.getsid(0) == os.getpid(),
    }
    Path(path).write_text(json.dumps(seen), encoding="utf-8")
    report()
    done()


#: Every fake arm by its name on the command line.
ARMS: Final[dict[str, Callable[..., None]]] = {
    arm.__name__.replace("_", "-"): arm
    for arm in (
        ok,
        leave,
        setsid,
        daemon,
        stubborn,
        stopped,
        flood,
        chatty,
        spike,
        lastgasp,
        shm,
        mapped,
        fork3,
        churn,
        chain,
        die,
        engine_dies,
        good_end_with_error,
        error_without_metric,
        value,
        position,
        raises,
        slow,
        silent,
        show,
    )
}


def main(argv: list[str]) -> int:
    """Run one fake arm."""
    if argv == ["--list"]:
        for name, arm in ARMS.items():
            print(f"{name:22} {arm.__doc__}")
        return 0
    if not argv or argv[0] not in ARMS:
        print(f"usage: python -m harness.testing.arms NAME [ARGS]; NAME is one of {', '.join(ARMS)}", file=sys.stderr)
        return 2
    ARMS[argv[0]](*argv[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
