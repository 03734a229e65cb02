"""What loading holds in anonymous memory, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch

HERE = Path(__file__).parent
GROUP = 128


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny checkpoint, and one of 80 MiB: six layers, and an embedding of 65536 x 1024 (256 MiB as int32 codes)."""
    root = tmp_path_factory.mktemp("checkpoints")
    small, _ = tiny.pair(root / "small", tiny.llama())
    config = tiny.llama(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=16,
        num_key_value_heads=4, head_dim=64, vocab_size=65536,
    )  # fmt: skip
    stored: tiny.Weights = {}
    for name, weight in tiny.weights({**config, "num_hidden_layers": 6}).items():
        if weight.dim() == 1:
            stored[name] = weight
            continue
        (n, k), module = weight.shape, name.removesuffix(".weight")
        stored[f"{module}.qweight"] = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
        stored[f"{module}.scales"] = torch.full((n, k // GROUP), 0.01).bfloat16()
        stored[f"{module}.zeros"] = torch.zeros(n, k // GROUP).bfloat16()
    large = tiny.write(root / "large", {**config, "quantization_config": tiny.fields(GROUP)}, stored)
    return small, large


def measured(folders: tuple[Path, Path], tmp_path: Path, **changes: int) -> dict[str, float]:
    """Memory of a load, MiB."""
    command = [sys.executable, str(HERE / "load_memory.py"), *map(str, folders), json.dumps(changes)]
    paths = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    lines = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    found: dict[str, float] = json.loads(lines[0])
    return found


@pytest.mark.slow
def test_loading_holds_what_is_packed_and_a_bounded_rest(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """80 MiB of packed weights peak within 32 MiB of that: the checkpoint is never held beside them, nor a whole matrix
    as int32 codes; repacking whole matrices takes 256 MiB more, which shows that the meter sees it.
    """
    blocks = measured(folders, tmp_path)
    assert blocks["held"] > 75
    assert blocks["peak"] <= blocks["held"] + 32
    whole = measured(folders, tmp_path, repack_bytes=0)
    assert whole["peak"] > whole["held"] + 200
