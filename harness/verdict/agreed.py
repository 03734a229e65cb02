"""What two runs of one experiment say of each other, as types. Pure, frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from harness.experiment.types import Experiment
from harness.metrics import Kind, Metric
from harness.records import TrialRecord
from harness.verdict.types import Interval, Judgement, Unknown


class Agreed(StrEnum):
    """How two runs stand to each other on one pair and metric."""

    CONFIRMED = "confirmed"
    IMPRECISE = "consistent_but_imprecise"
    CONTRADICTED = "contradicted"
    NOT_COMPARABLE = "not_comparable"

    @property
    def words(self) -> str:
        """For people: `consistent but imprecise`."""
        return self.value.replace("_", " ")


class Bears(StrEnum):
    """Which metrics an item of the comparison key bears on."""

    ALL = "all"  # another question: nothing can be compared
    MEASURED = "measured"  # everything but exact metrics: bytes on disk do not know which processor read them
    MEMORY = "memory"  # bytes in memory only
    QUALITY = "quality"  # what is scored on text only

    def on(self, metric: Metric) -> bool:
        """Whether a difference in such an item forbids to compare that metric."""
        if self is Bears.ALL:
            return True
        if self is Bears.QUALITY:
            return metric.kind is Kind.WINDOWED
        if metric.kind is Kind.EXACT:
            return False
        return self is Bears.MEASURED or metric.unit == "B"


@dataclass(frozen=True)
class Fact:
    """One item of the comparison key: a JSON value, None where it is not known, and what it bears on."""

    value: Any
    bears: Bears = Bears.ALL


@dataclass(frozen=True)
class Difference:
    """An item of the key that is not the same in both runs. `sentence`: its name and both values."""

    sentence: str
    bears: Bears


@dataclass(frozen=True, kw_only=True)
class Key:
    """The comparison key of two runs: what must be equal for their ratios to be compared."""

    found: tuple[Difference, ...]

    @property
    def differs(self) -> tuple[str, ...]:
        """Each item that is not equal, with both values, as a sentence."""
        return tuple(difference.sentence for difference in self.found)

    @property
    def equal(self) -> bool:
        """Nothing in the key differs."""
        return not self.found

    def on(self, metric: Metric) -> tuple[str, ...]:
        """The differences that forbid to compare that metric."""
        return tuple(difference.sentence for difference in self.found if difference.bears.on(metric))


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """One run as agreement needs it. `key`: facts that must be equal in both runs by name, each a `Fact`, or a plain
    JSON value that bears on everything. `host`: which machine, None if not known. `problems`: why the records are not
    what was measured (an edited line, a plan that is not the experiment's), a sentence each; such a run proves nothing.
    `name`: what sentences call it.
    """

    experiment: Experiment
    records: Sequence[TrialRecord]
    judgement: Judgement
    key: Mapping[str, Any]
    host: str | None = None
    problems: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class PairAgreement:
    """One pair on one metric in two runs. `ratios`: a/b in each. `difference`: 95 % interval of delta, the second
    log ratio less the first (0: the same), or why there is none.
    """

    metric: str
    a: str
    b: str
    agreement: Agreed
    ratios: tuple[float | Unknown, float | Unknown]
    difference: Interval | Unknown
    why: str


@dataclass(frozen=True, kw_only=True)
class ClaimAgreement:
    """One claim in two runs. `verdicts`: as each run judged it."""

    id: str
    agreement: Agreed
    verdicts: tuple[str, str]
    why: str


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What two runs say of each other. `problems`: what makes a run no evidence, each naming its run. `names`: of the
    two runs.
    """

    verdicts: tuple[PairAgreement, ...]
    claims: tuple[ClaimAgreement, ...]
    key: Key
    problems: tuple[str, ...] = ()
    names: tuple[str, str] = field(default=("", ""))

    @property
    def words(self) -> frozenset[Agreed]:
        """Every verdict that was given."""
        return frozenset((*(pair.agreement for pair in self.verdicts), *(claim.agreement for claim in self.claims)))
