"""A run of real processes that is stopped, killed, or runs out of room: nothing recorded is lost, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.run.store import RunFolder

ROOT = Path(__file__).resolve().parent.parent
ARMS = ROOT / "harness" / "testing" / "arms.py"


def experiment(tmp_path: Path, **commands: list[str]) -> Path:
    """A file of `command` arms with a mark of this test in every argument list."""
    arms = {name: {"command": [sys.executable, str(ARMS), *words]} for name, words in commands.items()}
    file = tmp_path / "my lab's" / "tiny.yaml"
    file.parent.mkdir(exist_ok=True)
    metric = {"name": "score", "unit": "s", "better": "lower"}
    file.write_text(
        json.dumps(
            {"question": "q", "passes": 3, "engine": {"command": {}}, "arms": arms, "metrics": [metric], "seed": 1}
        )
    )
    return file


@contextmanager
def started(tmp_path: Path, file: Path, run: str | None = None, prefix: str = "") -> Iterator[subprocess.Popen[str]]:
    """The run in a process group of its own, with its own cache and lock."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HARNESS_CACHE": str(tmp_path / "cache"),
        "HARNESS_HOST_LOCK": str(tmp_path / "lock"),
    }
    words = [sys.executable, "-c", f"{prefix}\nimport sys; from harness.cli import main; sys.exit(main())", "run"]
    process = subprocess.Popen(
        [*words, str(file), "--results", str(tmp_path / "results"), *(["--resume", run] if run else [])],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def runs(tmp_path: Path) -> list[RunFolder]:
    """The runs that have started."""
    return [RunFolder(path.parent) for path in (tmp_path / "results" / "tiny").glob("*/plan.json")]


def folder_of(process: subprocess.Popen[str], tmp_path: Path) -> RunFolder:
    """The folder of the only run."""
    until(lambda: bool(runs(tmp_path)) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return runs(tmp_path)[0]


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that must come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def alive(tmp_path: Path) -> list[str]:
    """Command lines of processes that carry this test's cache in their environment, the run itself left out."""
    found, mark = [], f"VLLM_CACHE_ROOT={tmp_path}/cache".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def story(folder: RunFolder) -> list[str]:
    """`ok` or the reason of each trial."""
    return [one.failure.reason.value if one.failure else "ok" for one in folder.records().records]


def interrupt(process: subprocess.Popen[str]) -> None:
    """SIGINT to the harness."""
    process.send_signal(signal.SIGINT)


def interrupt_group(process: subprocess.Popen[str]) -> None:
    """SIGINT to its process group, as a terminal sends it."""
    os.killpg(process.pid, signal.SIGINT)


def terminate(process: subprocess.Popen[str]) -> None:
    """SIGTERM to the harness."""
    process.send_signal(signal.SIGTERM)


def interrupt_twice(process: subprocess.Popen[str]) -> None:
    """Two SIGINTs, 100 ms apart."""
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)


@pytest.mark.parametrize(
    "stop", [interrupt, interrupt_group, terminate, interrupt_twice], ids=lambda stop: stop.__name__
)
def test_case_03_a_stopped_run_cleans_up_and_resumes(
    tmp_path: Path, stop: Callable[[subprocess.Popen[str]], None]
) -> None:
    """Stopped in pass 2: exit 5 within seconds, no arm is left, the open trial is `interrupted`, a resume finishes."""
    slow = experiment(tmp_path, a=["ok", "0.2"], b=["ok", "0.3"])
    with started(tmp_path, slow) as process:
        folder = folder_of(process, tmp_path)
        until(lambda: len(folder.records().records) == 3)
        until(lambda: bool(alive(tmp_path)))
        began = time.monotonic()
        stop(process)
        assert process.wait(20) == 5
        assert time.monotonic() - began < 15
    assert alive(tmp_path) == []
    before = story(folder)
    assert before[:3] == ["ok"] * 3
    assert before[-1] == "interrupted"
    with started(tmp_path, slow, folder.run) as process:
        assert process.wait(60) == 0
    assert story(folder) == [*before, *["ok"] * (6 - before.count("ok"))]
    assert folder.records().notes == ()
    assert not (tmp_path / "cache" / "runs" / folder.run).exists()


def test_case_04_a_killed_run_keeps_its_passes_and_resumes(tmp_path: Path) -> None:
    """`kill -9` in pass 3: passes 1 and 2 are readable, the arm is ended, the next start resumes and finishes."""
    file = experiment(tmp_path, a=["ok", "0.3"], b=["ok", "0.3"])
    with started(tmp_path, file) as process:
        folder = folder_of(process, tmp_path)
        until(lambda: len(folder.records().records) == 4)
        until(lambda: bool(alive(tmp_path)))
        process.kill()
        process.wait()
    assert story(folder)[:4] == ["ok"] * 4
    until(lambda: not alive(tmp_path), 20)
    with started(tmp_path, file, folder.run) as process:
        assert process.wait(60) == 0
    recorded = folder.records()
    assert (story(folder), recorded.notes) == (["ok"] * 6, ())
    assert sorted((one.arm, one.pass_number) for one in recorded.records) == [
        (arm, number) for arm in "ab" for number in (1, 2, 3)
    ]


def test_case_07_a_run_out_of_room_stops_and_leaves_no_process(tmp_path: Path) -> None:
    """Under a small RLIMIT_FSIZE the run stops with 1 and a message; what was stored parses; no arm is left."""
    file = experiment(tmp_path, a=["ok", "0.1"], b=["ok", "0.1"])
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8500, 8500))"
    with started(tmp_path, file, prefix=limit) as process:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1, said
    assert "(EFBIG). Remedy: a file size limit" in said
    assert alive(tmp_path) == []
    recorded = runs(tmp_path)[0].records()
    assert (bool(recorded.records), recorded.notes) == (True, ())


def test_case_06_three_runs_at_once_take_turns(tmp_path: Path) -> None:
    """Three runs of one file started together make three complete runs."""
    file = experiment(tmp_path, a=["ok", "0"], b=["ok", "0"])
    with started(tmp_path, file) as one, started(tmp_path, file) as two, started(tmp_path, file) as three:
        assert [process.wait(120) for process in (one, two, three)] == [0, 0, 0]
    assert [story(folder) for folder in runs(tmp_path)] == [["ok"] * 6] * 3
