"""What of a model lies in the page cache is read without changing it."""

from __future__ import annotations

import os
from pathlib import Path

from harness.run.page_cache import resident_fraction, weight_files


def test_a_file_just_written_is_resident_and_one_dropped_is_not(tmp_path: Path) -> None:
    """Pages just written are in the page cache, dropped ones are not, and looking brings none back."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(os.urandom(4 << 20))
    assert resident_fraction([file]) == 1.0
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    first = resident_fraction([file])
    assert first is not None
    if first < 1.0:  # a file system in memory (tmpfs) keeps all pages
        assert first < 0.1
        assert resident_fraction([file]) == first


def test_only_weight_files_count(tmp_path: Path) -> None:
    """The tokenizer and the configuration are no weights."""
    for name in ("a.safetensors", "config.json", "tokenizer.model"):
        (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in weight_files(tmp_path)] == ["a.safetensors"]


def test_what_cannot_be_told_is_unknown(tmp_path: Path) -> None:
    """No files, or one that is not there: unknown, never 0."""
    assert resident_fraction([]) is None
    assert resident_fraction([tmp_path / "missing.bin"]) is None
