from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

native = pytest.importorskip("cpu_int4.native")
if not native.available():
    pytest.skip("the native kernel is not built", allow_module_level=True)

PLUGIN = Path(__file__).parents[1]


def run(code: str, cwd: Path = PLUGIN, **env: str) -> str:
    """What a fresh interpreter prints, or its traceback; it looks for packages in `cwd` first."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return result.stdout if result.returncode == 0 else result.stderr


def test_one_openmp_runtime_is_mapped() -> None:
    """After a product by the kernel and one by torch, one OpenMP runtime is in the process: torch's own."""
    printed = run("""
import torch
from cpu_int4 import native
x = torch.ones(64, 128).bfloat16()
native.linear(x, native.empty(64, 128, 64))
x @ x.T
names = {line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.rsplit("/", 1)[-1] and ".so" in line}
print(*[n for n in names if "libgomp" in n or "libomp" in n or "libiomp" in n])
""")
    paths = printed.split()
    assert len(paths) == 1, printed
    assert "torch/lib" in paths[0]


def test_case_42_the_environment_chooses_the_instruction_set_or_is_refused() -> None:
    """CPU_INT4_ISA takes another variant; a name this CPU cannot run ends in a sentence, not in SIGILL."""
    code = "from cpu_int4 import native; print(native.isa())"
    assert run(code, CPU_INT4_ISA="scalar").strip() == "scalar"
    assert "avx512_bf16, avx512, avx2, scalar" in run(code, CPU_INT4_ISA="avx1024")


def test_the_wide_path_through_onednn_agrees_with_the_tile() -> None:
    """Sent through oneDNN, a product differs from the kernel's own by the rounding of weights to bfloat16 at most."""
    printed = run(
        """
import torch
from cpu_int4 import native
g = torch.Generator().manual_seed(0)
q = torch.randint(0, 256, (200, 128), generator=g, dtype=torch.uint8)
s = (0.01 + 0.01 * torch.rand(200, 2, generator=g)).bfloat16()
w = native.pack(q, s, s, group_size=128)
x = torch.randn(40, 256, generator=g).bfloat16()
dense = native.embedding(torch.arange(200), w).double()
bias = s[:, 0].contiguous()
wide, narrow = native.linear(x, w, bias), torch.cat([native.linear(r[None], w, bias) for r in x])
bound = 2.0**-7 * narrow.double().abs() + 2.0**-8 * x.double().abs() @ dense.abs().T
print(native.calls()["native_onednn"], bool(((wide.double() - narrow.double()).abs() <= bound).all()))
""",
        CPU_INT4_ONEDNN_ROWS="40",
    )
    assert printed.split() == ["1", "True"], printed


def test_a_missing_extension_says_how_to_build_it(tmp_path: Path) -> None:
    """Without the built library, loading names the file and the command that makes it."""
    shutil.copytree(PLUGIN / "cpu_int4", tmp_path / "cpu_int4", ignore=shutil.ignore_patterns("*.so"))
    printed = run("from cpu_int4 import native; native.load()", cwd=tmp_path)
    assert "NativeKernelMissingError" in printed
    assert "--no-build-isolation" in printed


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_kernel_is_clean_under_sanitizers(tmp_path: Path) -> None:
    """The kernel's own test, built with the address and undefined-behaviour sanitizers, ends well."""
    result = subprocess.run(
        ["make", "-C", str(PLUGIN / "csrc"), f"BUILD={tmp_path}", "sanitize"],
        capture_output=True,
        text=True,
        check=False,
        # vLLM, imported by another test, preloads libraries into every child; the sanitizer's has to come first
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
