"""The kernel's process connector: fork, exec and exit of every process as messages of a netlink socket.

Needs root in the first user and pid namespaces; elsewhere the request is refused, or silently ignored, so nothing
counts as a subscription until the kernel has acknowledged it. Standard library only: the sampler listens here too.
"""

from __future__ import annotations

import contextlib
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
_EVENT_AT: Final = 16 + 20  # nlmsghdr, cn_msg
_NONE, _FORK, _EXEC, _EXIT = 0, 0x1, 0x2, 0x80000000
#: Room for about 5000 exits between two readings; the default of 208 KiB holds about 150.
_BUFFER: Final = 8 << 20
#: Seconds to wait for the kernel's acknowledgement; it comes within microseconds or never.
_ACKNOWLEDGE_S: Final = 0.25


class Fork(NamedTuple):
    """A process was born (threads are left out). `t_ns`: CLOCK_MONOTONIC, nanoseconds."""

    t_ns: int
    parent: int
    pid: int


class Exec(NamedTuple):
    """A process runs another program from here on."""

    t_ns: int
    pid: int


class Exit(NamedTuple):
    """A process ended (its threads are left out). `status`: wait status, as waitpid gives it."""

    t_ns: int
    pid: int
    status: int


class RefusedError(OSError):
    """The kernel does not tell; the message is one clause."""


def subscribe() -> socket.socket:
    """An acknowledged subscription that never blocks. Raise `RefusedError` where there is none to be had."""
    try:
        link = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_CONNECTOR)
    except (OSError, AttributeError) as error:
        raise RefusedError(f"no netlink connector: {getattr(error, 'strerror', error)}") from error
    try:
        enlarge(link)
        link.bind((0, _CN_IDX_PROC))
        _ask(link, _LISTEN)
        answered = _acknowledged(link)
    except OSError as error:
        link.close()
        raise RefusedError(f"process events refused: {error.strerror} (root is needed)") from error
    if not answered:
        link.close()
        raise RefusedError("process events not acknowledged: not in the first pid namespace, or not privileged")
    link.setblocking(False)
    return link


def unsubscribe(link: socket.socket) -> None:
    """End a subscription; kernels before 6.6 count listeners and must be told."""
    with contextlib.suppress(OSError):
        _ask(link, _IGNORE)
    link.close()


def enlarge(link: socket.socket) -> None:
    """Room for bursts, as far as we may; a smaller buffer works too, and losses are told."""
    for option in (socket.SO_RCVBUF, _SO_RCVBUFFORCE):
        with contextlib.suppress(OSError):
            link.setsockopt(socket.SOL_SOCKET, option, _BUFFER)


def waiting(link: socket.socket) -> tuple[list[bytes], bool]:
    """All messages that wait, in the kernel's order, and whether it dropped some because they were not read in time."""
    found: list[bytes] = []
    lost = False
    while True:
        try:
            found.append(link.recv(65536))
        except BlockingIOError:
            return found, lost
        except OSError:  # ENOBUFS: the queue ran over
            lost = True


def parse(message: bytes) -> Fork | Exec | Exit | None:
    """One message of the connector; None for a thread's or any other kind."""
    if len(message) < _EVENT_AT + 32:
        return None
    what, _cpu, t_ns, first, second, third, fourth = struct.unpack_from("=IIQ4I", message, _EVENT_AT)
    if (
        what == _FORK and third == fourth and second != fourth
    ):  # parent's thread and process, child's thread and process
        return Fork(t_ns, second, fourth)
    if what == _EXEC:
        return Exec(t_ns, second)
    if what == _EXIT and first == second:
        return Exit(t_ns, first, third)
    return None


def _ask(link: socket.socket, what: int) -> None:
    data = struct.pack("=I", what)
    body = struct.pack("=IIIIHH", _CN_IDX_PROC, 1, 0, 0, len(data), 0) + data
    link.send(struct.pack("=IHHII", 16 + len(body), 3, 0, 0, os.getpid()) + body)


def _acknowledged(link: socket.socket) -> bool:
    deadline = time.monotonic() + _ACKNOWLEDGE_S
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([link], [], [], left)[0]:
            return False
        message = link.recv(4096)
        if len(message) >= _EVENT_AT + 20 and struct.unpack_from("=I", message, _EVENT_AT)[0] == _NONE:
            return bool(struct.unpack_from("=I", message, _EVENT_AT + 16)[0] == 0)
    return False
