"""How far the kernel's own memory counters may be from the truth, by kernel version. Pure.

Before 6.2 each thread kept up to 64 pages to itself. Since 6.2 each CPU keeps up to a batch of max(32, 2 x CPUs) pages
per counter. From 6.17 (6.15 and 6.16 in part) /proc/PID/status and statm add those up and are exact; the high-water
mark is still taken from the inexact counters, of which it adds three (anonymous, file, shared).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_PER_THREAD: Final = 64
_PER_CPU_SINCE: Final = (6, 2)
_EXACT_SINCE: Final = (6, 17)
_COUNTERS: Final = 3


@dataclass(frozen=True)
class CounterError:
    """Bytes for one process. `reading`: of one counter as read; `mark`: of a high-water mark."""

    reading: int
    mark: int


def counter_error(kernel: tuple[int, int], cpus: int, page: int, threads: int = 1) -> CounterError:
    """The error of one process's figures. An unknown kernel version (0, 0) counts as the worst of the three."""
    batch = max(32, 2 * cpus) * cpus * page
    by_thread = _PER_THREAD * max(1, threads) * page
    if kernel == (0, 0):
        worst = max(batch, by_thread)
        return CounterError(worst, _COUNTERS * worst)
    if kernel < _PER_CPU_SINCE:
        return CounterError(by_thread, _COUNTERS * by_thread)
    return CounterError(0 if kernel >= _EXACT_SINCE else batch, _COUNTERS * batch)
