"""Fork, exec and exit of every process as the kernel tells them, and the high-water mark each one had at its exit.

Needs CAP_NET_ADMIN in the first user and network namespace (root on a plain host). Two netlink sources: the process
connector, which tells births and deaths with CLOCK_MONOTONIC times, and taskstats, whose exit record carries
hiwater_rss: the only figure that survives a process which climbs and dies between two samples. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

_NETLINK_CONNECTOR: Final = 11
_NETLINK_GENERIC: Final = 16
_SO_RCVBUFFORCE: Final = 33
#: Room for about 5000 exits between two ticks; the default of 208 KiB holds about 150.
_BUFFER: Final = 8 << 20
_FORK, _EXEC, _EXIT = 1, 2, 0x80000000
_EVENT_AT: Final = 36  # after the netlink header (16) and the connector's (20)


class Fork(NamedTuple):
    """A new process (threads are left out)."""

    t_ns: int
    parent: int
    pid: int


class Exec(NamedTuple):
    """A process became another program."""

    t_ns: int
    pid: int


class Exit(NamedTuple):
    """A process ended (its threads are left out). `status`: as wait gives it."""

    t_ns: int
    pid: int
    status: int


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
            self._connector = _open_connector()
        except (OSError, struct.error, AttributeError) as error:
            self.problem = f"process events: {error}"
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
        return self._fetch(self._connector, parse_connector) + marks

    def _fetch(self, source: socket.socket | None, parse: Callable[[bytes], Event | None]) -> list[Event]:
        found: list[Event] = []
        if source is not None:
            while True:
                try:
                    data = source.recv(65536)
                except BlockingIOError:
                    break
                except OSError:  # ENOBUFS: the kernel dropped some
                    self.lost = True
                    continue
                event = parse(data)
                if event is not None:
                    found.append(event)
        return found

    def close(self) -> None:
        """Stop listening."""
        for source in (self._connector, self._taskstats):
            if source is not None:
                with contextlib.suppress(OSError):
                    source.close()


def parse_connector(data: bytes) -> Event | None:
    """One message of the process connector; None for a thread's or any other kind."""
    if len(data) < _EVENT_AT + 32:
        return None
    what, _cpu, t_ns, a, b, c, d = struct.unpack_from("=IIQ4I", data, _EVENT_AT)
    if what == _FORK and c == d and b != d:  # parent pid, parent tgid, child pid, child tgid
        return Fork(t_ns, b, d)
    if what == _EXEC:
        return Exec(t_ns, b)
    if what == _EXIT and a == b:
        return Exit(t_ns, b, c)
    return None


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


def _open_connector() -> socket.socket:
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _NETLINK_CONNECTOR)
    try:
        _enlarge(link)
        link.bind((0, 1))  # the group of the process connector
        body = struct.pack("=IIIIHHI", 1, 1, 0, 0, 4, 0, 1)  # idx 1, val 1: listen
        link.send(struct.pack("=IHHII", 16 + len(body), 3, 0, 0, os.getpid()) + body)
    except OSError:
        link.close()
        raise
    return link


def _open_taskstats() -> socket.socket:
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC)
    try:
        _enlarge(link)
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


def _enlarge(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)


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
