"""The kernel's own word on every fork and exit (netlink process connector); needs root in the first pid namespace.

It is the one source that tells how a process ended that its own parent reaped: an engine's SIGILL behind a parent that
exits with 1. Where it is refused, `open_events` says why and the other sources stand.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from typing import Final, NamedTuple

_NETLINK_CONNECTOR: Final = 11
_SO_RCVBUFFORCE: Final = 33
_CN_IDX_PROC: Final = 1
_LISTEN, _IGNORE = 1, 2
_HEADER: Final = 16 + 20  # nlmsghdr, cn_msg
_NONE, _FORK, _EXEC, _EXIT = 0, 0x1, 0x2, 0x80000000
#: 8 MiB hold about 10,000 events; 200 children a second make 600.
_BUFFER: Final = 8 << 20


class Fork(NamedTuple):
    """A process was born. `t`: CLOCK_MONOTONIC seconds."""

    t: float
    parent: int
    child: int


class Exec(NamedTuple):
    """A process runs another program from here on."""

    t: float
    pid: int


class Exit(NamedTuple):
    """A process ended. `status`: wait status, as waitpid gives it."""

    t: float
    pid: int
    status: int


class Unavailable(NamedTuple):
    """The kernel does not tell. `reason`: one clause."""

    reason: str


class ProcessEvents:
    """An open subscription. `lost`: the kernel dropped events because they were not read in time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.lost = False

    def fileno(self) -> int:
        """For poll: readable when events wait."""
        return self._connection.fileno()

    def read(self) -> list[Fork | Exec | Exit]:
        """All events that wait, in the kernel's order; threads are left out."""
        events: list[Fork | Exec | Exit] = []
        while True:
            try:
                message = self._connection.recv(4096)
            except BlockingIOError:
                return events
            except OSError:  # ENOBUFS: the queue ran over
                self.lost = True
                continue
            event = _parse(message)
            if event is not None:
                events.append(event)

    def close(self) -> None:
        """End the subscription; kernels before 6.6 count listeners and must be told."""
        try:
            _ask(self._connection, _IGNORE)
        except OSError:
            self.lost = True
        self._connection.close()


def open_events() -> ProcessEvents | Unavailable:
    """Subscribe, and wait for the kernel's acknowledgement: in a pid namespace the request is silently ignored."""
    try:
        connection = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_CONNECTOR)
    except OSError as error:
        return Unavailable(f"no netlink connector: {error.strerror}")
    try:
        for option in (socket.SO_RCVBUF, _SO_RCVBUFFORCE):
            _widen(connection, option)
        connection.bind((0, _CN_IDX_PROC))
        _ask(connection, _LISTEN)
        answered = _acknowledged(connection)
    except OSError as error:
        connection.close()
        return Unavailable(f"process events refused: {error.strerror} (root is needed)")
    if not answered:
        connection.close()
        return Unavailable("process events not acknowledged: not in the first pid namespace, or not privileged")
    connection.setblocking(False)
    return ProcessEvents(connection)


def _widen(connection: socket.socket, option: int) -> None:
    try:
        connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    except OSError:
        return  # the smaller buffer works too; `lost` tells if it was too small


def _ask(connection: socket.socket, what: int) -> None:
    data = struct.pack("=I", what)
    body = struct.pack("=IIIIHH", _CN_IDX_PROC, 1, 0, 0, len(data), 0) + data
    connection.send(struct.pack("=IHHII", 16 + len(body), 3, 0, 0, os.getpid()) + body)


def _acknowledged(connection: socket.socket) -> bool:
    deadline = time.monotonic() + 0.25
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([connection], [], [], left)[0]:
            return False
        message = connection.recv(4096)
        if len(message) >= _HEADER + 20 and struct.unpack_from("=I", message, _HEADER)[0] == _NONE:
            return bool(struct.unpack_from("=I", message, _HEADER + 16)[0] == 0)
    return False


def _parse(message: bytes) -> Fork | Exec | Exit | None:
    if len(message) < _HEADER + 32:
        return None
    what, _cpu, nanoseconds, first, second, third, fourth = struct.unpack_from("=IIQIIII", message, _HEADER)
    t = nanoseconds / 1e9
    if what == _FORK and third == fourth:  # child thread id == child process id: a process, not a thread
        return Fork(t, second, fourth)
    if what == _EXEC:
        return Exec(t, second)
    if what == _EXIT and first == second:
        return Exit(t, first, third)
    return None
