"""The verdict table for a terminal: plain text anywhere, colours and boxes where a person watches. Prints nothing."""

from __future__ import annotations

from io import StringIO

from harness.experiment.types import Experiment
from harness.report.compared import absence, compared, grouped, nowhere
from harness.report.sentences import as_expected, claim_sentence, failure_sentence, headline, ratio_cell, value_cell
from harness.report.text import count, named, plural, visible
from harness.verdict.types import ArmSummary, ClaimVerdict, Judgement, PairVerdict, Ranked, Refused

#: What plain text takes where the terminal does not say.
_WIDTH = 120


def verdict_table(
    experiment: Experiment, judgement: Judgement, *, passes: int | None = None, terminal: bool = False,
    width: int = _WIDTH,
) -> str:  # fmt: skip
    """The answer as text to print: per metric the arms' figures and each pair's verdict, then claims and failures.

    `passes`: the k of `n of k` (RunData.passes); default: the experiment's. `terminal`: colours and boxes of `width`
    columns (rich is imported for it); else plain lines without any escape sequence.
    """
    of = passes if passes is not None else experiment.passes
    return _rich(experiment, judgement, of, width) if terminal else _plain(experiment, judgement, of)


def _plain(experiment: Experiment, judgement: Judgement, passes: int) -> str:
    lines: list[str] = []
    arms = _shown(experiment, judgement)
    names = {name: named(name) for name in arms}
    room = max((len(name) for name in names.values()), default=0)
    for metric in experiment.metrics if arms else ():
        lines += ["", metric.name]
        of = experiment.sweeps_of(metric, passes)[0]
        for name, arm in arms.items():
            failed = f", {arm.failed} failed" if arm.failed else ""
            lines.append(f"  {names[name]:<{room}}  {value_cell(arm.metrics.get(metric.name), metric, of)}{failed}")
        lines += [
            f"  {_pair(verdict)}: {headline(verdict)}; ratio {ratio_cell(verdict)}"
            for verdict in compared(judgement, metric)
        ]
    return "\n".join([*lines, *_rest(experiment, judgement, passes)]).strip("\n")


def _shown(experiment: Experiment, judgement: Judgement) -> dict[str, ArmSummary]:
    """The arms that stand in the tables: those with a value of at least one metric."""
    absent = nowhere(judgement, experiment.metrics)
    return {name: arm for name, arm in judgement.arms.items() if name not in absent}


def _pair(verdict: PairVerdict) -> str:
    return f"{named(verdict.a)} / {named(verdict.b)}"


def _rest(experiment: Experiment, judgement: Judgement, passes: int) -> list[str]:
    absent = nowhere(judgement, experiment.metrics)
    lines = ["", *(absence(judgement, name, passes) for name in absent)] if absent else []
    if judgement.claims:
        lines += ["", "claims", *(f"  {claim_sentence(claim)}" for claim in judgement.claims)]
    if judgement.failures:
        expected = sum(failure.expected for failure in judgement.failures)
        lines += ["", f"{count(len(judgement.failures), 'failure')}, {as_expected(expected, len(judgement.failures))}"]
        lines += [f"  {visible(failure_sentence(rows))}" for rows in grouped(judgement.failures)]
    if any(not failure.expected for failure in judgement.failures):
        lines.append("  what each trial printed: logs/ in the run's folder, by trial and arm")
    if not judgement.complete and not any("not complete" in note for note in judgement.notes):
        lines += ["", "the run is not complete: not every planned trial has a record"]
    if judgement.notes:
        lines += ["", *(visible(note) for note in judgement.notes)]
    return lines


def _rich(experiment: Experiment, judgement: Judgement, passes: int, width: int) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    parts: list[Table | Text] = []
    shown = _shown(experiment, judgement)
    for metric in experiment.metrics if shown else ():
        arms = Table(title=Text(metric.name, style="bold"), title_justify="left", box=SIMPLE_HEAD, show_edge=False)
        arms.add_column("arm")
        of, sweep = experiment.sweeps_of(metric, passes)
        arms.add_column(f"median (lowest to highest), n of k {plural(sweep)}")
        arms.add_column("failed", justify="right")
        for name, arm in shown.items():
            figures = value_cell(arm.metrics.get(metric.name), metric, of)
            arms.add_row(Text(visible(name)), Text(figures), Text(str(arm.failed), style="red" if arm.failed else ""))
        pairs = Table(box=SIMPLE_HEAD, show_edge=False)
        for header in ("a / b", "verdict", "ratio a/b (interval)"):
            pairs.add_column(header)
        for verdict in compared(judgement, metric):
            words = Text(headline(verdict), style=_colour(verdict))
            pairs.add_row(Text(_pair(verdict)), words, Text(ratio_cell(verdict)))
        parts += [Text(), arms]
        if pairs.row_count:
            parts += [Text(), pairs]
    contradicted = any(claim.verdict is ClaimVerdict.CONTRADICTED for claim in judgement.claims)
    parts.append(Text("\n".join(_rest(experiment, judgement, passes)), style="red" if contradicted else ""))
    out = StringIO()
    Console(file=out, force_terminal=True, width=width, highlight=False, emoji=False).print(Group(*parts))
    return out.getvalue().strip("\n")


def _colour(verdict: PairVerdict) -> str:
    if isinstance(verdict.outcome, Ranked):
        return "bold cyan"
    return "dim" if isinstance(verdict.outcome, Refused) else "green"
