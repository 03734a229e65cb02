"""Agreement of two runs of one experiment, with the truth known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from verdict_runs import EXACT, PERPLEXITY, Cell, experiment, run

from harness.experiment.types import Claim, ClaimKind, Experiment
from harness.records import Reason, TrialRecord, Value, seal
from harness.verdict import judge
from harness.verdict.agreement import Agreed, Agreement, RunEvidence, agree, as_json, judge_difference
from harness.verdict.types import Estimate, Interval

PLAN = experiment(["a", "b"], 8, margins={"score": 0.02})


def draws(seed: int, ratio: float, noise: float = 0.003, scale: float = 1.0) -> dict[str, list[Cell]]:
    """Eight passes of b/a = `ratio` with lognormal noise; the host's own speed is `scale`."""
    rng = np.random.default_rng(seed)
    return {
        "a": [float(scale * math.exp(noise * x)) for x in rng.standard_normal(8)],
        "b": [float(scale * ratio * math.exp(noise * x)) for x in rng.standard_normal(8)],
    }


def evidence(
    table: Mapping[str, Sequence[Cell]], plan: Experiment = PLAN, key: Mapping[str, Any] | None = None
) -> RunEvidence:
    """A run, judged, with its records sealed as on disk."""
    records: list[TrialRecord] = []
    for record in run(table):
        records.append(seal(record, records[-1].digest if records else ""))
    return RunEvidence(
        experiment=plan, records=records, judgement=judge(plan, records, {}), key={"threads": 2} if key is None else key
    )


def word(agreement: Agreement) -> str:
    """The one verdict."""
    assert len(agreement.verdicts) == 1
    return agreement.verdicts[0].agreement.value


def test_the_same_ratio_on_a_host_half_as_fast_is_confirmed() -> None:
    """Absolute numbers differ by a factor 2.3; the within-host ratio is the same: confirmed inside 2 %."""
    found = agree(evidence(draws(1, 1.5)), evidence(draws(2, 1.5, scale=2.3)))
    assert word(found) == "confirmed"
    assert found.key.equal


def test_case_36_a_faster_host_is_no_difference_between_arms() -> None:
    """All of the second host reads 1.28 times as much: compared by ratio, nothing differs."""
    found = agree(evidence(draws(1, 1.0)), evidence(draws(2, 1.0, scale=1.28)))
    assert word(found) == "confirmed"


def test_a_ratio_that_moved_is_contradicted() -> None:
    """1.5 on one host and 1.6 on the other, at 0.3 % noise: the difference excludes 0 and lies beyond 2 %."""
    found = agree(evidence(draws(1, 1.5)), evidence(draws(2, 1.6)))
    assert word(found) == "contradicted"
    interval = found.verdicts[0].difference
    assert isinstance(interval, Interval)
    assert interval.low < -math.log(1.6 / 1.5) < interval.high


def test_two_noisy_runs_are_consistent_but_imprecise() -> None:
    """10 % noise can neither confirm inside 2 % nor contradict."""
    assert word(agree(evidence(draws(1, 1.5, 0.1)), evidence(draws(2, 1.5, 0.1)))) == "consistent_but_imprecise"


def test_a_small_certain_shift_inside_the_margin_is_confirmed() -> None:
    """A shift of 1 % that is certain lies inside a margin of 2 %: what was stated in advance decides."""
    assert word(agree(evidence(draws(1, 1.5, 0.001)), evidence(draws(2, 1.515, 0.001)))) == "confirmed"


def test_a_certain_shift_that_does_not_reach_the_margin_is_no_contradiction() -> None:
    """0.019 +- 0.001 excludes 0, is not equivalent inside 2 %, and does not lie beyond 2 %: imprecise."""
    found, interval, _ = judge_difference(0.019, Estimate(0, 0.0005, 20), Estimate(0, 0.0005, 20), 0.02)
    assert interval.low > 0
    assert found is Agreed.IMPRECISE


def test_a_run_compared_with_itself_is_not_comparable() -> None:
    """The same trial digests are no second piece of evidence."""
    one = evidence(draws(1, 1.5))
    assert word(agree(one, one)) == "not_comparable"
    assert "second piece of evidence" in agree(one, one).verdicts[0].why


@pytest.mark.parametrize("key", [{"threads": 4}, {}, {"threads": 2, "plugin": "1.1"}])
def test_a_key_that_differs_is_not_comparable(key: dict[str, Any]) -> None:
    """Other threads, a fact that only one run knows: no comparison, and the item is named."""
    found = agree(evidence(draws(1, 1.5)), evidence(draws(2, 1.5), key=key))
    assert word(found) == "not_comparable"
    assert not found.key.equal
    assert found.key.differs


