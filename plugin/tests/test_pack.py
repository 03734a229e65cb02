"""Packing in blocks: the kernel's own bytes, within a stated bound of memory; what cannot be packed is refused."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from int4_kernel import packed
from int4_reference import codes, stored

from cpu_int4 import layout as layouts
from cpu_int4.layout import OPAQUE, convert, probe, supports_direct_dequant
from cpu_int4.pack import pack, repack_chunks

MIB = 1 << 20
SPARK = {"gate_up": (13312, 2048), "down": (2048, 6656), "q_k_v": (3072, 2048), "embedding": (131072, 2048)}


@pytest.mark.parametrize("name", [*SPARK][:3])
def test_repacking_in_blocks_gives_the_same_bytes_at_the_models_shapes(name: str, generator: torch.Generator) -> None:
    """The bytes of a whole matrix packed at once and within 4 MiB are the same at every shape of the model."""
    n, k = SPARK[name]
    weight = stored(n, k, 128, generator)
    assert len(repack_chunks(n, k, 4 * MIB)) > 5
    in_blocks = pack(
        weight.qweight, weight.scales, weight.zeros, group_size=128, keep_halves=False, repack_bytes=4 * MIB
    )
    assert torch.equal(in_blocks.packed, convert(torch.from_numpy(codes(weight))))


def test_repacking_in_blocks_gives_the_same_bytes_for_the_embedding(generator: torch.Generator) -> None:
    """The same for 131072 x 2048, whose codes take 1 GiB as int32."""
    n, k = SPARK["embedding"]
    qweight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator)
    flat = torch.ones(n, k // 128, dtype=torch.bfloat16)
    in_blocks = pack(qweight, flat, flat, group_size=128, keep_halves=False, repack_bytes=4 * MIB).packed
    whole = pack(qweight, flat, flat, group_size=128, keep_halves=False, repack_bytes=0).packed
    assert len(repack_chunks(n, k, 0)) == 1
    assert torch.equal(in_blocks, whole)


@pytest.mark.isa
@pytest.mark.parametrize("n", [80, 192, 208, 2048 + 16, 13312 + 48])
def test_a_ragged_last_chunk_gives_the_same_bytes(n: int, generator: torch.Generator) -> None:
    """Chunks of two blocks with a last one that is shorter, or no whole block, change no byte, nor does the copy."""
    weight = stored(n, 64, 32, generator)
    two_blocks = 2 * 5 * 64 * probe().block
    cut = repack_chunks(n, 64, two_blocks)
    assert cut[-1].stop - cut[-1].start < 2 * probe().block
    tensors = (weight.qweight, weight.scales, weight.zeros)
    in_blocks = pack(*tensors, group_size=32, keep_halves=True, repack_bytes=two_blocks)
    whole = pack(*tensors, group_size=32, keep_halves=True, repack_bytes=0)
    assert torch.equal(in_blocks.packed, convert(torch.from_numpy(codes(weight))))
    assert torch.equal(in_blocks.halves, whole.halves)


@given(
    blocks=st.integers(1, 3000),
    tail=st.integers(0, 3),
    k=st.integers(1, 300).map(lambda k: 32 * k),
    bound=st.integers(1, 1 << 24),
)
@settings(max_examples=200, deadline=None)
def test_chunks_are_whole_blocks_within_the_bound(blocks: int, tail: int, k: int, bound: int) -> None:
    """Chunks cover all channels in order, each starts at a block, and none but a lone block passes the bound."""
    n, block = blocks * 64 + tail * 16, probe().block
    cut = repack_chunks(n, k, bound)
    assert [c.start for c in cut] == [0, *(c.stop for c in cut[:-1])]
    assert cut[-1].stop == n
    assert all(c.start % block == 0 for c in cut)
    assert all((c.stop - c.start) * k * 5 <= bound or c.stop - c.start <= block for c in cut)


def test_an_unknown_layout_is_packed_whole_and_keeps_the_copy(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that we do not know may not be cut, nor read back: one chunk, and the copy serves the wide path."""
    for module in (layouts, sys.modules["cpu_int4.pack"]):
        monkeypatch.setattr(module, "probe", lambda: OPAQUE)
    assert repack_chunks(1024, 64, 1) == [slice(0, 1024)]
    assert packed(stored(128, 64, 32, generator)).halves is not None


