"""Before a recorded run is repeated here: what differs from where it was measured, and what that forbids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.commands.comparison_key import comparison_key
from harness.experiment import Experiment
from harness.records import TrialRecord
from harness.report.text import listed, named
from harness.run.differences import host_differences, provenance_differences
from harness.run.facts import parse_cpu_list
from harness.run.host import conditions
from harness.units import format_bytes
from harness.verdict.agreed import Fact, RunEvidence
from harness.verdict.agreement import compare_keys
from harness.verdict.claims import lacking
from harness.verdict.types import Judgement

#: Variables by which an arm binds its threads to CPUs, in the kernel's list format. llama_cpp has an argument, `cpus`.
_BINDING = ("VLLM_CPU_OMP_THREADS_BIND", "GOMP_CPU_AFFINITY")


@dataclass(frozen=True, kw_only=True)
class HostCheck:
    """`differs`: what is not as it was. `forbids`: what that keeps from being compared, judged or run."""

    differs: tuple[str, ...]
    forbids: tuple[str, ...]

    @property
    def lines(self) -> Iterator[str]:
        """For people, before anything runs."""
        yield f"this host against the recorded one: {len(self.differs) or 'no'} differences"
        yield from (f"  {sentence}" for sentence in self.differs)
        if not self.forbids:
            yield "nothing of it forbids a comparison"
        yield from (f"  forbidden: {sentence}" for sentence in self.forbids)


def host_check(
    experiment: Experiment,
    records: Sequence[TrialRecord],
    *,
    recorded: tuple[Mapping[str, Any], Mapping[str, Any]],
    now: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> HostCheck:
    """`recorded`, `now`: fingerprint and provenance of the run and of this host."""
    return HostCheck(
        differs=(*host_differences(recorded[0], now[0]), *provenance_differences(recorded[1], now[1])),
        forbids=(
            *_not_comparable(experiment, records, recorded, now),
            *_claims(experiment, now[0]),
            *_room(records, now[0]),
        ),
    )


def _not_comparable(
    experiment: Experiment,
    records: Sequence[TrialRecord],
    recorded: tuple[Mapping[str, Any], Mapping[str, Any]],
    now: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> Iterator[str]:
    """Items of the comparison key that are known to differ before anything ran; what only trials can tell is left."""
    used = [replace(record, work={}, engine=()) for record in records]  # engagement stays: it says which plugins count
    sides = [comparison_key(experiment, versions, host, used) for host, versions in (recorded, now)]
    arms = tuple(f"{arm}: " for arm in experiment.names)
    keys = [{name: fact for name, fact in side.items() if not name.startswith(arms)} for side in sides]
    key = compare_keys(*(_bare(experiment, one) for one in keys))
    for difference in key.found:
        metrics = [metric.name for metric in experiment.metrics if difference.bears.on(metric)]
        if metrics:
            yield f"comparing {', '.join(metrics)} ({difference.sentence})"


def _bare(experiment: Experiment, key: Mapping[str, Fact]) -> RunEvidence:
    nothing = Judgement(arms={}, verdicts=(), claims=(), failures=(), tie_groups={}, complete=False)
    return RunEvidence(experiment=experiment, records=(), judgement=nothing, key=key)


def _claims(experiment: Experiment, host: Mapping[str, Any]) -> Iterator[str]:
    """Claims that this host cannot judge."""
    known = conditions(host)
    for claim in experiment.claims:
        if (why := lacking(claim.host, known)) is not None:
            yield f"judging the claim {claim.id} ({why})"


def _room(records: Sequence[TrialRecord], host: Mapping[str, Any]) -> Iterator[str]:
    """A peak that this host's memory cannot hold."""
    limits = [(host.get("memory") or {}).get("total_bytes"), (host.get("cgroup") or {}).get("memory_limit_bytes")]
    room = min((limit for limit in limits if isinstance(limit, int | float)), default=None)
    for arm in dict.fromkeys(record.arm for record in records):
        peak = max((r.values["peak_rss_anon"].value for r in records if r.arm == arm and "peak_rss_anon" in r.values),
                   default=0.0)  # fmt: skip
        if room is not None and peak > room:
            allowed = f"its peak was {format_bytes(peak)}, this host allows {format_bytes(room)}"
            yield f"running arm {arm} to its end ({allowed})"


def stops(experiment: Experiment, host: Mapping[str, Any]) -> Iterator[str]:
    """Why a run cannot do here what it asks for: CPUs that arms bind their threads to and that this process may not
    use, one line a binding. vLLM 0.32 does not fail then: it crowds that many threads on the CPUs it gets.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for arm in experiment.arms:
        bindings = {name: arm.env.get(name, "") for name in _BINDING} | {"cpus": str(arm.args.get("cpus", ""))}
        for name, binding in bindings.items():
            found.setdefault((name, binding), []).append(named(arm.name))
    for (name, binding), arms in found.items():
        absent = absent_cpus(binding, host.get("allowed_cpus"))
        if absent:
            yield (
                f"{name}={binding} ({listed(arms)}) names CPUs that this process may not use ({cpu_list(absent)}):"
                " run on a host (or in a cpuset) that has them"
            )


def absent_cpus(binding: str, allowed: Any) -> tuple[int, ...]:
    """CPUs that a binding names and `allowed` (a list as the kernel writes it) does not hold; none for a binding in
    words (`auto`), or where the host does not tell.
    """
    if not isinstance(allowed, str) or not re.fullmatch(r"\d+(?:-\d+)?(?:[,|]\d+(?:-\d+)?)*", binding):
        return ()
    asked = {cpu for part in binding.split("|") for cpu in parse_cpu_list(part)}
    return tuple(sorted(asked - set(parse_cpu_list(allowed))))


def cpu_list(cpus: Sequence[int]) -> str:
    """`2-31,40`: ascending CPUs as the kernel writes them."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1][1:] = [cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)
