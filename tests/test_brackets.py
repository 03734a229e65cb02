"""Brackets from made-up logs: each number is worked out by hand from the readings, in MiB."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.events import Events, Phase
from harness.measure.counter_error import counter_error
from harness.measure.memory import memory_record
from harness.measure.timeline import Part, largest_overlap
from harness.meterlog import (
    Boundary,
    CgroupReading,
    Change,
    MeterHost,
    MeterLog,
    MeterProcess,
    PssReading,
    lost_log,
    parse_samples,
)
from harness.records import PhaseMemory
from harness.run.tracker import Tracker
from harness.units import MIB

#: A kernel whose readings are exact; its marks carry 3 x 64 pages on 2 CPUs.
HOST = MeterHost(backend="none", kernel=(6, 18), cpus=2, page=4096, events=True, exit_marks=True)
MARK = 3 * 64 * 4096


def process(index: int, **fields: Any) -> MeterProcess:
    """A process that was there before the first tick."""
    made: dict[str, Any] = {
        "index": index, "pid": 100 + index, "start_ticks": 1, "ppid": 1, "parent": None,
        "name": f"p{index}",
        "found": 0.0,
    } | fields  # fmt: skip
    return MeterProcess(**made)


def ok(tick: int, index: int, hwm: float, anon: float, file: float = 0, shmem: float = 0) -> Change:  # noqa: PLR0917  # a row
    """A full reading in MiB."""
    return Change(tick, index, "ok", int(hwm * MIB), int(anon * MIB), int(file * MIB), int(shmem * MIB))


def log(changes: list[Change], processes: list[MeterProcess], **fields: Any) -> MeterLog:
    """A log of ticks 20 ms apart."""
    made: dict[str, Any] = {"host": HOST} | fields
    return MeterLog(
        ticks=tuple(1 + 0.02 * tick for tick in range(10)), processes=tuple(processes), changes=tuple(changes), **made
    )


def trial(meter: MeterLog) -> PhaseMemory:
    """The record over all phases."""
    found = memory_record(meter, Events()).phase("trial")
    assert found is not None
    return found


def test_a_steady_process_is_known_to_its_marks_error() -> None:
    """200 MiB anonymous and 10 of files, mark 210: the bracket is [200, 200 + the mark's error]."""
    found = trial(log([ok(0, 0, 210, 200, 10)], [process(0)]))
    assert (found.s_lower, found.s_upper) == (200 * MIB, 200 * MIB + MARK)


def test_case_26_a_spike_between_samples_is_in_the_bracket() -> None:
    """Samples see 50 MiB before and after, the mark rises to 410: the upper end is 400, not 50."""
    found = trial(log([ok(0, 0, 60, 50, 10), ok(5, 0, 410, 50, 10)], [process(0)]))
    assert (found.s_lower, found.s_upper) == (50 * MIB, 400 * MIB + MARK)


def test_case_26_a_mark_read_late_bounds_the_intervals_before_too() -> None:
    """A mark that is read at every 4th tick may have risen while a process that is gone by then was still there."""
    host = replace(HOST, stride=4)
    other = process(1, ended=1.13, exit_mark=100 * MIB)
    changes = [ok(0, 0, 50, 50), ok(0, 1, 100, 10), Change(7, 1, "gone"), ok(8, 0, 150, 50)]
    found = trial(log(changes, [process(0), other], host=host))
    assert found.s_upper == 250 * MIB + 2 * MARK


def test_nothing_is_taken_off_before_the_first_reading() -> None:
    """A process born between two samples may have held all of its mark before it mapped any file."""
    found = trial(log([ok(3, 0, 60, 50, 10)], [process(0, born=1.05)]))
    assert (found.s_lower, found.s_upper) == (50 * MIB, 60 * MIB + MARK)


def test_case_32_file_pages_do_not_widen_the_bracket() -> None:
    """A process that holds 300 MiB of a mapped file throughout is bounded by its own 40 MiB."""
    found = trial(log([ok(0, 0, 340, 40, 300)], [process(0)]))
    assert found.s_upper == 40 * MIB + MARK
    assert found.max_rss_file == 300 * MIB


def test_case_32_a_file_dropped_for_a_moment_is_not_taken_off() -> None:
    """File pages fall from 300 to 0 at one tick: around it the mark counts in full."""
    found = trial(log([ok(0, 0, 340, 40, 300), ok(4, 0, 340, 40, 0), ok(5, 0, 340, 40, 300)], [process(0)]))
    assert found.s_upper == 340 * MIB + MARK


def test_case_24_shared_pages_count_once_in_u_and_four_times_in_s() -> None:
    """300 MiB forked into 3 sleeping children: S is 1200, the lower end of U 300; the cgroup's mark closes U."""
    processes = [process(0)] + [process(index, parent=0, forked=True, born=0.5) for index in (1, 2, 3)]
    meter = log(
        [ok(0, index, 300, 300) for index in range(4)],
        processes,
        host=replace(HOST, backend="cgroup_v1", mark_resets=True),
        cgroup=(CgroupReading(t=1.1, tick=5, usage=1, mark=310 * MIB, anon=1, file=1, shmem=1, reset=False),),
        pss=(PssReading(t=1.1, pss_anon=300 * MIB, anon_huge=0, unknown=0),),
    )
    found = trial(meter)
    assert (found.s_lower, found.u_lower, found.u_upper) == (1200 * MIB, 300 * MIB, 310 * MIB)
    assert found.s_upper == 1200 * MIB + 4 * MARK
    assert memory_record(meter, Events()).levels["pss_anon_settled"] == 300 * MIB


def test_where_every_process_execd_the_cgroups_mark_bounds_s() -> None:
    """No page is shared without a fork, so the mark of 205 MiB closes S though the process's own says 400."""
    meter = log(
        [ok(0, 0, 400, 200, 0)],
        [process(0)],
        host=replace(HOST, backend="cgroup_v1", mark_resets=True),
        cgroup=(CgroupReading(t=1.1, tick=5, usage=1, mark=205 * MIB, anon=1, file=1, shmem=1, reset=False),),
    )
    assert trial(meter).s_upper == 205 * MIB


def test_a_process_outside_the_cgroup_takes_the_mark_away() -> None:
    """What a process holds outside is not in the cgroup's mark, so it bounds nothing."""
    meter = log(
        [ok(0, 0, 400, 200)],
        [process(0)],
        host=replace(HOST, backend="cgroup_v1", mark_resets=True),
        cgroup=(CgroupReading(t=1.1, tick=5, usage=1, mark=205 * MIB, anon=1, file=1, shmem=1, reset=False),),
        outside=frozenset({0}),
    )
    assert trial(meter).s_upper == 400 * MIB + MARK


def test_a_child_on_its_way_to_exec_makes_no_peak() -> None:
    """Between fork and exec a child shows its parent's 500 MiB: neither end of the bracket counts them."""
    child = process(1, parent=0, forked=True, born=1.05, execs=(1.09,))
    found = trial(log([ok(0, 0, 500, 500), ok(3, 1, 500, 500), ok(5, 1, 2, 2)], [process(0), child]))
    assert (found.s_lower, found.s_upper) == (502 * MIB, 502 * MIB + 2 * MARK)


def test_a_worker_that_never_execs_counts() -> None:
    """A forked worker keeps the flag for life and its pages count in S."""
    worker = process(1, parent=0, forked=True, born=1.05)
    assert trial(log([ok(0, 0, 500, 500), ok(3, 1, 500, 500)], [process(0), worker])).s_lower == 1000 * MIB


def test_what_the_launcher_held_is_not_the_arms() -> None:
    """Before the exec of the arm the root process is the launcher: its 30 MiB are in neither end."""
    root = process(0, execs=(1.05,))
    found = trial(log([ok(0, 0, 30, 30), ok(3, 0, 5, 5)], [root], host=replace(HOST, behind_launcher=True)))
    assert (found.s_lower, found.s_upper) == (5 * MIB, 5 * MIB + MARK)


def test_an_arm_that_was_never_seen_to_start_is_not_bounded_by_zero() -> None:
    """Without events the exec of a launcher may go unseen: then nothing is known, and the bound is not 0."""
    host = replace(HOST, behind_launcher=True, events=False)
    found = trial(log([ok(0, 0, 30, 30), ok(3, 0, 500, 500)], [process(0)], host=host))
    assert found.s_upper is None
    assert "never seen to become the arm" in (found.s_upper_missing or "")


def test_case_27_an_exec_between_samples_leaves_only_ru_maxrss() -> None:
    """A wrapper that execs loses its mark: without ru_maxrss there is no bound, with it there is."""
    root = process(0, execs=(1.05,))
    meter = log([ok(0, 0, 90, 30), ok(3, 0, 5, 5)], [root])
    assert trial(meter).s_upper is None
    assert "exec" in (trial(meter).s_upper_missing or "")
    assert trial(meter.with_max_rss({100: 120 * MIB})).s_upper == 120 * MIB + MARK


def test_a_climb_in_the_last_moment_is_bounded_by_the_mark_at_exit() -> None:
    """50 MiB at the last sample, 400 at exit: the kernel's mark at exit is the upper end."""
    root = process(0, ended=1.11, exit_mark=410 * MIB)
    found = trial(log([ok(0, 0, 60, 50, 10), Change(6, 0, "gone")], [root]))
    assert (found.s_lower, found.s_upper) == (50 * MIB, 400 * MIB + MARK)


def test_case_31_ru_maxrss_is_an_upper_bound_only() -> None:
    """Without the kernel's mark at exit ru_maxrss closes the bracket from above and never is a value."""
    root = process(0, ended=1.11, max_rss=728 * MIB)
    found = trial(log([ok(0, 0, 60, 50, 10), Change(6, 0, "gone")], [root]))
    assert (found.s_lower, found.s_upper) == (50 * MIB, 718 * MIB + MARK)


def test_without_any_mark_at_exit_there_is_no_upper_end() -> None:
    """A process that ended between two samples, and nobody told its mark: None with the reason, not a guess."""
    found = trial(log([ok(0, 0, 60, 50), Change(6, 0, "gone")], [process(0)]))
    assert found.s_upper is None
    assert "p0 (100) ended between two samples" in (found.s_upper_missing or "")


def test_case_28_a_child_that_nobody_sampled_is_bounded_by_its_exit() -> None:
    """Born and dead between two ticks with a mark of 20 MiB: the upper end rises by 20, the lower not at all."""
    child = process(1, parent=0, born=1.101, ended=1.112, exit_mark=20 * MIB)
    found = trial(log([ok(0, 0, 100, 100), Change(6, 1, "gone")], [process(0), child]))
    assert (found.s_lower, found.s_upper) == (100 * MIB, 120 * MIB + 2 * MARK)


def test_case_28_children_that_follow_each_other_do_not_add_up() -> None:
    """Two short children in one interval, the second born after the first ended, raise the upper end by one of them."""
    first = process(1, parent=0, born=1.101, ended=1.105, exit_mark=20 * MIB)
    second = process(2, parent=0, born=1.106, ended=1.112, exit_mark=20 * MIB)
    found = trial(log([ok(0, 0, 100, 100), Change(6, 1, "gone"), Change(6, 2, "gone")], [process(0), first, second]))
    assert found.s_upper == 120 * MIB + 2 * MARK


def test_case_28_pids_that_nobody_saw_leave_no_upper_end() -> None:
    """Where some process may have lived and died unseen, nothing valid bounds the sum."""
    found = trial(log([ok(0, 0, 100, 100)], [process(0)], unaccounted={4: 3}))
    assert (found.s_lower, found.s_upper) == (100 * MIB, None)
    assert "3 pids" in (found.s_upper_missing or "")


def test_case_29_a_tree_with_an_unknown_is_not_summed() -> None:
    """While one process is denied the sum is unknown: the lower end comes from the other ticks, the upper is None."""
    changes = [
        ok(0, 0, 100, 100),
        ok(0, 1, 50, 50),
        Change(3, 1, "denied"),
        ok(3, 0, 300, 300),
        ok(7, 0, 300, 100),
        ok(7, 1, 50, 50),
    ]
    found = trial(log(changes, [process(0), process(1)]))
    assert found.s_lower == 150 * MIB
    assert found.s_upper is None
    assert "p1 (101) could not be read" in (found.s_upper_missing or "")


def test_case_25_shared_memory_stands_beside() -> None:
    """300 MiB of shared memory are not in S and are recorded."""
    found = trial(log([ok(0, 0, 350, 50, 0, 300)], [process(0)]))
    assert (found.s_lower, found.max_rss_shmem) == (50 * MIB, 300 * MIB)


def test_case_33_the_peak_has_its_phase_time_and_process() -> None:
    """A peak in `load` is in load's bracket and not in decode's, whose marks began anew."""
    changes = [ok(0, 0, 50, 50), ok(3, 0, 400, 400), ok(5, 0, 400, 100), ok(6, 0, 100, 100), ok(9, 0, 100, 100)]
    boundaries = (
        Boundary(tick=1, t=1.021, event_t=1.02, lag_s=0.001, name="load", begin=True),
        Boundary(tick=5, t=1.101, event_t=1.1, lag_s=0.001, name="load", begin=False),
        Boundary(tick=5, t=1.101, event_t=1.1, lag_s=0.001, name="decode", begin=True),
        Boundary(tick=9, t=1.181, event_t=1.18, lag_s=0.001, name="decode", begin=False),
    )
    events = Events(phases=(Phase("load", 1.02, 1.1), Phase("decode", 1.1, 1.18)))
    record = memory_record(log(changes, [process(0)], boundaries=boundaries), events)
    load, decode, whole = record.phases
    assert (load.s_lower, load.s_upper, load.peak_t, load.peak_process) == (
        400 * MIB,
        400 * MIB + MARK,
        1.06,
        "p0 (100)",
    )
    assert (decode.s_lower, decode.s_upper) == (100 * MIB, 100 * MIB + MARK)
    assert whole.s_upper == 400 * MIB + MARK


def test_the_counters_error_follows_the_kernels_version() -> None:
    """64 pages a thread before 6.2; max(32, 2 x CPUs) x CPUs pages since; readings are exact from 6.17."""
    assert counter_error((5, 15), 4, 4096, threads=3).reading == 64 * 3 * 4096
    assert counter_error((6, 8), 64, 4096).reading == 128 * 64 * 4096
    assert counter_error((6, 18), 64, 4096).reading == 0
    assert counter_error((6, 18), 64, 4096).mark == 3 * 128 * 64 * 4096
    assert counter_error((0, 0), 2, 4096).reading == 64 * 4096


def test_the_counters_error_is_on_both_ends() -> None:
    """On a kernel with inexact readings the lower end falls and the upper end rises."""
    found = trial(log([ok(0, 0, 200, 200)], [process(0)], host=replace(HOST, kernel=(6, 8))))
    assert (found.s_lower, found.s_upper) == (200 * MIB - 64 * 4096, 200 * MIB + 5 * 64 * 4096)


def test_a_lost_meter_has_no_numbers_and_a_reason() -> None:
    """A sampler that recorded nothing leaves None everywhere and says why."""
    record = memory_record(lost_log("none", "the sampler ended"), Events(phases=(Phase("load", 0, 1),)))
    assert record.lost == "the sampler ended"
    assert all(phase.s_lower is None and phase.s_upper is None for phase in record.phases)
    assert record.levels["settled"] is None


def test_a_torn_samples_file_is_a_loss_and_no_crash() -> None:
    """Cut at any byte, a samples file is read as far as it goes and says that it is incomplete."""
    text = (
        'H {"format": 1, "backend": "none", "kernel": [6, 18], "cpus": 2}\nT 1000000000\n'
        "P 0,1,7,1,1,-1,0,root,-1,a,b\nV 0,20,10,5,0,0\nT 1020000000\nW 0,12,5\nG 0,gone\n"
        'E {"ticks": 2, "cpu_s": 0.1, "wall_s": 1.0, "period_s": 0.02}\n'
    )
    whole = parse_samples(text.splitlines())
    assert (whole.lost, whole.processes[0].name) == (None, "a,b")
    for cut in range(len(text) - 2):
        meter = parse_samples(text[:cut].splitlines())
        assert meter.lost is not None
        memory_record(meter, Events())


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(0, 100)), max_size=8))
def test_overlap_is_the_largest_sum_at_any_time(spans: list[tuple[int, int, int]]) -> None:
    """The sweep agrees with adding up what holds at the middle of every unit of time."""
    parts = [Part(begin, begin + length, size) for begin, length, size in spans]
    slow = max(
        (sum(part.bound or 0 for part in parts if part.begin < t + 0.5 < part.end) for t in range(15)), default=0
    )
    assert largest_overlap(parts) == slow


