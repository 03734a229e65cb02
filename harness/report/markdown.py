"""A run's report as one Markdown text: the answer first, what it rests on below. Pure: same input, same text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import quote

from harness.experiment.types import Experiment, Rule
from harness.metrics import Better, Kind, Metric
from harness.records import TrialRecord, first_line
from harness.report import conditions, hosts, sentences
from harness.report.compared import absence, compared, grouped, nowhere, places, without
from harness.report.data import RunData
from harness.report.memory import memory_section
from harness.report.text import alike, count, escape, listed, named, plural, quantity, quoted, table
from harness.verdict.types import Judgement, PairVerdict, Refused

#: Figure names by what they show: `memory`, `values-<metric>`, `intervals-<metric>`, `matrix-<metric>`.
Figures = Mapping[str, str]


def markdown(data: RunData, judgement: Judgement, figures: Figures) -> str:
    """The whole report. `figures`: file name by figure; those that are missing are left out."""
    sections: tuple[Callable[[], str], ...] = (
        lambda: _head(data, judgement),
        lambda: _answer(data, judgement),
        lambda: conditions.arms_section(data, judgement),
        lambda: _metrics(data, judgement, figures),
        lambda: _failures(judgement),
        lambda: memory_section(data, figures.get("memory")),
        lambda: conditions.order_section(data, judgement),
        lambda: hosts.disturbance_section(data),
        lambda: hosts.host_section(data),
        lambda: _rerun(data),
    )
    return "\n\n".join(text for text in (section() for section in sections) if text) + "\n"


def picture(figures: Figures, key: str, alt: str) -> str:
    """The link to a figure, empty if there is none."""
    return f"![{escape(alt)}]({quote(figures[key])})" if key in figures else ""


def _head(data: RunData, judgement: Judgement) -> str:
    asked = data.experiment
    ran = f"{count(len(data.counted), 'counted trial')} of {count(len(asked.arms), 'arm')} in"
    scored = sum(record.scoring for record in data.records)
    apart = f" Text was scored in {count(scored, 'trial')} of its own, apart from these." if asked.scored_apart else ""
    facts = [
        f"Run {escape(data.run)}: {ran} {count(data.passes, 'pass', 'passes')}; rule `{asked.rule.value}`"
        + (" (spreads may overlap; judged within passes)." if asked.rule is Rule.PAIRED else ".")
        + apart,
        _control(asked, judgement),
    ]
    if not judgement.complete:
        facts.append(_incomplete(data))
    told = [note for note in judgement.notes if "not complete" not in note]  # the line above says it, with the way out
    notes = [f"- {escape(note)}" for note in dict.fromkeys((*data.notes, *told))]
    title = f"# {escape(asked.name)}\n\n> {escape(asked.question)}"
    return "\n\n".join([title, *filter(None, facts), *(["\n".join(notes)] if notes else [])])


def _control(asked: Experiment, judgement: Judgement) -> str:
    if asked.control is None and any("control" in note for note in judgement.notes):
        return ""  # the verdict engine says it already
    if asked.control is None:
        return "No A/A control guards this run: nothing shows that two identical arms would not have been told apart."
    first, second = asked.control
    return (
        f"A/A control: {escape(named(first))} and {escape(named(second))} are the same configuration under two names;"
        " a ranking between them would be a fault of the host or the harness."
    )


def _incomplete(data: RunData) -> str:
    planned = len([trial for trial in data.plan.trials if not trial.priming]) if data.plan is not None else None
    had = len(data.latest) + len({record.planned for record in data.records if record.scoring})
    of = f"{had} of {planned} planned trials have" if planned is not None else f"only {count(had, 'trial')} have"
    return (
        f"**This run is incomplete**: {of} a record. Cells without one are shown as missing, never guessed."
        f" `harness run --resume` finishes it (see [how to rerun](#how-to-rerun))."
    )


def _answer(data: RunData, judgement: Judgement) -> str:
    absent = nowhere(judgement, data.experiment.metrics)
    parts = ["## The answer at a glance"]
    if absent:
        parts.append("\n".join(f"- {escape(absence(judgement, name, data.passes))}." for name in absent))
    for metric in data.experiment.metrics:
        verdicts = compared(judgement, metric)
        rows = [
            [
                f"{escape(named(verdict.a))} / {escape(named(verdict.b))}",
                _bold(verdict, escape(sentences.headline(verdict))),
                escape(sentences.ratio_cell(verdict)),
                f"{verdict.within.a_better} of {verdict.within.passes}",
            ]
            for verdict in verdicts
        ]
        blocks = "windows" if metric.kind is Kind.WINDOWED else "passes"
        header = ["a / b", "verdict", "ratio a/b (interval)", f"{blocks} in which a was better"]
        parts.append(f"**{escape(metric.name)}** ({_direction(metric)}): {_order(judgement, metric)}")
        if rows:
            parts.append(table(header, rows))
    if judgement.claims:
        texts = {claim.id: claim.text for claim in data.experiment.claims}
        claims = [
            [
                escape(claim.id),
                escape(texts.get(claim.id, "")),
                f"**{claim.verdict.value.replace('_', ' ')}**",
                escape(claim.why.removeprefix(f"{texts.get(claim.id, '')}: ")),
            ]
            for claim in judgement.claims
        ]
        parts += ["### Claims made in advance", table(["claim", "expected", "verdict", "why"], claims)]
    return "\n\n".join(parts)


def _bold(verdict: PairVerdict, text: str) -> str:
    return text if isinstance(verdict.outcome, Refused) else f"**{text}**"


def _direction(metric: Metric) -> str:
    return "lower is better" if metric.better is Better.LOWER else "higher is better"


def _order(judgement: Judgement, metric: Metric) -> str:
    """The ranking as a partial order: groups best first; arms of one group are not told apart."""
    groups = judgement.tie_groups.get(metric.name, ())
    if not groups:
        return "no order."
    if len(groups) == 1:
        return f"no order: {escape(listed([named(name) for name in groups[0]]))} are not told apart."
    return "; then ".join(escape(listed([named(name) for name in group])) for group in groups) + (
        ". Arms of one group are not told apart." if any(len(group) > 1 for group in groups) else "."
    )


def _metrics(data: RunData, judgement: Judgement, figures: Figures) -> str:
    return "## Metrics\n\n" + "\n\n".join(
        _metric(data, judgement, figures, metric) for metric in data.experiment.metrics
    )


def _metric(data: RunData, judgement: Judgement, figures: Figures, metric: Metric) -> str:
    name, rule = metric.name, data.experiment.rule
    sweeps = data.experiment.sweeps_of(metric, data.passes)
    verdicts = compared(judgement, metric)
    told = [verdict for verdict in verdicts if not isinstance(verdict.outcome, Refused)]
    refused = [verdict for verdict in verdicts if isinstance(verdict.outcome, Refused)]
    parts = [
        f"### {escape(name)}",
        f"{escape(metric.definition)} ({escape(metric.source)}). Unit {escape(metric.unit)}; {_direction(metric)}.",
        _figures_table(data, judgement, metric),
        picture(figures, f"values-{name}", f"every trial's {name} by arm and pass"),
        _values_table(data, metric),
        _lines(told, sentences.verdict_sentence),
        _lines(refused, lambda verdict: sentences.refusal_text(verdict, rule)),
        "\n".join(f"- {escape(absence(judgement, absent, *sweeps))}." for absent in without(judgement, metric)),
        _repeats(data, metric),
        escape(sentences.methods(verdicts)),
        picture(figures, f"intervals-{name}", f"ratio of each pair on {name} with its interval"),
        picture(figures, f"matrix-{name}", f"verdict of each pair on {name}"),
    ]
    return "\n\n".join(part for part in parts if part)


def _repeats(data: RunData, metric: Metric) -> str:
    """What repeats of the arms' scoring showed; empty for other metrics, and where nothing was repeated."""
    if metric.kind is not Kind.WINDOWED:
        return ""
    found = [
        {record.values[metric.name].series for record in trials}
        for name in data.experiment.names
        if len(trials := [r for r in data.of(metric).latest if r.arm == name and r.usable and metric.name in r.values])
        > 1
    ]
    if not found:
        return ""
    differ = sum(len(series) > 1 for series in found)
    said = "to the last digit in every window" if not differ else f"in all but {count(differ, 'arm')}, see Arms"
    return f"Each arm was scored more than once over the same windows; the repeats are equal {said}."


