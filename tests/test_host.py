"""The fingerprint of a host, on made-up machines whose answers are known."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.run.counters import Counters
from harness.run.facts import format_cpu_list, parse_cpu_list
from harness.run.host import conditions, fingerprint
from harness.run.host_report import abilities, host_json, host_lines
from harness.testing import machines

HERE_XEON = machines.here(allowed=tuple(range(32)))


@pytest.fixture(scope="module")
def xeon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare-metal Xeon 8480C."""
    return machines.write_machine(tmp_path_factory.mktemp("xeon"), machines.xeon_8480c())


def changed(root: Path, path: str, text: str) -> dict[str, Any]:
    """Fingerprint of the server with one file changed for the moment."""
    place = root / path.lstrip("/")
    before = place.read_text()
    place.write_text(text)
    try:
        return fingerprint(root, here=HERE_XEON)
    finally:
        place.write_text(before)


def nulls(value: Any, path: str = "") -> set[str]:
    """Dotted paths of everything that is None."""
    if isinstance(value, dict):
        return set().union(*(nulls(item, f"{path}.{name}".lstrip(".")) for name, item in value.items()), set())
    return {path} if value is None else set()


def test_a_xeon_is_described_as_it_is(xeon: Path) -> None:
    """Two sockets of 56 SMT cores count as 2, 112 and 224, with the caches, nodes, policy and limits that they have."""
    host = fingerprint(xeon, here=HERE_XEON)
    cpu = host["cpu"]
    assert (cpu["sockets"], cpu["cores"], cpu["threads"], cpu["smt"]) == (2, 112, 224, True)
    assert (cpu["model"], cpu["family"], cpu["model_number"], cpu["stepping"]) == (
        "Intel(R) Xeon(R) Platinum 8480C", "6", "143", "8",
    )  # fmt: skip
    assert cpu["microcode"] == "0x2b000590"
    assert cpu["one_thread_a_core"] == "0-111"
    assert cpu["caches"] == [
        {"level": 1, "type": "data", "bytes": 48 * 1024, "count": 112},
        {"level": 3, "type": "unified", "bytes": 105 * 1024**2, "count": 2},
    ]
    assert (cpu["governor"], cpu["turbo"], cpu["min_hz"], cpu["max_hz"]) == ("powersave", True, 800e6, 3.8e9)
    assert [node["cpus"] for node in host["numa"]["nodes"]] == ["0-55,112-167", "56-111,168-223"]
    assert (host["kernel"]["virtual"], host["kernel"]["hypervisor"]) == (False, "none")
    assert host["memory"]["swap_total_bytes"] == 8388604 * 1024


def test_case_55_instruction_sets_are_listed_without_what_the_kernel_adds(xeon: Path) -> None:
    """Instruction sets that code is chosen by stand apart from flags of mitigations and power management."""
    isa = fingerprint(xeon, here=HERE_XEON)["cpu"]["isa"]
    assert {"avx2", "avx512f", "avx512_vnni", "amx_bf16", "amx_tile", "amx_int8"} <= set(isa)
    assert not {"smep", "smap", "ibrs_enhanced", "dtherm", "fpu", "msr"} & set(isa)


def test_limits_are_the_tightest_of_all_levels(xeon: Path) -> None:
    """A limit of a parent group holds though the own group says max, and the other way round."""
    cgroup = fingerprint(xeon, here=HERE_XEON)["cgroup"]
    assert cgroup == {"version": "v2", "cpu_quota_cores": 32.0, "memory_limit_bytes": 256 * 1024**3, "cpuset": "0-31"}


def test_case_49_allowed_cpus_are_recorded_beside_those_online(xeon: Path) -> None:
    """A process bound to 32 of 224 CPUs records both, and is told to bind its threads to those."""
    host = fingerprint(xeon, here=HERE_XEON)
    assert (host["allowed_cpus"], host["cpu"]["online"]) == ("0-31", "0-223")
    advice = abilities(host, Counters(at=0.0)).advice
    assert any('VLLM_CPU_OMP_THREADS_BIND: "0-31"' in item.do for item in advice)