def test_another_experiment_is_not_comparable() -> None:
    """Arms with another configuration under the same names have another identity."""
    other = replace(PLAN, arms=(PLAN.arms[0], replace(PLAN.arms[1], command=("other",))))
    found = agree(evidence(draws(1, 1.5)), evidence(draws(2, 1.5), other))
    assert word(found) == "not_comparable"
    assert "experiment" in found.key.differs[0]


def test_a_run_with_failed_trials_confirms_nothing() -> None:
    """A pair that one run refused for failures cannot be confirmed or contradicted by it."""
    broken = {**draws(2, 1.5), "a": [*draws(2, 1.5)["a"][:7], Reason.SIGNAL]}
    assert word(agree(evidence(draws(1, 1.5)), evidence(broken))) == "not_comparable"


def test_a_run_of_too_few_passes_is_imprecise() -> None:
    """Four passes of two arms have 3 degrees of freedom: they neither confirm nor contradict."""
    short = replace(PLAN, passes=4)
    found = agree(
        evidence({arm: cells[:4] for arm, cells in draws(1, 1.5).items()}, short), evidence(draws(2, 1.5), PLAN)
    )
    assert word(found) == "consistent_but_imprecise"


def test_exact_ratios_agree_or_they_do_not() -> None:
    """Checkpoint sizes carry no noise: equal ratios are confirmed, others contradicted."""
    plan = experiment(["a", "b"], 1, metrics=[EXACT])

    def sized(b: float, note: str) -> RunEvidence:
        found = evidence({"a": [{"size": 100.0}], "b": [{"size": b}]}, plan)
        return replace(found, records=[replace(r, digest=r.digest + note) for r in found.records])

    assert word(agree(sized(25.0, "x"), sized(25.0, "y"))) == "confirmed"
    assert word(agree(sized(25.0, "x"), sized(50.0, "y"))) == "contradicted"


def test_claims_of_two_runs_are_set_against_each_other() -> None:
    """Supported twice is confirmed; supported and contradicted is contradicted; undecided is imprecise."""

    def with_claim(value: float, seed: int, ratio: float) -> RunEvidence:
        said = Claim(
            id="c", metric="score", arm="b", versus="a", kind=ClaimKind.RATIO, op=">=", value=value, text="said"
        )
        return evidence(draws(seed, ratio), replace(PLAN, claims=(said,)))

    assert agree(with_claim(1.4, 1, 1.5), with_claim(1.4, 2, 1.5)).claims[0].agreement is Agreed.CONFIRMED
    assert agree(with_claim(1.4, 1, 1.5), with_claim(1.4, 2, 1.3)).claims[0].agreement is Agreed.CONTRADICTED
    assert agree(with_claim(1.5, 1, 1.5), with_claim(1.5, 2, 1.5)).claims[0].agreement is Agreed.IMPRECISE


def test_one_name_for_two_claims_confirms_neither() -> None:
    """`ratio >= 1.4` and `ratio >= 0.5` under one id, each supported where it stands: not comparable, with both."""
    plans = [
        replace(PLAN, claims=(Claim(id="c", metric="score", arm="b", versus="a", kind=ClaimKind.RATIO, op=">=",
                                    value=value, text=f"ratio >= {value}"),))
        for value in (1.4, 0.5)
    ]  # fmt: skip
    found = agree(evidence(draws(1, 1.5), plans[0]), evidence(draws(2, 1.5), plans[1])).claims[0]
    assert (found.verdicts, found.agreement) == (("supported", "supported"), Agreed.NOT_COMPARABLE)
    assert "'ratio >= 1.4' against 'ratio >= 0.5'" in found.why


def test_a_margin_that_was_widened_confirms_nothing() -> None:
    """A shift of 5 %: beyond 2 %, and inside the 10 % that one of the runs states. Whichever is named first."""
    wide = replace(PLAN, margins={"score": 0.1})
    assert word(agree(evidence(draws(1, 1.5), wide), evidence(draws(2, 1.575)))) == "contradicted"
    assert word(agree(evidence(draws(1, 1.5)), evidence(draws(2, 1.575), wide))) == "contradicted"


