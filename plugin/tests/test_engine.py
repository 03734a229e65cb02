"""The plugin in real engines: found through its entry point in every process, or refused in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny

pytestmark = pytest.mark.vllm

HERE = Path(__file__).parent
PLUGIN = HERE.parent
OVERRIDE = "VLLM_OMNI_CPU_INT4_DIRECT_DEQUANT"
ENTRY = "cpu_int4.register:register"


@dataclass(frozen=True)
class Ended:
    """How a program ended: its result (None if it printed none) and all that it printed."""

    result: dict[str, Any] | None
    text: str
    code: int


def site(folder: Path, entry: str = ENTRY, name: str = "cpu-int4-under-test") -> Path:
    """A folder with a distribution of this entry point. Under a name of its own it stands beside an installed one;
    under the real name it hides that: of two distributions of one name, the first on the path counts.
    """
    info = folder / f"{name.replace('-', '_')}-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\ncpu_int4 = {entry}\n")
    return folder


def run(tmp_path: Path, folder: Path, arguments: dict[str, Any] | None = None, **environment: str) -> Ended:
    """The checkpoint in an engine of its own, started from another folder than the plugin's."""
    for name in ("cwd", "tmp"):
        (tmp_path / name).mkdir(exist_ok=True)
    paths = [site(tmp_path / "site") if not (tmp_path / "site").exists() else tmp_path / "site", PLUGIN]
    base = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "OMP_"))}
    variables = {
        "PYTHONPATH": ":".join(map(str, paths)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": str(tmp_path / "cache"),
        "VLLM_USE_AOT_COMPILE": "0",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function is sent to the worker to ask for its report
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_RPC_BASE_PATH": ".",  # a socket's path may not be longer than 107 bytes
    }
    command = [sys.executable, str(HERE / "engine_run.py"), str(folder), json.dumps(arguments or {})]
    done = subprocess.run(
        command, cwd=tmp_path / "cwd", env={**base, **variables, **environment}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    lines = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return Ended(json.loads(lines[0]) if lines else None, done.stdout + done.stderr, done.returncode)


def succeeded(ended: Ended) -> dict[str, Any]:
    """The result of a program that ended well."""
    assert ended.result is not None, ended.text[-3000:]
    return ended.result


def near(one: list[float], other: list[float], tolerance: float = 0.05) -> bool:
    """Log-probabilities alike: bf16 logits near -4 have steps of 0.016, and some sums differ by one or two."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) <= tolerance


def test_case_47_the_entry_point_reaches_the_engine_under_spawn_and_from_another_folder(tmp_path: Path) -> None:
    """Eager: the worker, another process, serves 4-bit layers and scores a prompt as the bf16 model they stand for."""
    folder, plain = tiny.pair(tmp_path / "model", tiny.qwen2())
    int4 = succeeded(run(tmp_path, folder, {"enforce_eager": True}))
    worker = int4["worker"]
    assert worker["pid"] != int4["pid"]
    assert worker["modules"] == {"int4_embedding": 1, "int4_linear": 8, "int4_tied_head": 1}
    assert worker["calls"]["tinygemm"] > 0
    assert worker["calls"]["dequant_direct"] > 0
    assert worker["calls"]["tinygemm_rows"] == worker["calls"]["dequant_halves"] == 0
    bf16 = succeeded(run(tmp_path, plain, {"enforce_eager": True}, TEST_NO_REPORT="1"))
    assert near(int4["prompt"], bf16["prompt"], 0.02)
    assert int4["tokens"][0] == bf16["tokens"][0]
    assert near(int4["steps"][:1], bf16["steps"][:1])


def test_cases_46_and_52_the_override_against_a_warm_cache_runs_its_own_graph(tmp_path: Path) -> None:
    """Compiled, one cache root: direct fills it, the override then runs with the copy, and direct again without it."""
    folder, _ = tiny.pair(tmp_path / "model", tiny.llama())
    direct = succeeded(run(tmp_path, folder))
    copy = succeeded(run(tmp_path, folder, None, **{OVERRIDE: "0"}))
    again = succeeded(run(tmp_path, folder))
    assert direct["worker"]["calls"]["dequant_direct"] > 0
    assert direct["worker"]["calls"]["dequant_halves"] == 0
    wide = direct["worker"]["calls"]["dequant_direct"]
    copied, head = (copy["worker"]["calls"][name] for name in ("dequant_halves", "dequant_direct"))
    assert (copied + head, copied > 4 * head) == (wide, True)  # 8 linear layers have the copy, the head has none
    assert again["worker"]["calls"]["dequant_halves"] == 0
    assert direct["prompt"] == copy["prompt"] == again["prompt"]
    assert direct["tokens"] == copy["tokens"] == again["tokens"]
    eager = succeeded(run(tmp_path, folder, {"enforce_eager": True}))
    assert near(eager["prompt"], direct["prompt"])


def test_case_47_switched_off_by_vllm_plugins_it_fails_before_an_engine_starts(tmp_path: Path) -> None:
    """An empty VLLM_PLUGINS keeps the plugin out: an unknown method, told while the configuration is read."""
    folder, _ = tiny.pair(tmp_path / "model", tiny.llama())
    ended = run(tmp_path, folder, {"enforce_eager": True}, VLLM_PLUGINS="")
    assert ended.result is None
    assert ended.code != 0
    assert "Unknown quantization method: cpu_int4" in ended.text
    assert "EngineCore" not in ended.text


def test_case_47_imported_in_the_script_only_it_fails_and_names_the_entry_point_group(tmp_path: Path) -> None:
    """Importing registers nothing; the warning says which group vLLM looks in, and what keeps it from there."""
    folder, _ = tiny.pair(tmp_path / "model", tiny.llama())
    ended = run(tmp_path, folder, {"enforce_eager": True}, VLLM_PLUGINS="another", TEST_IMPORT_HERE="1")
    assert ended.result is None
    assert "Unknown quantization method: cpu_int4" in ended.text
    assert "vllm.general_plugins" in ended.text
    assert "VLLM_PLUGINS" in ended.text


def test_case_47_registered_in_the_script_only_it_fails_in_the_engine_and_names_the_group(tmp_path: Path) -> None:
    """The calling process knows the method, the engine's do not: refused there, with the group and what to do."""
    folder, _ = tiny.pair(tmp_path / "model", tiny.llama())
    ended = run(tmp_path, folder, {"enforce_eager": True}, VLLM_PLUGINS="another", TEST_REGISTER_HERE="1")
    assert ended.result is None
    assert "of the engine does not know cpu_int4" in ended.text
    assert "the entry point group vllm.general_plugins" in ended.text


@pytest.mark.parametrize("entry", ["cpu_int4.no_such_module:register", "broken_plugin:register"])
def test_case_48_a_plugin_that_fails_to_load_fails_the_run(tmp_path: Path, entry: str) -> None:
    """An entry point that cannot be imported is skipped; the checkpoint's method is then unknown, and nothing runs."""
    folder, _ = tiny.pair(tmp_path / "model", tiny.llama())
    site(tmp_path / "site", entry, name="cpu-int4")
    (tmp_path / "site" / "broken_plugin.py").write_text("raise OSError('a library is missing')\n")
    ended = run(tmp_path, folder, {"enforce_eager": True})
    assert ended.result is None
    assert "Failed to load plugin cpu_int4" in ended.text
    assert "Unknown quantization method: cpu_int4" in ended.text


def test_case_64_a_torn_shard_fails_while_the_configuration_is_read(tmp_path: Path) -> None:
    """No engine process is started for a checkpoint whose headers are wrong."""
    folder, _ = tiny.pair(tmp_path / "model", tiny.llama())
    shard = folder / "model-00001-of-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    ended = run(tmp_path, folder, {"enforce_eager": True})
    assert ended.result is None
    assert "model-00001-of-00001.safetensors: torn or no safetensors file" in ended.text
    assert "EngineCore" not in ended.text
