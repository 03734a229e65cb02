"""Where a run's numbers come from: digests that follow content alone, and differences said in sentences."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.run.digests import folder_state, lock_digest, model_digest, source_digest
from harness.run.host import fingerprint
from harness.run.provenance import differences, environment, git_state, provenance
from harness.testing import machines


def write(folder: Path, files: dict[str, str]) -> Path:
    """The folder with those files."""
    return machines.write_machine(folder, files)


def test_a_source_digest_follows_names_and_contents_alone(tmp_path: Path) -> None:
    """Two copies agree whatever their place and time; a changed byte or a renamed file shows; leftovers do not."""
    files = {"a.py": "x = 1\n", "deep/b.py": "y = 2\n"}
    first = source_digest(write(tmp_path / "one", files))
    other = write(tmp_path / "two", dict(reversed(files.items())))
    os.utime(other / "a.py", (1, 1))
    write(other, {"__pycache__/a.cpython-311.pyc": "z", "build/x.o": "z", ".cache": "z", "k.so": "z"})
    assert source_digest(other) == first
    assert source_digest(write(tmp_path / "three", {**files, "a.py": "x = 2\n"})) != first
    assert source_digest(write(tmp_path / "four", {"c.py": "x = 1\n", "deep/b.py": "y = 2\n"})) != first
    assert source_digest(tmp_path / "none") is None


def test_case_5_a_model_of_other_content_under_the_same_path_shows(tmp_path: Path) -> None:
    """A checkpoint changed in place, with its size and its time set back, has another digest in spite of the cache."""
    model, cache = write(tmp_path / "model", {"config.json": "{}", "w.safetensors": "abcd"}), tmp_path / "cache.json"
    first = model_digest(model, cache=cache)
    assert (first["files"], first["bytes"], first["missing"]) == (2, 6, None)
    assert model_digest(model, cache=cache) == first
    before = (model / "w.safetensors").stat()
    (model / "w.safetensors").write_text("abce")
    os.utime(model / "w.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model_digest(model, cache=cache)["digest"] != first["digest"]


def test_a_model_digest_survives_a_damaged_cache_and_needs_none(tmp_path: Path) -> None:
    """The cache only saves time: torn, unwritable or absent, the digest is the same."""
    model = write(tmp_path / "model", {"w.gguf": "abcd"})
    plain = model_digest(model)
    (tmp_path / "torn.json").write_text('{"a": ')
    assert model_digest(model, cache=tmp_path / "torn.json") == plain
    assert model_digest(model, cache=Path("/proc/no/such/cache.json")) == plain
    assert model_digest(model / "w.gguf") == plain  # one file is a model too
    assert model_digest(write(tmp_path / "copy", {"w.gguf": "abcd"})) == plain


def test_a_model_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    """No file, no digest; the reason names the command that makes one."""
    found = model_digest(tmp_path / "nothing")
    assert found["digest"] is None
    assert "harness model" in found["missing"]


def test_case_12_the_state_of_a_cache_folder_is_counted(tmp_path: Path) -> None:
    """A cache root shows its number of files, bytes and newest change; an absent one is empty."""
    assert folder_state(tmp_path / "none") == {"files": 0, "bytes": 0, "newest_s": None}
    root = write(tmp_path / "cache", {"a/kernel.so": "1234", ".hidden": "12"})
    os.utime(root / "a/kernel.so", (1000, 1000))
    os.utime(root / ".hidden", (2000, 2000))
    assert folder_state(root) == {"files": 2, "bytes": 6, "newest_s": 2000.0}


def test_an_environment_is_asked_through_its_own_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Packages and Python of an interpreter are its own: a PYTHONPATH of this shell adds nothing."""
    write(tmp_path, {"ghost-9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: ghost\nVersion: 9.9\n"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = environment(Path(sys.executable))
    assert found["missing"] is None
    assert "pytest" in found["packages"]
    assert "ghost" not in found["packages"]
    assert found["lock_digest"] == environment(Path(sys.executable))["lock_digest"]


def test_an_interpreter_that_fails_is_unknown_with_its_reason(tmp_path: Path) -> None:
    """A missing, failing or hanging interpreter gives nulls and a sentence, no error."""
    assert "no such interpreter" in environment(tmp_path / "python")["missing"]
    assert environment(Path("/bin/false"))["packages"] is None
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 5\n")
    sleeper.chmod(0o755)
    assert "TimeoutExpired" in environment(sleeper, limit_s=0.2)["missing"]


def test_a_lock_digest_ignores_order_blanks_and_comments() -> None:
    """The same packages in another order are the same environment; another version is not."""
    assert lock_digest(["b==2", " a==1 ", "# made by hand", ""]) == lock_digest(["a==1", "b==2"])
    assert lock_digest(["a==1"]) != lock_digest(["a==2"])


def git(folder: Path, *arguments: str) -> None:
    """Run git in a made-up checkout."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_git_state_knows_clean_dirty_and_foreign(tmp_path: Path) -> None:
    """What a run writes leaves a checkout clean, an edited source does not; a foreign repository is not ours."""
    root = write(tmp_path / "checkout", {"harness/__init__.py": "", "results/x/trials.jsonl": "{}\n"})
    assert git_state(root)["commit"] is None
    git(root, "init", "-q")
    git(root, "add", "harness")
    git(root, "commit", "-q", "-m", "first")
    write(root, {"analysis/x.md": "report"})
    clean = git_state(root)
    assert (len(clean["commit"]), clean["dirty"], clean["missing"]) == (40, False, None)
    write(root, {"harness/__init__.py": "changed = True\n"})
    assert git_state(root)["dirty"] is True
    foreign = write(root / "venv" / "site-packages", {"harness/__init__.py": ""})
    assert git_state(foreign)["commit"] is None
    assert "installed" in git_state(foreign)["missing"]


def test_provenance_holds_no_path_of_this_host(tmp_path: Path) -> None:
    """Everything in the record is a name, a version or a digest."""
    found = provenance(
        pythons={"vllm": Path(sys.executable)},
        models={"tiny": write(tmp_path / "model", {"w.gguf": "abcd"})},
        sources={"extra": write(tmp_path / "extra", {"a.py": ""})},
    )
    text = json.dumps(found, allow_nan=False)
    assert str(tmp_path) not in text
    assert str(Path.home()) not in text
    assert found["sources"]["harness"]
    assert found["sources"]["drivers"] != found["sources"]["harness"]
    assert found["sources"]["extra"]


@pytest.fixture(scope="module")
def xeon(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Fingerprint of a made-up server; its 2,700 files are written once."""
    root = machines.write_machine(tmp_path_factory.mktemp("xeon"), machines.xeon_8480c())
    return fingerprint(root, here=machines.here())


@pytest.fixture
def recorded(xeon: dict[str, object]) -> dict[str, object]:
    """Host and provenance as a run records them."""
    made = {
        "versions": {"harness": "0.1.0", "numpy": "2.0"},
        "sources": {"harness": "a" * 64, "plugin": "b" * 64},
        "git": {"commit": "c" * 40, "dirty": False, "missing": None},
        "environments": {"vllm": {"python": "CPython 3.11.7", "packages": {"vllm": "0.32.0"}, "local": {"p": "1"}}},
        "models": {"tiny": {"digest": "d" * 64}},
    }
    return {"host": copy.deepcopy(xeon), "provenance": made}


def test_the_same_host_and_sources_differ_in_nothing(recorded: dict[str, object]) -> None:
    """No sentence without a difference; the git commit alone is none, since the digests say what runs."""
    now = copy.deepcopy(recorded)
    now["provenance"]["git"] = {"commit": "e" * 40, "dirty": True}  # type: ignore[index] # JSON value
    assert differences(recorded, now) == []


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("host.kernel.release", "6.9", "kernel: recorded 6.8.0-45-generic, now 6.9"),
        ("host.memory.thp", "never", "transparent huge pages: recorded always, now never"),
        ("host.cpu.microcode", None, "microcode: recorded 0x2b000590, now unknown"),
        ("host.cpu.isa", ["avx2"], "instruction sets: "),
        ("host.allowed_cpus", "0", "CPUs this process may use: recorded 0-1, now 0"),
        ("host.memory.total_bytes", 2**34, "memory: recorded 540622716928, now 17179869184"),
        ("provenance.versions.numpy", "2.1", "version of numpy: recorded 2.0, now 2.1"),
        ("provenance.sources.plugin", "f" * 64, "sources of plugin: recorded bbbbbbbbbbbb..., now ffffffffffff..."),
        ("provenance.environments.vllm.packages.vllm", "0.33.0", "in the vllm environment, package vllm: recorded"),
        ("provenance.environments.vllm.local.p", "2", "in the vllm environment, build of the package p: recorded 1"),
        ("provenance.models.tiny.digest", None, "content of the model tiny: recorded dddddddddddd..., now unknown"),
    ],
)
def test_each_difference_is_one_sentence(recorded: dict[str, object], path: str, value: object, sentence: str) -> None:
    """One thing changed gives one sentence that names it, then and now."""
    now = copy.deepcopy(recorded)
    *pieces, last = path.split(".")
    place = now
    for piece in pieces:
        place = place[piece]  # type: ignore[assignment] # JSON value
    place[last] = value
    found = differences(recorded, now)
    assert len(found) == 1, found
    assert found[0].startswith(sentence)


def test_memory_that_a_new_kernel_keeps_is_no_difference(recorded: dict[str, object]) -> None:
    """MemTotal some MiB lower is the same host."""
    now = copy.deepcopy(recorded)
    now["host"]["memory"]["total_bytes"] -= 64 * 1024**2  # type: ignore[index] # JSON value
    assert differences(recorded, now) == []
