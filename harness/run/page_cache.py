"""How much of a model's files lies in the page cache: a load from disk and one from memory are two experiments."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

#: Files that hold weights; the rest of a model is too small to matter.
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The model's weight files, in order."""
    return tuple(sorted(path for path in folder.rglob("*") if path.suffix in WEIGHTS and path.is_file()))


def resident_fraction(files: Iterable[Path]) -> float | None:
    """Pages of the files that are in the page cache, as a fraction of all; None if there are none or none can be told.

    mincore(2) on a mapping that is never read brings no page in, so looking does not change what is seen.
    """
    pages = resident = 0
    for path in files:
        found = _resident(path)
        if found is None:
            return None
        resident, pages = resident + found[0], pages + found[1]
    return resident / pages if pages else None


def resident_nodes(files: Iterable[Path]) -> dict[str, int] | None:
    """Bytes of the files in the page cache by NUMA node (`{"0": 3400000000}`); None if that cannot be told.

    Pages that lie in the cache are touched through a mapping, and the kernel says in numa_maps where what is mapped
    lies. Pages that are not in the cache are left alone.
    """
    found: dict[str, int] = {}
    for path in files:
        nodes = _mapped(path, _nodes)
        if nodes is None:
            return None
        for node, size in nodes.items():
            found[node] = found.get(node, 0) + size
    return dict(sorted(found.items()))


def _resident(path: Path) -> tuple[int, int] | None:
    """Resident and all pages of one file."""
    return _mapped(path, lambda _address, vector: (sum(byte & 1 for byte in vector), len(vector)))


_POPULATE_READ = (
    22  # MADV_POPULATE_READ, Linux 5.14: maps without a fault for each page: 0.5 s of CPU for 3.3 GB, not 0.8
)
_LOWEST_BIT = bytes(byte & 1 for byte in range(256))


def _nodes(address: int, vector: bytes) -> dict[str, int] | None:
    """Bytes by node of a mapping, once the pages that are in the cache are mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for run in re.finditer(rb"\x01+", vector.translate(_LOWEST_BIT)):
        begin, length = address + run.start() * mmap.PAGESIZE, len(run[0]) * mmap.PAGESIZE
        if libc.madvise(begin, length, _POPULATE_READ) != 0:
            for page in range(begin, begin + length, mmap.PAGESIZE):
                ctypes.string_at(page, 1)
    try:
        lines = Path("/proc/self/numa_maps").read_text().splitlines()
    except OSError:
        return None
    line = next((line for line in lines if line.startswith(f"{address:08x} ")), "")
    return {node: int(pages) * mmap.PAGESIZE for node, pages in re.findall(r"\bN(\d+)=(\d+)", line)}


Found = TypeVar("Found")


def _mapped(path: Path, read: Callable[[int, bytes], Found | None]) -> Found | None:
    """What `read` makes of a file's mapping and of mincore's byte for each page; None if it cannot be mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        pages = -(-size // mmap.PAGESIZE)
        if pages == 0:
            return read(0, b"")
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            return None
        try:
            vector = ctypes.create_string_buffer(pages)
            if libc.mincore(address, size, vector) != 0:
                return None
            return read(address, vector.raw[:pages])
        finally:
            libc.munmap(address, size)
    finally:
        os.close(descriptor)
