"""One product, several programs: the narrow path, the wide path in both forms, and the lookup agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from int4_kernel import packed
from int4_reference import BF16_ROUNDING, Stored, product, rounded, stored
from torch.library import opcheck

from cpu_int4 import layout, ops
from cpu_int4.layout import probe, supports_direct_dequant
from cpu_int4.pack import PackedWeight

pytestmark = pytest.mark.isa
BATCHES = (1, 2, 3, 5, 17, 33)


@pytest.fixture(autouse=True)
def counted_from_zero() -> None:
    """Each test reads the calls that it made itself."""
    ops.reset_calls()


@pytest.fixture
def narrow_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels of 64 channels, so that small weights have several and a ragged last one."""
    monkeypatch.setattr(layout, "_panel_weights", lambda: 1)


def activations(rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Random activations bf16 [rows, k]."""
    return torch.randn(rows, k, generator=generator).bfloat16()


def run(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None, **dials: object) -> torch.Tensor:
    """The product with the default dials, or with those given."""
    return ops.linear(x, weight, bias, **{"threshold": 2, "prefill_dequant": True, **dials})


def used() -> dict[str, int]:
    """The paths that ran, without those that did not."""
    return {path: count for path, count in ops.calls().items() if count}


@pytest.mark.parametrize("halves", [False, True], ids=["direct", "halves"])
@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
def test_case_57_a_row_alone_and_in_a_batch_gives_the_same(
    group_size: int, halves: bool, generator: torch.Generator
) -> None:
    """Row 0 of any batch is what it is alone, within what rounding the weights to bf16 can change, and no more.

    Alone: a float32 sum, rounded once. In a batch: the same with each weight rounded to bf16 first, which changes the
    sum by at most |x| times the distances (about 2^-9 of the sum of |x w|). Either sum in float32 adds K roundings.
    """
    source = stored(128, 512, group_size, generator)
    weight = packed(source, keep_halves=halves)
    x = activations(max(BATCHES), 512, generator)
    wanted, magnitude, of_weights = product(x[:1], source)
    sums = 512 * 2.0**-24 * magnitude
    alone = run(x[:1], weight).double().numpy()
    assert np.all(np.abs(alone - wanted) <= BF16_ROUNDING * np.abs(wanted) + sums * 1.01)
    for rows in BATCHES[1:]:
        batch = run(x[:rows], weight)[:1].double().numpy()
        allowed = of_weights + 2 * sums + BF16_ROUNDING * (np.abs(alone) + np.abs(batch))
        assert np.all(np.abs(batch - alone) <= allowed), rows
    assert of_weights.mean() < 2.0**-9 * magnitude.mean()
    assert used() == {"tinygemm": 1, "dequant_halves" if halves else "dequant_direct": len(BATCHES) - 1}


@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 16, 17, 33])
def test_case_57_every_path_reads_each_groups_own_scale(rows: int, group_size: int, generator: torch.Generator) -> None:
    """With scales that double from group to group, every row of every path equals the float64 product."""
    source = stored(64, 512, group_size, generator)
    x = activations(rows, 512, generator)
    wanted, magnitude, of_weights = product(x, source)
    for dequantize in (False, True):
        for halves in (False, True):
            found = run(x, packed(source, keep_halves=halves), threshold=1, prefill_dequant=dequantize)
            allowed = BF16_ROUNDING * np.abs(wanted) + 512 * 2.0**-24 * magnitude * 1.01 + of_weights * dequantize
            assert np.all(np.abs(found.double().numpy() - wanted) <= allowed), (dequantize, halves)


@pytest.mark.parametrize("rows", [2, 3, 17, 64])
@pytest.mark.parametrize(("n", "k"), [(64, 128), (192, 64), (1024, 256), (832, 1024)])
def test_both_layouts_give_the_direct_product_bit_for_bit(
    n: int, k: int, rows: int, generator: torch.Generator
) -> None:
    """The copy in halves is another way to the same panels, so not one bit of the product differs."""
    source, x = stored(n, k, 32, generator), activations(rows, k, generator)
    bias = activations(1, n, generator)[0]
    direct, copied = run(x, packed(source), bias), run(x, packed(source, keep_halves=True), bias)
    assert torch.equal(direct.view(torch.int16), copied.view(torch.int16))
    assert used() == {"dequant_direct": 1, "dequant_halves": 1}


@pytest.mark.usefixtures("narrow_panels")
def test_panels_and_a_ragged_last_one_give_the_whole_product(generator: torch.Generator) -> None:
    """A weight of 208 channels in panels of 64, 64, 64 and 16 gives each channel its own weights, scales and bias."""
    source = stored(208, 64, 32, generator)
    weight, bias = packed(source), activations(1, 208, generator)[0]
    product = run(torch.eye(64, dtype=torch.bfloat16), weight, bias)
    assert torch.equal(product, (rounded(source).t().float() + bias.float()).bfloat16())


def test_n_80_keeps_the_copy_whatever_is_asked(generator: torch.Generator) -> None:
    """A weight of 80 channels cannot be read back: it holds the copy, its wide path uses it, its values are right."""
    source = stored(80, 128, 64, generator)
    weight = packed(source)
    assert not supports_direct_dequant(80, probe())
    assert weight.halves is not None
    assert torch.equal(run(torch.eye(128, dtype=torch.bfloat16), weight).t(), rounded(source))
    assert used() == {"dequant_halves": 1}


@pytest.mark.parametrize("point", [0, 7, 8, 15])
def test_case_63_a_zero_point_means_the_same_in_all_four_paths(point: int) -> None:
    """With scale 1 and z = 8 - zp, codes 0 and 15 are -zp and 15 - zp in both products, both reads and both lookups."""
    codes = torch.zeros(64, 32, dtype=torch.uint8)
    codes[1::2] = 15
    scales = torch.ones(64, 1, dtype=torch.bfloat16)
    zeros = torch.full((64, 1), 8.0 - point, dtype=torch.bfloat16)
    wanted = torch.where(codes == 0, -point, 15 - point).bfloat16()
    rows = torch.eye(32, dtype=torch.bfloat16)
    for halves in (False, True):
        weight = packed(Stored(codes[:, 0::2] | codes[:, 1::2] << 4, scales, zeros, 32), keep_halves=halves)
        one_by_one = torch.cat([run(rows[i : i + 1], weight) for i in range(32)])
        assert torch.equal(one_by_one.t(), wanted)
        assert torch.equal(run(rows, weight).t(), wanted)
        assert torch.equal(ops.embedding(torch.arange(64), weight), wanted)
    assert set(used()) == {"tinygemm", "dequant_direct", "dequant_halves", "embedding_direct"}


@pytest.mark.parametrize(
    ("rows", "threshold", "dequantize", "path"),
    [
        (1, 2, True, "tinygemm"),
        (2, 2, True, "dequant_direct"),
        (7, 8, True, "tinygemm_rows"),
        (8, 8, True, "dequant_direct"),
        (1, 1, True, "dequant_direct"),
        (1, 0, True, "dequant_direct"),
        (512, 2, False, "tinygemm_rows"),
        (1, 2, False, "tinygemm"),
    ],
)
def test_case_68_the_counters_name_the_path_that_ran(
    rows: int, threshold: int, dequantize: bool, path: str, generator: torch.Generator
) -> None:
    """Fewer rows than the threshold, or all without prefill dequantization, take the kernel; the others do not."""
    weight = packed(stored(64, 64, 32, generator))
    run(activations(rows, 64, generator), weight, threshold=threshold, prefill_dequant=dequantize)
    assert used() == {path: 1}


@pytest.mark.parametrize("dequantize", [True, False])
@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64)])
def test_no_rows_give_no_rows(shape: tuple[int, ...], dequantize: bool, generator: torch.Generator) -> None:
    """A batch of nothing has a result of the right shape and dtype and reaches no kernel."""
    weight = packed(stored(128, 64, 32, generator))
    bias = activations(1, 128, generator)[0]
    found = run(torch.empty(shape, dtype=torch.bfloat16), weight, bias, prefill_dequant=dequantize)
    assert (found.shape, found.dtype) == ((*shape[:-1], 128), torch.bfloat16)
    assert used() == {"empty": 1}


def test_activations_of_any_rank_and_stride_are_taken(generator: torch.Generator) -> None:
    """One vector, a stack of batches and a strided view give the rows that a plain matrix of them gives."""
    weight = packed(stored(64, 64, 32, generator))
    x = activations(6, 128, generator)
    plain = run(x[:, :64].contiguous(), weight)
    assert torch.equal(run(x[:, :64], weight), plain)
    assert torch.equal(run(x[:, :64].reshape(2, 3, 64), weight), plain.view(2, 3, 64))
    alone = run(x[:1, :64].contiguous(), weight)
    assert torch.equal(run(x[0, :64], weight), alone[0])
    assert torch.equal(run(x[:1, 0:128:2], weight), run(x[:1, 0:128:2].contiguous(), weight))


def test_a_bias_is_added_once_in_both_paths(generator: torch.Generator) -> None:
    """With a bias, the narrow and the wide path give the product plus the bias, within two roundings to bf16."""
    source = stored(64, 64, 32, generator)
    weight, bias = packed(source), activations(1, 64, generator)[0]
    for rows in (1, 3):
        x = activations(rows, 64, generator)
        wanted, magnitude, of_weights = product(x, source)
        summed = wanted + bias.double().numpy()
        allowed = BF16_ROUNDING * (np.abs(wanted) + np.abs(summed)) * 1.01 + 64 * 2.0**-24 * magnitude + of_weights
        assert np.all(np.abs(run(x, weight, bias).double().numpy() - summed) <= allowed)


def test_more_threads_change_no_bit(generator: torch.Generator) -> None:
    """The products of one and of two threads are the same bits, as are the weights read back."""
    weight, x = packed(stored(1024, 512, 64, generator)), activations(33, 512, generator)
    alone = run(x, weight)
    torch.set_num_threads(2)
    try:
        assert torch.equal(run(x, weight), alone)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda x, p, s: (x[:, :32], p, s), "another K"),
        (lambda x, p, s: (x, p, s[:1]), "too few groups"),
        (lambda x, p, s: (x, p, s.transpose(0, 1).contiguous().transpose(0, 1)), "strided scales"),
        (lambda x, p, s: (x.float(), p, s), "float32 activations"),
    ],
)
@pytest.mark.parametrize("rows", [1, 4])
def test_what_the_kernel_would_read_out_of_bounds_is_refused(
    rows: int, spoil: object, what: str, generator: torch.Generator
) -> None:
    """The kernel checks neither K nor the number of groups nor strides; the operator names all three tensors."""
    weight = packed(stored(64, 64, 32, generator))
    x, codes, scales = spoil(activations(rows, 64, generator), weight.packed, weight.scales_and_zeros)  # type: ignore[operator]
    with pytest.raises(ValueError, match="do not fit one another at group size 32"):
        torch.ops.cpu_int4.linear(x, codes, scales, None, None, 32, 2, True)
    assert what


@pytest.mark.parametrize("dequantize", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("n", [64, 80])
def test_opcheck_finds_the_linear_operator_clean(
    n: int, rows: int, dequantize: bool, generator: torch.Generator
) -> None:
    """Schema, fake kernel and dynamic shapes of the product hold for every path, with and without bias and copy."""
    weight = packed(stored(n, 64, 32, generator))
    for bias in (None, activations(1, n, generator)[0]):
        x = activations(rows, 64, generator)
        arguments = (x, weight.packed, weight.scales_and_zeros, weight.halves, bias, 32, 2, dequantize)
        opcheck(torch.ops.cpu_int4.linear.default, arguments)


@pytest.mark.parametrize("n", [64, 80])
@pytest.mark.parametrize("shape", [(0,), (1,), (2, 3)])
def test_opcheck_finds_the_embedding_operator_clean(n: int, shape: tuple[int, ...], generator: torch.Generator) -> None:
    """Schema, fake kernel and dynamic shapes of the lookup hold for both sources."""
    weight = packed(stored(n, 64, 32, generator))
    ids = torch.randint(0, n, shape, generator=generator)
    opcheck(torch.ops.cpu_int4.embedding.default, (ids, weight.packed, weight.scales_and_zeros, weight.halves, 32))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("first", [1, 7])
def test_case_52_a_compiled_graph_takes_the_path_of_its_rows(
    first: int, backend: str, generator: torch.Generator
) -> None:
    """Compiled once with dynamic rows, whichever count came first, each call takes its own path and equals eager."""
    weight = packed(stored(64, 64, 32, generator))

    def layer(x: torch.Tensor) -> torch.Tensor:
        return run(x + 1, weight) * 2

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    batches = [activations(rows, 64, generator) for rows in (first, 1, 7, 1, 0, 2)]
    eager = [layer(x) for x in batches]
    ops.reset_calls()
    for x, wanted in zip(batches, eager, strict=True):
        assert torch.equal(compiled(x), wanted)
    narrow = 3 if first == 1 else 2
    ran = used()
    ran.pop("empty", None)  # inductor knows that nothing is to be computed, and does not call
    assert ran == {"tinygemm": narrow, "dequant_direct": 5 - narrow}