def test_claims_ask_for_cores_that_the_run_may_use(xeon: Path, tmp_path: Path) -> None:
    """CPUs 0-15 and their siblings 112-127 are 16 cores, not 32 and not 112; where siblings are hidden, unknown."""
    allowed = tuple(range(16)) + tuple(range(112, 128))
    found = conditions(fingerprint(xeon, here=machines.here(allowed=allowed)))
    assert (found["cores"], found["thp"], found["model"]) == (16, "always", "Intel(R) Xeon(R) Platinum 8480C")
    assert "amx_tile" in found["cpu_flags"]
    root = machines.write_machine(tmp_path, machines.sandbox())
    assert conditions(fingerprint(root, here=machines.here()))["cores"] is None


def test_case_34_huge_page_mode_is_recorded_and_always_is_advised_against(xeon: Path) -> None:
    """The mode of transparent huge pages stands in the record; `always` is named as what inflates RssAnon."""
    host = fingerprint(xeon, here=HERE_XEON)
    assert (host["memory"]["thp"], host["memory"]["thp_defrag"]) == ("always", "madvise")
    assert any("huge pages" in item.what and "madvise" in item.do for item in abilities(host, Counters(at=0.0)).advice)


def test_case_30_a_sandbox_hides_and_nothing_is_invented(tmp_path: Path) -> None:
    """On a sandbox kernel every item that is not there is null, with a reason, and no count is 0 or made up."""
    host = fingerprint(machines.write_machine(tmp_path, machines.sandbox()), here=machines.here())
    for name in ("microcode", "cores", "sockets", "smt", "governor", "turbo", "caches"):
        assert host["cpu"][name] is None, name
        assert host["missing"][f"cpu.{name}"], name
    assert host["cpu"]["threads"] == 2
    assert host["cgroup"]["version"] is None
    assert host["machine"] is None
    assert (host["kernel"]["virtual"], host["kernel"]["hypervisor"]) == (True, None)


def test_an_arm_server_is_described_as_it_is(tmp_path: Path) -> None:
    """ARM states its model by part number and its instruction sets as Features; cgroup v1 states limits its own way."""
    root = machines.write_machine(tmp_path, machines.arm_server())
    host = fingerprint(root, here=machines.here(architecture="aarch64", allowed=(0, 1, 2, 3)))
    cpu = host["cpu"]
    assert (cpu["model"], cpu["vendor"], cpu["cores"], cpu["smt"]) == ("Neoverse-V2", "ARM", 4, False)
    assert cpu["isa"] == ["asimd", "atomics", "bf16", "i8mm", "sve", "sve2"]
    assert host["cgroup"]["version"] == "v1"
    assert host["cgroup"]["cpu_quota_cores"] == 1.5
    assert host["cgroup"]["memory_limit_bytes"] == "unlimited"
    assert host["kernel"]["virtual"] is None


@pytest.mark.parametrize("machine", ["xeon_8480c", "sandbox", "arm_server"])
def test_every_null_has_its_reason_and_every_reason_its_null(tmp_path: Path, machine: str) -> None:
    """What is null has a reason under its dotted path, and no reason stands beside a value."""
    host = fingerprint(machines.write_machine(tmp_path, getattr(machines, machine)()), here=machines.here())
    missing = host.pop("missing")
    may_be_absent = {"cpu.one_thread_a_core"}  # derived from the siblings, whose absence has its own reason
    assert nulls(host) - may_be_absent == set(missing)
    json.dumps(host, allow_nan=False)


def test_an_empty_root_is_all_unknown(tmp_path: Path) -> None:
    """A host that shows nothing at all still gets a fingerprint: only nulls with reasons."""
    host = fingerprint(tmp_path, here=machines.here(libc=None, compiler=None))
    assert host["memory"]["total_bytes"] is None
    assert host["software"]["libc"] is None
    assert host["missing"]["cpu.flags"]
    json.dumps(host, allow_nan=False)


