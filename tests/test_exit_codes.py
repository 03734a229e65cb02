"""A run's exit code follows the contract's order, whatever else holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import report_example as example

from harness.commands.answer import Exit
from harness.commands.judged import Judged
from harness.run.store import RunFolder
from harness.verdict.types import ClaimVerdict, FailureRow, JudgedClaim

AGAINST = JudgedClaim(id="x", verdict=ClaimVerdict.CONTRADICTED, why="")


def row(reason: str, *, expected: bool = False, replaced: bool = False) -> FailureRow:
    """A failed trial."""
    return FailureRow(arm="a", pass_number=1, reason=reason, evidence="", expected=expected, replaced=replaced)


@pytest.mark.parametrize(
    ("failures", "claims", "complete", "code"),
    [
        ((), (), True, Exit.OK),
        ((row("timeout", expected=True), row("timeout", replaced=True)), (), True, Exit.OK),
        ((row("timeout"),), (), True, Exit.TRIALS_FAILED),
        ((row("timeout"),), (), False, Exit.TRIALS_FAILED),
        ((row("timeout"),), (AGAINST,), True, Exit.CLAIM_CONTRADICTED),
        ((row("harness_error"),), (AGAINST,), True, Exit.HARNESS_FAILED),
        ((row("interrupted"),), (), False, Exit.INTERRUPTED),
        ((row("interrupted"),), (AGAINST,), False, Exit.CLAIM_CONTRADICTED),
    ],
)
def test_the_first_code_of_the_contracts_order_wins(
    failures: tuple[FailureRow, ...], claims: tuple[JudgedClaim, ...], complete: bool, code: Exit
) -> None:
    """0 all well, 1 the harness failed, 4 a claim contradicted, 3 trials failed, 5 interrupted."""
    run = example.data()
    judgement = replace(example.judgement(run), failures=failures, claims=claims, complete=complete)
    assert Judged(RunFolder(Path("somewhere")), run, judgement).exit_code is code
