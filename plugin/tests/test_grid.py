"""Round to nearest, against brute force in double precision, numbers worked out by hand, and PyTorch's own kernel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpu_int4 import grid, layout
from cpu_int4.pack import pack

LARGEST = 255 * 2.0**120  # bfloat16: eight significant bits, largest exponent 127
ONE_BF16 = 2.0**-8  # half of bfloat16's relative spacing: what rounding to it changes at most


def quantized(values: object, group: int = 32, dtype: torch.dtype = torch.float32) -> grid.QuantizedRows:
    """Rows that must be usable."""
    rows = grid.quantize_rows(torch.as_tensor(values, dtype=dtype), group)
    assert isinstance(rows, grid.QuantizedRows), rows
    return rows


def codes_of(rows: grid.QuantizedRows) -> torch.Tensor:
    """Codes [N, K], read byte by byte with an own hand: low nibble first."""
    n, half = rows.qweight.shape
    pairs = [[c for byte in row for c in (byte % 16, byte // 16)] for row in rows.qweight.tolist()]
    return torch.tensor(pairs, dtype=torch.float64).view(n, 2 * half)


def points_of(rows: grid.QuantizedRows) -> torch.Tensor:
    """The weights [N, K] that the stored numbers stand for, in double precision."""
    codes = codes_of(rows).unflatten(1, (rows.scales.shape[1], -1))
    return ((codes - 8) * rows.scales.double()[..., None] + rows.zeros.double()[..., None]).flatten(1)


def group_of(*values: float, size: int = 32) -> torch.Tensor:
    """One row of one group, the values over and over."""
    return torch.tensor([(list(values) * size)[:size]], dtype=torch.float32)


def test_sixteen_levels_of_step_one_by_hand() -> None:
    """Weights 0..15 have scale 1, zero 8 and their own value as code; byte j holds codes 2j (low) and 2j + 1 (high)."""
    rows = quantized([list(range(16)) * 2])
    assert rows.scales.tolist() == [[1.0]]
    assert rows.zeros.tolist() == [[8.0]]
    assert rows.qweight.tolist() == [[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2]


def test_groups_have_their_own_scale_and_zero_in_order() -> None:
    """Group j of a row fills column j of scales and zeros; rows do not mix."""
    ramp = torch.arange(16.0).repeat(2)
    rows = quantized(torch.stack((torch.cat((ramp, 2 * ramp, 4 * ramp)), torch.cat((-ramp, ramp, ramp + 1)))))
    assert rows.scales.tolist() == [[1, 2, 4], [1, 1, 1]]
    assert rows.zeros.tolist() == [[8, 16, 32], [-7, 8, 9]]


@pytest.mark.parametrize("zero_point", [0, 7, 8, 15])
def test_case_63_an_integer_zero_point_becomes_the_float_zero_eight_minus_it(zero_point: int) -> None:
    """With step 1, weights -zp..15-zp are stored with z = 8 - zp, and code 0 and 15 stand for the ends."""
    rows = quantized([[code - zero_point for code in range(16)] * 2])
    assert rows.zeros.tolist() == [[8 - zero_point]]
    assert grid.dequantize_rows(rows, 32).tolist() == [[code - zero_point for code in range(16)] * 2]


@pytest.mark.parametrize("group", [32, 64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_codes_are_the_nearest_of_the_stored_grid(group: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    """No code is better than the chosen one, scale and zero being those on disk: all sixteen are tried in float64."""
    weight = (torch.randn(48, 512, generator=generator) * 0.02 + 0.005).to(dtype)
    rows = quantized(weight, group, dtype)
    scales, zeros = (t.double().repeat_interleave(group, 1)[..., None] for t in (rows.scales, rows.zeros))
    errors = (weight.double()[..., None] - ((torch.arange(16.0).double() - 8) * scales + zeros)).abs()
    chosen = errors.gather(-1, codes_of(rows).long()[..., None])[..., 0]
    # the quotient (w - z) / s is rounded to float32: a tie within 16 * 2^-24 of a step may fall either way
    assert (chosen <= errors.amin(-1) + 2.0**-20 * scales[..., 0]).all()


def test_ends_of_a_group_are_kept() -> None:
    """Least and largest weight of an ordinary group are reproduced within a twentieth of a step: nothing is clipped."""
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    rows = quantized(weight, 128)
    error = (points_of(rows) - weight.double()).abs()
    ends = torch.stack((weight.argmin(1), weight.argmax(1)), 1)
    # scale and zero each off by 2^-9 of themselves: 7.5 and about 1.5 steps of that
    assert (error.gather(1, ends) <= rows.scales.double() / 20).all()


def test_case_61_an_all_zero_group_is_exactly_zero() -> None:
    """Zeros come back as zeros, with a scale that is positive and normal."""
    rows = quantized(torch.zeros(16, 64))
    assert not points_of(rows).any()
    assert not grid.dequantize_rows(rows, 32).any()
    assert (rows.scales >= torch.finfo(torch.float32).tiny).all()


@pytest.mark.parametrize("value", [9.0, -9.0, 65280.0, -LARGEST, LARGEST, 1e-30, 2.0**-126])
def test_case_61_a_constant_group_that_bfloat16_holds_is_exact(value: float) -> None:
    """All values equal and representable: reproduced exactly, not only within a step."""
    value = float(torch.tensor(value).bfloat16())
    assert grid.dequantize_rows(quantized(group_of(value)), 32).tolist() == [[value] * 32]


@pytest.mark.parametrize("value", [0.1, -0.1, 1 / 3, 65504.0, 3.3333e38])
def test_case_61_a_constant_group_of_float32_is_within_half_a_step(value: float) -> None:
    """All equal, between two bfloat16 numbers: within half a step, and the step is at most their distance."""
    weight = group_of(value)
    rows = quantized(weight)
    assert rows.scales.double().item() <= 2 * ONE_BF16 * abs(value)
    assert (points_of(rows) - weight.double()).abs().max() <= rows.scales.double().item() / 2


def test_case_61_one_tiny_value_among_zeros() -> None:
    """1e-30 among zeros: the zeros stay exactly zero, the value comes back within rounding to bfloat16."""
    weight = group_of(0.0)
    weight[0, 5] = 1e-30
    out = grid.dequantize_rows(quantized(weight), 32)
    assert out[0, 5].item() == pytest.approx(1e-30, rel=2 * ONE_BF16)
    assert out.count_nonzero() == 1


@pytest.mark.parametrize("size", [1e-37, 1e-38, 3e-39, 1e-40, 1e-44])
def test_case_61_subnormal_groups_keep_a_normal_scale(size: float) -> None:
    """Values around and below the least normal number: scale normal, error within half of it."""
    weight = group_of(size, -size, 0.0, size / 2)
    rows = quantized(weight)
    assert rows.scales.item() >= 2.0**-126
    assert (points_of(rows) - weight.double()).abs().max() <= rows.scales.double().item() * 0.5001


@pytest.mark.parametrize("values", [(LARGEST, -LARGEST), (LARGEST, 0.0), (0.0, -LARGEST), (LARGEST, LARGEST / 2)])
def test_case_61_the_largest_bfloat16_does_not_overflow(values: tuple[float, float]) -> None:
    """Alternating extremes, whose range exceeds float32: scale, zero, products and weights stay finite."""
    weight = group_of(*values)
    rows = quantized(weight)
    step = rows.scales.double().item()
    assert grid.dequantize_rows(rows, 32).isfinite().all()
    assert 8 * step <= LARGEST  # (0 - 8) * s, which a kernel may compute before it adds z
    assert (points_of(rows) - weight.double()).abs().max() <= step


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3.4e38])
def test_case_61_what_bfloat16_cannot_hold_is_refused_with_its_position(value: float) -> None:
    """NaN, infinities and numbers beyond bfloat16's largest: the first is named by row and column."""
    weight = torch.zeros(16, 64)
    weight[7, 41] = weight[9, 0] = value
    found = grid.quantize_rows(weight, 32)
    assert isinstance(found, grid.Unusable)
    assert found.position == (7, 41)
    assert str(found.value) == str(float(torch.tensor(value)))


