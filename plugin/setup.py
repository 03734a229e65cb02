"""Builds the native kernel against the torch that is installed: everything else stands in pyproject.toml.

`pip install --no-build-isolation plugin/` (build isolation would fetch another torch and build against that one).
"""

from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

SOURCES = [str(p) for p in sorted(Path("csrc").glob("*.cpp")) if p.name != "test_kernel.cpp"]

# One wheel serves all hosts: this compiles for the oldest x86-64, and each tile_*.cpp names, in its first lines, the
# instruction set that it alone is compiled for. OpenMP: libgomp.so.1, which torch ships under that very name and has
# loaded by then, so the process keeps one runtime and one pool of threads.
setup(
    ext_modules=[
        CppExtension(
            "cpu_int4._native",
            SOURCES,
            # -Wno: GCC 12 takes its own _mm512_undefined_epi32() for a fault of ours.
            extra_compile_args=["-O3", "-g0", "-fopenmp", "-fvisibility=hidden", "-Wno-maybe-uninitialized"],
            extra_link_args=["-fopenmp", "-s"],
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
