"""Fork, exec and exit of every process as the kernel tells them, and the high-water mark each one had at its exit.

Needs CAP_NET_ADMIN in the first user and network namespace (root on a plain host). Two netlink sources: the process
connector, which tells births and deaths with CLOCK_MONOTONIC times, and taskstats, whose exit record carries
hiwater_rss: the only figure that survives a process which climbs and dies between two samples. Standard library only.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from harness.run import process_connector
from harness.run.process_connector import Exec, Exit, Fork, enlarge

__all__ = ["Event", "Exec", "Exit", "ExitMark", "Fork", "KernelEvents"]

_NETLINK_GENERIC: Final = 16


class ExitMark(NamedTuple):
    """High-water mark of resident memory, KiB, when a thread of process `pid` ended."""

    pid: int
    hwm: int


Event = Fork | Exec | Exit | ExitMark


class KernelEvents:
    """Both sources. `problem`: why there are none; `lost`: events were dropped since they were opened."""

    def __init__(self) -> None:
        self.problem = ""
        self.marks_problem = ""
        self.lost = False
        self._connector: socket.socket | None = None
        self._taskstats: socket.socket | None = None
        try:
            self._connector = process_connector.subscribe()
        except process_connector.RefusedError as refused:
            self.problem = str(refused)
        try:
            self._taskstats = _open_taskstats()
        except (OSError, struct.error, AttributeError) as error:
            self.marks_problem = f"taskstats: {error}"
        self._waiting = select.poll()
        for source in (self._connector, self._taskstats):
            if source is not None:
                self._waiting.register(source.fileno(), select.POLLIN)

    def drain(self) -> list[Event]:
        """Everything that happened since the last call: births and deaths first, then marks.

        Marks are fetched first: a process that is born and dies while we look is then known when its mark comes.
        """
        # One poll for both: at most ticks nothing happened, and two refused calls cost 45 us where this costs 8.
        if not self._waiting.poll(0):
            return []
        marks = self._fetch(self._taskstats, parse_taskstats)
        return self._fetch(self._connector, process_connector.parse) + marks

    def _fetch(self, source: socket.socket | None, parse: Callable[[bytes], Event | None]) -> list[Event]:
        if source is None:
            return []
        messages, lost = process_connector.waiting(source)
        self.lost = self.lost or lost
        return [event for event in map(parse, messages) if event is not None]

    def close(self) -> None:
        """Stop listening."""
        if self._connector is not None:
            process_connector.unsubscribe(self._connector)
        if self._taskstats is not None:
            self._taskstats.close()


#: Offsets in struct taskstats, fixed since version 8: ac_pid, hiwater_rss; ac_tgid came with version 12 (Linux 5.18).
_VERSION_WITH_TGID, _AC_PID, _HIWATER, _AC_TGID = 12, 128, 200, 368


def parse_taskstats(data: bytes) -> ExitMark | None:
    """One exit record. Before Linux 5.18 it does not name the process, so only the main thread's is used."""
    at = 20
    if len(data) < at + 16 or struct.unpack_from("=HH", data, at)[1] & 0x3FFF != 4:  # 4: one task's, with its pid
        return None
    at += 4
    end = min(len(data), at + struct.unpack_from("=H", data, at - 4)[0] - 4)
    while at + 4 <= end:
        size, kind = struct.unpack_from("=HH", data, at)
        if kind & 0x3FFF == 3:
            return _mark(data[at + 4 : at + size])
        if size < 4:
            break
        at += (size + 3) & ~3
    return None


def _mark(stats: bytes) -> ExitMark | None:
    if len(stats) < _HIWATER + 8:
        return None
    version = struct.unpack_from("=H", stats)[0]
    pid = struct.unpack_from("=I", stats, _AC_PID)[0]
    if version >= _VERSION_WITH_TGID and len(stats) >= _AC_TGID + 4:
        pid = struct.unpack_from("=I", stats, _AC_TGID)[0] or pid
    hwm = struct.unpack_from("=Q", stats, _HIWATER)[0]
    return ExitMark(pid, hwm) if hwm else None


def _open_taskstats() -> socket.socket:
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC)
    try:
        enlarge(link)
        link.settimeout(1.0)
        link.bind((0, 0))
        family = _family(link, b"TASKSTATS\0")
        cpus = f"0-{(os.cpu_count() or 1) - 1}\0".encode()
        link.send(_generic(family, struct.pack("=BBH", 1, 1, 0) + _attribute(3, cpus)))
        _acknowledged(link.recv(4096))
        link.setblocking(False)
    except OSError:
        link.close()
        raise
    return link


def _attribute(kind: int, data: bytes) -> bytes:
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + b"\0" * (-size % 4)


def _generic(family: int, payload: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), family, 5, 1, 0) + payload  # 5: request, acknowledge


def _acknowledged(data: bytes) -> None:
    kind = struct.unpack_from("=H", data, 4)[0]
    error = struct.unpack_from("=i", data, 16)[0] if kind == 2 else 0
    if error:
        raise OSError(-error, os.strerror(-error))


def _family(link: socket.socket, name: bytes) -> int:
    """The number the kernel gave a generic netlink family."""
    link.send(_generic(16, struct.pack("=BBH", 3, 1, 0) + _attribute(2, name)))
    data = link.recv(65536)
    _acknowledged(data)
    at = 20
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        if kind == 1:
            link.recv(4096)  # the acknowledgement
            return int(struct.unpack_from("=H", data, at + 4)[0])
        at += max(4, (size + 3) & ~3)
    raise OSError(0, "the kernel offers no taskstats")
