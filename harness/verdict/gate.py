"""Does a change pass? Decided by the claims of its run and by that run's agreement with a reference. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.experiment.types import Experiment
from harness.verdict.agreement import Agreed, Agreement, PairAgreement
from harness.verdict.types import ClaimVerdict, Judgement

#: Of a claim, what leaves it without an answer.
_OPEN_CLAIM = frozenset({ClaimVerdict.UNDECIDED, ClaimVerdict.NOT_COMPARABLE})
#: Of an agreement.
_OPEN_AGREEMENT = frozenset({Agreed.IMPRECISE, Agreed.NOT_COMPARABLE})


@dataclass(frozen=True)
class Finding:
    """One thing that speaks against a change. `what`: claim or pair; `word`: its verdict; `why`: the sentence."""

    what: str
    word: str
    why: str

    @property
    def sentence(self) -> str:
        """For people."""
        return f"{self.what} is {self.word}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The decision. `contradicted`: claims, and ratios that differ from the reference's by more than the margin; a run
    whose records were touched up contradicts anything.
    `undecided`: what could not be said. `require_decided`: whether that fails too.
    """

    contradicted: tuple[Finding, ...]
    undecided: tuple[Finding, ...]
    require_decided: bool

    @property
    def passed(self) -> bool:
        """Nothing is contradicted, and nothing is open that had to be decided."""
        return not self.against

    @property
    def against(self) -> tuple[Finding, ...]:
        """Everything that fails it."""
        return (*self.contradicted, *(self.undecided if self.require_decided else ()))


def decide(experiment: Experiment, judgement: Judgement, agreement: Agreement, *, require_decided: bool) -> Gate:
    """`judgement`: of the run of the change. `agreement`: of the reference with that run.

    A contradiction counts wherever it is found. Open questions are those that the experiment asks: its claims, their
    agreement, and the agreement of the pairs that they rest on; of an experiment without claims, every pair. A pair
    with an arm that is meant to fail has nothing to compare and is no question.
    """
    claims = [Finding(f"claim {c.id}", _words(c.verdict), c.why) for c in judgement.claims if c.verdict in _BAD]
    agreed = [
        Finding(f"agreement on claim {c.id}", c.agreement.value, c.why)
        for c in agreement.claims
        if c.agreement is Agreed.CONTRADICTED
    ]
    pairs = [_pair(pair) for pair in agreement.verdicts if pair.agreement is Agreed.CONTRADICTED]
    wrong = [Finding("the records", "no evidence", problem) for problem in agreement.problems]
    return Gate(
        contradicted=(*wrong, *claims, *pairs, *agreed),
        undecided=tuple(_open(experiment, judgement, agreement)),
        require_decided=require_decided,
    )


_BAD = frozenset({ClaimVerdict.CONTRADICTED})


def _open(experiment: Experiment, judgement: Judgement, agreement: Agreement) -> Iterator[Finding]:
    for claim in judgement.claims:
        if claim.verdict in _OPEN_CLAIM:
            yield Finding(f"claim {claim.id}", _words(claim.verdict), claim.why)
    for agreed in agreement.claims:
        if agreed.agreement in _OPEN_AGREEMENT:
            yield Finding(f"agreement on claim {agreed.id}", _words(agreed.agreement), agreed.why)
    asked = {(claim.metric, frozenset((claim.arm, claim.versus))) for claim in experiment.claims}
    doomed = {arm.name for arm in experiment.arms if arm.expect.failure is not None}
    for pair in agreement.verdicts:
        named = (pair.metric, frozenset((pair.a, pair.b)))
        if pair.agreement in _OPEN_AGREEMENT and (named in asked if asked else not doomed & {pair.a, pair.b}):
            yield _pair(pair)


def _pair(pair: PairAgreement) -> Finding:
    return Finding(f"agreement of {pair.a} / {pair.b} on {pair.metric}", _words(pair.agreement), pair.why)


def _words(verdict: ClaimVerdict | Agreed) -> str:
    return verdict.value.replace("_", " ")
