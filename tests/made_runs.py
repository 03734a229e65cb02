"""Runs on disk with known truth: a real experiment file, a real plan, the real writer, and no process."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from harness.experiment import load
from harness.plan import Plan, make_plan
from harness.records import TrialRecord, Value
from harness.run.host import fingerprint
from harness.run.store import RunFolder
from harness.run.writer import RunWriter
from harness.testing import machines

FLAGS = "fpu sse sse2 avx avx2 fma avx512f avx512_vnni sha_ni"
METRICS = """
  - {name: score, unit: s, better: lower, resolution: 0.00001}
  - peak_rss_anon
  - checkpoint_bytes
"""
CLAIMS = """
claims:
  - {id: slower, metric: score, arm: b, versus: a, expect: "ratio >= 1.2"}
  - {id: half-a-second, metric: score, arm: b, versus: a, expect: "difference >= 0.3 s"}
"""


def two_cores(flags: str = FLAGS, model: str = "Some CPU") -> dict[str, str]:
    """A made-up host of two cores."""
    cpuinfo = (
        f"processor\t: {{}}\nvendor_id\t: V\ncpu family\t: 6\nmodel\t\t: 1\nmodel name\t: {model}\nflags\t\t: {flags}\n"
    )
    files = {
        "/proc/cpuinfo": "\n".join(cpuinfo.format(cpu) for cpu in (0, 1)),
        "/etc/machine-id": "5" * 32 + "\n",
        "/proc/meminfo": "MemTotal:       16076540 kB\nSwapTotal:             0 kB\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "/sys/devices/system/cpu/online": "0-1\n",
        "/sys/devices/system/cpu/present": "0-1\n",
    }
    for cpu in (0, 1):
        files[f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"] = f"{cpu}\n"
    return files


@dataclass(kw_only=True)
class Made:
    """One made run. `ratio`: the truth of b/a for `score`; `memory`: for the peak; `scale`: the host's own speed.
    `change`: applied to each record before it is sealed; `seed`: of the noise.
    """

    seed: int
    ratio: float = 1.5
    memory: float = 2.0
    size: float = 4e9
    noise: float = 0.003
    scale: float = 1.0
    passes: int = 8
    machine: Mapping[str, str] = field(default_factory=two_cores)
    libc: str = "glibc 2.39"
    threads: int = 2
    versions: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[TrialRecord], TrialRecord] = lambda record: record
    order: Callable[[Plan], Plan] = lambda plan: plan
    arms: str = "  a: {command: ['true']}\n  b: {command: ['true', b]}\n"

    def text(self) -> str:
        """The experiment file."""
        head = f"question: q\npasses: {self.passes}\nengine: {{command: {{}}}}\n"
        return f"{head}metrics:{METRICS}arms:\n{self.arms}{CLAIMS}"

    def write(self, folder: Path) -> Path:
        """Write the run below `folder` and return its path."""
        file = folder / "pair.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(self.text())
        experiment = load(file)
        plan = make_plan(experiment, 11)
        root = machines.write_machine(folder / f"machine-{self.seed}", self.machine)
        run = RunFolder.create(
            folder / "results", experiment, plan, versions=self.versions, moment=datetime.now(UTC),
            host=fingerprint(root, here=machines.here(libc=self.libc)),
        )  # fmt: skip
        rng = np.random.default_rng(self.seed)
        with RunWriter(run) as writer:
            for number, trial in enumerate(self.order(plan).trials, start=1):
                record = TrialRecord(
                    trial=number, planned=trial.ordinal, arm=trial.arm, pass_number=trial.pass_number,
                    position=trial.position, started_at=f"2026-12-01T00:{number:02d}:00Z", began=100.0 * number,
                    ended=100.0 * number + 90, values=self.values(trial.arm, rng),
                    work={"threads": self.threads, "cpus": [0, 1]},
                )  # fmt: skip
                writer.append(self.change(record))
        return run.path

    def values(self, arm: str, rng: np.random.Generator) -> dict[str, Value]:
        """What one trial read."""
        first = arm == "a"
        score = self.scale * (1.0 if first else self.ratio) * math.exp(self.noise * rng.standard_normal())
        peak = 1e9 * (1.0 if first else self.memory) * math.exp(0.0005 * rng.standard_normal())
        return {
            "score": Value(value=score),
            "peak_rss_anon": Value(value=peak, lower=peak, upper=peak * 1.0001),
            "checkpoint_bytes": Value(value=self.size * (1.0 if first else 0.25)),
        }


def lines_of(run: Path) -> list[dict[str, Any]]:
    """Lines of trials.jsonl."""
    return [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]


def put(run: Path, lines: list[dict[str, Any]]) -> None:
    """Replace them, digests as they are."""
    (run / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def swapped(plan: Plan) -> Plan:
    """The plan with two trials of one pass the other way round."""
    trials = list(plan.trials)
    trials[0], trials[1] = trials[1], trials[0]
    return replace(plan, trials=tuple(trials))
