"""A gate's answer as Markdown for a page of continuous integration. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.report.compared import grouped, places
from harness.report.data import RunData
from harness.report.text import count, escape, named, significant, table
from harness.verdict.agreement import Agreed, Agreement, PairAgreement
from harness.verdict.gate import Finding, Gate
from harness.verdict.types import Judgement, Unknown


def gate_summary(
    data: RunData, judgement: Judgement, agreement: Agreement, gate: Gate, *,
    reference: RunData, changed: Sequence[str], code: int,
) -> str:  # fmt: skip
    """The answer first, then what it rests on. `data`: the run of the change. `changed`: what of the software under
    test is not what it was in the reference. `code`: the exit code.
    """
    parts = [
        f"## {'✅' if code == 0 else '❌'} {escape(data.experiment.name)}: {_headline(gate, code)}",
        escape(data.experiment.question.strip()),
        _findings("Against it", gate.against),
        _findings(
            "Not decided (no failure without `--require-decided`)", () if gate.require_decided else gate.undecided
        ),
        _claims(data, judgement, agreement),
        _pairs(agreement),
        _failures(judgement),
        _key(agreement, changed),
        f"This run: `{data.where}`; reference: `{reference.where}`. The whole report: `harness report {data.where}`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(gate: Gate, code: int) -> str:
    """`passed`, or how it failed and with which exit code."""
    if code == 0:
        return "passed"
    if not gate.against:
        return f"failed: the run did not end well (exit code {code})"
    shown = [f"{len(gate.contradicted)} contradicted"] * bool(gate.contradicted)
    shown += [f"{len(gate.undecided)} not decided"] * bool(gate.require_decided and gate.undecided)
    return f"failed: {', '.join(shown)} (exit code {code})"


def _findings(head: str, found: Iterable[Finding]) -> str:
    lines = [f"- **{escape(finding.what)}** is {escape(finding.word)}: {escape(finding.why)}" for finding in found]
    return "\n".join([f"{head}:", "", *lines]) if lines else ""


def _claims(data: RunData, judgement: Judgement, agreement: Agreement) -> str:
    agreed = {claim.id: claim for claim in agreement.claims}
    asked = {claim.id: claim for claim in data.experiment.claims}
    rows = []
    for claim in judgement.claims:
        said, other = asked.get(claim.id), agreed.get(claim.id)
        expected = f"{said.metric} of {named(said.arm)} against {named(said.versus)}: {said.text}" if said else ""
        rows.append(
            [
                escape(claim.id),
                escape(expected),
                f"**{claim.verdict.value.replace('_', ' ')}**",
                escape(other.verdicts[0].replace("_", " ")) if other else "not asked",
            ]
        )
    return "### Claims\n\n" + table(["claim", "expected", "this run", "reference"], rows) if rows else ""


def _pairs(agreement: Agreement) -> str:
    """Contradicted pairs in sight, the others folded away: a page is read by people in a hurry."""
    worst = [pair for pair in agreement.verdicts if pair.agreement is Agreed.CONTRADICTED]
    others = [pair for pair in agreement.verdicts if pair.agreement is not Agreed.CONTRADICTED]
    counts = ", ".join(
        f"{number} {word.value.replace('_', ' ')}"
        for word in Agreed
        if (number := sum(pair.agreement is word for pair in agreement.verdicts))
    )
    parts = [f"### Agreement with the reference\n\nOf {count(len(agreement.verdicts), 'ratio')}: {counts or 'none'}."]
    if worst:
        parts.append(_pair_table(worst))
    if others:
        parts.append(f"<details><summary>The other ratios</summary>\n\n{_pair_table(others)}\n\n</details>")
    return "\n\n".join(parts)


def _pair_table(pairs: Iterable[PairAgreement]) -> str:
    rows = [
        [
            escape(pair.metric),
            f"{escape(named(pair.a))} / {escape(named(pair.b))}",
            *("" if isinstance(ratio, Unknown) else significant(ratio) for ratio in pair.ratios),
            pair.agreement.value.replace("_", " "),
            escape(pair.why),
        ]
        for pair in pairs
    ]
    return table(["metric", "a / b", "reference", "this run", "agreement", "why"], rows, right=(2, 3))


def _failures(judgement: Judgement) -> str:
    lines = [
        f"- {escape(named(rows[0].arm))}, {places(rows)}: `{rows[0].reason}`: {escape(rows[0].evidence)}"
        for rows in grouped(row for row in judgement.failures if not (row.expected or row.replaced))
    ]
    return "\n".join(["### Failed trials", "", *lines]) if lines else ""


def _key(agreement: Agreement, changed: Sequence[str]) -> str:
    parts = []
    if changed:
        parts.append("What changed, and is being tested:\n\n" + "\n".join(f"- {escape(line)}" for line in changed))
    if not agreement.key.equal:
        lines = "\n".join(f"- {escape(line)}" for line in agreement.key.differs)
        parts.append(f"What differs besides, so that the two runs cannot be compared in full:\n\n{lines}")
    return "\n\n".join(parts)
