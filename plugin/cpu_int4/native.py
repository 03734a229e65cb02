"""The native kernel: packed 4-bit weights read as they are, for one row and for a thousand.

`csrc/` holds the kernel (`kernel.h`), its packed format (`format.h`: one buffer, no second copy, any N) and the torch
operators; this module loads them and gives them names and shapes. M rows, K inputs, N output channels, G inputs a
group; a weight is w = (q - 8) * s + z, scales and zeros applied per group in fp32.

A row's result does not depend on the other rows of its batch nor on the number of threads, to the bit, unless the wide
path goes through oneDNN (hosts with AMX, from 64 rows on: untested, see `tests/test_native_amx.py`).

Environment: `CPU_INT4_ISA` takes another instruction set than the CPU's best; `CPU_INT4_ONEDNN_ROWS` sends batches of
that many rows and more through oneDNN. Both exist for tests and measurements, and change no graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

ISAS = ("avx512_bf16", "avx512", "avx2", "scalar")  # best first
# In the order of `Path` in csrc/ops.cpp: 1 to 8 rows, 9 to 63, 64 and more, through oneDNN, rows looked up.
PATHS = ("native_decode", "native_mid", "native_prefill", "native_onednn", "native_embedding")

_uncounted = dict.fromkeys(PATHS, 0)  # calls of `check`, which are nobody's work


class NativeKernelError(RuntimeError):
    """The kernel cannot be used here; the message says why and what to do."""


class NativeKernelMissingError(NativeKernelError):
    """The extension was not built, or does not fit the torch that runs."""


@dataclass(frozen=True)
class NativeWeight:
    """One matrix in the packed format."""

    packed: torch.Tensor  # uint8 [ceil(N / 16) * (K / G) * (64 + 8 G)], see csrc/format.h
    n: int  # output channels
    k: int  # inputs
    group_size: int  # inputs that share a scale and a zero

    @property
    def shape(self) -> tuple[int, int, int]:
        """N, K and G, in the order in which the operators take them."""
        return self.n, self.k, self.group_size


@cache
def load() -> None:
    """Load the operators `torch.ops.cpu_int4.native_*`; once a process.

    Raises NativeKernelMissingError, saying how to build it.
    """
    library = Path(__file__).with_name("_native.so")
    remedy = f"build it against this torch ({torch.__version__}): pip install --no-deps --no-build-isolation ./plugin"
    if not library.is_file():
        raise NativeKernelMissingError(f"the native kernel is not built: {library} does not exist; {remedy}")
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise NativeKernelMissingError(f"the native kernel does not load: {error}; {remedy}") from error
    torch.library.register_fake("cpu_int4::native_linear", _fake_linear)
    torch.library.register_fake("cpu_int4::native_embedding", _fake_embedding)
    torch.library.register_fake("cpu_int4::native_unpack", _fake_unpack)


def available() -> bool:
    """Whether `load` succeeds here."""
    try:
        load()
    except NativeKernelMissingError:
        return False
    return True


def check() -> None:
    """Multiply and look up a matrix whose answers are known; uncounted. Raises NativeKernelError if missing or wrong.

    Codes 0 to 15 with scale 1 and zero 0.5 are weights -7.5 to 7.5; 17 rows take the narrow and the wide tile.
    """
    load()
    before = calls()
    codes = torch.arange(16, dtype=torch.uint8).repeat(80, 2)  # [N, K] = [80, 32]
    one = torch.ones(80, 1, dtype=torch.bfloat16)
    weight = pack(codes[:, ::2] | codes[:, 1::2] << 4, one, one * 0.5, group_size=32)
    expected = codes[0].to(torch.bfloat16) - 7.5
    identity = torch.eye(32, dtype=torch.bfloat16)
    right = all(
        torch.equal(linear(identity[:rows], weight), expected[:rows, None].expand(rows, 80)) for rows in (1, 17, 32)
    )
    right = right and torch.equal(embedding(torch.tensor([79]), weight), expected[None])
    _uncounted.update({path: _uncounted[path] + count - before[path] for path, count in calls().items()})
    if not right:
        raise NativeKernelError(
            f"the native kernel gives wrong numbers on this CPU with {isa()}; set CPU_INT4_ISA to another of"
            f" {', '.join(ISAS)}"
        )


def empty(n: int, k: int, group_size: int) -> NativeWeight:
    """A matrix of zero bytes, for `pack_rows` to fill."""
    load()
    return NativeWeight(torch.ops.cpu_int4.native_empty(n, k, group_size), n, k, group_size)


def pack_rows(
    weight: NativeWeight, first: int, qweight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> None:
    """Write channels `first`, `first + 1`, ... of `weight` from the checkpoint's tensors; needs no memory of its own.

    qweight uint8 [rows, K/2] (low nibble even k), scales and zeros bfloat16 [rows, K/G], all contiguous. The parts of a
    fused matrix may be packed one by one, wherever their border falls. Raises RuntimeError for anything else.
    """
    torch.ops.cpu_int4.native_pack_rows(weight.packed, qweight, scales, zeros, first, *weight.shape)


def pack(qweight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, *, group_size: int) -> NativeWeight:
    """Pack a whole matrix from the checkpoint's tensors (as `pack_rows`, rows = N)."""
    weight = empty(qweight.shape[0], 2 * qweight.shape[1], group_size)
    pack_rows(weight, 0, qweight, scales, zeros)
    return weight