def _lines(verdicts: list[PairVerdict], say: Callable[[PairVerdict], str]) -> str:
    lines = []
    for verdict in verdicts:
        words = say(verdict)
        notes = [sentences.sentence(note) for note in verdict.notes if note not in words]
        lines.append("- " + escape(" ".join([words, *notes])))
    return "\n".join(lines)


def _figures_table(data: RunData, judgement: Judgement, metric: Metric) -> str:
    sweeps, sweep = data.experiment.sweeps_of(metric, data.passes)
    rows = []
    for name, arm in judgement.arms.items():
        found = arm.metrics.get(metric.name)
        cells = ["no usable value", "", ""]
        if found is not None:
            texts, unit = alike([found.median, found.low, found.high], metric.unit)
            cells = [f"{text} {escape(unit)}" for text in texts]
        n = found.n if found is not None else 0
        rows.append([escape(name), *cells, f"{n} of {sweeps}", str(arm.failed)])
    return table(["arm", "median", "lowest", "highest", f"n of k {plural(sweep)}", "failed"], rows, right=range(1, 6))


def _values_table(data: RunData, metric: Metric) -> str:
    """Every trial of every arm by pass, those that do not count included and marked."""
    sweep = data.experiment.sweeps_of(metric, data.passes)[1]
    data = data.of(metric)
    names = list(data.experiment.names)
    cells: dict[tuple[int, str], list[str]] = {}
    latest = {id(record) for record in data.latest}
    for record in data.counted:
        text = _trial_cell(record, metric)
        text = text if id(record) in latest else f"~~{text}~~ (attempt {record.attempt}, pass repeated)"
        cells.setdefault((record.pass_number, record.arm), []).append(text)
    rows = [
        [str(number), *("<br>".join(cells.get((number, name), ["no record"])) for name in names)]
        for number in range(1, data.passes + 1)
    ]
    shown = table([sweep, *(escape(name) for name in names)], rows, right=range(len(names) + 1))
    return f"<details><summary>All trial values of {escape(metric.name)} by {sweep}</summary>\n\n{shown}\n\n</details>"


