"""How much of a model's files lies in the page cache: a load from disk and one from memory are two experiments."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

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


def _resident(path: Path) -> tuple[int, int] | None:
    """Resident and all pages of one file."""
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
            return 0, 0
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            return None
        try:
            vector = ctypes.create_string_buffer(pages)
            if libc.mincore(address, size, vector) != 0:
                return None
            return sum(byte & 1 for byte in vector.raw[:pages]), pages
        finally:
            libc.munmap(address, size)
    finally:
        os.close(descriptor)
