"""Fake arms with memory of a known shape: spikes, shared and mapped memory, forks. Standard library only."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from multiprocessing import shared_memory

from harness.testing.speech import MB, PAGE, done, report, touch


def spike(base_mb: str = "50", peak_mb: str = "400", milliseconds: str = "30", seconds: str = "5") -> None:
    """Holds BASE_MB for SECONDS, but touches PEAK_MB more for MILLISECONDS in the middle."""
    held = touch(int(base_mb) * MB)
    time.sleep(float(seconds) / 2)
    peak = touch(int(peak_mb) * MB)
    time.sleep(float(milliseconds) / 1000)
    peak.close()
    time.sleep(float(seconds) / 2)
    report()
    held.close()
    done()


def lastgasp(base_mb: str = "50", peak_mb: str = "400") -> None:
    """Holds BASE_MB, climbs to PEAK_MB in its last 50 ms, exits."""
    held = [touch(int(base_mb) * MB)]
    time.sleep(1)
    report()
    done()
    held.append(touch((int(peak_mb) - int(base_mb)) * MB))
    os._exit(0)


def shm(size_mb: str = "300", seconds: str = "2") -> None:
    """Fills SIZE_MB MB of shared memory; its own heap stays small."""
    block = shared_memory.SharedMemory(create=True, size=int(size_mb) * MB)
    view = block.buf
    assert view is not None  # noqa: S101 - it is open
    try:
        for offset in range(0, block.size, PAGE):
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
            file.write(b"\1" * MB)
        file.flush()
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        checksum = sum(view[offset] for offset in range(0, len(view), PAGE))
        time.sleep(float(seconds))
        print("pages read:", checksum)
        report()
        done()
        view.close()


def fork3(size_mb: str = "300", seconds: str = "2") -> None:
    """Touches SIZE_MB MB, then forks 3 children that only sleep: nothing is copied."""
    held = touch(int(size_mb) * MB)
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
            held = touch(int(float(size_mb) * MB)) if float(size_mb) else None
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
