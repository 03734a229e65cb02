"""What the host did to a trial: known counters in, known differences out; what is hidden stays unknown."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.metrics import DISTURBANCE_COUNTERS
from harness.records import Disturbance
from harness.run.disturbance import Counters, difference, unguarded
from harness.run.engine_facts import engine_facts
from harness.testing import machines

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def host(
    *,
    user: float = 1000.0,
    idle: float = 5000.0,
    steal: float = 10.0,
    psi_us: int = 1_000_000,
    swap_pages: int = 0,
    load: str = "0.25",
    major: int = 100,
    cpus: int = 4,
) -> dict[str, str]:
    """Files of a host after `user` busy seconds, `steal` stolen seconds and so on since boot."""
    ticks = [user, 0, 0, idle, 0, 0, 0, steal, 0, 0]
    lines = ["cpu  " + " ".join(str(round(value * TICK)) for value in ticks)]
    lines += [f"cpu{cpu} 1 0 0 1 0 0 0 0 0 0" for cpu in range(cpus)]
    pressure = (
        f"some avg10=0.00 avg60=0.00 avg300=0.00 total={psi_us}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    )
    return {
        "/proc/stat": "\n".join([*lines, "ctxt 5000"]) + "\n",
        "/proc/pressure/cpu": pressure,
        "/proc/pressure/memory": pressure,
        "/proc/pressure/io": pressure,
        "/proc/vmstat": f"pgfault 900\npgmajfault {major}\npswpin {swap_pages}\npswpout {2 * swap_pages}\noom_kill 0\n",
        "/proc/loadavg": f"{load} 0.10 0.05 1/100 4242\n",
    }


def reading(root: Path, at: float, files: dict[str, str]) -> Counters:
    """One reading at a stated time, of a host whose own and reaped children's CPU time stand still."""
    found = Counters.read(machines.write_machine(root, files), clock=lambda: at)
    return Counters(at=at, values={**found.values, "self_cpu_s": 1.0, "children_cpu_s": 2.0}, missing=found.missing)


def test_known_counters_give_known_differences(tmp_path: Path) -> None:
    """10 s on 4 CPUs: 2 s stolen are 5 %, 25 busy seconds of which 20 are the trial's leave 5 foreign ones, 12.5 %."""
    before = reading(tmp_path, 100.0, host())
    after = reading(
        tmp_path, 110.0, host(user=1025.0, steal=12.0, psi_us=3_500_000, swap_pages=3, load="9.0", major=107)
    )
    found = difference(before, after, own_cpu_s=20.0)
    expected = {
        "steal_s": 2.0,
        "steal_fraction": 0.05,
        "foreign_cpu_s": 5.0,
        "foreign_cpu_fraction": 0.125,
        "psi_cpu_some_s": 2.5,
        "psi_io_some_s": 2.5,
        "major_faults": 7,
        "swap_in_bytes": 3 * PAGE,
        "swap_out_bytes": 6 * PAGE,
        "load_1min": 0.25,
        "oom_kills": 0,
    }
    for name, value in expected.items():
        assert found.counters[name] == pytest.approx(value), name


def test_every_counter_has_a_value_or_a_reason(tmp_path: Path) -> None:
    """The record names every documented counter, each with a value or with the reason why it has none, never both."""
    found = difference(reading(tmp_path, 0.0, host()), reading(tmp_path, 1.0, host()), own_cpu_s=0.0)
    assert set(found.counters) == set(DISTURBANCE_COUNTERS)
    for name, value in found.counters.items():
        assert (value is None) == (name in found.missing), name


