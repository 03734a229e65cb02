"""The survival limit is found by bisection, whatever the load needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.run.survival import ABSOLUTE, RELATIVE, Found, Hopeless, Outcome, Probe, next_step
from harness.units import GIB, MIB


def bisect(need: int, *, start: int, ceiling: int) -> tuple[Found | Hopeless, list[int]]:
    """Probe a load that survives under `need` bytes and more; the limits tried come back too."""
    outcomes: list[Outcome] = []
    for _ in range(64):
        step = next_step(outcomes, start=start, ceiling=ceiling)
        if not isinstance(step, Probe):
            return step, [outcome.limit for outcome in outcomes]
        outcomes.append(Outcome(step.limit, survived=step.limit >= need))
    raise AssertionError("the bisection does not end")


@given(need=st.integers(1, 16 * GIB), start=st.integers(MIB, 16 * GIB))
def test_the_bracket_holds_the_need_and_is_narrow(need: int, start: int) -> None:
    """For any need below the ceiling the bracket holds it, and is as narrow as stated."""
    found, _ = bisect(need, start=start, ceiling=32 * GIB)
    assert isinstance(found, Found)
    assert found.lower < need <= found.upper
    assert found.upper - found.lower <= max(ABSOLUTE, RELATIVE * found.upper)


def test_a_first_guess_near_the_need_costs_few_probes() -> None:
    """From a start 10 % above a need of 1 GiB the limit is found in at most nine probes (2^-7 < 1 %)."""
    _, limits = bisect(GIB, start=GIB * 11 // 10, ceiling=16 * GIB)
    assert len(limits) <= 9


def test_a_load_that_needs_more_than_the_host_has_is_hopeless() -> None:
    """A load that dies under all the host can give has no survival limit, and the sentence says so."""
    found, limits = bisect(64 * GIB, start=GIB, ceiling=16 * GIB)
    assert isinstance(found, Hopeless)
    assert limits[-1] == 16 * GIB
    assert "all that this host can give" in found.why


def test_a_load_that_fails_above_a_limit_it_survived_has_no_limit() -> None:
    """Outcomes that contradict each other are named, not averaged."""
    step = next_step([Outcome(GIB, survived=True), Outcome(2 * GIB, survived=False)], start=GIB, ceiling=4 * GIB)
    assert isinstance(step, Hopeless)
    assert "something else than memory" in step.why