def test_before_linux_6_2_every_thread_widens_the_bracket() -> None:
    """64 pages a thread: with 8 threads the lower end gives way by 8 times as much as with one."""
    host = replace(HOST, kernel=(5, 15))
    one = trial(log([ok(0, 0, 500, 500), ok(3, 0, 500, 500)], [process(0)], host=host))
    many = trial(log([ok(0, 0, 500, 500), ok(3, 0, 500, 500)], [replace(process(0), threads=8)], host=host))
    assert one.s_lower == 500 * MIB - 64 * 4096
    assert many.s_lower == 500 * MIB - 8 * 64 * 4096
    assert one.s_upper is not None
    assert many.s_upper is not None
    assert many.s_upper - one.s_upper == 5 * 7 * 64 * 4096


def test_threads_are_counted_and_read_back(tmp_path: Path) -> None:
    """A process that has more threads than before says so once, and the record keeps the most."""
    folder = tmp_path / "7"
    folder.mkdir()
    rest = " ".join("0" for _ in range(30))
    (folder / "stat").write_text(f"7 (x) S 1 7 7 0 -1 0 0 0 0 0 1 2 0 0 20 0 9 0 4242 {rest}\n")
    tracker = Tracker(7, session=0, token="", proc=str(tmp_path), cgroup_procs=None, events=None)
    tracker.count_threads()
    tracker.count_threads()
    assert [line for line in tracker.lines if line.startswith("M")] == ["M 0,9"]
    assert parse_samples([*tracker.lines, "M 0,3"]).processes[0].threads == 9


