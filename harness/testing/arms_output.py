"""Fake arms whose output, values or pace are odd. Standard library only."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from harness.testing.speech import MB, done, emit, phase, report


def ok(seconds: str = "1", value: str = "100") -> None:
    """Reports one metric, sleeps SECONDS, exits with 0."""
    report(float(value))
    time.sleep(float(seconds))
    done()


def flood(size_mb: str = "300", line_mb: str = "50") -> None:
    """Writes SIZE_MB MB to standard error: progress bars, bytes that are no UTF-8, one line of LINE_MB MB; a metric."""
    bars = ("\rloading \u2588\u2588\u2588 50 %" * 2000).encode() + b"\xff\xfe" * 5000
    written, size = 0, int(size_mb) * MB
    os.write(2, b"first line of the log\n")
    while written < size // 2:
        written += os.write(2, bars)
    block = b"x" * MB
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
