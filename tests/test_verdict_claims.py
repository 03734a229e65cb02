"""Claims, judged on the simultaneous interval: supported, contradicted, undecided, not comparable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from verdict_runs import EXACT, SCORE, Cell, experiment, record, run

from harness.experiment.types import Claim, ClaimKind, Rule
from harness.records import Reason
from harness.verdict import judge
from harness.verdict.types import Interval

#: b takes twice as long as a, to 1 %.
DOUBLE: dict[str, list[Cell]] = {"a": [1.00, 1.01, 1.02, 1.01, 1.00, 1.01], "b": [2.00, 2.02, 2.03, 2.01, 2.00, 2.03]}


def claim(kind: ClaimKind, op: str = "", value: float = 0.0, **more: Any) -> Claim:
    """A claim on b against a."""
    said: dict[str, Any] = {"id": "c", "metric": "score", "arm": "b", "versus": "a", "text": "", **more}
    return Claim(kind=kind, op=op, value=value, **said)


def verdict(one: Claim, table: dict[str, list[Cell]] = DOUBLE, host: dict[str, Any] | None = None, **more: Any) -> str:
    """How the claim fares on that table."""
    passes = len(next(iter(table.values())))
    plan = experiment(list(table), passes, claims=(one,), **more)
    return judge(plan, run(table), host or {}).claims[0].verdict.value


@pytest.mark.parametrize(
    ("op", "value", "expected"),
    [
        (">=", 1.8, "supported"),
        (">", 1.8, "supported"),
        (">=", 2.2, "contradicted"),
        ("<=", 2.2, "supported"),
        ("<=", 1.8, "contradicted"),
        (">=", 2.0, "undecided"),
        ("<", 2.0, "undecided"),
    ],
)
def test_a_ratio_is_judged_by_its_whole_interval(op: str, value: float, expected: str) -> None:
    """A ratio near 2: wholly inside what was expected, wholly outside, or across its edge."""
    assert verdict(claim(ClaimKind.RATIO, op, value)) == expected


def test_a_claim_reads_arm_over_versus_whichever_comes_first() -> None:
    """The claim on a against b is the inverse of the one on b against a."""
    turned = claim(ClaimKind.RATIO, "<=", 0.55, arm="a", versus="b")
    assert verdict(turned) == "supported"
    assert verdict(replace(turned, value=0.45)) == "contradicted"


@pytest.mark.parametrize(
    ("op", "value", "expected"),
    [(">=", 0.9, "supported"), (">=", 1.1, "contradicted"), (">=", 1.005, "undecided"), ("<=", -0.5, "contradicted")],
)
def test_a_difference_is_judged_in_the_metrics_unit(op: str, value: float, expected: str) -> None:
    """The difference b - a is about 1.007 s, give or take a hundredth."""
    assert verdict(claim(ClaimKind.DIFFERENCE, op, value)) == expected


def test_a_difference_of_bytes_as_the_design_states_it() -> None:
    """Saving 550 MiB: a settled level of 2000 MiB against 1400 MiB supports `difference <= -550 MiB`."""
    mib = 2**20
    metric = replace(SCORE, unit="B", resolution=64 * 4096)
    table: dict[str, list[Cell]] = {
        "a": [(2000.0 + i % 3) * mib for i in range(6)],
        "b": [(1400.0 + i % 2) * mib for i in range(6)],
    }
    saved = claim(ClaimKind.DIFFERENCE, "<=", -550.0 * mib)
    assert verdict(saved, table, metrics=[metric]) == "supported"
    assert verdict(replace(saved, value=-650.0 * mib), table, metrics=[metric]) == "contradicted"


def test_equivalence_is_claimed_within_a_fraction() -> None:
    """Arms equal to a per mille are equivalent within 1 %; arms a factor 2 apart contradict it."""
    close: dict[str, list[Cell]] = {"a": [1.0, 1.001, 1.0, 1.001, 1.0, 1.001], "b": [1.0, 1.0, 1.001, 1.0, 1.001, 1.0]}
    assert verdict(claim(ClaimKind.EQUIVALENT, value=0.01), close) == "supported"
    assert verdict(claim(ClaimKind.EQUIVALENT, value=0.0001), close) == "undecided"
    assert verdict(claim(ClaimKind.EQUIVALENT, value=0.01)) == "contradicted"


def test_not_ranked_is_a_claim_of_its_own() -> None:
    """Refused for overlap supports it; a ranking contradicts it."""
    close: dict[str, list[Cell]] = {"a": [1.0, 1.1, 1.0, 1.1, 1.0, 1.1], "b": [1.1, 1.0, 1.1, 1.0, 1.1, 1.0]}
    assert verdict(claim(ClaimKind.NOT_RANKED), close) == "supported"
    assert verdict(claim(ClaimKind.NOT_RANKED)) == "contradicted"


def test_an_exact_metric_settles_a_claim_with_one_value() -> None:
    """100 against 50 bytes: the ratio is 2, exactly."""
    table: dict[str, list[Cell]] = {"a": [{"size": 50.0}], "b": [{"size": 100.0}]}
    exactly = claim(ClaimKind.RATIO, ">=", 2.0, metric="size")
    assert verdict(exactly, table, metrics=[EXACT]) == "supported"
    assert verdict(replace(exactly, op=">"), table, metrics=[EXACT]) == "contradicted"
    difference = claim(ClaimKind.DIFFERENCE, "<=", 50.0, metric="size")
    assert verdict(difference, table, metrics=[EXACT]) == "supported"


@pytest.mark.parametrize(
    "table",
    [
        {"a": DOUBLE["a"], "b": [*DOUBLE["b"][:5], Reason.TIMEOUT]},
        {"a": DOUBLE["a"], "b": [Reason.SIGNAL] * 6},
        {"a": DOUBLE["a"][:3], "b": DOUBLE["b"][:3]},
        {"a": DOUBLE["a"], "b": [*DOUBLE["b"][:5], None]},
    ],
)
@pytest.mark.parametrize("kind", list(ClaimKind))
def test_a_void_interval_contradicts_nothing(table: dict[str, list[Cell]], kind: ClaimKind) -> None:
    """Failed trials, a missing metric, too few passes: the claim is undecided, whatever the figures look like."""
    assert verdict(claim(kind, "<=", 0.5), table) == "undecided"


def test_a_control_that_separates_leaves_claims_undecided() -> None:
    """Where the A/A pair is told apart, no claim on that metric is judged."""
    table: dict[str, list[Cell]] = {**DOUBLE, "a2": [1.2, 1.21, 1.22, 1.21, 1.2, 1.21]}
    assert verdict(claim(ClaimKind.RATIO, ">=", 1.8), table, control=("a", "a2")) == "undecided"


def test_places_that_were_not_balanced_widen_a_claims_interval() -> None:
    """Five passes of two arms with a slope of 2 % a place: what places may add keeps a tight claim undecided."""
    wobble = [1.0, 1.003, 0.997, 1.002, 0.998]
    records = [
        record(arm, n, at, wobble[(n + index) % 5] * 1.02**at)
        for n in range(1, 6)
        for index, arm in enumerate(("a", "b"))
        for at in [(index + n) % 2 + 1]
    ]
    bare = judge(experiment(["a", "b"], 5, rule=Rule.PAIRED), records, {}).verdicts[0]
    assert "order_confounded" in {code.value for code in bare.codes}
    assert isinstance(bare.interval, Interval)
    widest = max(math.log(bare.interval.high), -math.log(bare.interval.low))
    for room, expected in ((bare.place / 2, "undecided"), (bare.place * 1.01, "supported")):
        near = claim(ClaimKind.EQUIVALENT, value=math.expm1(widest + room))
        found = judge(experiment(["a", "b"], 5, claims=(near,), rule=Rule.PAIRED), records, {})
        assert found.claims[0].verdict.value == expected


@pytest.mark.parametrize(
    ("conditions", "host", "expected"),
    [
        ({"isa": "avx512_bf16"}, {"cpu_flags": ["avx2", "avx512_bf16"]}, "supported"),
        ({"isa": "avx512-bf16"}, {"cpu_flags": ["avx2", "avx512_bf16"]}, "supported"),
        ({"isa": ["avx512f", "amx_tile"]}, {"cpu_flags": ["avx2", "avx512f"]}, "not_comparable"),
        ({"isa": "avx2"}, {}, "not_comparable"),
        ({"cores": 32}, {"cores": 2}, "not_comparable"),
        ({"cores": 2}, {"cores": 2}, "supported"),
        ({"cores": ">= 32"}, {"cores": 64}, "supported"),
        ({"cores": "<= 4"}, {"cores": 2}, "supported"),
        ({"cores": "<= 4"}, {"cores": 32}, "not_comparable"),
        ({"cores": "== 2"}, {"cores": 4}, "not_comparable"),
        ({"isa": ["amx_tile"], "cores": 32}, {"cpu_flags": ["avx512f"], "cores": 64}, "not_comparable"),
        ({"cores": 2}, {"cores": None}, "not_comparable"),
        ({"turbo": "off"}, {"cores": 2}, "not_comparable"),
    ],
)
def test_a_claim_about_another_kind_of_host_is_not_comparable(
    conditions: dict[str, Any], host: dict[str, Any], expected: str
) -> None:
    """An instruction set or core count that this host lacks, or is not known to have, leaves the claim unjudged."""
    assert verdict(claim(ClaimKind.RATIO, ">=", 1.8, host=conditions), host=host) == expected


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [(range(2), "not_comparable"), (range(32), "supported"), ((0, 1, 0, 1), "not_comparable"), ((), "supported")],
)
def test_a_claim_counts_the_cores_that_its_arms_were_bound_to(cpus: Sequence[int], expected: str) -> None:
    """On 64 cores, arms bound to two cannot judge a claim about 32; arms that report no CPUs had all of them."""
    wanted = claim(ClaimKind.RATIO, ">=", 1.8, host={"cores": ">= 32"})
    records = [replace(one, work={**one.work, "cpus": list(cpus)}) for one in run(DOUBLE)]
    judged = judge(experiment(["a", "b"], 6, claims=(wanted,)), records, {"cores": 64})
    assert judged.claims[0].verdict.value == expected


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        (range(32), "supported"),  # 32 cores, one thread each
        ([*range(16), *range(64, 80)], "not_comparable"),  # both threads of 16
        (range(64, 96), "supported"),  # the second thread of 32
    ],
)
def test_two_threads_of_one_core_are_one_core(cpus: Sequence[int], expected: str) -> None:
    """On 64 cores whose second threads are the CPUs from 64 on."""
    wanted = claim(ClaimKind.RATIO, ">=", 1.8, host={"cores": ">= 32"})
    records = [replace(one, work={**one.work, "cpus": list(cpus)}) for one in run(DOUBLE)]
    host = {"cores": 64, "one_thread_a_core": tuple(range(64))}
    judged = judge(experiment(["a", "b"], 6, claims=(wanted,)), records, host)
    assert judged.claims[0].verdict.value == expected
