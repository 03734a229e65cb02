"""Made-up hosts: trees of /proc and /sys for tests that must know what a host looks like without having one.

Each is a map from path (as on a real host) to the file's text; `write_machine` puts it below a folder, which is then
the `root` of whatever reads a host.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.run.host import Here

_CPU = "/sys/devices/system/cpu"
_XEON_FLAGS = (
    "fpu vme msr sse sse2 ssse3 pni sse4_1 sse4_2 fma f16c avx avx2 bmi1 bmi2 smep smap avx512f avx512bw avx512vl"
    " avx512dq avx512_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8 ibrs_enhanced dtherm"
)


def write_machine(root: Path, files: Mapping[str, str]) -> Path:
    """Write the files below `root` and return it."""
    for path, text in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


def here(
    *,
    architecture: str = "x86_64",
    allowed: tuple[int, ...] = (0, 1),
    libc: str | None = "glibc 2.39",
    compiler: str | None = "gcc 13.2.0",
) -> Here:
    """What a process on the made-up host knows of itself."""
    return Here(
        architecture=architecture,
        python="CPython 3.12.3",
        libc=libc,
        page_bytes=4096,
        allowed_cpus=allowed,
        compiler=compiler,
    )


def xeon_8480c() -> dict[str, str]:
    """Bare metal: 2 sockets x 56 cores x 2 threads with AMX, cgroup v2, 512 GiB on two nodes. CPU n and n+112 share a
    core; the first socket has the CPUs 0-55 and 112-167.
    """
    files = {
        "/proc/cpuinfo": "\n".join(_xeon_cpuinfo(cpu) for cpu in range(224)),
        "/proc/meminfo": "MemTotal:       527951872 kB\nMemFree: 1 kB\nSwapTotal:      8388604 kB\n",
        "/proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
        "/proc/sys/kernel/randomize_va_space": "2\n",
        "/proc/sys/kernel/numa_balancing": "1\n",
        "/proc/sys/vm/swappiness": "60\n",
        "/proc/sys/vm/overcommit_memory": "0\n",
        "/proc/self/cgroup": "0::/user.slice/bench.scope\n",
        "/etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
        "/sys/fs/cgroup/user.slice/memory.max": "274877906944\n",
        "/sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/user.slice/bench.scope/memory.max": "max\n",
        "/sys/fs/cgroup/user.slice/bench.scope/cpu.max": "3200000 100000\n",
        "/sys/fs/cgroup/user.slice/bench.scope/cpu.stat": "usage_usec 9\nnr_throttled 3\nthrottled_usec 2500000\n",
        "/sys/fs/cgroup/user.slice/bench.scope/cpuset.cpus.effective": "0-31\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
        "/sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never\n",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        "/sys/class/dmi/id/sys_vendor": "Example Servers\n",
        f"{_CPU}/online": "0-223\n",
        f"{_CPU}/present": "0-223\n",
        f"{_CPU}/smt/active": "1\n",
        f"{_CPU}/intel_pstate/no_turbo": "0\n",
        f"{_CPU}/vulnerabilities/meltdown": "Not affected\n",
    }
    for node, cpus in ((0, "0-55,112-167"), (1, "56-111,168-223")):
        files[f"/sys/devices/system/node/node{node}/cpulist"] = cpus + "\n"
        files[f"/sys/devices/system/node/node{node}/meminfo"] = f"Node {node} MemTotal:       263975936 kB\n"
    for cpu in range(224):
        core, folder = cpu % 112, f"{_CPU}/cpu{cpu}"
        files[f"{folder}/topology/thread_siblings_list"] = f"{core},{core + 112}\n"
        files[f"{folder}/topology/physical_package_id"] = f"{core // 56}\n"
        files[f"{folder}/thermal_throttle/core_throttle_count"] = "2\n"
        files[f"{folder}/cpufreq/scaling_governor"] = "powersave\n"
        files[f"{folder}/cpufreq/scaling_driver"] = "intel_pstate\n"
        files[f"{folder}/cpufreq/scaling_min_freq"] = "800000\n"
        files[f"{folder}/cpufreq/scaling_max_freq"] = "3800000\n"
        files[f"{folder}/cpufreq/scaling_cur_freq"] = "2000000\n" if cpu < 112 else "3000000\n"
        for index, (level, kind, size, shared) in enumerate((
            (1, "Data", "48K", f"{core},{core + 112}"),
            (3, "Unified", "107520K", "0-55,112-167" if core < 56 else "56-111,168-223"),
        )):  # fmt: skip
            cache = f"{folder}/cache/index{index}"
            files |= {f"{cache}/level": f"{level}\n", f"{cache}/type": kind, f"{cache}/size": size}
            files[f"{cache}/shared_cpu_list"] = shared
    return files


def _xeon_cpuinfo(cpu: int) -> str:
    return (
        f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
        "model name\t: Intel(R) Xeon(R) Platinum 8480C\nstepping\t: 8\nmicrocode\t: 0x2b000590\n"
        f"cpu MHz\t\t: {2000 + cpu}.123\nphysical id\t: {cpu % 112 // 56}\ncore id\t\t: {cpu % 56}\n"
        f"flags\t\t: {_XEON_FLAGS}\n"
    )


def sandbox() -> dict[str, str]:
    """A sandbox kernel: no sysfs, /proc/stat in zeros, no pressure, a cpuinfo without microcode or topology."""
    cpuinfo = "processor\t: {}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: unknown\n"
    return {
        "/proc/cpuinfo": "\n".join(cpuinfo.format(cpu) + "flags\t\t: fpu sse sse2 avx2 hypervisor\n" for cpu in (0, 1)),
        "/proc/meminfo": "MemTotal:        2097152 kB\nMemFree:         1000000 kB\n",
        "/proc/stat": "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\nintr 0\nctxt 0\nbtime 1700000000\n",
        "/proc/loadavg": "0.00 0.00 0.00 0/0 0\n",
    }


def arm_server() -> dict[str, str]:
    """One socket of 4 Neoverse-V2 cores under cgroup v1 with a quota of 1.5 CPUs; SMT does not exist."""
    cpuinfo = (
        "processor\t: {}\nFeatures\t: fp asimd atomics sve sve2 i8mm bf16\nCPU implementer\t: 0x41\n"
        "CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 1\n"
    )
    files = {
        "/proc/cpuinfo": "\n".join(cpuinfo.format(cpu) for cpu in range(4)),
        "/proc/meminfo": "MemTotal:       16076540 kB\nSwapTotal:             0 kB\n",
        "/proc/sys/kernel/osrelease": "6.1.0-arm64\n",
        "/proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_periods 10\nnr_throttled 2\nthrottled_time 250000000\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        f"{_CPU}/online": "0-3\n",
        f"{_CPU}/present": "0-3\n",
    }
    for cpu in range(4):
        files[f"{_CPU}/cpu{cpu}/topology/core_cpus_list"] = f"{cpu}\n"
        files[f"{_CPU}/cpu{cpu}/topology/physical_package_id"] = "0\n"
    return files
