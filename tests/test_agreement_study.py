"""The study of agreement: a short version of it keeps the promise, and its page says what its records say."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.verdict import agreement_study
from harness.verdict.agreement_study import report, study
from harness.verdict.agreement_study.study import MARGINS, Row, Task


def rows(shift: float, scenario: str = "lognormal", pairs: int = 200) -> dict[float, Row]:
    """One cell of two arms and five passes, by margin."""
    found = study.cell(Task(5, 0, 2, 5, scenario, shift, pairs))
    return {row.margin: row for row in found}


def test_the_same_truth_is_hardly_ever_contradicted() -> None:
    """No shift, 1 % noise: under 5 % contradicted under any margin, and confirmed where the margin leaves room."""
    found = rows(0.0)
    assert all(row.contradicted < 0.05 for row in found.values())
    assert found[0.10].right_same is not None
    assert found[0.10].right_same > 0.95


@pytest.mark.parametrize("shift", MARGINS)
def test_a_shift_as_large_as_the_margin_is_hardly_ever_confirmed(shift: float) -> None:
    """1, 3 and 10 % under a margin just as large: under 5 % (2.5 % is meant; 200 pairs show 7 % by chance at most)."""
    assert rows(shift)[shift].confirmed < 0.05


@pytest.mark.parametrize("scenario", ["outliers", "bimodal", "one_noisy"])
def test_a_noisy_host_is_imprecise_and_not_wrong(scenario: str) -> None:
    """A shift of 3 % under its margin, 100 pairs: neither word is said wrongly in more than 5 %, beyond chance."""
    row = rows(0.03, scenario, 100)[0.03]
    assert row.confirmed <= report.bound(100)
    assert row.contradicted <= report.bound(100)


def test_a_shift_beyond_the_margin_is_contradicted() -> None:
    """10 % under a margin of 1 %: seen in nearly every pair of runs of five passes."""
    right = rows(0.10)[0.01].right_shifted
    assert right is not None
    assert right > 0.95


def test_truths_that_are_no_matter_of_noise_are_always_told() -> None:
    """Another instruction set, other threads, fewer passes, an edited record, a copy: the right word each time."""
    assert {case.name: case.right for case in study.cases(3, 8)} == {
        "other instruction set": 1.0,
        "other thread count": 1.0,
        "fewer passes": 1.0,
        "edited record": 1.0,
        "same trials": 1.0,
    }


def test_the_page_comes_from_the_records_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed gives the same records and page; the page is drawn again from the records, byte for byte."""
    monkeypatch.setattr(study, "SHAPES", ((2, 5),))
    pages = []
    for name in ("one", "two"):
        page = agreement_study.calibrate(tmp_path / name, tmp_path / f"{name}-page", seed=1, pairs=4)
        pages.append(page.read_bytes())
    again = agreement_study.redraw(tmp_path / "one" / "agreement.json", tmp_path / "again")
    assert pages[0] == pages[1] == again.read_bytes()
    assert (tmp_path / "one" / "agreement.json").read_bytes() == (tmp_path / "two" / "agreement.json").read_bytes()
    with pytest.raises(ValueError, match="no record of an agreement study"):
        agreement_study.redraw(Path(__file__), tmp_path)


def test_the_committed_page_is_what_the_committed_records_say(tmp_path: Path) -> None:
    """analysis/agreement_calibration.md comes from results/agreement/ and nothing else, byte for byte; no cell of it is
    over 5 %.
    """
    root = Path(__file__).resolve().parent.parent
    records = max(root.glob("results/agreement/*/agreement.json"))
    again = agreement_study.redraw(records, tmp_path)
    assert again.read_bytes() == (root / "analysis/agreement_calibration.md").read_bytes()
    cells, cases, _ = report.read_records(records)
    assert max(max(row.contradicted, row.confirmed) for row in cells) < report.PROMISE
    assert all(case.right == 1.0 for case in cases)