def test_this_host_gives_a_fingerprint_twice_the_same() -> None:
    """Two fingerprints of one host at two times are equal: nothing in it wanders."""
    assert fingerprint() == fingerprint()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/proc/sys/kernel/osrelease", "6.11.0-1-generic"),
        ("/proc/meminfo", "MemTotal: 500000000 kB\n"),
        ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance"),
        ("/sys/devices/system/cpu/smt/active", "0"),
        ("/sys/devices/system/cpu/online", "0-111"),
        ("/etc/machine-id", "f" * 32),
    ],
)
def test_the_identity_outlives_settings_and_updates(xeon: Path, path: str, text: str) -> None:
    """A kernel update, another governor, SMT off, a balloon: the same host keeps its identity."""
    before, after = fingerprint(xeon, here=HERE_XEON), changed(xeon, path, text)
    assert after != before
    assert after["host_id"] == before["host_id"]


def test_the_identity_sees_another_instruction_set(xeon: Path) -> None:
    """The same model without AMX (hidden by a hypervisor) is another host; a mitigation flag more is not."""
    same, info = fingerprint(xeon, here=HERE_XEON)["host_id"], (xeon / "proc/cpuinfo").read_text()
    assert changed(xeon, "/proc/cpuinfo", info.replace(" amx_tile", ""))["host_id"] != same
    assert changed(xeon, "/proc/cpuinfo", info.replace(" dtherm", " dtherm its_no"))["host_id"] == same


def test_nothing_in_a_fingerprint_names_the_machine(xeon: Path) -> None:
    """No host name, home folder, cgroup path or raw machine id is in the record, of this host or a made-up one."""
    for host in (fingerprint(), fingerprint(xeon, here=HERE_XEON)):
        text = json.dumps(host)
        assert not re.search(r"/home/|/root\b", text)
        assert "bench.scope" not in text
        assert "0123456789abcdef0123456789abcdef" not in text
        assert len(socket.gethostname()) < 4 or f'"{socket.gethostname()}"' not in text
        own = Path("/etc/machine-id")
        assert not own.exists() or not own.read_text().strip() or own.read_text().strip() not in text


def test_the_report_names_can_cannot_and_quieter(xeon: Path, tmp_path: Path) -> None:
    """`harness host` says what can be measured, what not and why, and a command for each thing that disturbs."""
    host = fingerprint(xeon, here=HERE_XEON)
    found = abilities(host, Counters.read(xeon), {"memory: RssAnon": None, "memory: cgroup v1": "v2 is mounted"})
    text = "\n".join(host_lines(host, found))
    assert "memory: RssAnon" in found.can
    assert found.cannot["memory: cgroup v1"] == "v2 is mounted"
    for command in ("cpupower frequency-set", "no_turbo", "swapoff", "numa_balancing", "smt/control", "--membind=0"):
        assert command in text, command
    assert "quota of 32 CPUs" not in text  # 32 allowed CPUs: that quota stops nobody
    json.dumps(host_json(host, found, Counters.read(xeon)), allow_nan=False)
    bare = fingerprint(tmp_path, here=machines.here())
    assert host_lines(bare, abilities(bare, Counters.read(tmp_path)))


def test_a_quota_below_the_allowed_cpus_is_named(tmp_path: Path) -> None:
    """Four CPUs under a quota of 1.5 get stopped in the middle of work: the report says so."""
    root = machines.write_machine(tmp_path, machines.arm_server())
    host = fingerprint(root, here=machines.here(architecture="aarch64", allowed=(0, 1, 2, 3)))
    assert any(item.what.startswith("a quota of 1.5 CPUs") for item in abilities(host, Counters(at=0.0)).advice)


@settings(deadline=None)  # a busy host must not fail a test
@given(st.sets(st.integers(min_value=0, max_value=300)))
def test_cpu_lists_read_back_as_written(cpus: set[int]) -> None:
    """Any set of CPUs survives the kernel's list format."""
    assert set(parse_cpu_list(format_cpu_list(cpus))) == cpus


def test_cpu_lists_are_written_as_the_kernel_writes_them() -> None:
    """Runs are joined, single CPUs stand alone."""
    assert format_cpu_list({0, 1, 2, 8, 10, 11}) == "0-2,8,10-11"
