"""A made-up run as the report tests see it: five arms, six passes, one arm meant to fail, one repeated pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random
from statistics import geometric_mean, median

from harness.events import Phase
from harness.experiment.types import Arm, Claim, ClaimKind, Expectation, Experiment, Rule
from harness.metrics import REGISTRY, Better, Metric
from harness.plan import Plan, PlannedTrial
from harness.records import (
    Disturbance,
    Failure,
    MemoryRecord,
    PhaseMemory,
    Reason,
    SamplerCost,
    TrialRecord,
    Value,
    seal,
)
from harness.report import RunData
from harness.units import MIB
from harness.verdict.types import (
    ArmSummary,
    ClaimVerdict,
    Code,
    Equivalent,
    FailureRow,
    Interval,
    JudgedClaim,
    Judgement,
    PairVerdict,
    Ranked,
    Refusal,
    Refused,
    Summary,
    Unknown,
    Within,
)

PASSES = 6
NAMES = ("both_layouts", "direct", "direct_control", "no_dequant", "rejected")
METRICS = tuple(REGISTRY[name] for name in ("prefill_tokens_per_s", "settled_rss_anon", "peak_rss_anon", "load_s"))
#: Typical value of each metric by arm, base units.
CENTRES: Mapping[str, Mapping[str, float]] = {
    "prefill_tokens_per_s": {"both_layouts": 318, "direct": 301, "direct_control": 301, "no_dequant": 170},
    "settled_rss_anon": {
        "both_layouts": 3420 * MIB, "direct": 2830 * MIB, "direct_control": 2831 * MIB, "no_dequant": 2826 * MIB,
    },
    "peak_rss_anon": {
        "both_layouts": 4105 * MIB, "direct": 4050 * MIB, "direct_control": 4052 * MIB, "no_dequant": 3380 * MIB,
    },
    "load_s": {"both_layouts": 64, "direct": 61, "direct_control": 61.5, "no_dequant": 58},
}  # fmt: skip
SPREAD = {"prefill_tokens_per_s": 0.006, "settled_rss_anon": 0.0012, "peak_rss_anon": 0.004, "load_s": 0.05}
PHASES = (("import", 0, 9), ("load", 9, 70), ("warm-up", 70, 76), ("prefill", 76, 92), ("decode", 92, 118),
          ("context", 118, 126), ("settle", 126, 140), ("trim", 140, 144), ("shutdown", 144, 147))  # fmt: skip
OVERLAP = Refusal(Code.SPREADS_OVERLAP, "Their spreads overlap.", "A larger difference, or less noise.")
CONTAINS = Refusal(Code.INTERVAL_CONTAINS_ONE, "The interval contains 1.", "More passes, or less noise.")
MISSING = Refusal(Code.METRIC_MISSING, "rejected has no usable value.", "Mend the arm that fails, and run again.")


def experiment(names: Sequence[str] = NAMES, rule: Rule = Rule.STRICT) -> Experiment:
    """The experiment; `names` renames its five arms."""
    arms = tuple(
        Arm(
            name=name,
            engine="vllm",
            model="spark2_5-synthetic",
            args={"dtype": "bfloat16", "max_model_len": 2048},
            env={"VLLM_CPU_KVCACHE_SPACE": "1"},
            quantization={"direct_dequant": place in (1, 2), "prefill_dequant": place != 3},
            control_of=names[1] if place == 2 else None,
            expect=Expectation(failure="config_rejected") if place == 4 else Expectation(engaged="cpu_int4"),
        )
        for place, name in enumerate(names)
    )
    claim = Claim(
        id="duplicate-gone", metric="settled_rss_anon", arm=names[1], versus=names[0], kind=ClaimKind.DIFFERENCE,
        op="<=", value=-550 * MIB, text="difference <= -550 MiB",
    )  # fmt: skip
    return Experiment(
        name="direct_dequant",
        question="Does dequantizing prefill weights from the packed layout save the duplicate, and what is the price?",
        passes=PASSES,
        arms=arms,
        metrics=METRICS,
        baseline=names[0],
        control=(names[1], names[2]),
        seed=20261201,
        claims=(claim,),
        rule=rule,
        margins={"settled_rss_anon": 0.01},
        repeat_passes=1,
    )


def _trial(random: Random, place: int, bare: TrialRecord) -> TrialRecord:
    """Fill a bare record with what the arm at that place does."""
    began = bare.began
    disturbance = Disturbance(
        counters={"steal_s": abs(random.gauss(0, 0.2)), "foreign_cpu_s": 0.4 + abs(random.gauss(0, 0.1)),
                  "psi_cpu_some_s": None},
        missing={"psi_cpu_some_s": "/proc/pressure is not mounted"},
    )  # fmt: skip
    if place == 4:
        rejected = Failure(reason=Reason.CONFIG_REJECTED, evidence="ValueError: Unknown quantization method: cpu_int3")
        return replace(
            bare, ended=began + 14, failure=rejected, expected=True, phases=(Phase("import", began, began + 9),),
            disturbance=disturbance,
        )  # fmt: skip
    key = ("both_layouts", "direct", "direct_control", "no_dequant")[place]
    values = {}
    for metric in METRICS:
        value = CENTRES[metric.name][key] * math.exp(random.gauss(0, SPREAD[metric.name]))
        peak = metric.name.startswith("peak")
        values[metric.name] = Value(value=value, lower=value if peak else None, upper=value + 30e6 if peak else None)
    settled, peak_value = values["settled_rss_anon"].value, values["peak_rss_anon"]
    whole = PhaseMemory(
        phase="trial", samples=2900, s_lower=int(peak_value.value), s_upper=int(peak_value.upper or 0),
        u_lower=int(peak_value.value * 0.97), peak_t=began + 58, peak_process="VLLM::Worker", max_rss_shmem=31 * MIB,
        max_rss_file=612 * MIB, max_vm_swap=0, max_anon_huge=0,
    )  # fmt: skip
    load = PhaseMemory(phase="load", samples=1400, s_lower=int(peak_value.value), s_upper=whole.s_upper)
    memory = MemoryRecord(
        backend="cgroup_v1", phases=(load, whole),
        levels={"settled": int(settled), "trimmed": int(settled * 0.96), "pss_anon_settled": int(settled * 0.97)},
        cost=SamplerCost(samples=2900, cpu_s=0.31, wall_s=147.0, period_s=0.05, gap_max_s=0.083),
        samples_path=f"samples/{bare.trial:04d}.gz",
    )  # fmt: skip
    phases = tuple(Phase(phase, began + begin, began + end) for phase, begin, end in PHASES)
    failure = (
        Failure(reason=Reason.SIGNAL, signal="SIGSEGV", evidence="VLLM::Worker died of SIGSEGV in decode")
        if (place, bare.pass_number, bare.attempt) == (3, 4, 1)
        else None
    )
    return replace(
        bare, ended=began + 147, values={} if failure else values, failure=failure, memory=memory, phases=phases,
        disturbance=disturbance,
    )  # fmt: skip


def records(names: Sequence[str] = NAMES) -> tuple[TrialRecord, ...]:
    """Six passes in rotated order; pass 4 failed in the fourth arm and was repeated as a whole."""
    random, previous = Random(7), ""
    made: list[TrialRecord] = []
    for number, attempt in ((1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (5, 1), (6, 1)):
        for position in range(1, len(names) + 1):
            place = (position + number) % len(names)
            trial = len(made) + 1
            bare = TrialRecord(
                trial=trial, planned=trial, arm=names[place], pass_number=number, position=position, attempt=attempt,
                began=1000.0 + 160 * trial, ended=1000.0 + 160 * trial, started_at="2026-12-01T10:00:00Z",
            )  # fmt: skip
            made.append(seal(_trial(random, place, bare), previous))
            previous = made[-1].digest
    return tuple(made)


def samples(record: TrialRecord) -> Sequence[tuple[float, int]]:
    """A curve like that of an engine which loads, repacks, serves and settles: 20 samples a second."""
    random = Random(record.trial)
    whole = record.memory.phase("trial") if record.memory is not None else None
    if record.memory is None or whole is None:
        return [(record.began + step / 20, step * MIB) for step in range(int(20 * (record.ended - record.began)))]
    peak, settled = whole.s_lower or 0, record.memory.levels["settled"] or 0
    knots = [(0, 20 * MIB), (9, 900 * MIB), (14, 1500 * MIB), (50, settled * 0.95), (57.5, peak * 0.97), (58, peak),
             (58.6, settled), (76, settled * 1.01), (92, settled * 1.02), (126, settled * 1.03), (130, settled),
             (140, settled), (141, settled * 0.96), (144, settled * 0.96), (147, 40 * MIB)]  # fmt: skip
    curve = []
    for step in range(147 * 20 + 1):
        t = step / 20
        (t0, y0), (t1, y1) = next(pair for pair in pairwise(knots) if pair[0][0] <= t <= pair[1][0])
        y = y0 + (y1 - y0) * (t - t0) / (t1 - t0)
        curve.append((record.began + t, int(min(peak, y * (1 + random.uniform(-0.002, 0.002))))))
    return curve


def data(names: Sequence[str] = NAMES, rule: Rule = Rule.STRICT) -> RunData:
    """The whole run."""
    found = records(names)
    planned = tuple(
        PlannedTrial(ordinal=record.trial, arm=record.arm, pass_number=record.pass_number, position=record.position)
        for record in found
        if record.attempt == 1
    )
    host = {
        "cpu": {"model": "Intel(R) Xeon(R) Platinum 8480C", "threads": 2, "isa": ["avx2", "avx512f"], "governor": None},
        "memory": {"total_bytes": 16 * 2**30, "thp": "madvise"},
        "kernel": {"release": "6.18.0"},
        "missing": {"cpu.governor": "no cpufreq: a virtual machine hides it"},
    }
    plan = Plan(seed=20261201, trials=planned, notes=("6 passes are no multiple of 5 arms: positions differ by one",))
    return RunData(
        experiment=experiment(names, rule), run="20261201T100000Z-1a2b3c", records=found, host=host, plan=plan,
        samples=samples,
    )  # fmt: skip


def pair(metric: Metric, a: str, b: str, columns: Mapping[str, Mapping[int, float]]) -> PairVerdict:
    """A verdict by the simplest rule that gives every outcome: not the engine's, only of the right shape."""
    first, second = columns[a], columns[b]
    common = sorted(set(first) & set(second))
    if not common:
        return PairVerdict(
            metric=metric, a=a, b=b, outcome=Refused((MISSING,)), ratio=Unknown("an arm has no value"),
            interval=Unknown("an arm has no value"), within=Within(a_better=0, passes=0),
            smallest_effect=Unknown("an arm has no value"), passes_needed=Unknown("an arm has no value"),
        )  # fmt: skip
    sign = -1 if metric.better is Better.LOWER else 1
    ratio = geometric_mean(first[number] / second[number] for number in common)
    width = 1 + 2.2 * SPREAD.get(metric.name, 0.01)
    low, high = ratio / width, ratio * width
    apart = min(first.values()) > max(second.values()) or max(first.values()) < min(second.values())
    margin = 0.01 if metric.name == "settled_rss_anon" else 0.0
    outcome: Ranked | Equivalent | Refused
    if apart and not low <= 1 <= high:
        outcome = Ranked(a if (ratio - 1) * sign > 0 else b)
    elif 1 / (1 + margin) < low and high < 1 + margin:
        outcome = Equivalent(margin)
    else:
        outcome = Refused(((OVERLAP,) if not apart else ()) + ((CONTAINS,) if low <= 1 <= high else ()))
    return PairVerdict(
        metric=metric, a=a, b=b, outcome=outcome, ratio=ratio,
        interval=Interval(low, high, 0.95, "simultaneous over all pairs (studentized range)"),
        within=Within(a_better=sum((first[n] - second[n]) * sign > 0 for n in common), passes=len(common)),
        smallest_effect=width - 1, passes_needed=14,
    )  # fmt: skip


