"""A folder appears whole or not at all, also when the process is killed at the worst moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cpu_int4.folder import FolderError, check_space, whole_folder

FILL = """
import os, signal, sys
from pathlib import Path
from cpu_int4 import folder
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
target, where = Path(sys.argv[1]), sys.argv[2]
if where == "flush": folder._flush = die
if where == "replace": Path.rename = (lambda rename: lambda old, new: (rename(old, new), die()))(Path.rename)
with folder.whole_folder(target, source=Path("/nowhere"), force=True, say=print) as made:
    (made / "config.json").write_text("new")
    if where == "fill": die()
"""


def fill(target: Path, *, force: bool = False, text: str = "new") -> list[str]:
    """Make a folder with one file; what was said."""
    said: list[str] = []
    with whole_folder(target, source=Path("/nowhere"), force=force, say=said.append) as made:
        (made / "config.json").write_text(text)
        assert made.parent == target.parent
    return said


def killed(target: Path, where: str) -> None:
    """A process that fills the target and is killed by SIGKILL."""
    done = subprocess.run([sys.executable, "-c", FILL, str(target), where], check=False, cwd=Path(__file__).parents[1])
    assert done.returncode == -9


def test_a_folder_appears_with_its_files(tmp_path: Path) -> None:
    """Filled elsewhere, then there; its parent is made; nothing stays beside it."""
    assert fill(tmp_path / "deep" / "m") == []
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["m"]
    assert (tmp_path / "deep" / "m" / "config.json").read_text() == "new"
    assert (tmp_path / "deep" / "m").stat().st_mode & 0o055 == 0o055 & ~0o022  # readable for all, as mkdir leaves it


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    """Whatever is raised while filling: no target, no leftover."""
    with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "m", source=tmp_path / "s", force=False, say=print):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["fill", "flush"])
def test_a_killed_run_leaves_nothing_that_looks_whole(tmp_path: Path, where: str) -> None:
    """Killed before the rename: no target; the leftover is hidden; the next run removes it and names it."""
    killed(tmp_path / "m", where)
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".m.cpu-int4-")
    assert fill(tmp_path / "m") == [f"removing {leftover}, left by a run that was killed"]
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_run_killed_while_replacing_gives_the_old_folder_back(tmp_path: Path) -> None:
    """Between moving the old target away and the new one in: the next run puts the old one back before anything else,
    and then refuses to replace it unasked.
    """
    fill(tmp_path / "m", text="old")
    killed(tmp_path / "m", "replace")
    assert not (tmp_path / "m").exists()
    said: list[str] = []
    with (
        pytest.raises(FolderError, match="exists"),
        whole_folder(tmp_path / "m", source=tmp_path / "s", force=False, say=said.append),
    ):
        pass
    assert (tmp_path / "m" / "config.json").read_text() == "old"
    assert any("putting" in line and "back as" in line for line in said)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_run_that_still_works_keeps_its_folder(tmp_path: Path) -> None:
    """Two runs for one target: the second does not sweep the first's work away; the first to finish has the place."""
    target = tmp_path / "m"
    first = whole_folder(target, source=tmp_path / "s", force=False, say=print)
    folder = first.__enter__()
    assert fill(target, text="second") == [f"{folder} belongs to a run that still works on the same target"]
    assert folder.exists()
    with pytest.raises(FolderError, match="exists"):
        first.__exit__(None, None, None)
    assert (target / "config.json").read_text() == "second"


def test_an_existing_target_is_refused_without_force(tmp_path: Path) -> None:
    """And replaced with it, leaving no trace of the old one."""
    fill(tmp_path / "m", text="old")
    with pytest.raises(FolderError, match=r"m: exists; choose another target or replace it with --force"):
        fill(tmp_path / "m")
    assert (tmp_path / "m" / "config.json").read_text() == "old"
    fill(tmp_path / "m", force=True)
    assert (tmp_path / "m" / "config.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_force_deletes_no_folder_that_is_no_model(tmp_path: Path) -> None:
    """A folder of something else, a file or a link survives --force."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "home")
    for name, message in (("home", "holds no config.json"), ("file", "is no folder"), ("link", "is no folder")):
        with pytest.raises(FolderError, match=message):
            fill(tmp_path / name, force=True)
    assert (tmp_path / "home" / "thesis.tex").exists()


@pytest.mark.parametrize("target", ["source", "source/..", "."])
def test_the_source_is_never_the_target(tmp_path: Path, target: str) -> None:
    """Neither the source nor a folder that holds it can be replaced."""
    (tmp_path / "source").mkdir()
    with (
        pytest.raises(FolderError, match=r"the source .* lies there"),
        whole_folder(tmp_path / target, source=tmp_path / "source", force=True, say=print),
    ):
        pass


def test_a_full_disk_is_seen_before_the_work(tmp_path: Path) -> None:
    """More bytes than any disk has: both numbers are said."""
    with pytest.raises(FolderError, match=r"m: needs 1000000000\.00 GB, its disk has .* GB free"):
        check_space(tmp_path / "not" / "yet" / "m", 10**18)
