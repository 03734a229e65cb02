"""The wording rules: an interval beside every difference, and no refusal that reads as sameness."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import report_example as example

from harness.experiment.types import Rule
from harness.metrics import REGISTRY, Better, Metric
from harness.report import sentences, text
from harness.verdict.types import (
    Code,
    Equivalent,
    FailureRow,
    Interval,
    Outcome,
    PairVerdict,
    Ranked,
    Refusal,
    Refused,
    Summary,
    Unknown,
    Within,
)  # fmt: skip

SCORE = Metric(name="score", unit="points", better=Better.HIGHER, definition="a score", source="made up")


def verdict(metric: Metric, outcome: Outcome, low: float, high: float) -> PairVerdict:
    """A verdict on the arms `new` and `old` with that interval of new/old."""
    return PairVerdict(
        metric=metric, a="new", b="old", outcome=outcome, ratio=(low * high) ** 0.5,
        interval=Interval(low, high, 0.95, "simultaneous"), within=Within(a_better=8, passes=8), smallest_effect=0.013,
        passes_needed=14,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "better", "low", "high", "expected"),
    [
        ("decode_tokens_per_s", "new", 1.84, 1.92, "new is 1.84x to 1.92x as fast as old on decode_tokens_per_s"),
        ("decode_tokens_per_s", "new", 1.021, 1.034, "new is 2.10 % to 3.40 % faster than old on decode_tokens_per_s"),
        ("decode_tokens_per_s", "old", 0.5, 0.625, "old is 1.60x to 2.00x as fast as new on decode_tokens_per_s"),
        ("load_s", "new", 0.90, 0.95, "new takes 5.00 % to 10.0 % less time than old on load_s"),
        ("load_s", "new", 0.25, 0.5, "new is 2.00x to 4.00x as fast as old on load_s"),
        ("settled_rss_anon", "new", 0.82, 0.84, "settled_rss_anon of new is 16.0 % to 18.0 % lower than that of old"),
        ("settled_rss_anon", "old", 1.25, 1.6, "settled_rss_anon of old is 20.0 % to 37.5 % lower than that of new"),
    ],
)
def test_a_ranked_pair_in_words(metric: str, better: str, low: float, high: float, expected: str) -> None:
    """The better arm comes first, with both ends of the interval, worked out by hand."""
    sentence = sentences.verdict_sentence(verdict(REGISTRY[metric], Ranked(better), low, high))
    assert sentence.startswith(expected)
    assert "(95 % simultaneous interval, 8 passes" in sentence


def test_a_metric_of_the_file_says_its_direction() -> None:
    """A score without a known kind of unit is said with its name and direction."""
    found = sentences.verdict_sentence(verdict(SCORE, Ranked("new"), 1.10, 1.20))
    expected = "score of new is 10.0 % to 20.0 % higher than that of old"
    assert found == f"{expected} (95 % simultaneous interval, 8 passes; higher is better)."


def test_an_equivalence_names_its_margin() -> None:
    """Equivalence is said as such, with the margin stated in advance."""
    found = sentences.verdict_sentence(verdict(SCORE, Equivalent(0.01), 0.996, 1.003))
    assert "equivalent within 1 %" in found
    assert "0.9960 to 1.003" in found


@pytest.mark.parametrize("code", list(Code))
def test_not_ranked_is_never_worded_as_same(code: Code) -> None:
    """No refusal says that two arms are the same, equal, identical or do not differ."""
    outcome = Refused((Refusal(code, "Something was found.", "Do something."),))
    words = sentences.refusal_text(verdict(SCORE, outcome, 0.98, 1.03), Rule.STRICT) + sentences.headline(
        verdict(SCORE, outcome, 0.98, 1.03)
    )
    assert "not ranked" in words
    assert not re.search(r"\b(same|equal|identical|no difference|equivalent)\b", words)


def test_a_strict_refusal_for_overlap_prints_the_way_out() -> None:
    """It prints the within-pass figures, and says that `rule: paired` exists and that more passes mend nothing."""
    words = sentences.refusal_text(verdict(SCORE, Refused((example.OVERLAP,)), 1.01, 1.03), Rule.STRICT)
    assert "new was better in 8 of 8 passes" in words
    assert "1.010 to 1.030" in words
    assert "`rule: paired`" in words
    assert "more passes never mend an overlap" in words
    assert "smallest difference this run could have shown is 1.3 %" in words
    assert "14 passes" in words


def test_paired_refusals_do_not_advertise_paired() -> None:
    """Under `rule: paired` an overlap is no reason, and the rule is not offered again."""
    words = sentences.refusal_text(verdict(SCORE, Refused((example.OVERLAP,)), 1.01, 1.03), Rule.PAIRED)
    assert "rule: paired" not in words


def test_all_reasons_stand_in_the_sentence() -> None:
    """A refusal for two reasons says both."""
    found = sentences.verdict_sentence(verdict(SCORE, Refused((example.OVERLAP, example.CONTAINS)), 0.99, 1.03))
    assert found == "new and old are not ranked on score: their spreads overlap; the interval contains 1."


def test_an_unknown_interval_says_why() -> None:
    """A ranking without an interval says why there is none."""
    exact = replace(verdict(SCORE, Ranked("new"), 1.1, 1.2), interval=Unknown("not worked out"))
    assert "no interval: not worked out" in sentences.verdict_sentence(exact)


def test_case_8_every_figure_says_n_of_k() -> None:
    """How many values of how many passes stand behind a figure is part of the figure."""
    figure = Summary(median=2.0, low=1.0, high=3.0, n=2, values={1: 1.0, 3: 3.0})
    assert sentences.value_cell(figure, SCORE, 4) == "2.000 points (1.000 to 3.000), 2 of 4"
    assert sentences.value_cell(None, SCORE, 4) == "no usable value, 0 of 4"


def test_a_declared_failure_reads_as_such() -> None:
    """A failure that the arm declared is `failed as expected`."""
    row = FailureRow(arm="a", pass_number=2, reason="signal", evidence="SIGILL in VLLM::Worker", expected=True)
    assert sentences.failure_sentence([row]) == "a failed as expected in pass 2 (signal): SIGILL in VLLM::Worker."


def test_case_19_one_unit_for_figures_side_by_side() -> None:
    """268435456 B is 256 MiB and never 268 of anything; figures side by side share unit and digits."""
    assert text.quantity(268435456, "B") == "256.0 MiB"
    assert text.alike([2.96e9, 2.9601e9], "B") == (["2.7567", "2.7568"], "GiB")
    assert text.alike([63.4, 59.2], "s") == (["63.40", "59.20"], "s")


def test_names_that_are_no_word_are_quoted() -> None:
    """A name with blanks stands in quotes inside a sentence; direction marks and line ends are made visible."""
    assert text.named("no_dequant") == "no_dequant"
    assert text.named("my arm") == '"my arm"'
    assert text.named("a\u202eb") == '"a\\u202eb"'


def test_markdown_shows_names_letter_by_letter() -> None:
    """Pipes, backticks, stars and angle brackets of a name cannot become markup; backticked words stay code."""
    assert text.escape("a|b") == "a\\|b"
    assert text.escape("<img src=x>") == "\\<img src=x\\>"
    assert text.escape("both_layouts") == "both_layouts"
    assert text.escape("_x_ *y*") == "\\_x\\_ \\*y\\*"
    assert text.escape("use `rule: a|b`") == "use `rule: a\\|b`"
    assert text.escape("one\ntwo") == "one two"


def test_a_difference_in_bytes_stands_beside_the_percentage() -> None:
    """Where the difference was worked out, it is said in the metric's unit: 550 to 600 MiB by hand."""
    metric = REGISTRY["settled_rss_anon"]
    ranked = replace(
        verdict(metric, Ranked("new"), 0.82, 0.84), difference=Interval(-600 * 2**20, -550 * 2**20, 0.95, "made up")
    )
    assert ", by 550.0 to 600.0 MiB (95 % simultaneous" in sentences.verdict_sentence(ranked)


