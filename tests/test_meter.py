"""The meter on real processes whose memory is known, few repeats; `make prove` runs each 50 times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.events import Events, parse
from harness.measure.memory import memory_record
from harness.run import cgroup
from harness.run.kernel_events import Exit, ExitMark, KernelEvents
from harness.run.memory_meter import MeterError, MeterHandle, start_meter
from harness.run.procfs import members
from harness.testing import known, prove
from harness.units import MIB

BACKENDS = prove.available()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the file that `mapped_file` maps, cached outside any trial's cgroup."""
    made = tmp_path_factory.mktemp("known")
    (made / "mapped").write_bytes(os.urandom(MIB) * 150)
    return made


CASES = {
    "steady": "27", "spike_5ms": "26", "spike_30ms": "26", "climb": "26", "fork_cow": "24", "fork_cow_unique": "24",
    "shared": "25", "mapped_file": "32", "daemon": "27", "churn": "28", "grandchild": "28",
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("name", known.PROGRAMS, ids=lambda name: f"case_{CASES[name]}_{name}")
def test_the_bracket_holds_the_truth(name: str, backend: cgroup.Backend, folder: Path) -> None:
    """The bracket of a program whose memory is known holds its truth, and is narrow where that is promised."""
    shot = prove.shoot(name, backend, folder)
    if not shot.bounded:
        assert shot.why, "no bound without its reason"
        assert shot.lower is not None and shot.lower <= shot.truth  # noqa: PT018  # one fact
        return
    assert shot.covered, shot
    assert name not in known.NARROW or not shot.too_wide, shot


@pytest.mark.parametrize("name", ["steady", "mapped_file", "daemon"])
def test_without_the_kernels_events_a_bracket_holds_or_says_why_not(name: str, folder: Path) -> None:
    """Without privilege the same programs are bounded, or the reason names what nobody could see."""
    shot = prove.shoot(name, cgroup.NONE, folder, kernel_events=False)
    assert shot.lower is not None
    assert shot.lower <= shot.truth
    assert shot.covered if shot.bounded else shot.why


def test_an_independent_witness_agrees(folder: Path) -> None:
    """`/usr/bin/time -v` and the meter's mark at exit are the same kernel's word on the same process: within 1 MiB."""
    witness = prove.witness()
    if "skipped" in witness:
        pytest.skip(str(witness["skipped"]))
    events = folder / "witness.jsonl"
    log, _ = prove.measure([sys.executable, "-S", "-E", known.__file__, "steady"], cgroup.NONE, events)
    mark = log.processes[0].exit_mark
    if mark is None:
        pytest.skip(f"no marks at exit here: {log.host.why_no_events}")
    assert abs(mark - witness["max_rss_bytes"]) < MIB


def test_the_kernels_own_cgroup_figure_agrees(folder: Path) -> None:
    """The cgroup's mark of a steady program lies between its truth and 16 MiB more."""
    usable = [backend for backend in BACKENDS if backend.name != "none"]
    if not usable:
        pytest.skip("no memory cgroup can be used here")
    shot = prove.shoot("steady", usable[0], folder)
    assert shot.mark is not None
    assert shot.truth <= shot.mark <= shot.truth + 16 * MIB


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds 30 MiB until it is ended."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", "held = b'x' * (30 << 20)\nimport time\ntime.sleep(60)"],
        start_new_session=True,
    )
    time.sleep(0.3)
    yield child
    child.kill()
    child.wait()


def start(child: subprocess.Popen[bytes], folder: Path, samples: Path | None = None) -> MeterHandle:
    """A meter beside a process."""
    token, events = "t", folder / "e.jsonl"
    return start_meter(root_pid=child.pid, session=child.pid, token=token, events_path=events, samples_path=samples)


