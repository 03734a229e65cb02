"""Texts that quality is scored on: found without importing the package that ships them, and known by their digest."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from harness.models import texts
from harness.models.store import ModelError

CHECKOUT = Path(__file__).parent.parent
ARMS_PYTHON = Path(os.environ.get("HARNESS_ARMS_PYTHON") or CHECKOUT / ".venv-arms" / "bin" / "python")
needs_arms = pytest.mark.skipif(not ARMS_PYTHON.exists(), reason="`make setup` makes the arms' environment")


@needs_arms
def test_the_shipped_text_is_found_in_the_arms_environment(tmp_path: Path) -> None:
    """`lee` is the Lee news corpus inside gensim, which cannot be imported there: it would want scipy."""
    found = texts.find("lee", relative_to=tmp_path, python=ARMS_PYTHON)
    assert found.path.is_absolute()
    assert found.path.read_text(encoding="utf-8").startswith("Hundreds of people have been forced to vacate")
    assert found.digest == hashlib.sha256(found.path.read_bytes()).hexdigest()


def test_a_text_of_ones_own_is_a_path_beside_the_experiment(tmp_path: Path) -> None:
    """Made absolute and digested, under the name that the experiment gives it; no interpreter is asked."""
    (tmp_path / "own.txt").write_text("abc")
    found = texts.find("own.txt", relative_to=tmp_path, python=Path("/nowhere"))
    assert (found.name, found.path) == ("own.txt", tmp_path / "own.txt")
    assert found.digest == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180's own example


def test_a_text_that_cannot_be_had_says_what_to_do(tmp_path: Path) -> None:
    """No such file; no interpreter; no such package in it; a package that ships another text under that name."""
    with pytest.raises(ModelError, match=r"'absent.txt': there is no file .*; texts: lee"):
        texts.find("absent.txt", relative_to=tmp_path, python=Path("/nowhere"))
    with pytest.raises(ModelError, match="/nowhere does not exist; `make setup`"):
        texts.find("lee", relative_to=tmp_path, python=Path("/nowhere"))
    with pytest.raises(ModelError, match=r"package gensim is missing in .*`make setup`"):
        texts.find("lee", relative_to=tmp_path, python=_python(tmp_path, ""))
    package = tmp_path / "gensim"
    (package / "test" / "test_data").mkdir(parents=True)
    (package / "test" / "test_data" / "lee_background.cor").write_text("another text")
    with pytest.raises(ModelError, match=r"has SHA-256 .*, not 5d78d6da\w+: it is not the text of that name"):
        texts.find("lee", relative_to=tmp_path, python=_python(tmp_path, str(package / "__init__.py")))


def _python(folder: Path, origin: str) -> Path:
    """An interpreter that finds the package at `origin`."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho '{origin}'\n")
    python.chmod(0o755)
    return python