def test_case_34_huge_pages_are_recorded_at_settled() -> None:
    """AnonHugePages of the tree, read at the end of `settle`, stand in that phase's record and in the trial's; where
    nothing was read they are unknown, not 0.
    """
    readings = [ok(0, 0, 500, 500), ok(3, 0, 500, 500)]
    assert trial(log(readings, [process(0)])).max_anon_huge is None
    meter = log(readings, [process(0)])
    pss = PssReading(t=meter.ticks[2], pss_anon=500 * MIB, anon_huge=400 * MIB, unknown=0)
    assert trial(replace(meter, pss=(pss,))).max_anon_huge == 400 * MIB


def test_case_34_huge_pages_at_the_peak_come_from_the_cgroup() -> None:
    """Where the trial has a cgroup, its huge pages are read all along: the record holds the most of any moment; a file
    written before they were read, and a cgroup that does not tell, leave them unknown.
    """
    lines = ["C 1100000000,1,2,3,4,5,419430400,0", "C 1200000000,1,2,3,4,5,-1,0", "C 1300000000,1,2,3,4,5,0"]
    head = 'H {"format": 1, "backend": "cgroup_v1", "kernel": [6, 18], "cpus": 2}'
    found = parse_samples([head, "T 1000000000", *lines]).cgroup
    assert [reading.huge for reading in found] == [400 * MIB, None, None]
    meter = log([ok(0, 0, 500, 500), ok(3, 0, 500, 500)], [process(0)])
    readings = tuple(replace(reading, t=meter.ticks[1]) for reading in found)
    assert trial(replace(meter, cgroup=readings)).max_anon_huge == 400 * MIB
    assert trial(replace(meter, cgroup=readings[1:])).max_anon_huge is None
