"""What is wrong with this PyTorch or this CPU is said in a sentence before any weight is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cpu_int4 import ops, selftest
from cpu_int4.selftest import UnusableError

PLUGIN = Path(__file__).parent.parent
#: The processor flag without which a capability cannot be asked for.
FLAGS = {"default": "sse2", "avx2": "avx2", "avx512": "avx512f"}
check = selftest.check.__wrapped__


def test_case_42_this_host_passes_and_nothing_is_counted() -> None:
    """The self-test passes here, and its own calls are not found among those of the model."""
    ops.reset_calls()
    check()
    assert not any(ops.calls().values())


@pytest.mark.parametrize("kernel", selftest.KERNELS)
def test_case_42_a_missing_kernel_is_named(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch without one of the two operators is refused with its name and the way out."""
    real = torch.ops.aten

    class Lacking:
        def __getattr__(self, name: str) -> object:
            if name == kernel:
                raise AttributeError(name)
            return getattr(real, name)

    class Ops:
        aten = Lacking()

    monkeypatch.setattr(selftest.torch, "ops", Ops())
    with pytest.raises(UnusableError, match=f"has no operator aten::{kernel}.*cpu-int4 expand"):
        check()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda w: w.scales_and_zeros[1:].copy_(w.scales_and_zeros[:1].expand_as(w.scales_and_zeros[1:])),
        lambda w: w.packed.copy_(w.packed << 4 | w.packed >> 4),
        lambda w: w.packed.copy_(w.packed.roll(64)),
        lambda w: w.scales_and_zeros[..., 1].neg_(),
    ],
    ids=["first group for all", "nibbles", "rows", "sign of zero"],
)
def test_case_42_a_kernel_that_computes_wrong_numbers_is_refused(
    spoil: Callable[[object], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the kernel multiplies by is spoilt as a faulty one would: the sentence names path, build and error."""
    real = selftest._pack

    def spoilt(*tensors: torch.Tensor) -> object:
        weight = real(*tensors)
        spoil(weight)
        return weight

    monkeypatch.setattr(selftest, "_pack", spoilt)
    with pytest.raises(UnusableError, match=r"4-bit kernel of torch .* wrong numbers for 1 rows: up to .* times"):
        check()


def test_case_56_a_kernel_with_another_contract_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packing operator that no longer takes int32 codes is told from a wrong weight, and named."""

    def refuses(*_: object, **__: object) -> None:
        raise RuntimeError("expect weight to be kByte.")

    monkeypatch.setattr(selftest, "pack", refuses)
    with pytest.raises(UnusableError, match=r"refuses int32 codes.*contract has changed: expect weight to be kByte"):
        check()


@pytest.mark.parametrize("version", ["2.5.1", "2.12.0+cpu", "1.13.0", "unknown"])
def test_case_56_an_older_torch_is_refused_by_its_version(version: str) -> None:
    """Versions that were never tried are refused with the oldest that was."""
    with pytest.raises(UnusableError, match=f"torch {version.replace('+', '.')} is not supported.*2.13 or later"):
        selftest._check_version(version)


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.14.1", "3.0.0a0+git1234"])
def test_case_56_this_and_newer_versions_are_left_to_the_numbers(version: str) -> None:
    """From the version that was tried on, what the kernel computes decides."""
    selftest._check_version(version)


@pytest.mark.slow
@pytest.mark.parametrize("capability", list(FLAGS))
def test_case_42_and_55_all_of_it_holds_under_each_instruction_set(capability: str) -> None:
    """Layouts, both paths, lookup and ragged packing pass whichever instruction set PyTorch is told to use."""
    if f" {FLAGS[capability]} " not in Path("/proc/cpuinfo").read_text(encoding="utf-8").replace("\n", " "):
        pytest.skip(f"this processor has no {capability}")
    env = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "PYTHONPATH": str(PLUGIN)}
    script = "import torch, cpu_int4.selftest as s; s.check(); print(torch.backends.cpu.get_cpu_capability())"
    run = {"env": env, "cwd": PLUGIN, "capture_output": True, "text": True}
    told = subprocess.run([sys.executable, "-c", script], check=False, **run)
    assert told.stdout.strip().lower() == capability, told.stderr
    chosen = "not inductor and not opcheck and not models_shapes"  # long, or the same for all
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "isa", "-k", chosen, "tests"]
    done = subprocess.run(tests, check=False, **run)
    assert done.returncode == 0, done.stdout[-2000:]
