"""What a model takes on disk, counted from the headers of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.drivers.checkpoint import Size, UnknownSize, size


def write(file: Path, tensors: dict[str, tuple[str, list[int]]], body: int) -> None:
    """A safetensors file of which only the header is true."""
    header = json.dumps(
        {"__metadata__": {"format": "pt"}} | {n: {"dtype": d, "shape": s} for n, (d, s) in tensors.items()}
    )
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(body))


def test_a_bf16_model_has_sixteen_bits_a_weight(tmp_path: Path) -> None:
    """Two shards of 6 and 4 weights in bfloat16: 16 bits each, and the bytes of both files."""
    write(tmp_path / "a.safetensors", {"x.weight": ("BF16", [2, 3])}, 12)
    write(tmp_path / "b.safetensors", {"norm.weight": ("BF16", [4])}, 8)
    found = size(tmp_path, {})
    assert found == Size(sum(file.stat().st_size for file in tmp_path.iterdir()), 16.0)


@pytest.mark.parametrize(
    ("tensors", "config", "bits"),
    [
        # 2 rows of 64 weights in bytes of two codes: 64 bytes, a scale and a zero of 16 bits for each of the 2 groups
        (
            {"p.qweight": ("U8", [2, 32]), "p.scales": ("BF16", [2, 1]), "p.zeros": ("BF16", [2, 1])},
            {"quantization_config": {"bits": 4}},
            4 + 2 * 32 / 128,
        ),
        # 8 codes in each int32; the group index is stored and counts, without being a weight
        (
            {"p.qweight": ("I32", [8, 2]), "p.g_idx": ("I32", [64])},
            {"quantization_config": {"bits": 4}},
            4 + 64 * 32 / 128,
        ),
        (
            {"p.weight_packed": ("I32", [2, 8]), "p.weight_shape": ("I64", [2])},
            {"quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 4}}}}},
            5.0,
        ),
    ],
)
def test_packed_codes_count_as_the_weights_they_hold(
    tmp_path: Path, tensors: dict[str, tuple[str, list[int]]], config: dict[str, Any], bits: float
) -> None:
    """Scales, zeros and indices add bits and no weights."""
    write(tmp_path / "model.safetensors", tensors, 0)
    found = size(tmp_path, config)
    assert isinstance(found, Size)
    assert found.bits_per_weight == pytest.approx(bits)


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"p.qweight": ("U8", [2, 32])}, "p.qweight holds packed codes"),
        ({"p.weight": ("F4", [2, 32])}, "p.weight is stored as F4"),
        ({}, "no weights"),
    ],
)
def test_what_cannot_be_counted_is_unknown_with_its_reason(
    tmp_path: Path, tensors: dict[str, tuple[str, list[int]]], why: str
) -> None:
    """No number is better than a wrong one."""
    write(tmp_path / "model.safetensors", tensors, 0)
    found = size(tmp_path, {})
    assert isinstance(found, UnknownSize)
    assert why in found.why


def test_a_folder_without_weight_files_is_unknown(tmp_path: Path) -> None:
    """A folder of other files has no size to report."""
    assert isinstance(size(tmp_path, {}), UnknownSize)
