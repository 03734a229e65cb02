from __future__ import annotations

from pathlib import Path

import pytest  # noqa: TC002 - fixtures' types are looked up at run time

from harness.run.environment import (
    CACHE_ROOTS,
    cache_dir,
    cache_state,
    neutral,
    protocol,
    remove_private,
    temporary_dir,
)

_CALLER = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "OMP_NUM_THREADS": "7",
    "KMP_BLOCKTIME": "1",
    "LD_PRELOAD": "/x.so",
    "VLLM_CPU_KVCACHE_SPACE": "40",
    "PYTHONPATH": "/mine",
    "SECRET": "s",
    "LC_ALL": "C",
    "HF_HOME": "/hub",
}


def test_nothing_of_the_callers_shell_reaches_an_arm(tmp_path: Path) -> None:
    """Only the short list is inherited; what engines listen to is left out and recorded by name, not by value."""
    made = neutral(folder=tmp_path, trial={}, arm={}, inherited=_CALLER)
    assert {name: made.variables[name] for name in ("PATH", "HOME")} == {"PATH": "/bin", "HOME": "/home/me"}
    assert not made.variables.keys() & {
        "OMP_NUM_THREADS",
        "KMP_BLOCKTIME",
        "LD_PRELOAD",
        "PYTHONPATH",
        "SECRET",
        "LC_ALL",
    }
    assert made.scrubbed == (
        "HF_HOME",
        "KMP_BLOCKTIME",
        "LC_ALL",
        "LD_PRELOAD",
        "OMP_NUM_THREADS",
        "PYTHONPATH",
        "VLLM_CPU_KVCACHE_SPACE",
    )


def test_what_the_file_states_wins_over_defaults_and_not_over_the_protocol(tmp_path: Path) -> None:
    """An arm's own variables replace fixed ones and private roots; the trial's token cannot be replaced."""
    trial = protocol(token="".join("t"), events=tmp_path / "e", workload=tmp_path / "w")
    stated = {"PYTHONHASHSEED": "1", "VLLM_CACHE_ROOT": "/shared", "HARNESS_TRIAL": "other"}
    made = neutral(folder=tmp_path, trial=trial, arm=stated, inherited=_CALLER)
    assert made.variables["PYTHONHASHSEED"] == "1"
    assert made.variables["VLLM_CACHE_ROOT"] == "/shared"
    assert made.variables["HARNESS_TRIAL"] == "t"
    assert made.variables["SPT_NOENV"] == "1"


def test_case_12_every_cache_root_is_the_arms_own_and_its_state_is_known(tmp_path: Path) -> None:
    """Two arms share no cache root; an arm's caches are cold until a file lies in any of them, empty folders or not."""
    one = neutral(folder=tmp_path / "one", trial={}, arm={}, inherited={})
    two = neutral(folder=tmp_path / "two", trial={}, arm={}, inherited={})
    for name in (*CACHE_ROOTS, "TMPDIR"):
        assert one.variables[name] != two.variables[name]
        assert Path(one.variables[name]).is_dir()
    assert one.caches == "cold"
    inner = Path(one.variables["TRITON_CACHE_DIR"]) / "a" / "b"
    inner.mkdir(parents=True)
    assert cache_state(tmp_path / "one") == "cold"
    (inner / "kernel.so").touch()
    assert neutral(folder=tmp_path / "one", trial={}, arm={}, inherited={}).caches == "primed"
    assert cache_state(tmp_path / "two") == "cold"
    remove_private(tmp_path / "one")
    remove_private(tmp_path / "two")
    assert not Path(one.variables["TMPDIR"]).exists()
    assert not (tmp_path / "one").exists()


def test_temporary_folder_is_short_enough_for_sockets(tmp_path: Path) -> None:
    """The TMPDIR's path leaves room for a socket's name, however long the cache folder's path is."""
    deep = tmp_path / ("x" * 200)
    assert len(str(temporary_dir(deep))) < 50


def test_place_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`$HARNESS_CACHE`, then `$XDG_CACHE_HOME/harness`, then `~/.cache/harness`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HARNESS_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == tmp_path / ".cache" / "harness"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/harness")
    monkeypatch.setenv("HARNESS_CACHE", "/h")
    assert cache_dir() == Path("/h")
