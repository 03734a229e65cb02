"""The manifest, and what a loader asks of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cpu_int4.format import (
    Manifest,
    ManifestError,
    NoManifest,
    TensorEntry,
    TensorError,
    check_tensor,
    manifest_document,
    part_names,
    part_shapes,
    read_manifest,
    unsuitable,
)

#: SHA-256 of the bytes 00 01 02 03 04 05, from `printf '\0\1\2\3\4\5' | sha256sum`.
DIGEST = "17e88db187afd62c16e5debf3e6527cd006bc012bc90b51a810cd80c2d511f43"
ENTRY = TensorEntry(dtype="U8", shape=(2, 3), sha256=DIGEST, file="model-00001-of-00001.safetensors")
TENSOR = torch.arange(6, dtype=torch.uint8).view(2, 3)


def test_parts_of_a_weight() -> None:
    """A weight of 64 x 256 in groups of 32: half a byte a weight, eight scales and zeros a row."""
    assert part_names("a.b") == ("a.b.qweight", "a.b.scales", "a.b.zeros")
    assert part_shapes(64, 256, 32) == {"qweight": (64, 128), "scales": (64, 8), "zeros": (64, 8)}


def test_case_66_what_cannot_be_quantized_and_why() -> None:
    """K against the group, N against 16, both, none."""
    assert unsuitable(32001, 64, 64) == "N = 32001 is not a multiple of 16"
    assert unsuitable(64, 4304, 32) == "K = 4304 is not a multiple of the group size 32"
    assert unsuitable(63, 96, 64).count(" and ") == 1
    assert unsuitable(151936, 4864, 256) == ""


def test_case_59_a_tensor_with_the_listed_bytes_passes() -> None:
    """Dtype, shape and checksum agree; a transposed view is judged by its values, not by its memory."""
    check_tensor(ENTRY, "t", TENSOR)
    check_tensor(ENTRY, "t", TENSOR.t().contiguous().t())


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TENSOR.to(torch.int8), "dtype is I8, .* says U8"),
        (TENSOR.view(3, 2), r"shape is \[3, 2\], .* says \[2, 3\]"),
        (TENSOR.flip(0), f"SHA-256 is [0-9a-f]+, .* says {DIGEST}"),
    ],
)
def test_case_59_a_tensor_that_differs_is_named(tensor: torch.Tensor, message: str) -> None:
    """File, tensor, what was found, what the manifest says, what to do."""
    with pytest.raises(
        TensorError, match=rf"^model-00001-of-00001\.safetensors: tensor a\.t: {message}: .*copy it again"
    ):
        check_tensor(ENTRY, "a.t", tensor)


def test_the_checksum_may_be_left_out() -> None:
    """Dtype and shape alone cost nothing; other bytes pass then."""
    check_tensor(ENTRY, "t", TENSOR.flip(0), checksum=False)


def test_a_manifest_comes_back_as_written(tmp_path: Path) -> None:
    """Entries and the reasons for what was left, through JSON."""
    manifest = Manifest(tensors={"m.qweight": ENTRY, "n.weight": ENTRY}, left={"n": "N = 8"})
    (tmp_path / "cpu_int4.json").write_text(json.dumps(manifest_document(manifest)))
    found = read_manifest(tmp_path)
    assert found == manifest
    assert isinstance(found, Manifest)
    assert found.quantized() == ("m",)


def test_no_manifest_is_said_with_its_place(tmp_path: Path) -> None:
    """A folder without one is no error here: the caller decides."""
    found = read_manifest(tmp_path)
    assert isinstance(found, NoManifest)
    assert str(tmp_path) in found.why


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", r"is not JSON .* torn or edited"),
        ([], r"format_version is None; this cpu_int4 reads version 1"),
        ({"tensors": {}}, r"format_version is None"),
        ({"format_version": 2, "tensors": {}}, r"format_version is 2"),
        ({"format_version": True, "tensors": {}}, r"format_version is True"),
        ({"format_version": 1}, r"malformed \(KeyError: 'tensors'\)"),
        ({"format_version": 1, "tensors": {"t": {"dtype": "U8", "shape": [1]}}}, r"malformed \(KeyError: 'sha256'\)"),
        ({"format_version": 1, "tensors": {"t": {"dtype": "U8", "shape": "x", "sha256": "", "file": ""}}}, "malformed"),
    ],
)
def test_case_59_a_manifest_that_cannot_be_used_is_named(tmp_path: Path, document: Any, message: str) -> None:
    """Torn, of another version or malformed: the path, what is wrong, what to do."""
    text = document if isinstance(document, str) else json.dumps(document)
    (tmp_path / "cpu_int4.json").write_text(text)
    with pytest.raises(ManifestError, match=rf"cpu_int4\.json: {message}"):
        read_manifest(tmp_path)


def test_importing_loads_no_torch() -> None:
    """The loader's registration and `--help` import this module: it must cost nothing."""
    script = "import sys, cpu_int4.format; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[1])
