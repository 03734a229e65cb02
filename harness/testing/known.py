"""Programs whose memory is known, to test a meter with: `python known.py NAME`. Standard library only.

Each states its own truth as an event: `{"event": "truth", "quantity": "S"|"U", "phase": ..., "bytes": ...}`, S the
largest sum of RssAnon over its processes, U the largest amount of unique anonymous memory. What it touched is known;
what the interpreter holds beside it, each process reads from its own /proc/self/status while it holds everything, so a
truth is right to a page. It is written after the memory was let go, so that writing it raises nothing; `climb`, which
ends at its highest point, writes it before, from its base and what it is about to touch.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Final

MIB: Final = 1 << 20
_PAGE: Final = mmap.PAGESIZE
#: Name -> quantity its truth is of, and what it does.
PROGRAMS: Final = {
    "steady": ("S", "holds 200 MiB for 0.6 s"),
    "spike_5ms": ("S", "holds 50 MiB, and 24 MiB more for 5 ms in the middle"),
    "spike_30ms": ("S", "holds 50 MiB, and 100 MiB more for 30 ms in the middle"),
    "climb": ("S", "climbs from 50 to 200 MiB in its last 50 ms and ends there"),
    "fork_cow": ("S", "touches 80 MiB and forks 3 children that only sleep: S counts each page 4 times"),
    "fork_cow_unique": ("U", "the same, its truth the unique memory"),
    "shared": ("S", "fills 150 MiB of shared memory, of which S sees nothing"),
    "mapped_file": ("S", "maps a file of 150 MiB and reads it, then works in 40 MiB of its own"),
    "daemon": ("S", "leaves its session by two forks, its first process ends; then holds 100 MiB"),
    "churn": ("S", "200 children a second, one at a time, each touching 8 MiB"),
    "grandchild": ("S", "holds 60 MiB while grandchildren of 24 MiB come and die at uneven times"),
}
#: Programs whose bracket must be narrow: at most the greater of 16 MiB and 5 %.
NARROW: Final = frozenset({"steady", "mapped_file", "daemon"})


def read_field(name: bytes, path: str = "/proc/self/status") -> int:
    """One number of a /proc file of this process, bytes."""
    fd = os.open(path, os.O_RDONLY)
    data = os.read(fd, 8192)
    os.close(fd)
    at = data.index(name)
    return int(data[at : data.index(b"kB", at)].split()[1]) * 1024


def own_anon() -> int:
    """This process's RssAnon, bytes: read twice, since the first reading itself may touch a new page."""
    read_field(b"RssAnon:")
    return read_field(b"RssAnon:")


def own_pss() -> int:
    """This process's share of anonymous memory, bytes."""
    return read_field(b"Pss_Anon:", "/proc/self/smaps_rollup")


def note(slots: mmap.mmap, index: int, own: Callable[[], int]) -> None:
    """Report a level through shared memory, and again once reporting has touched what it touches."""
    for _ in range(3):
        struct.pack_into("=Q", slots, 8 * index, own())


def touch(size: int) -> mmap.mmap:
    """Private anonymous memory, every byte of it written."""
    held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _fill(held, size)
    return held


def _fill(held: mmap.mmap, size: int) -> None:
    """Memset of the C library: a loop in Python takes 40 times as long as the page faults."""
    view = (ctypes.c_char * size).from_buffer(held)
    ctypes.memset(view, 1, size)
    del view


def hold(seconds: float) -> int:
    """Wait, holding what is held; the highest level of it, read before and after."""
    before = own_anon()
    time.sleep(seconds)
    return max(before, own_anon())


def shared_slots(count: int) -> mmap.mmap:
    """Numbers that children report through."""
    return mmap.mmap(-1, max(_PAGE, 8 * count))


def emit(**event: object) -> None:
    """One event line."""
    path = os.environ.get("HARNESS_EVENTS")
    line = json.dumps(event) + "\n"
    if path is None:
        os.write(1, line.encode())
        return
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, line.encode())
    os.close(fd)


def phase(name: str, state: str) -> None:
    """A phase boundary."""
    emit(event="phase", name=name, state=state, t=time.monotonic())


def finish(name: str, size: int, *, during: str = "trial") -> None:
    """State the truth and end without the interpreter's own clearing up."""
    emit(event="truth", name=name, quantity=PROGRAMS[name][0], phase=during, bytes=size)
    emit(event="done")
    os._exit(0)


def warm() -> int:
    """This process's RssAnon once reading it has cost what it costs."""
    slots = shared_slots(1)
    touch(16 * _PAGE).close()
    note(slots, 0, own_anon)
    slots.close()
    time.sleep(0.001)
    return own_anon()


def steady() -> None:
    """A level."""
    held = touch(200 * MIB)
    truth = hold(0.6)
    held.close()
    finish("steady", truth)