def test_the_latest_reading_can_be_shown(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """While it runs the meter shows the sum of RssAnon, the number of processes and of samples."""
    meter = start(sleeper, tmp_path)
    time.sleep(0.2)
    latest = meter.latest()
    log = meter.stop()
    assert latest is not None
    assert 30 * MIB <= latest.rss_anon < 60 * MIB
    assert (latest.processes, latest.unknown) == (1, 0)
    assert log.lost is None


def test_the_sampler_is_no_part_of_the_trial(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Neither descent, session nor token lead from the trial to its sampler."""
    meter = start(sleeper, tmp_path)
    found = members(sleeper.pid, session=sleeper.pid, token="t")  # noqa: S106  # no secret
    assert meter.pid not in {pid for pid, _ in found}
    assert all(process.pid != meter.pid for process in meter.stop().processes)


def test_case_28_a_sampler_that_dies_is_known_to_be_lost(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """A sampler that was killed makes the record incomplete, with the reason; nothing else fails."""
    meter = start(sleeper, tmp_path, tmp_path / "s.gz")
    os.kill(meter.pid, signal.SIGKILL)
    until = time.monotonic() + 5
    while meter.alive and time.monotonic() < until:
        time.sleep(0.01)
    assert not meter.alive
    log = meter.stop()
    assert log.lost is not None
    assert "sampler ended" in log.lost
    assert memory_record(log, Events()).lost == log.lost


def test_samples_that_cannot_be_written_are_not_lost(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """A samples path that cannot be written costs the file and says so; the record itself is whole."""
    meter = start(sleeper, tmp_path, tmp_path / "missing" / "s.gz")
    time.sleep(0.2)
    log = meter.stop()
    assert log.samples_path is None
    assert "could not be written" in log.unwritten
    assert log.lost is None
    assert (memory_record(log, Events()).phases[-1].s_lower or 0) > 30 * MIB


def test_the_samples_file_holds_the_same_record(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """The record made from the compressed file equals the one made at once."""
    from harness.run.memory_meter import read_samples

    meter = start(sleeper, tmp_path, tmp_path / "s.gz")
    time.sleep(0.2)
    log = meter.stop()
    again = read_samples(tmp_path / "s.gz")
    assert memory_record(again, Events()).phases == memory_record(log, Events()).phases


def test_case_30_a_host_that_hides_the_fields_is_refused(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """On a made-up /proc without RssAnon the meter does not start and says what the host lacks."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("Name:\tx\nVmSize:\t1 kB\nVmHWM:\t 1 kB\nVmRSS:\t 0 kB\n")
    with pytest.raises(MeterError, match="cannot measure RssAnon"):
        start_meter(
            root_pid=sleeper.pid, session=0, token="t", events_path=tmp_path / "e", samples_path=None,  # noqa: S106  # no secret
            proc=str(tmp_path / "proc"),
        )  # fmt: skip


def test_case_33_marks_begin_anew_with_each_phase(tmp_path: Path) -> None:
    """A peak of 150 MiB in `load` is in load's bracket alone; `decode` has its own."""
    events = tmp_path / "e.jsonl"
    code = (
        "import sys, time, json\nsys.argv = ['x']\n"
        f"sys.path.insert(0, {str(Path(known.__file__).parent)!r})\nimport known\nknown.warm()\n"
        "known.phase('load', 'begin'); held = known.touch(150 << 20); held.close(); known.phase('load', 'end')\n"
        "known.phase('decode', 'begin'); time.sleep(0.3); known.phase('decode', 'end')\n"
    )
    log, _ = prove.measure([sys.executable, "-S", "-E", "-c", code], cgroup.NONE, events)
    record = memory_record(log, parse(events.read_text().splitlines()))
    load, decode = record.phase("load"), record.phase("decode")
    assert load is not None
    assert decode is not None
    assert (load.s_upper or 0) >= 150 * MIB
    assert decode.s_upper is not None
    assert decode.s_upper < 40 * MIB


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_case_28_programs_started_in_quick_succession_leave_a_bound(backend: cgroup.Backend, tmp_path: Path) -> None:
    """40 short programs beside 100 MiB: a copy of the parent before its exec counts for nothing, and all are seen."""
    events = tmp_path / "e.jsonl"
    code = (
        f"import sys\nsys.path.insert(0, {str(Path(known.__file__).parent)!r})\nimport known, subprocess\n"
        "held = known.touch(100 << 20)\nfor _ in range(40): subprocess.run(['true'])\n"
        "known.emit(event='truth', bytes=known.own_anon())"
    )
    log, _ = prove.measure([sys.executable, "-S", "-E", "-c", code], backend, events)
    whole = memory_record(log, Events()).phases[-1]
    if not log.host.exit_marks:
        pytest.skip(log.host.why_no_events)
    assert whole.s_lower is not None
    assert whole.s_upper is not None
    truth = parse(events.read_text().splitlines()).facts[0]["bytes"]
    assert len(log.processes) == 41
    assert whole.s_lower <= truth + MIB
    assert truth <= whole.s_upper <= truth + 16 * MIB


def test_case_35_the_samplers_own_cost_is_recorded(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Samples, CPU time, period and gaps stand in the record; one process at 50 Hz costs under 5 % even when busy."""
    meter = start(sleeper, tmp_path)
    time.sleep(2.0)
    log = meter.stop()
    cost = memory_record(log, Events()).cost
    assert cost is not None
    assert cost.samples >= 40
    assert cost.period_s == 0.02
    assert cost.gap_p999_s is not None
    assert (log.cost.cpu_s - log.cost.startup_cpu_s) / log.cost.wall_s < 0.05


def test_the_kernel_tells_of_short_lives() -> None:
    """A process that lived for a moment is told of with fork, exec, exit status and mark, where the host allows it."""
    events = KernelEvents()
    if events.problem or events.marks_problem:
        pytest.skip(f"{events.problem} {events.marks_problem}")
    done = subprocess.run([sys.executable, "-S", "-c", "import os; os._exit(3)"], check=False)
    time.sleep(0.05)
    told = events.drain()
    events.close()
    assert done.returncode == 3
    assert 3 << 8 in {event.status for event in told if isinstance(event, Exit)}
    assert any(event.hwm > 1000 for event in told if isinstance(event, ExitMark))


def test_case_28_no_process_is_counted_twice(folder: Path) -> None:
    """Forty short programs beside 100 MiB: what a child shows before its exec counts for nothing, and all are seen."""
    events = folder / "twice.jsonl"
    log, _ = prove.measure([sys.executable, "-S", "-E", known.__file__, "churn"], cgroup.NONE, events)
    if not log.host.events:
        pytest.skip(log.host.why_no_events)
    assert len(log.processes) == 201
    assert all(process.exit_mark is not None for process in log.processes)


def test_the_answer_has_the_contracts_shape() -> None:
    """Every entry of `--prove --json` holds the promised keys, and the whole is strict JSON."""
    answer = prove.prove(1, names=["steady"], backends=["none"])
    entry = json.loads(json.dumps(answer, allow_nan=False))["programs"][0]
    promised = {"name", "backend", "quantity", "repeats", "covered", "not_bounded", "truth_bytes", "lower", "upper"}
    assert promised <= set(entry)
    assert (entry["repeats"], entry["quantity"]) == (1, "S")


def test_a_relative_path_is_found_by_the_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler works in another directory; an events file named relative to ours is read all the same."""
    monkeypatch.chdir(tmp_path)
    with subprocess.Popen(["sleep", "30"]) as program:
        try:
            meter = start_meter(
                root_pid=program.pid,
                session=program.pid,
                token="relative",  # noqa: S106 - a name, no secret
                events_path=Path("trial.events.jsonl"),
                samples_path=None,
            )
            assert meter.stop().lost is None
        finally:
            program.kill()
