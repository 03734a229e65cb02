"""The sampler's view of a trial's cgroup. Standard library only: the sampler starts with little else."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any


class Gauge:
    """The sampler's view of a trial's cgroup: files kept open."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._v2 = config["version"] == 2
        self._usage = self._open(config["usage"], os.O_RDONLY)
        self._stat = self._open(config["stat"], os.O_RDONLY)
        # v2: a mark is begun anew for this very descriptor (Linux 6.12); v1: for all.
        self._mark = self._open(config["mark"], os.O_RDWR)
        if self._mark < 0:
            self._mark = self._open(config["mark"], os.O_RDONLY)
        self.resets = self._reset()

    @staticmethod
    def _open(path: str, flags: int) -> int:
        try:
            return os.open(path, flags | os.O_CLOEXEC)
        except OSError:
            return -1

    def _reset(self) -> bool:
        try:
            os.pwrite(self._mark, b"0", 0)
        except OSError:
            return False
        return True

    def line(self, *, reset: bool) -> str:
        """One `C` line of the samples file."""
        t = time.monotonic_ns()
        mark = self._read(self._mark)
        done = reset and self.resets and self._reset()
        usage = self._read(self._usage)
        anon, file, shmem, huge = self._classes()
        return f"C {t},{usage},{mark},{anon},{file},{shmem},{huge},{int(done)}"

    def _read(self, fd: int) -> int:
        try:
            return int(os.pread(fd, 64, 0))
        except (OSError, ValueError):
            return -1

    def _classes(self) -> tuple[int, int, int, int]:
        try:
            words = os.pread(self._stat, 16384, 0).split()
            table = dict(zip(words[::2], words[1::2], strict=False))
        except OSError:
            return -1, -1, -1, -1
        # v1's total_ lines hold what lies below too; its `cache` holds shared memory, as v2's `file` does.
        v1 = (b"total_rss", b"total_cache", b"total_shmem", b"total_rss_huge")
        names = (b"anon", b"file", b"shmem", b"anon_thp") if self._v2 else v1
        anon, file, shmem, huge = (int(table.get(name, b"-1")) for name in names)
        return anon, file, shmem, huge