def spike(name: str, size: int, seconds: float) -> None:
    """A level with a short peak."""
    held = touch(50 * MIB)
    base = own_anon()
    time.sleep(0.25)
    begin = time.perf_counter()
    peak = touch(size)
    while time.perf_counter() - begin < seconds:
        pass
    peak.close()
    time.sleep(0.25)
    held.close()
    finish(name, base + size)


def climb() -> None:
    """The highest point is the last moment."""
    held = touch(50 * MIB)
    time.sleep(0.25)
    size = 150 * MIB
    more = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    emit(event="done")
    base = own_anon()
    emit(event="truth", name="climb", quantity="S", phase="trial", bytes=base + size)
    _fill(more, size)
    os._exit(0 if held else 1)


def fork_cow(name: str, own: Callable[[], int]) -> None:
    """Pages shared after a fork. Children read themselves when all are there, and once more for the highest."""
    held = touch(80 * MIB)
    slots = shared_slots(8)
    go_read, go = os.pipe()
    children = []
    for child in range(3):
        pid = os.fork()
        if pid == 0:
            own()
            os.read(go_read, 1)
            note(slots, child, own)
            time.sleep(30)
            os._exit(0)
        children.append(pid)
    own()
    time.sleep(0.3)
    os.write(go, b"123")
    while any(struct.unpack_from("=Q", slots, 8 * child)[0] == 0 for child in range(3)):
        time.sleep(0.005)
    time.sleep(0.2)
    truth = own() + sum(struct.unpack_from("=Q", slots, 8 * child)[0] for child in range(3))
    for pid in children:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    held.close()
    finish(name, truth)


def shared() -> None:
    """Memory that RssAnon does not see."""
    held = touch(20 * MIB)
    common = mmap.mmap(-1, 150 * MIB)
    _fill(common, 150 * MIB)
    truth = hold(0.4)
    common.close()
    held.close()
    finish("shared", truth)


def mapped_file() -> None:
    """File pages: mapped in the phase `load`, its own memory in the phase `work`, which the truth is of."""
    phase("load", "begin")
    path = os.environ["KNOWN_FILE"]
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    view = mmap.mmap(fd, size, prot=mmap.PROT_READ)
    total = sum(view[at] for at in range(0, size, _PAGE))
    phase("load", "end")
    phase("work", "begin")
    time.sleep(0.1)
    held = touch(40 * MIB)
    truth = hold(0.4)
    held.close()
    phase("work", "end")
    if total >= 0:
        finish("mapped_file", truth, during="work")


def daemon() -> None:
    """A process that its parents know nothing of any more."""
    if os.fork():
        time.sleep(0.05)
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(0.2)
    held = touch(100 * MIB)
    truth = hold(0.5)
    held.close()
    finish("daemon", truth)


def churn() -> None:
    """Children that live for some milliseconds, each seen by few samples or none."""
    slots = shared_slots(1)
    warm()
    most = own = 0
    for _ in range(200):
        begin = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            held = touch(8 * MIB)
            note(slots, 0, own_anon)
            os._exit(0 if held else 1)
        os.waitpid(pid, 0)
        most = max(most, struct.unpack_from("=Q", slots, 0)[0])
        time.sleep(max(0.0, 0.005 - (time.perf_counter() - begin)))
        own = max(own, own_anon())
    finish("churn", own + most)


def grandchild() -> None:
    """A tree of three generations of which the youngest dies at any moment."""
    held = touch(60 * MIB)
    slots = shared_slots(2)
    middle = os.fork()
    if middle == 0:
        most = 0
        for turn in range(25):
            pid = os.fork()
            if pid == 0:
                own = touch(24 * MIB)
                note(slots, 0, own_anon)
                time.sleep(0.002 + 0.0017 * (turn % 9))
                os._exit(0 if own else 1)
            os.waitpid(pid, 0)
            most = max(most, struct.unpack_from("=Q", slots, 0)[0])
        struct.pack_into("=Q", slots, 8, most + own_anon())
        os._exit(0)
    os.waitpid(middle, 0)
    truth = own_anon() + struct.unpack_from("=Q", slots, 8)[0]
    held.close()
    finish("grandchild", truth)


def main(name: str) -> None:
    """Run one program by name."""
    warm()
    table: dict[str, Callable[[], None]] = {
        "steady": steady,
        "spike_5ms": lambda: spike("spike_5ms", 24 * MIB, 0.005),
        "spike_30ms": lambda: spike("spike_30ms", 100 * MIB, 0.030),
        "climb": climb,
        "fork_cow": lambda: fork_cow("fork_cow", own_anon),
        "fork_cow_unique": lambda: fork_cow("fork_cow_unique", own_pss),
        "shared": shared,
        "mapped_file": mapped_file,
        "daemon": daemon,
        "churn": churn,
        "grandchild": grandchild,
    }
    if name not in table:
        sys.exit(f"known.py: no program {name!r}; use one of {', '.join(table)}")
    table[name]()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