def test_a_transposed_or_strided_qweight_is_packed_as_it_reads(generator: torch.Generator) -> None:
    """Strides are heeded: a column slice, a transpose and every other row pack as their contiguous copies do."""
    base = torch.randint(0, 256, (128, 128), dtype=torch.uint8, generator=generator)
    flat = torch.ones(64, 4, dtype=torch.bfloat16)
    for view in (base[:64, :64], base.t()[:64, :64], base[::2, ::2], base[64:, 1:65]):
        assert not view.is_contiguous()
        found = pack(view, flat, flat, group_size=32, keep_halves=True, repack_bytes=1 << 14)
        wanted = pack(view.contiguous(), flat, flat, group_size=32, keep_halves=True, repack_bytes=1 << 14)
        assert torch.equal(found.packed, wanted.packed)
        assert torch.equal(found.halves, wanted.halves)
        assert found.packed.is_contiguous()


def test_the_copy_is_kept_if_asked_or_needed(generator: torch.Generator) -> None:
    """128 channels have a copy only if asked, 80 in any case; it takes as many bytes as the packed form."""
    assert packed(stored(128, 64, 32, generator)).halves is None
    for weight in (packed(stored(128, 64, 32, generator), keep_halves=True), packed(stored(80, 64, 32, generator))):
        assert weight.halves.nbytes == weight.packed.nbytes == weight.n * weight.k // 2
    assert not supports_direct_dequant(80, probe())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.bool])
def test_case_56_codes_of_another_dtype_are_refused(dtype: torch.dtype) -> None:
    """Only nibbles in uint8 are codes for certain: nothing outside 0..15 can reach the kernel, which mixes it in."""
    ones = torch.ones(64, 1, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=re.escape(f"proj: qweight is {dtype} (64, 16); wanted is uint8")):
        pack(
            torch.zeros(64, 16, dtype=dtype), ones, ones, group_size=32, keep_halves=False, repack_bytes=0, name="proj"
        )


@pytest.mark.parametrize(("n", "accepted"), [(0, False), (1, False), (15, False), (16, True), (63, False), (65, False)])
def test_case_66_channels_come_in_sixteens(n: int, accepted: bool) -> None:
    """The kernel packs sixteen channels at a time; another number is refused with the number and the way out."""
    ones = torch.ones(n, 2, dtype=torch.bfloat16)
    arguments = (torch.zeros(n, 32, dtype=torch.uint8), ones, ones)
    if accepted:
        assert pack(*arguments, group_size=32, keep_halves=False, repack_bytes=0).n == n
        return
    with pytest.raises(ValueError, match=f"proj: ({n} output channels are no multiple of 16.*bf16|.*wanted is uint8)"):
        pack(*arguments, group_size=32, keep_halves=False, repack_bytes=0, name="proj")