def test_children_that_were_reaped_stand_for_the_trial(tmp_path: Path) -> None:
    """The CPU time of all reaped children is the trial's own: alone, or where looking at the tree has seen less."""
    before = reading(tmp_path, 0.0, host())
    after = reading(tmp_path, 10.0, host(user=1030.0))
    after = Counters(at=10.0, values={**after.values, "children_cpu_s": 24.0, "self_cpu_s": 2.0}, missing={})
    # 30 busy - (24 - 2) of the children - (2 - 1) of the harness
    assert difference(before, after, own_cpu_s=None).counters["foreign_cpu_s"] == pytest.approx(7.0)
    assert difference(before, after, own_cpu_s=15.0).counters["foreign_cpu_s"] == pytest.approx(7.0)
    assert difference(before, after, own_cpu_s=25.0).counters["foreign_cpu_s"] == pytest.approx(4.0)


def test_case_30_zeros_of_a_sandbox_are_hidden_not_idle(tmp_path: Path) -> None:
    """A /proc/stat in zeros is no idle machine: steal and foreign load are unknown, and the reason says so."""
    root = machines.write_machine(tmp_path, machines.sandbox())
    found = difference(Counters.read(root), Counters.read(root), own_cpu_s=1.0)
    for name in ("steal_s", "steal_fraction", "foreign_cpu_s", "foreign_cpu_fraction", "context_switches"):
        assert found.counters[name] is None, name
        assert "zeros" in found.missing[name], name
    assert found.counters["psi_cpu_some_s"] is None
    assert found.counters["swap_in_bytes"] is None


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"steal": 9.0}, {"steal_s", "steal_fraction"}),
        ({"psi_us": 5}, {"psi_cpu_some_s", "psi_memory_some_s", "psi_io_some_s"}),
        ({"user": 1.0}, {"foreign_cpu_s", "foreign_cpu_fraction"}),
        ({"major": 1}, {"major_faults"}),
    ],
)
def test_a_counter_that_goes_backwards_is_unknown(tmp_path: Path, change: dict[str, float], names: set[str]) -> None:
    """A reset or a wrap gives no number, least of all a negative one; the other counters stay."""
    before = reading(tmp_path, 0.0, host())
    found = difference(before, reading(tmp_path, 10.0, host(**change)), own_cpu_s=0.0)  # type: ignore[arg-type] # mixed
    whole = difference(before, reading(tmp_path, 10.0, host()), own_cpu_s=0.0)
    assert {name for name in found.counters if found.counters[name] is None} - set(whole.missing) == names
    assert all("backwards" in found.missing[name] for name in names)


def test_a_counter_that_vanishes_is_unknown(tmp_path: Path) -> None:
    """A file that was there before the trial and is gone after it gives a reason, not the earlier total."""
    before = reading(tmp_path, 0.0, host())
    (tmp_path / "proc/pressure/cpu").unlink()
    (tmp_path / "proc/vmstat").write_text("pgmajfault many\n")
    found = difference(before, Counters.read(tmp_path), own_cpu_s=0.0)
    assert found.counters["psi_cpu_some_s"] is None
    assert "/proc/pressure/cpu" in found.missing["psi_cpu_some_s"]
    assert found.counters["major_faults"] is None


def test_a_trial_that_used_more_than_the_host_counted_is_no_negative_load(tmp_path: Path) -> None:
    """Rounding below the trial's own time is 0; far below it the host's figure is not of the whole host: unknown."""
    before = reading(tmp_path, 0.0, host())
    after = reading(tmp_path, 10.0, host(user=1020.0))
    assert difference(before, after, own_cpu_s=20.5).counters["foreign_cpu_s"] == 0.0
    beyond = difference(before, after, own_cpu_s=30.0)
    assert beyond.counters["foreign_cpu_s"] is None
    assert "whole host" in beyond.missing["foreign_cpu_s"]


def test_fractions_need_time_and_the_same_cpus(tmp_path: Path) -> None:
    """A CPU that went away, or no time in between, makes the fraction unknown and leaves the seconds."""
    before, after = reading(tmp_path, 5.0, host()), reading(tmp_path, 15.0, host(steal=12.0, cpus=3))
    found = difference(before, after, own_cpu_s=0.0)
    assert (found.counters["steal_s"], found.counters["steal_fraction"]) == (2.0, None)
    assert "from 4" in found.missing["steal_fraction"]
    assert difference(before, before, own_cpu_s=0.0).counters["steal_fraction"] is None


