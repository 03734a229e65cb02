from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

native = pytest.importorskip("cpu_int4.native")
if not native.available():
    pytest.skip("the native kernel is not built", allow_module_level=True)
if "amx_bf16" not in Path("/proc/cpuinfo").read_text():
    pytest.skip("this CPU has no AMX: the wide path through oneDNN has not been run with it", allow_module_level=True)

PROGRAM = r"""
import ctypes, sys, torch
from torch.utils.cpp_extension import load_inline
from cpu_int4 import native

tiles = load_inline("tiles", r'''
#include <immintrin.h>
#include <torch/extension.h>
__attribute__((target("amx-tile"))) at::Tensor configuration() {
  at::Tensor t = at::zeros({64}, at::kByte);
  _tile_storeconfig(t.data_ptr());
  return t;
}
__attribute__((target("amx-tile"))) void configure() {
  alignas(64) unsigned char c[64] = {};
  c[0] = 1; c[16] = 64; c[48] = 16;
  _tile_loadconfig(c);
}
''', functions=["configuration", "configure"])

x = torch.randn(128, 256).bfloat16()
x @ x.T  # oneDNN asks the system for the use of tiles
w = native.pack(torch.randint(0, 256, (200, 128), dtype=torch.uint8), torch.ones(200, 2).bfloat16(),
                torch.zeros(200, 2).bfloat16(), group_size=128)
tiles.configure()
before = tiles.configuration()
native.linear(x, w)
assert native.calls()["native_onednn"] == 1
assert torch.equal(tiles.configuration(), before), "the tile configuration was changed"
"""


def test_the_tile_configuration_is_left_as_found() -> None:
    """A product through oneDNN leaves the calling thread's AMX tile configuration as it was."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