@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
@pytest.mark.parametrize("k", [32, 48, 96, 4304, 4864])
def test_case_66_inputs_come_in_groups(k: int, group_size: int) -> None:
    """A last group that is short is refused with K and the group size; a size is never guessed from a quotient."""
    ones = torch.ones(16, max(1, k // group_size), dtype=torch.bfloat16)
    arguments = (torch.zeros(16, k // 2, dtype=torch.uint8), ones, ones)
    if k % group_size == 0:
        assert pack(*arguments, group_size=group_size, keep_halves=True, repack_bytes=0).k == k
        return
    with pytest.raises(ValueError, match=f"weight: {k} inputs are no multiple of the group size {group_size}"):
        pack(*arguments, group_size=group_size, keep_halves=True, repack_bytes=0)


@pytest.mark.parametrize("group_size", [-1, 0, 7, 16, 512])
def test_case_66_a_group_size_the_kernel_lacks_is_refused(group_size: int) -> None:
    """The sizes that the kernel knows stand in the message."""
    ones = torch.ones(16, 1, dtype=torch.bfloat16)
    tensors = (torch.zeros(16, 16, dtype=torch.uint8), ones, ones)
    with pytest.raises(ValueError, match=rf"group size {group_size} is not supported.*\(32, 64, 128, 256\)"):
        pack(*tensors, group_size=group_size, keep_halves=False, repack_bytes=0)


@pytest.mark.parametrize("part", ["scales", "zeros"])
@pytest.mark.parametrize("fault", ["shape", "dtype", math.inf, -math.inf, math.nan])
def test_case_64_scales_and_zeros_that_do_not_fit_are_refused(
    part: str, fault: object, generator: torch.Generator
) -> None:
    """Scales of the wrong shape would be read out of bounds: shape, dtype and the place of a bad value are named."""
    weight = stored(64, 96, 32, generator)
    parts = {"scales": weight.scales, "zeros": weight.zeros}
    if fault == "shape":
        parts[part], message = parts[part][:, :2], rf"{part} are torch.bfloat16 \(64, 2\); wanted is bfloat16 \[64, 3\]"
    elif fault == "dtype":
        parts[part], message = parts[part].float(), rf"{part} are torch.float32 \(64, 3\); wanted is bfloat16"
    else:
        parts[part] = parts[part].clone()
        parts[part][5, 2], message = fault, rf"{part} hold inf or NaN at row, group \(5, 2\)"
    with pytest.raises(ValueError, match="proj: " + message):
        pack(weight.qweight, **parts, group_size=32, keep_halves=False, repack_bytes=0, name="proj")


GROWTH = """
import sys, torch
from cpu_int4.layout import probe
from cpu_int4.pack import pack
torch.set_num_threads(1)
n, k, repack_bytes, keep = (int(word) for word in sys.argv[1:])
def status(field):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(field + ":"))
probe(), pack(*(torch.ones(64, w, dtype=d) for w, d in ((16, torch.uint8), *[(1, torch.bfloat16)] * 2)),
              group_size=32, keep_halves=True, repack_bytes=1 << 12)
qweight = torch.full((n, k // 2), 0xA3, dtype=torch.uint8)
flat = torch.ones(n, k // 128, dtype=torch.bfloat16)
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
weight = pack(qweight, flat, flat, group_size=128, keep_halves=bool(keep), repack_bytes=repack_bytes)
kept = sum(t.nbytes for t in (weight.packed, weight.scales_and_zeros, weight.halves) if t is not None)
print(status("VmHWM") - before - kept)
"""


def transient(n: int, k: int, repack_bytes: int, *, keep_halves: bool) -> int:
    """Bytes that packing [N, K] in a fresh process took beyond its result, by the kernel's high-water mark.

    The allocator is told to map and unmap all that passes 64 KiB, or freed scratch would count as taken.
    """
    words = [str(int(word)) for word in (n, k, repack_bytes, keep_halves)]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", GROWTH, *words], capture_output=True, text=True, check=True, env=env)
    return int(done.stdout)


@pytest.mark.parametrize("keep_halves", [False, True])
@pytest.mark.parametrize("name", list(SPARK))
def test_packing_takes_its_bound_beyond_the_result(name: str, keep_halves: bool) -> None:
    """By the high-water mark of a process that returns what it frees, 4 MiB at most beside what is kept."""
    assert transient(*SPARK[name], 4 * MIB, keep_halves=keep_halves) <= 4 * MIB


def test_packing_at_once_takes_eight_times_the_packed_form() -> None:
    """The measurement can tell: with 0 for the bound, gate_up takes the 104 MiB of its int32 codes, and more."""
    n, k = SPARK["gate_up"]
    assert transient(n, k, 0, keep_halves=False) >= 104 * MIB
