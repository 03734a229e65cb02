"""Wrong versions of the layout code, each caught by comparison with PyTorch's own kernel.

A packer and an unpacker that agree on a wrong order pass every round trip. So each mutation here is an edit of the
source, and what must fail on it is the comparison that the other tests make: weights read back, products and lookups
against the kernel's product with the rows of the identity, where every channel, input and group differs.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from int4_kernel import kernel_reads
from int4_reference import codes, stored

import cpu_int4
from cpu_int4.layout import convert, probe
from cpu_int4.pack import PackedWeight

K, GROUP = 128, 32  # four groups: no offset is zero for all
PACKAGE = Path(cpu_int4.__file__).parent


@dataclass(frozen=True)
class Mutant:
    """One edit of one module."""

    module: str
    old: str  # stands once in the source, or the mutation is stale
    new: str


NIBBLES_SWAPPED = {
    "read": Mutant("layout", "return packed & 15, packed >> 4", "return packed >> 4, packed & 15"),
    "panel": Mutant("layout", "zip(runs, codes, strict=True)", "zip(runs[::-1], codes, strict=True)"),
    "lookup": Mutant("layout", "(place >= half).unsqueeze(1)", "(place < half).unsqueeze(1)"),
    "layout": Mutant(
        "layout", "return runs[..., :half], runs[..., half:]", "return runs[..., half:], runs[..., :half]"
    ),
    "repack": Mutant("pack", "codes[:, parity::2]", "codes[:, 1 - parity :: 2]"),
}
ROWS_OFF = {
    "read": Mutant("layout", "weight[rows] = out.t()", "weight[rows] = out.t().roll(32, 0)"),
    "panel": Mutant("layout", "    return out\n", "    return out.copy_(out.roll(32, 1))\n"),
    "lookup": Mutant(
        "layout", "[ids // layout.block, :, place % half]", "[ids // layout.block, :, (place + 16) % half]"
    ),
    "lookup block": Mutant("layout", "[ids // layout.block, :, place", "[(ids + 32) // layout.block % 3, :, place"),
    "repack": Mutant("pack", "packed[rows] = convert(codes)", "packed[rows] = convert(codes.roll(32, 0))"),
    "halves": Mutant(
        "layout", "return arrange(unpack_rows(qweight)", "return arrange(unpack_rows(qweight).roll(32, 0)"
    ),
    "chunks": Mutant("pack", "(5 * k * layout.block)) * layout.block", "(5 * k * layout.block)) * layout.block // 2"),
}
FIRST = "scales_and_zeros[:1].expand_as(scales_and_zeros)"
GROUP_DROPPED = {
    "panel": Mutant("layout", "scales_and_zeros.permute(2, 0, 1)", f"{FIRST}.permute(2, 0, 1)"),
    "lookup": Mutant("layout", "scales_and_zeros.index_select(1, ids)", f"{FIRST}.index_select(1, ids)"),
    "pack": Mutant("pack", "(scales.t(), zeros.t())", "(scales[:, :1].t().expand(k // group_size, n), zeros.t())"),
}
ZEROS_PERMUTED = {
    "panel": Mutant("layout", "torch.addcmul(zeros, ", "torch.addcmul(zeros.flip(2), "),
    "panel groups": Mutant("layout", "torch.addcmul(zeros, ", "torch.addcmul(zeros.roll(1, 0), "),
    "panel sign": Mutant("layout", "torch.addcmul(zeros, ", "torch.addcmul(-zeros, "),
    "lookup": Mutant("layout", ".add_(zeros)", ".add_(zeros.flip(0))"),
    "lookup groups": Mutant("layout", ".add_(zeros)", ".add_(zeros.flip(1))"),
    "pack": Mutant("pack", "(scales.t(), zeros.t())", "(zeros.t(), scales.t())"),
    "pack rows": Mutant("pack", "(scales.t(), zeros.t())", "(scales.t(), zeros.t().flip(1))"),
    "centre": Mutant("layout", "code.view(torch.int8).sub_(8)", "code.view(torch.int8).sub_(7)"),
}
OFFSETS = {
    "panel scales": Mutant("ops", "scales_and_zeros[:, channels]", "scales_and_zeros[:, :width]"),
    "panel codes": Mutant("ops", "source[channels]", "source[:width]"),
    "panel place": Mutant("ops", "out=product[:, channels])\n        else", "out=product[:, :width])\n        else"),
    "panel bias": Mutant("ops", "bias[channels]", "bias[:width]"),
    "lookup codes": Mutant("ops", "take_rows(halves[part]", "take_rows(halves[: part.stop - part.start]"),
    "lookup scales": Mutant("ops", "scales_and_zeros[:, part]", "scales_and_zeros[:, : part.stop - part.start]"),
}


@pytest.fixture
def sources() -> dict[str, types.ModuleType]:
    """The package's modules, loaded once more from unchanged source under other names: the comparison must hold."""
    return load(None)


