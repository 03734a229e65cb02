"""What the verdict engine says, as types: a verdict is never None, a sentinel or a bool. Pure, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from harness.metrics import Metric


class Code(StrEnum):
    """Why a pair is not ranked. The contract's closed list."""

    SPREADS_OVERLAP = "spreads_overlap"
    INTERVAL_CONTAINS_ONE = "interval_contains_one"
    WITHIN_MARGIN = "within_margin"
    TOO_FEW_PASSES = "too_few_passes"
    CONTROL_SEPARATED = "control_separated"
    ORDER_CONFOUNDED = "order_confounded"
    UNEQUAL_WORK = "unequal_work"
    FAILED_TRIALS = "failed_trials"
    DISTURBED = "disturbed"
    BRACKETS_OVERLAP = "brackets_overlap"
    UNIT_MISMATCH = "unit_mismatch"
    NOT_COMPARABLE = "not_comparable"
    METRIC_MISSING = "metric_missing"


@dataclass(frozen=True)
class Refusal:
    """One reason not to rank. `sentence`: what was found. `remedy`: what would change it."""

    code: Code
    sentence: str
    remedy: str


@dataclass(frozen=True)
class Ranked:
    """The pair is told apart: `better` is the name of the better arm."""

    better: str


@dataclass(frozen=True)
class Equivalent:
    """The 90 % interval of the ratio lies inside the stated margin (a fraction, 0.01 for 1 %)."""

    margin: float


@dataclass(frozen=True)
class Refused:
    """The pair is not ranked. All reasons that apply, at least one."""

    reasons: tuple[Refusal, ...]


Outcome = Ranked | Equivalent | Refused


@dataclass(frozen=True)
class Interval:
    """A confidence interval. `level`: 0.95, say. `method`: the rule that made it, in the report's words."""

    low: float
    high: float
    level: float
    method: str

    @property
    def words(self) -> str:
        """`0.9997 to 1.0003`: four significant digits, more where an end would read as 1 and is not 1."""
        for digits in range(4, 12):
            ends = [f"{end:.{digits}g}" for end in (self.low, self.high)]
            if not any(text == "1" and end != 1 for text, end in zip(ends, (self.low, self.high), strict=True)):
                break
        return " to ".join(ends)


@dataclass(frozen=True)
class Unknown:
    """A number that could not be worked out, and why."""

    why: str


@dataclass(frozen=True)
class Estimate:
    """What two runs are compared by. `log_ratio`: of a/b. `standard_error`: of it, with `df` degrees of freedom; 0 and
    infinity for an exact metric.
    """

    log_ratio: float
    standard_error: float
    df: float


@dataclass(frozen=True)
class PositionEffect:
    """What one place later in a pass does to a metric, as a fraction (0.02: each place adds 2 %). `low`, `high`: its
    95 % interval.
    """

    per_place: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Within:
    """The passes in which both arms have a usable value: in how many was `a` better. For a metric with one value per
    text window, the windows.
    """

    a_better: int
    passes: int


@dataclass(frozen=True, kw_only=True)
class PairVerdict:
    """One unordered pair of arms on one metric.

    `ratio`, `interval`: of a/b, from the block analysis of logs. `smallest_effect`: least relative difference this run
    could have shown (0.02 for 2 %). `passes_needed`: to resolve the difference seen. `notes`: what the reader should
    know beside it (`3 of 5 passes`, unequal variances, a bimodal arm). `equivalence`: the 90 % interval of the ratio
    that two one-sided tests read. `difference`: simultaneous interval of a - b in the metric's unit, for bytes and
    where a claim asks for it. `margin`: as the experiment states it for this metric. `place`: most that the place
    within a pass can contribute to the log ratio (infinite where places cannot be told from arms).
    """

    metric: Metric
    a: str
    b: str
    outcome: Outcome
    ratio: float | Unknown
    interval: Interval | Unknown
    within: Within
    smallest_effect: float | Unknown
    passes_needed: int | Unknown
    notes: tuple[str, ...] = ()
    estimate: Estimate | Unknown = Unknown("not worked out")
    equivalence: Interval | Unknown = Unknown("not worked out")
    difference: Interval | Unknown = Unknown("worked out for bytes only")
    margin: float | None = None
    place: float = 0.0

    @property
    def codes(self) -> tuple[Code, ...]:
        """The codes of a refusal, in the order found; empty for any other outcome."""
        return tuple(reason.code for reason in self.outcome.reasons) if isinstance(self.outcome, Refused) else ()


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One arm on one metric over its usable trials, in the metric's unit. `values`: by pass number."""

    median: float
    low: float
    high: float
    n: int
    values: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """One arm. `metrics` holds only those with a usable value. `failed` counts unexpected failures of counted trials
    that no repetition replaced; `ok` counts usable trials and failures that were expected.
    """

    name: str
    ok: int
    failed: int
    metrics: Mapping[str, Summary] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


class ClaimVerdict(StrEnum):
    """How a claim fares."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"
    NOT_COMPARABLE = "not_comparable"


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """One claim and its verdict, with the sentence that explains it."""

    id: str
    verdict: ClaimVerdict
    why: str


@dataclass(frozen=True, kw_only=True)
class FailureRow:
    """One failed trial as the report lists it. `replaced`: a repetition of its pass stands in its place. `scoring`: it
    is a trial of its own for quality, in no pass.
    """

    arm: str
    pass_number: int
    reason: str
    evidence: str
    expected: bool
    replaced: bool = False
    scoring: bool = False


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Everything the verdict engine says of one run. `tie_groups`: per metric, the ranking as a partial order: groups
    in order where pairs support one, arms that share a group are not told apart. `complete`: every planned trial has
    a record. `notes`: about the run as a whole (no control guards it, the run is incomplete, ...). `positions`: per
    metric, the effect of the place within a pass.
    """

    arms: Mapping[str, ArmSummary]
    verdicts: tuple[PairVerdict, ...]
    claims: tuple[JudgedClaim, ...]
    failures: tuple[FailureRow, ...]
    tie_groups: Mapping[str, tuple[tuple[str, ...], ...]]
    complete: bool
    notes: tuple[str, ...] = ()
    positions: Mapping[str, PositionEffect | Unknown] = field(default_factory=dict)