def test_exact_metrics_are_said_to_be_compared_exactly() -> None:
    """An exact metric has no interval; its sentence says that it was compared exactly."""
    bits = REGISTRY["bits_per_weight"]
    ranked = replace(verdict(bits, Ranked("new"), 0.9, 0.9), ratio=0.9, interval=Unknown("exact"))
    assert sentences.verdict_sentence(ranked) == (
        "bits_per_weight of new is 10.0 % lower than that of old (compared exactly, 8 passes; lower is better)."
    )
    even = replace(ranked, outcome=Equivalent(0.0), ratio=1.0)
    assert "have exactly the same bits_per_weight (compared exactly" in sentences.verdict_sentence(even)
    assert sentences.ratio_cell(even) == "1.000 (exact)"


def test_equivalence_stands_on_the_interval_that_was_tested() -> None:
    """Two one-sided tests read the 90 % interval, so that is the one which the sentence shows."""
    tested = replace(verdict(SCORE, Equivalent(0.01), 0.985, 1.012), equivalence=Interval(0.993, 1.004, 0.90, "tost"))
    found = sentences.verdict_sentence(tested)
    assert "the 90 % interval of their ratio, 0.9930 to 1.004, lies inside" in found
    assert "0.985" not in found


@pytest.mark.parametrize(
    ("expected", "total", "words"),
    [(0, 1, "not as expected"), (1, 1, "as expected"), (0, 3, "none of them as expected"),
     (3, 3, "all of them as expected"), (2, 3, "2 of them as expected")],
)  # fmt: skip
def test_how_many_failures_were_expected(expected: int, total: int, words: str) -> None:
    """A count that reads as a sentence, for one failure too."""
    assert sentences.as_expected(expected, total) == words


def test_a_hopeless_number_of_passes_is_no_advice() -> None:
    """A difference that 137,158 passes would resolve is said to be too small, not to need them."""
    refused = replace(
        verdict(REGISTRY["load_s"], Refused((Refusal(Code.SPREADS_OVERLAP, "x", "y"),)), 0.99, 1.01),
        passes_needed=137_158,
    )
    assert "137158" not in sentences.power_words(refused)
    assert "too small for any number of passes" in sentences.power_words(refused)