def load(mutant: Mutant | None) -> dict[str, types.ModuleType]:
    """layout, pack and ops from source with one edit, importing one another; panels are 64 channels wide."""
    modules: dict[str, types.ModuleType] = {}
    for name in ("layout", "pack", "ops"):
        source = (PACKAGE / f"{name}.py").read_text(encoding="utf-8")
        if mutant is not None and mutant.module == name:
            assert source.count(mutant.old) == 1, (
                f"stale mutation: {mutant.old!r} stands {source.count(mutant.old)} times"
            )
            source = source.replace(mutant.old, mutant.new)
        source = source.split("\n_library = ")[0]  # an operator is registered once in a process
        source = source.replace("from cpu_int4.layout import", "from mutated_layout import")
        spec = importlib.util.spec_from_loader(f"mutated_{name}", loader=None)
        assert spec is not None
        module = sys.modules[f"mutated_{name}"] = importlib.util.module_from_spec(spec)
        exec(compile(source, f"mutated {name}.py", "exec"), module.__dict__)  # noqa: S102 (that is how it is mutated)
        modules[name] = module
    modules["layout"]._panel_weights = lambda: 1
    return modules


def agrees_with_the_kernel(modules: dict[str, types.ModuleType]) -> None:
    """Assert that all that the modules read, multiply and look up is what PyTorch packs and multiplies by itself."""
    layout, ops = modules["layout"], modules["ops"]
    assert str(layout.probe()) == str(probe())  # one that no longer knows the kernel's bytes falls back to the copy
    for n, keep_halves in ((192, False), (192, True), (208, False)):  # whole blocks without and with the copy; a tail
        source = stored(n, K, GROUP, torch.Generator().manual_seed(n))
        grouped = torch.stack((source.scales.t(), source.zeros.t()), dim=-1).contiguous()
        wanted = kernel_reads(PackedWeight(convert(torch.from_numpy(codes(source))), grouped, None, n, K, GROUP))
        weight = modules["pack"].pack(
            source.qweight, source.scales, source.zeros, group_size=GROUP, keep_halves=keep_halves, repack_bytes=1
        )
        tensors = (weight.packed, weight.scales_and_zeros, weight.halves)
        rows, bias = torch.eye(K, dtype=torch.bfloat16), torch.arange(n).bfloat16()
        assert torch.equal(kernel_reads(weight), wanted)
        assert torch.equal(ops._linear(rows, *tensors, None, GROUP, 2, True).t(), wanted)
        biased = ops._linear(rows, *tensors, bias, GROUP, 2, True).t()
        assert torch.equal(biased, (wanted.float() + bias.unsqueeze(1).float()).bfloat16())
        assert torch.equal(ops._embedding(torch.arange(n), *tensors, GROUP), wanted)
        if layout.supports_direct_dequant(n, layout.probe()):
            read = layout._dequantize_from_int4pack(weight.packed, weight.scales_and_zeros, GROUP, layout.probe())
            assert torch.equal(read, wanted)


def test_the_unchanged_code_agrees_with_the_kernel(sources: dict[str, types.ModuleType]) -> None:
    """Without an edit the comparison holds, so what fails below fails for its edit."""
    agrees_with_the_kernel(sources)


def is_caught(mutant: Mutant) -> None:
    """Assert that the comparison fails on the edited code."""
    modules = load(mutant)
    with pytest.raises(AssertionError):
        agrees_with_the_kernel(modules)


@pytest.mark.parametrize("place", NIBBLES_SWAPPED)
def test_case_60_swapped_nibbles_are_caught(place: str) -> None:
    """Low taken for high, in any of the places that read or write nibbles, disagrees with the kernel."""
    is_caught(NIBBLES_SWAPPED[place])


@pytest.mark.parametrize("place", ROWS_OFF)
def test_case_60_rows_off_by_32_are_caught(place: str) -> None:
    """Channels 32 further, or taken from the wrong block, disagree with the kernel."""
    is_caught(ROWS_OFF[place])


@pytest.mark.parametrize("place", GROUP_DROPPED)
def test_case_60_a_dropped_group_offset_is_caught(place: str) -> None:
    """The first group's scale and zero taken for every group disagree with the kernel."""
    is_caught(GROUP_DROPPED[place])


@pytest.mark.parametrize("place", ZEROS_PERMUTED)
def test_case_60_permuted_zeros_are_caught(place: str) -> None:
    """Zeros of another channel or group, with the wrong sign, or about the wrong centre, disagree with the kernel."""
    is_caught(ZEROS_PERMUTED[place])


@pytest.mark.parametrize("place", OFFSETS)
def test_case_60_a_panels_wrong_offset_is_caught(place: str) -> None:
    """The first panel's codes, scales, bias or place taken for every panel disagree with the kernel."""
    is_caught(OFFSETS[place])
