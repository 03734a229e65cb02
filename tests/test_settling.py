"""The settling rule on series whose answer is worked out by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.measure.settling import NeverSettled, Settled, settle, slope
from harness.units import MIB

TIMES = [index * 0.1 for index in range(101)]  # 10 s at 10 Hz


def test_a_flat_series_settles_at_once() -> None:
    """A constant level is settled in its first 3 s, and the level is that constant."""
    found = settle(TIMES, [100 * MIB] * 101)
    assert isinstance(found, Settled)
    assert (found.level, found.begin, round(found.end, 6)) == (100 * MIB, 0.0, 3.0)


def test_case_33_the_first_flat_stretch_after_a_fall_counts() -> None:
    """A level that falls for 4 s and then holds is settled at the held level, not at the peak."""
    values = [max(400 - 10 * index, 0) * MIB + 50 * MIB for index in range(101)]
    found = settle(TIMES, values)
    assert isinstance(found, Settled)
    assert found.level == 50 * MIB
    assert 3.0 < found.begin <= 4.0


def test_a_series_that_goes_on_rising_never_settles() -> None:
    """2 MiB/s for ever is never settled, and the reason names the flattest slope."""
    found = settle(TIMES, [int(2 * MIB * t) for t in TIMES])
    assert isinstance(found, NeverSettled)
    assert "2.00 MiB/s" in found.why


def test_just_under_the_limit_is_settled() -> None:
    """0.99 MiB/s is settled, 1.01 is not: the limit is 1 MiB/s."""
    assert isinstance(settle(TIMES, [int(0.99 * MIB * t) for t in TIMES]), Settled)
    assert isinstance(settle(TIMES, [int(1.01 * MIB * t) for t in TIMES]), NeverSettled)


def test_too_short_a_series_is_no_level() -> None:
    """2.9 s of a constant are not 3 s."""
    assert isinstance(settle(TIMES[:30], [MIB] * 30), NeverSettled)


@given(st.floats(-1e9, 1e9), st.integers(3, 40))
def test_the_slope_of_a_line_is_its_slope(rate: float, count: int) -> None:
    """Least squares on a straight line give the line's own slope."""
    times = [index * 0.05 for index in range(count)]
    values = [round(rate * t) for t in times]
    assert abs(slope(times, values) - rate) <= 1e-6 * abs(rate) + 30