@pytest.mark.parametrize(("low", "high"), [(5.0, 5.1), (-5.1, -5.0), (1000.0, 1000.5), (0.5, 0.5001)])
def test_case_62_one_sided_groups_keep_their_offset(low: float, high: float) -> None:
    """A group far from 0 loses nothing to a clamp: the float zero carries the offset, and where bfloat16 has too few
    numbers there the step is widened, by at most two of their distances over seven.
    """
    weight = torch.linspace(low, high, 32)[None]
    rows = quantized(weight)
    step = rows.scales.double().item()
    distance = 2 * ONE_BF16 * max(abs(low), abs(high))
    assert (points_of(rows) - weight.double()).abs().max() <= step * 0.5001
    assert step <= ((high - low) / 15 + distance / 7) * (1 + ONE_BF16)


finite = st.floats(-LARGEST, LARGEST, width=32)
alike = st.tuples(st.floats(-100, 100, width=32), st.floats(2.0**-20, 1, width=32)).flatmap(
    lambda at: st.lists(st.floats(at[0] - at[1], at[0] + at[1]), min_size=32, max_size=32)
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(finite, min_size=32, max_size=32), alike), st.booleans())
def test_the_error_is_at_most_half_a_step(values: list[float], as_bf16: bool) -> None:
    """For any finite weights: everything stored is finite, and no weight is further than half a step from its point
    (one step beyond half of bfloat16's range, where the nearest point may overflow).
    """
    weight = torch.tensor([values], dtype=torch.float32).clamp(-LARGEST, LARGEST)
    weight = weight.bfloat16().float() if as_bf16 else weight
    rows = quantized(weight)
    step = rows.scales.double().item()
    assert 2.0**-126 <= step <= LARGEST / 8
    assert rows.zeros.isfinite().all()
    assert grid.dequantize_rows(rows, 32).isfinite().all()
    bound = step / 2 if weight.abs().max() < LARGEST / 2 else step
    # float32 rounds (w - z) / s: 24 bits of at most 8 steps
    assert (points_of(rows) - weight.double()).abs().max() <= bound + 8 * step * 2.0**-23