def unpack(weight: NativeWeight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Back to the checkpoint's qweight, scales and zeros, bit for bit."""
    qweight, scales, zeros = torch.ops.cpu_int4.native_unpack(weight.packed, *weight.shape)
    return qweight, scales, zeros


def linear(x: torch.Tensor, weight: NativeWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """X W^T + bias as bfloat16 [..., N], for x bfloat16 [..., K] with contiguous inputs and bias bfloat16 [N].

    Raises RuntimeError, before anything is read, for any other device, dtype, shape or stride.
    """
    result: torch.Tensor = torch.ops.cpu_int4.native_linear(x, weight.packed, bias, *weight.shape)
    return result


def embedding(ids: torch.Tensor, weight: NativeWeight) -> torch.Tensor:
    """Rows of W rounded to bfloat16, [*ids.shape, K], for int64 or int32 ids in [0, N); IndexError for other ids."""
    result: torch.Tensor = torch.ops.cpu_int4.native_embedding(ids, weight.packed, *weight.shape)
    return result


def isa() -> str:
    """The instruction set whose code runs: one of ISAS."""
    load()
    return str(torch.ops.cpu_int4.native_isa(""))


def select_isa(name: str) -> None:
    """Run another instruction set's code from now on, in the whole process; RuntimeError if this CPU cannot."""
    load()
    torch.ops.cpu_int4.native_isa(name)


def runnable_isas() -> tuple[str, ...]:
    """Those of ISAS that this CPU can run."""
    before = isa()
    runnable = []
    for name in ISAS:
        try:
            select_isa(name)
        except RuntimeError:
            continue
        runnable.append(name)
    select_isa(before)
    return tuple(runnable)


def calls() -> dict[str, int]:
    """Calls since the last reset by path, counted inside the operators."""
    load()
    counted = zip(PATHS, torch.ops.cpu_int4.native_calls(False), strict=True)
    return {path: count - _uncounted[path] for path, count in counted}


def reset_calls() -> None:
    """Set all counts of `calls` to zero."""
    load()
    torch.ops.cpu_int4.native_calls(True)
    _uncounted.update(dict.fromkeys(PATHS, 0))


def _fake_linear(  # noqa: PLR0917 - the operator's schema
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, n: int, k: int, group_size: int
) -> torch.Tensor:
    del packed, bias, k, group_size
    return x.new_empty((*x.shape[:-1], n))


def _fake_embedding(ids: torch.Tensor, packed: torch.Tensor, n: int, k: int, group_size: int) -> torch.Tensor:
    del packed, n, group_size
    return ids.new_empty((*ids.shape, k), dtype=torch.bfloat16)


def _fake_unpack(
    packed: torch.Tensor, n: int, k: int, group_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scales = packed.new_empty((n, k // group_size), dtype=torch.bfloat16)
    return packed.new_empty((n, k // 2)), scales, torch.empty_like(scales)