def test_thresholds_are_exceeded_only_above_and_only_by_what_is_known(tmp_path: Path) -> None:
    """A value equal to its threshold passes, one above it is named; a hidden counter exceeds nothing."""
    before = reading(tmp_path, 0.0, host())
    after = reading(tmp_path, 10.0, host(steal=12.0, major=107))
    limits = {"steal_s": 2.0, "major_faults": 6.0, "throttle_events": 0.0, "steal_fraction": 0.01}
    found = difference(before, after, own_cpu_s=0.0, thresholds=limits)
    assert found.exceeded == ("major_faults", "steal_fraction")
    sentences = unguarded(limits, found)
    assert len(sentences) == 1
    assert sentences[0].startswith("disturbance.throttle_events: this host cannot show it")


def test_quota_throttling_heat_and_frequency_come_from_a_real_server(tmp_path: Path) -> None:
    """A group stopped for 2.5 s so far, 448 thermal events in all, CPUs at 2.5 GHz on average: read as that."""
    root = machines.write_machine(tmp_path, machines.xeon_8480c())
    found = Counters.read(root)
    assert found.values["quota_throttled_s"] == 2.5
    assert found.values["throttle_events"] == 448
    assert found.values["frequency_hz"] == pytest.approx(2.5e9)
    arm = Counters.read(machines.write_machine(tmp_path / "arm", machines.arm_server()))
    assert arm.values["quota_throttled_s"] == 0.25
    assert "frequency_hz" not in arm.values


@settings(deadline=None)  # a busy host must not fail a test
@given(st.dictionaries(st.sampled_from(["busy_s", "steal_s", "cpus", "self_cpu_s", "faults"]), st.floats(0, 1e9)),
       st.dictionaries(st.sampled_from(["busy_s", "steal_s", "cpus", "self_cpu_s", "faults"]), st.floats(0, 1e9)),
       st.none() | st.floats(0, 1e6))  # fmt: skip
def test_no_readings_give_a_negative_or_unreasoned_counter(
    first: dict[str, float], last: dict[str, float], own: float | None
) -> None:
    """Whatever two readings hold, every counter is finite and not negative, or unknown with a reason."""
    found: Disturbance = difference(Counters(at=0.0, values=first), Counters(at=9.0, values=last), own_cpu_s=own)
    for name, value in found.counters.items():
        assert (value is None and found.missing[name]) or (value is not None and 0 <= value < math.inf), name


def test_this_host_can_be_read() -> None:
    """Real counters on this host: a reading costs no error and gives what /proc shows."""
    before = Counters.read()
    found = difference(before, Counters.read(), own_cpu_s=None)
    assert set(found.counters) == set(DISTURBANCE_COUNTERS)


def process(root: Path, pid: int, *, maps: str, allowed: list[str], state: str = "S") -> Path:
    """A made-up process with one thread for each entry of `allowed`."""
    files = {
        f"/{pid}/comm": "VLLM::Worker\n",
        f"/{pid}/status": f"Name:\tVLLM::Worker\nState:\t{state} (what)\n",
        f"/{pid}/stat": f"{pid} (VLLM) :: W) {state} 1 1 1 0 -1 64 1234 9 7 9 100 50 0 0 20 0 1 0 555\n",
        f"/{pid}/maps": maps,
        f"/{pid}/numa_maps": "7f00 default anon=10 dirty=10 N0=8 N1=2 kernelpagesize_kB=4\n7f10 bind:1 huge anon=1 N1=1"
        " kernelpagesize_kB=2048\n",
    }
    for index, cpus in enumerate(allowed):
        files[f"/{pid}/task/{pid + index}/status"] = (
            f"Name:\tx\nCpus_allowed_list:\t{cpus}\nvoluntary_ctxt_switches:\t10\nnonvoluntary_ctxt_switches:\t{index}\n"
        )
    return machines.write_machine(root, files)