def judgement(run: RunData) -> Judgement:
    """Verdicts of the right shape on that run."""
    names = run.experiment.names
    columns = {
        metric.name: {
            name: {
                record.pass_number: record.values[metric.name].value
                for record in run.latest
                if record.arm == name and record.usable
            }
            for name in names
        }
        for metric in METRICS
    }
    arms = {
        name: ArmSummary(
            name=name, ok=PASSES, failed=0,
            metrics={
                metric: Summary(
                    median=median(found[name].values()), low=min(found[name].values()), high=max(found[name].values()),
                    n=len(found[name]), values=found[name],
                )
                for metric, found in columns.items()
                if found[name]
            },
        )
        for name in names
    }  # fmt: skip
    failures = [
        FailureRow(
            arm=record.arm, pass_number=record.pass_number, reason=record.failure.reason.value,
            evidence=record.failure.evidence, expected=record.expected, replaced=record not in run.latest,
        )
        for record in run.counted
        if record.failure is not None
    ]  # fmt: skip
    return Judgement(
        arms=arms,
        verdicts=tuple(
            pair(metric, a, b, columns[metric.name]) for metric in METRICS for a, b in combinations(names, 2)
        ),
        claims=(
            JudgedClaim(
                id="duplicate-gone", verdict=ClaimVerdict.SUPPORTED,
                why="The difference lies between -600.2 MiB and -581.0 MiB, all of it within what was expected.",
            ),
        ),
        failures=tuple(failures),
        tie_groups={
            "prefill_tokens_per_s": ((names[0],), (names[1], names[2]), (names[3],)),
            "settled_rss_anon": ((names[1], names[2], names[3]), (names[0],)),
        }
        if len(names) == len(NAMES)
        else {},
        complete=True,
    )  # fmt: skip