def test_a_metric_of_another_unit_is_another_metric() -> None:
    """Seconds and bytes under one name: not comparable, though both ratios read the same."""
    other = replace(PLAN, metrics=tuple(replace(metric, unit="B") for metric in PLAN.metrics))
    assert word(agree(evidence(draws(1, 1.5)), evidence(draws(2, 1.5), other))) == "not_comparable"


def test_the_shape_is_the_contracts() -> None:
    """Keys, words and strict JSON as the contract of `harness agree --json` has them."""
    found = as_json(agree(evidence(draws(1, 1.5)), evidence(draws(2, 1.5))))
    text = json.dumps(found, allow_nan=False)
    assert set(json.loads(text)) == {"verdicts", "claims", "key", "problems"}
    assert set(found["verdicts"][0]) == {"metric", "a", "b", "agreement", "ratios", "difference_interval", "why"}
    assert found["key"] == {"equal": True, "differs": []}
    low, high = found["verdicts"][0]["difference_interval"]
    assert low < 0 < high


def test_welch_degrees_of_freedom_are_used() -> None:
    """Errors 3 and 4 with 4 and 9 df: df = 25^2 / (81/4 + 256/9) = 12.83, t(.975) = 2.1632; worked out by hand."""
    _, interval, _ = judge_difference(0.0, Estimate(0, 3.0, 4), Estimate(0, 4.0, 9), 0.02)
    assert interval.high == pytest.approx(5 * 2.1632, rel=2e-4)


@pytest.mark.parametrize(("shift", "most"), [(math.log(1.02), 0.035), (0.0, 1.0)])
def test_confirmation_is_wrong_in_one_of_forty_at_the_margin(shift: float, most: float) -> None:
    """A true shift as large as the margin is confirmed 2.5 % of the time; none at all, most of the time."""
    rng = np.random.default_rng(3)
    wrong, rounds = 0, 4000
    for _ in range(rounds):
        one, two = (Estimate(0.0, float(0.004 * math.sqrt(rng.chisquare(7) / 7)), 7) for _ in range(2))
        delta = shift + float(rng.normal(0, 0.004 * math.sqrt(2)))
        wrong += judge_difference(delta, one, two, 0.02)[0] is Agreed.CONFIRMED
    assert wrong / rounds <= most
    if shift == 0:
        assert wrong / rounds > 0.75


@pytest.mark.parametrize(("shift", "most"), [(0.0, 0.005), (math.log(1.01), 0.01), (math.log(1.02), 0.035)])
def test_contradiction_is_wrong_in_one_of_forty_at_the_margin(shift: float, most: float) -> None:
    """A true shift no larger than the margin of 2 % is contradicted in 2.5 % of pairs of runs at 0.4 % error."""
    rng = np.random.default_rng(4)
    wrong, rounds = 0, 4000
    for _ in range(rounds):
        one, two = (Estimate(0.0, float(0.004 * math.sqrt(rng.chisquare(7) / 7)), 7) for _ in range(2))
        delta = shift + float(rng.normal(0, 0.004 * math.sqrt(2)))
        wrong += judge_difference(delta, one, two, 0.02)[0] is Agreed.CONTRADICTED
    assert wrong / rounds <= most


def perplexities(ratios: Sequence[float], shift: float = 0.0) -> RunEvidence:
    """Two arms scored once over windows of very different difficulty; `b` is worse by `ratios` a window."""
    plan = experiment(["a", "b"], 1, metrics=[PERPLEXITY])
    base = [2.0 + 0.3 * number for number in range(len(ratios))]

    def scored(extra: Sequence[float]) -> Value:
        series = tuple(x + y for x, y in zip(base, extra, strict=True))
        return Value(value=math.exp(sum(series) / len(series)), series=series)

    cells = {"a": [{"perplexity": scored([0.0] * len(ratios))}],
             "b": [{"perplexity": scored([math.log(r) + shift for r in ratios])}]}  # fmt: skip
    found = evidence(cells, plan)
    return replace(found, records=[replace(r, digest=r.digest + str(shift)) for r in found.records])


def test_perplexities_are_paired_over_the_same_windows() -> None:
    """b/a differs by 10 % from window to window, and not at all from run to run: that is no noise. Confirmed; a shift
    of 5 % in each window is contradicted, though far smaller than the spread of the windows.
    """
    ratios = [1.05 + 0.1 * (number % 2) for number in range(12)]
    assert word(agree(perplexities(ratios), perplexities(ratios, 1e-7))) == "confirmed"
    assert word(agree(perplexities(ratios), perplexities(ratios, math.log(1.05)))) == "contradicted"