@settings(max_examples=300, deadline=None)
@given(
    st.integers(128, 255),
    st.integers(-100, 100),
    st.integers(-255, 255),
    st.integers(-5, 5),
    st.lists(st.integers(0, 15), min_size=30, max_size=30),
)
def test_values_on_a_grid_are_reproduced(mantissa: int, exponent: int, zero: int, shift: int, codes: list[int]) -> None:
    """Weights that already lie on a grid whose ends are used give that grid back: scale, zero and codes, exactly."""
    scale, offset = mantissa * 2.0**exponent, zero * 2.0 ** (exponent + shift)
    used = torch.tensor([[0, 15, *codes]], dtype=torch.float64)
    rows = quantized((used - 8) * scale + offset)
    assert rows.scales.double().item() == scale
    assert rows.zeros.double().item() == offset
    assert torch.equal(codes_of(rows), used)


@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_case_60_expanding_gives_what_pytorchs_kernel_multiplies_by(group: int, generator: torch.Generator) -> None:
    """One-hot rows through `_weight_int4pack_mm_for_cpu`, fed from bytes unpacked here by hand, give back the expanded
    weights bit for bit: nibble order, group order and the zero's convention are the kernel's.
    """
    n, k = 64, 512
    rows = quantized(torch.randn(n, k, generator=generator) * torch.linspace(0.01, 3, k), group)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes_of(rows).int(), 1)
    scales_and_zeros = torch.stack((rows.scales, rows.zeros), -1).transpose(0, 1).contiguous()
    seen = torch.ops.aten._weight_int4pack_mm_for_cpu(torch.eye(k).bfloat16(), packed, group, scales_and_zeros)
    assert torch.equal(seen.t(), grid.dequantize_rows(rows, group))


@pytest.mark.parametrize("group", [32, 128])
def test_expanding_gives_what_the_wide_path_computes(group: int, generator: torch.Generator) -> None:
    """Bit for bit the weights that the plugin reads back out of the packed layout."""
    weight = torch.randn(192, 256, generator=generator) * 0.05 + 0.01
    rows = quantized(weight, group)
    packed = pack(rows.qweight, rows.scales, rows.zeros, group_size=group, keep_halves=False, repack_bytes=1 << 20)
    wide = layout._dequantize_from_int4pack(packed.packed, packed.scales_and_zeros, group, layout.probe())
    assert torch.equal(wide, grid.dequantize_rows(rows, group))


def test_rows_do_not_depend_on_their_neighbours(generator: torch.Generator) -> None:
    """Quantizing in chunks of rows gives the same bytes as all at once."""
    weight = torch.randn(48, 256, generator=generator)
    whole = quantized(weight, 64)
    parts = [quantized(part, 64) for part in weight.split(7)]
    assert torch.equal(whole.qweight, torch.cat([part.qweight for part in parts]))
    assert torch.equal(whole.scales, torch.cat([part.scales for part in parts]))
    assert torch.equal(whole.zeros, torch.cat([part.zeros for part in parts]))
