from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

native = pytest.importorskip("cpu_int4.native")
if not native.available():
    pytest.skip("the native kernel is not built", allow_module_level=True)

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 32, 33, 64)


@dataclass(frozen=True)
class Checkpoint:
    """One quantized matrix as a checkpoint holds it."""

    qweight: torch.Tensor  # uint8 [N, K/2]
    scales: torch.Tensor  # bfloat16 [N, K/G]
    zeros: torch.Tensor  # bfloat16 [N, K/G]
    group: int

    def pack(self) -> native.NativeWeight:
        """The same in the packed format."""
        return native.pack(self.qweight, self.scales, self.zeros, group_size=self.group)

    def codes(self) -> torch.Tensor:
        """Codes [N, K], worked out from the format's text: low nibble even k, high nibble odd k."""
        return torch.stack((self.qweight & 15, self.qweight >> 4), dim=-1).flatten(1)

    def weight(self) -> torch.Tensor:
        """W = (q - 8) * s + z in float64 [N, K]."""
        spread = [t.double().repeat_interleave(self.group, dim=1) for t in (self.scales, self.zeros)]
        return (self.codes().double() - 8) * spread[0] + spread[1]


def checkpoint(n: int, k: int, group: int, seed: int = 0) -> Checkpoint:
    """Distinct random values in every position."""
    g = torch.Generator().manual_seed(seed)
    shape = (n, k // group)
    return Checkpoint(
        torch.randint(0, 256, (n, k // 2), generator=g, dtype=torch.uint8),
        (0.01 * (1 + torch.randn(shape, generator=g).abs())).bfloat16(),
        (0.02 * torch.randn(shape, generator=g)).bfloat16(),
        group,
    )


def activations(rows: int, k: int, seed: int = 1) -> torch.Tensor:
    """Random rows [rows, K]."""
    return torch.randn(rows, k, generator=torch.Generator().manual_seed(seed)).bfloat16()


def tolerance(x: torch.Tensor, c: Checkpoint, expected: torch.Tensor) -> torch.Tensor:
    """How far one output may be off, by the arithmetic.

    Rounding to the 8 significant bits of bfloat16: 2^-8 of the value. Sums in fp32: each of the G + K/G + 8 additions
    rounds by 2^-24 of a running sum of at most sum |x| * (151 s + |z|) in its group (151 = 15 + 136: the decoding adds
    128 to each code and the group's sum takes 136 out again).
    """
    groups = c.scales.shape[1]
    per_group = x.double().abs().unflatten(-1, (groups, c.group)).sum(-1)
    magnitude = per_group @ (151 * c.scales.double() + c.zeros.double().abs()).T
    return expected.abs() * 2.0**-8 + magnitude * (c.group + groups + 8) * 2.0**-24


def assert_close(y: torch.Tensor, x: torch.Tensor, c: Checkpoint, bias: torch.Tensor | None = None) -> None:
    """Every element within its own tolerance of the float64 product, or the worst one is named."""
    expected = x.double() @ c.weight().T + (0 if bias is None else bias.double())
    error = ((y.double() - expected).abs() / tolerance(x, c, expected)).flatten()
    error = torch.where(torch.isfinite(y.flatten()), error, torch.inf)
    worst = int(error.argmax())
    assert error[worst] <= 1, (
        f"element {worst}: {y.flatten()[worst]} instead of {expected.flatten()[worst]}, "
        f"{error[worst]:.2f} times its tolerance; {int((error > 1).sum())} of {error.numel()} are off"
    )


@pytest.fixture(params=native.runnable_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this CPU runs, put back afterwards."""
    before = native.isa()
    native.select_isa(request.param)
    yield request.param
    native.select_isa(before)


@pytest.mark.parametrize(
    ("n", "k", "group"), [(64, 128, 128), (80, 256, 32), (1, 64, 64), (65, 96, 32), (192, 512, 256), (4304, 128, 128)]
)
def test_case_57_every_row_count_agrees_with_float64(isa: str, n: int, k: int, group: int) -> None:
    """Each number of rows gives the float64 product within the derived tolerance, whatever the instruction set."""
    del isa
    c = checkpoint(n, k, group)
    w = c.pack()
    bias = torch.randn(n, generator=torch.Generator().manual_seed(2)).bfloat16()
    for rows in ROWS:
        x = activations(rows, k)
        assert_close(native.linear(x, w), x, c)
        assert_close(native.linear(x, w, bias), x, c, bias)


def test_case_57_scales_that_grow_by_group_are_each_used(isa: str) -> None:
    """With scales 1, 2, 4, 8 by group and one code, each group's share of the sum is known exactly."""
    del isa
    for group in (32, 64, 128, 256):
        scales = torch.tensor([[1.0, 2.0, 4.0, 8.0]] * 16).bfloat16()
        w = native.pack(
            torch.full((16, 2 * group), 0x99, dtype=torch.uint8), scales, torch.zeros_like(scales), group_size=group
        )
        for rows in (1, 2, 3, 4, 5, 16, 17, 33):
            y = native.linear(torch.ones(rows, 4 * group).bfloat16(), w)
            assert torch.equal(y, torch.full((rows, 16), 15.0 * group).bfloat16())


def test_case_57_a_row_alone_equals_the_same_row_in_any_batch_to_the_bit(isa: str) -> None:
    """The same activation row alone and in batches of 2 to 64 gives the same bits, on one thread and on two."""
    del isa
    c = checkpoint(208, 512, 128)
    w = c.pack()
    x = activations(64, 512)
    alone = torch.cat([native.linear(x[i : i + 1], w) for i in range(64)])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for rows in (1, 2, 3, 5, 7, 12, 13, 17, 33, 64):
                assert torch.equal(native.linear(x[:rows], w), alone[:rows])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("shape", [(2048, 2048), (3072, 2048), (2048, 6656)])
def test_spark_shapes_agree_with_float64(shape: tuple[int, int]) -> None:
    """The shapes of the model that is measured, at 1, 5, 17 and 130 rows."""
    c = checkpoint(*shape, 128)
    w = c.pack()
    for rows in (1, 5, 17, 130):
        x = activations(rows, shape[1])
        assert_close(native.linear(x, w), x, c)


def test_case_60_torch_s_own_kernel_gives_the_same_product() -> None:
    """Packed by torch's tool and multiplied by its kernel, the same checkpoint gives the same numbers."""
    c = checkpoint(128, 256, 64)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(c.codes().int(), 1)
    scales_and_zeros = torch.stack((c.scales.T, c.zeros.T), dim=-1).contiguous()
    for rows in (1, 3, 9):
        x = activations(rows, 256)
        theirs = torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, 64, scales_and_zeros)
        expected = x.double() @ c.weight().T
        bound = tolerance(x, c, expected) + x.double().abs() @ c.weight().abs().T * 2.0**-8  # theirs rounds each weight
        assert ((native.linear(x, c.pack()).double() - theirs.double()).abs() <= 2 * bound).all()


def test_case_60_each_code_has_its_place() -> None:
    """A single code of 9 among codes of 8, anywhere, answers only to its own input and channel."""
    n, k = 80, 64
    for channel, inp in [(0, 0), (0, 1), (1, 0), (15, 7), (16, 8), (63, 31), (64, 33), (79, 63), (33, 6)]:
        qweight = torch.full((n, k // 2), 0x88, dtype=torch.uint8)
        qweight[channel, inp // 2] += 1 << (4 * (inp % 2))
        ones = torch.ones(n, 2).bfloat16()
        y = native.linear(torch.eye(k).bfloat16(), native.pack(qweight, ones, torch.zeros_like(ones), group_size=32))
        expected = torch.zeros(k, n)
        expected[inp, channel] = 1
        assert torch.equal(y.float(), expected)


def test_case_63_zero_points_through_product_and_lookup(isa: str) -> None:
    """For zp = 0, 7, 8, 15 and s = 1, codes 0 and 15 are -zp and 15 - zp through the product and the lookup alike."""
    del isa
    for zp in (0, 7, 8, 15):
        qweight = torch.tensor([[0x00] * 16, [0xFF] * 16], dtype=torch.uint8)
        w = native.pack(qweight, torch.ones(2, 1).bfloat16(), torch.full((2, 1), 8.0 - zp).bfloat16(), group_size=32)
        expected = torch.tensor([-zp, 15 - zp]).float()
        assert torch.equal(native.linear(torch.eye(32).bfloat16(), w).float(), expected.expand(32, 2))
        assert torch.equal(native.embedding(torch.tensor([0, 1]), w).float(), expected[:, None].expand(2, 32))


def test_parts_of_a_fused_matrix_may_meet_anywhere() -> None:
    """Three parts packed one by one, last first, give the bytes of the whole; unpacking gives it back."""
    c = checkpoint(48 + 7 + 70, 128, 64)
    w = native.empty(125, 128, 64)
    for first, last in [(55, 125), (0, 48), (48, 55)]:
        native.pack_rows(w, first, *(t[first:last] for t in (c.qweight, c.scales, c.zeros)))
    assert torch.equal(w.packed, c.pack().packed)
    for got, want in zip(native.unpack(w), (c.qweight, c.scales, c.zeros), strict=True):
        assert torch.equal(got, want)


def test_packed_bytes_hold_the_checkpoint_and_nothing_else() -> None:
    """4 + 32 / G bits a weight, channels padded to 16."""
    assert native.empty(2048, 2048, 128).packed.numel() * 8 == 2048 * 2048 * 4.25
    assert native.empty(80, 64, 32).packed.numel() * 8 == 80 * 64 * 5
    assert native.empty(1, 64, 32).packed.numel() * 8 == 16 * 64 * 5


def test_embedding_is_the_weight_rounded_once() -> None:
    """Rows looked up are (q - 8) * s + z in fp32, rounded to bfloat16; ids may be int32 and of any shape."""
    c = checkpoint(100, 128, 32)
    w = c.pack()
    ids = torch.tensor([[99, 0, 64], [63, 99, 17]])
    expected = (c.codes().float() - 8) * c.scales.float().repeat_interleave(32, 1) + c.zeros.float().repeat_interleave(
        32, 1
    )
    assert torch.equal(native.embedding(ids, w), expected.bfloat16()[ids])
    assert torch.equal(native.embedding(ids.int(), w), expected.bfloat16()[ids])
    assert native.embedding(ids[:, :0], w).shape == (2, 0, 128)


def test_rows_of_a_wider_matrix_are_read_in_place() -> None:
    """A slice of rows whose stride is larger than K gives what its contiguous copy gives."""
    c = checkpoint(80, 128, 64)
    w = c.pack()
    x = activations(9, 300)[:, 100:228]
    assert x.stride() == (300, 1)
    assert torch.equal(native.linear(x, w), native.linear(x.contiguous(), w))


def test_no_rows_give_no_rows() -> None:
    """M = 0 gives an empty result of the right width."""
    w = checkpoint(80, 128, 64).pack()
    assert native.linear(torch.empty(0, 128).bfloat16(), w).shape == (0, 80)
    assert native.linear(torch.empty(2, 0, 128).bfloat16(), w).shape == (2, 0, 80)


def test_not_a_number_stays_in_its_row() -> None:
    """NaN in one row makes that row NaN and leaves the others as they were."""
    c = checkpoint(64, 128, 64)
    w = c.pack()
    x = activations(13, 128)
    spoiled = x.clone()
    spoiled[4, 77] = torch.nan
    y = native.linear(spoiled, w)
    keep = torch.arange(13) != 4
    assert y[4].isnan().all()
    assert torch.equal(y[keep], native.linear(x, w)[keep])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"x": torch.ones(2, 128)}, "x is Float, expected BFloat16"),
        ({"x": torch.ones(2, 127).bfloat16()}, r"x has shape \[2, 127\], expected \[..., 128\]"),
        ({"x": torch.ones(128, 2).bfloat16().T}, "x has strides"),
        ({"x": torch.ones(2, 3, 256).bfloat16()[..., ::2]}, "x has strides"),
        ({"packed": torch.zeros(10, dtype=torch.uint8)}, r"packed has shape \[10\], expected"),
        ({"packed": torch.zeros(5 * 2 * 576, dtype=torch.int8)}, "packed is Char, expected Byte"),
        ({"packed": torch.zeros(5 * 2 * 576 * 2, dtype=torch.uint8)[::2]}, "packed has strides"),
        ({"bias": torch.ones(80)}, "bias is Float"),
        ({"bias": torch.ones(81).bfloat16()}, r"bias has shape \[81\], expected \[80\]"),
        ({"group_size": 48}, "K a multiple of the group size"),
        ({"group_size": 0}, "the group size a multiple of 8"),
        ({"n": -80}, "must be positive"),
    ],
)
def test_case_56_wrong_arguments_are_refused_by_name(change: dict[str, object], says: str) -> None:
    """Each wrong dtype, shape or stride is refused before a byte is read, naming what, the value and what fits."""
    right = {"x": torch.ones(2, 128).bfloat16(), "packed": checkpoint(80, 128, 64).pack().packed, "bias": None}
    given = right | {"n": 80, "k": 128, "group_size": 64} | change
    with pytest.raises(RuntimeError, match=says):
        torch.ops.cpu_int4.native_linear(*given.values())


def test_case_64_packing_refuses_what_does_not_fit() -> None:
    """Rows outside the matrix, scales of another shape and transposed codes are refused."""
    c = checkpoint(32, 128, 64)
    w = native.empty(80, 128, 64)
    with pytest.raises(RuntimeError, match=r"rows \[49, 81\) do not lie within the 80"):
        native.pack_rows(w, 49, c.qweight, c.scales, c.zeros)
    with pytest.raises(RuntimeError, match=r"scales has shape \[32, 1\], expected \[32, 2\]"):
        native.pack_rows(w, 0, c.qweight, c.scales[:, :1].contiguous(), c.zeros)
    with pytest.raises(RuntimeError, match="qweight has strides"):
        native.pack_rows(w, 0, c.qweight.T.contiguous().T, c.scales, c.zeros)
    with pytest.raises(IndexError, match=r"id 80 at position 1 does not lie in \[0, 80\)"):
        native.embedding(torch.tensor([0, 80]), w)


def test_case_52_operators_pass_torch_s_own_checks() -> None:
    """Schema, fake kernels and dynamic shapes hold by torch's opcheck."""
    w = checkpoint(80, 128, 64).pack()
    bias = torch.ones(80).bfloat16()
    for rows in (1, 9):
        torch.library.opcheck(
            torch.ops.cpu_int4.native_linear.default, (activations(rows, 128), w.packed, bias, *w.shape)
        )
    torch.library.opcheck(torch.ops.cpu_int4.native_embedding.default, (torch.tensor([3, 79]), w.packed, *w.shape))
    torch.library.opcheck(torch.ops.cpu_int4.native_unpack.default, (w.packed, *w.shape))


def test_case_52_compiled_and_eager_agree_and_count_their_paths() -> None:
    """One compiled function takes each path for its own row count, as the counters inside the operator say."""
    c = checkpoint(80, 128, 64)
    w = c.pack()
    compiled = torch.compile(lambda x: native.linear(x, w) * 2, backend="eager", dynamic=True, fullgraph=True)
    native.reset_calls()
    for rows in (1, 7, 1, 40, 64):
        x = activations(rows, 128)
        assert torch.equal(compiled(x), native.linear(x, w) * 2)
    assert native.calls() == {
        "native_decode": 6, "native_mid": 2, "native_prefill": 2, "native_onednn": 0, "native_embedding": 0,
    }  # fmt: skip


def test_case_42_an_unknown_instruction_set_is_refused() -> None:
    """A name that is no instruction set of the kernel is refused with those that are."""
    with pytest.raises(RuntimeError, match="avx512_bf16, avx512, avx2, scalar"):
        native.select_isa("sse9")
    assert native.isa() in native.ISAS
