"""The packed layout: pinned per instruction set, probed, and read back bit for bit."""

from __future__ import annotations

import pytest
import torch
from int4_kernel import kernel_reads, packed
from int4_reference import Stored, codes, rounded, stored

from cpu_int4 import layout as layouts
from cpu_int4 import ops
from cpu_int4.layout import (
    KNOWN,
    OPAQUE,
    Layout,
    _dequantize_from_int4pack,
    arrange,
    convert,
    probe,
    supports_direct_dequant,
    unpack_nibbles,
)

pytestmark = pytest.mark.isa
PINNED = {"AVX512": Layout(64, "split"), "AVX2": Layout(32, "split"), "DEFAULT": Layout(32, "adjacent")}


def test_case_55_the_layout_of_each_instruction_set_is_the_pinned_one() -> None:
    """A PyTorch that packs differently than the one this was written for fails here, by name."""
    assert probe() == PINNED[torch.backends.cpu.get_cpu_capability()]


def test_case_55_a_byte_pairs_channels_half_a_block_apart_on_avx512() -> None:
    """Worked out by hand: with AVX-512, byte 3 of k = 1 holds channels 3 (low) and 35 (high) of each block of 64."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("the bytes of another instruction set")
    one_hot = torch.zeros(128, 2, dtype=torch.int32)
    one_hot[64 + 3, 1], one_hot[64 + 35, 1] = 5, 9
    flat = convert(one_hot).flatten()
    assert flat[64 * 1 + 32 + 3] == 5 + 9 * 16
    assert flat.count_nonzero() == 1


@pytest.mark.parametrize("known", KNOWN, ids=str)
def test_case_55_the_probe_tells_every_known_layout_from_the_others(
    known: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever known layout a build packs, the probe names that one."""
    monkeypatch.setattr(layouts, "convert", lambda codes: arrange(codes.byte(), known))
    assert layouts.probe.__wrapped__() == known


def test_case_55_an_unknown_layout_is_called_opaque_and_never_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that packs in an order that we do not know keeps the copy for every weight."""
    real = convert
    monkeypatch.setattr(layouts, "convert", lambda codes: real(codes.flip(0)))
    assert layouts.probe.__wrapped__() == OPAQUE
    assert not supports_direct_dequant(64, OPAQUE)


def test_supports_direct_dequant_wants_whole_blocks() -> None:
    """The model's shapes tile the block of 64; 80 leaves a tail of 16, and blocks of 32 leave one, too."""
    wide, narrow = Layout(64, "split"), Layout(32, "split")
    assert all(supports_direct_dequant(n, wide) for n in (64, 2048, 3072, 13312, 131072))
    assert not any(supports_direct_dequant(n, wide) for n in (0, 16, 80, 96))
    assert supports_direct_dequant(96, narrow)
    assert not supports_direct_dequant(80, narrow)


def test_unpack_nibbles_gives_low_then_high() -> None:
    """The byte 0xA3 holds 3 in its low nibble and 10 in its high one."""
    low, high = unpack_nibbles(torch.tensor([0xA3], dtype=torch.uint8))
    assert (low.item(), high.item()) == (3, 10)


@pytest.mark.parametrize("n", [16, 32, 48, 64, 80, 96, 112, 128, 192])
@pytest.mark.parametrize("k", [32, 64, 128])
def test_case_55_every_small_shape_is_read_as_the_kernel_multiplies(n: int, k: int, generator: torch.Generator) -> None:
    """Out of the packed bytes where whole blocks allow it, else out of the copy, weights equal the kernel's."""
    weight = packed(stored(n, k, 32, generator))
    assert (weight.halves is None) == supports_direct_dequant(n, probe())
    rows = torch.eye(k, dtype=torch.bfloat16)
    read = ops.linear(rows, weight, None, threshold=1, prefill_dequant=True).t()
    assert torch.equal(read, kernel_reads(weight))


@pytest.mark.parametrize(("n", "k"), [(2048, 2048), (3072, 2048), (13312, 2048)])
def test_case_55_direct_dequantization_is_bit_exact_at_the_models_shapes(
    n: int, k: int, generator: torch.Generator
) -> None:
    """Every weight of a whole matrix has the bits that the independent account gives it."""
    source = stored(n, k, 128, generator)
    weight = packed(source)
    read = _dequantize_from_int4pack(weight.packed, weight.scales_and_zeros, 128, probe())
    assert torch.equal(read.view(torch.int16), rounded(source).view(torch.int16))


def test_case_60_the_whole_down_projection_equals_the_kernels_product(generator: torch.Generator) -> None:
    """Every 13th input of all channels, nine or ten of each group, agrees with the kernel on rows of the identity."""
    weight = packed(stored(2048, 6656, 128, generator))
    read = _dequantize_from_int4pack(weight.packed, weight.scales_and_zeros, 128, probe())
    assert torch.equal(read[:, ::13], kernel_reads(weight, every=13))


@pytest.mark.parametrize("wrong", KNOWN, ids=str)
def test_case_55_reading_in_another_builds_layout_is_seen(wrong: Layout, generator: torch.Generator) -> None:
    """Bytes read as another instruction set packs them give other weights: nothing agrees by chance."""
    weight = packed(stored(128, 64, 32, generator))
    read = _dequantize_from_int4pack(weight.packed, weight.scales_and_zeros, 32, wrong)
    assert torch.equal(read, kernel_reads(weight)) == (wrong == probe())


def test_dequantizing_a_ragged_weight_directly_is_refused(generator: torch.Generator) -> None:
    """80 channels are refused with the number and the block, not misread."""
    weight = packed(stored(80, 64, 32, generator))
    with pytest.raises(ValueError, match=r"80 channels in layout .* no multiple of (64|32)"):
        _dequantize_from_int4pack(weight.packed, weight.scales_and_zeros, 32, probe())


def test_the_reference_itself_reads_even_inputs_from_low_nibbles() -> None:
    """The independent account is checked by hand: the byte 0xA3 is k = 0 code 3 and k = 1 code 10."""
    ones = torch.ones(1, 1, dtype=torch.bfloat16)
    weight = Stored(torch.tensor([[0xA3]], dtype=torch.uint8), ones, ones * 0.5, 2)
    assert codes(weight).tolist() == [[3, 10]]
    assert rounded(weight).tolist() == [[-4.5, 2.5]]
