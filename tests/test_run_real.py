"""A run of real processes that is stopped, killed, or runs out of room: nothing recorded is lost, nothing is left."""

from __future__ import annotations

import json
import os
import random
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


#: How often a run of real processes is killed. Each costs two starts of it, so the long way is `make kill-points`.
KILLS = int(os.environ.get("HARNESS_KILL_POINTS", "6"))


def finished(tmp_path: Path, file: Path, run: str | None = None) -> None:
    """Run, or resume, to the end."""
    with started(tmp_path, file, run) as process:
        said = process.communicate(timeout=120)
        assert process.returncode == 0, said


def reported(tmp_path: Path, folder: RunFolder) -> dict[str, object]:
    """`harness report RUN --json` without the run's id."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", "report", str(folder.path), "--json"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "HARNESS_CACHE": str(tmp_path / "cache")},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    found: dict[str, object] = json.loads(done.stdout)
    assert found.pop("run") == folder.run
    return found


def test_case_04_a_real_run_killed_anywhere_reports_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    """SIGKILL at random moments of real runs, also before the first trial and while resuming: every record that was
    whole is there unchanged, no arm is left, the resumed run finishes, and its report is the undisturbed one's.
    """
    quiet, chance = tmp_path / "quiet", random.Random(20261201)
    quiet.mkdir()
    file = experiment(tmp_path, a=["ok", "0.05", "100"], b=["ok", "0.05", "120"])
    began = time.monotonic()
    finished(quiet, file)
    took = time.monotonic() - began
    expected = reported(quiet, runs(quiet)[0])
    for point in range(KILLS):
        here = tmp_path / f"{point}"
        here.mkdir()
        before: tuple[object, ...] = ()
        for _ in range(chance.choice((1, 1, 2))):
            there = runs(here)
            with started(here, file, there[0].run if there else None) as process:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(chance.uniform(0, took))
                process.kill()
                process.wait()
            now = runs(here)[0].records().records if runs(here) else ()
            assert now[: len(before)] == before, f"point {point}: a record of before is gone or changed"
            before = now
        until(lambda here=here: not alive(here), 20)  # type: ignore[misc] # a default binds the loop's own folder
        there = runs(here)
        finished(here, file, there[0].run if there else None)
        recorded = runs(here)[0].records()
        assert (recorded.records[: len(before)], recorded.damaged) == (before, False)
        assert reported(here, runs(here)[0]) == expected, f"point {point}"
        assert alive(here) == []


@contextmanager
def mounted(folder: Path, *words: str) -> Iterator[Path]:
    """The folder with something mounted on it; skips where that is not allowed."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *words, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_case_07_a_full_file_system_stops_with_a_message(tmp_path: Path) -> None:
    """Results on a tmpfs of 2 MB and arms that log 1 MB: the run stops with 1 and names the full disk; every record on
    it can be read; no arm is left; with room again a resume finishes.
    """
    file = experiment(tmp_path, a=["chatty", "700000"], b=["chatty", "700000"])
    with mounted(tmp_path / "results", "-t", "tmpfs", "-o", "size=2m", "tmpfs") as results:
        with started(tmp_path, file) as process:
            _, said = process.communicate(timeout=120)
            assert process.returncode == 1, said
        assert "ENOSPC" in said
        assert "Remedy" in said
        assert alive(tmp_path) == []
        recorded = runs(tmp_path)[0].records()
        assert (bool(recorded.records), recorded.damaged) == (True, False)
        subprocess.run(["mount", "-o", "remount,size=64m", str(results)], check=True)
        finished(tmp_path, file, runs(tmp_path)[0].run)
        after = runs(tmp_path)[0].records()
        assert after.records[: len(recorded.records)] == recorded.records
        assert {(one.arm, one.pass_number) for one in after.records if one.usable} == {
            (arm, number) for arm in "ab" for number in (1, 2, 3)
        }


def test_case_07_results_that_become_read_only_half_way(tmp_path: Path) -> None:
    """The results turn read-only in pass 2: the run stops with 1 and names it, what was stored stays, no arm is left,
    and once they can be written again a resume finishes.
    """
    file = experiment(tmp_path, a=["ok", "0.2"], b=["ok", "0.2"])
    results = tmp_path / "results"
    with started(tmp_path, file) as process:
        folder = folder_of(process, tmp_path)
        until(lambda: len(folder.records().records) >= 2)
        with mounted(results, "--bind", str(results)):
            subprocess.run(["mount", "-o", "remount,bind,ro", str(results)], check=True)
            _, said = process.communicate(timeout=60)
            assert process.returncode == 1, said
            assert "EROFS" in said
            assert alive(tmp_path) == []
            before = folder.records()
            assert (len(before.records) >= 2, before.damaged) == (True, False)
    with started(tmp_path, file, folder.run) as process:
        process.communicate(timeout=60)
        assert process.returncode in (0, 3)  # 3: the arm that ran just then could not report, and failed for it
    after = folder.records()
    assert after.records[: len(before.records)] == before.records
    assert len(after.records) == 6
    assert len([one for one in after.records if one.usable]) >= 5