def _trial_cell(record: TrialRecord, metric: Metric) -> str:
    if record.failure is not None:
        reason = " ".join(word for word in (record.failure.reason.value, record.failure.signal) if word)
        return escape(reason) + (" (expected)" if record.expected else "")
    value = record.values.get(metric.name)
    if value is None:
        return f"missing: {escape(record.missing.get(metric.name, 'no reason on record'))}"
    shown = escape(quantity(value.value, metric.unit))
    if value.lower is None:
        return shown
    upper = escape(quantity(value.upper, metric.unit)) if value.upper is not None else "no valid upper bound"
    return f"{shown} ({upper if value.upper is None else 'at most ' + upper})"


def _failures(judgement: Judgement) -> str:
    if not judgement.failures:
        return "## Failures\n\nNo trial failed."
    expected = sum(failure.expected for failure in judgement.failures)
    total = len(judgement.failures)
    groups = grouped(judgement.failures)
    lines = [
        [
            escape(rows[0].arm),
            places(rows),
            ("failed as expected: " if rows[0].expected else "") + f"`{rows[0].reason}`",
            escape(first_line(rows[0].evidence)),
            "repeated" if rows[0].replaced else "",
        ]
        for rows in groups
    ]
    whole = dict.fromkeys((rows[0].arm, rows[0].evidence) for rows in groups if len(rows[0].evidence.splitlines()) > 1)
    head = f"{count(total, 'trial')} failed, {sentences.as_expected(expected, total)}."
    means = "What each reason means, and what it does not mean: docs/failures.md. What each trial"
    means += " printed lies in logs/ of the run's folder, by trial and arm."
    body = table(["arm", "where", "reason", "evidence", "pass repeated"], lines)
    in_full = [f"{escape(arm)}, in full:\n\n{quoted(evidence)}" for arm, evidence in whole]
    return "\n\n".join(["## Failures", f"{head} {means}", body, *in_full])


def _rerun(data: RunData) -> str:
    where = escape(data.where)
    seed = data.plan.seed if data.plan is not None else data.experiment.seed
    drawn = f" The order was drawn from seed {seed}." if seed is not None else ""
    return (
        "## How to rerun\n\n"
        f"    harness rerun {data.where}      the same experiment on this host, and whether the two agree\n"
        f"    harness report {data.where}     this report again from the records alone, the same bytes\n\n"
        f"Records, samples and logs of every trial lie in {where}.{drawn} How to read this page: docs/reading.md."
    )
