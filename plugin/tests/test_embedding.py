"""The lookup: rows out of the very bytes that the head multiplies by."""

from __future__ import annotations

import pytest
import torch
from int4_kernel import packed
from int4_reference import rounded, stored

from cpu_int4 import layout, ops

pytestmark = pytest.mark.isa


@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
@pytest.mark.parametrize("n", [64, 192, 80, 208])
def test_every_row_is_the_weights_own(n: int, group_size: int, generator: torch.Generator) -> None:
    """All rows, out of order and repeated, have the bits of the dequantized weight, ragged sizes included."""
    source = stored(n, 256, group_size, generator)
    ids = torch.randint(0, n, (3 * n,), generator=generator)
    assert torch.equal(ops.embedding(ids, packed(source)), rounded(source)[ids])


def test_one_copy_serves_lookup_and_head(generator: torch.Generator) -> None:
    """Row i of the lookup is column i of the head's product with the identity: case 60's cosine, exactly one."""
    weight = packed(stored(128, 64, 32, generator))
    ops.reset_calls()
    table = ops.embedding(torch.arange(128), weight)
    head = ops.linear(torch.eye(64, dtype=torch.bfloat16), weight, None, threshold=2, prefill_dequant=True)
    assert torch.equal(table, head.t())
    assert weight.halves is None
    assert {path for path, count in ops.calls().items() if count} == {"embedding_direct", "dequant_direct"}


def test_the_copy_is_read_only_where_it_must_be(generator: torch.Generator) -> None:
    """A table of 128 rows is read out of the packed layout even if it has a copy; one of 80 needs its copy."""
    ops.reset_calls()
    ops.embedding(torch.tensor([3]), packed(stored(128, 64, 32, generator), keep_halves=True))
    ops.embedding(torch.tensor([3]), packed(stored(80, 64, 32, generator)))
    assert (ops.calls()["embedding_direct"], ops.calls()["embedding_halves"]) == (1, 1)


@pytest.mark.parametrize("n", [80, 272])
def test_the_copy_is_looked_up_across_its_panels(
    n: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With panels of 64 rows and a ragged last one of 16, every row still is its own."""
    monkeypatch.setattr(layout, "_panel_weights", lambda: 1)
    source = stored(n, 64, 32, generator)
    assert torch.equal(ops.embedding(torch.arange(n), packed(source)), rounded(source))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_of_any_shape_and_integer_type_are_taken(dtype: torch.dtype, generator: torch.Generator) -> None:
    """Ids [2, 3] give rows [2, 3, K]; no ids give no rows."""
    source = stored(64, 64, 32, generator)
    ids = torch.tensor([[0, 63, 5], [5, 32, 31]], dtype=dtype)
    assert torch.equal(ops.embedding(ids, packed(source)), rounded(source)[ids.long()])
    assert ops.embedding(ids[:0], packed(source)).shape == (0, 3, 64)


@pytest.mark.parametrize("wrong", [-1, 64, 1 << 20])
def test_an_id_outside_the_table_is_refused(wrong: int, generator: torch.Generator) -> None:
    """Neither a negative id, which an index would wrap, nor one past the end gives somebody else's row."""
    weight = packed(stored(64, 64, 32, generator))
    with pytest.raises(IndexError, match=f"{wrong}.* rows 0 to 63"):
        ops.embedding(torch.tensor([0, wrong]), weight)