LIBC = "7f00-7f01 r-xp 00000000 08:01 1    /usr/lib/x86_64-linux-gnu/libc.so.6\n"


def test_case_49_threads_affinity_is_counted_by_cpu_set(tmp_path: Path) -> None:
    """Two threads bound to a core each and one free to roam show as that, with all CPUs they may use together."""
    found = engine_facts(40, process(tmp_path, 40, maps=LIBC, allowed=["0", "1", "0-3"]))
    assert found["threads"] == 3
    assert found["affinity"] == {"0": 1, "0-3": 1, "1": 1}
    assert found["cpus"] == "0-3"
    assert found["context_switches"] == {"voluntary": 30, "involuntary": 3}
    assert found["faults"] == {"minor": 1234, "major": 7}
    assert found["numa_policy"] == {"bind:1": 1, "default": 1}
    assert found["numa_bytes"] == {"0": 8 * 4096, "1": 2 * 4096 + 2 * 1024**2}
    assert found["missing"] == {}


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("/opt/lib/libtcmalloc_minimal.so.4.5.9", "tcmalloc"),
        ("/usr/lib/libjemalloc.so.2", "jemalloc"),
        ("/usr/lib/libmimalloc.so.2.1", "mimalloc"),
        ("/venv/my libs/libtcmalloc.so.4 (deleted)", "tcmalloc"),
    ],
)
def test_the_allocator_is_the_one_that_is_mapped(tmp_path: Path, library: str, name: str) -> None:
    """A preloaded allocator stands before glibc's, and malloc_trim then means nothing."""
    maps = LIBC + f"7f10-7f11 r-xp 00000000 08:01 2    {library}\n"
    found = engine_facts(7, process(tmp_path, 7, maps=maps, allowed=["0"]))
    assert (found["allocator"], found["malloc_trim"]) == (name, False)
    assert set(found["allocators"]) == {name, "glibc"}
    plain = engine_facts(8, process(tmp_path, 8, maps=LIBC, allowed=["0"]))
    assert (plain["allocator"], plain["malloc_trim"]) == ("glibc", True)
    static = engine_facts(9, process(tmp_path, 9, maps="7f00-7f01 r-xp 0 08:01 1   /bin/static\n", allowed=["0"]))
    assert (static["allocator"], static["malloc_trim"]) == (None, None)
    assert "statically" in static["missing"]["allocator"]


def test_mapped_weights_are_named_without_their_folder(tmp_path: Path) -> None:
    """A checkpoint that is still mapped shows by its base name, even with blanks in its path or already deleted."""
    maps = LIBC + (
        "7f20-7f30 r--p 00000000 08:01 3    /models/my model/model-00001.safetensors\n"
        "7f30-7f40 r--p 00000000 08:01 4    /models/q4.gguf (deleted)\n"
    )
    found = engine_facts(7, process(tmp_path, 7, maps=maps, allowed=["0"]))
    assert found["mapped_weights"] == ["model-00001.safetensors", "q4.gguf"]


def test_case_29_gone_and_zombie_are_told_apart(tmp_path: Path) -> None:
    """A process that is gone and one that nobody reaped give nulls with two different reasons."""
    gone = engine_facts(5, tmp_path)
    assert set(gone["missing"].values()) == {"the process is gone"}
    zombie = engine_facts(6, process(tmp_path, 6, maps="", allowed=[], state="Z"))
    assert zombie["allocator"] is None
    assert "zombie" in zombie["missing"]["allocator"]


def test_the_own_process_has_facts() -> None:
    """On this host a live process shows its threads and that its allocator is mapped or linked in."""
    found = engine_facts(os.getpid())
    assert found["threads"] >= 1
    assert found["cpus"]


def test_every_counter_is_documented() -> None:
    """docs/measuring.md explains every counter that an experiment may set a threshold for."""
    text = (Path(__file__).parent.parent / "docs" / "measuring.md").read_text()
    assert [name for name in DISTURBANCE_COUNTERS if f"`{name}`" not in text] == []
