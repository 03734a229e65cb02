"""`harness agree RUN RUN [RUN...]`: whether runs of one experiment agree, pair by pair and claim by claim."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.commands.answer import Answer, CommandError, Exit
from harness.commands.comparison_key import comparison_key, host_name
from harness.commands.judged import Judged, judged, open_run, redacted
from harness.commands.project import find_project
from harness.report.text import printable
from harness.run.integrity import problems
from harness.verdict.agreement import Agreed, Agreement, RunEvidence, agree, as_json
from harness.verdict.many_runs import ManyRuns, compare_many, many_as_json
from harness.verdict.types import Unknown


def run(arguments: argparse.Namespace) -> Answer:
    """Exit code 4 if anything is contradicted, 2 if a run is no evidence, else 0: runs that cannot be compared have not
    failed.
    """
    project = find_project(Path.cwd())
    results = project.results_folder(arguments.results)
    if len(arguments.run) < 2:
        raise CommandError("one run is named; agreement takes two or more: harness agree RUN RUN [RUN...]")
    folders = [open_run(named, results) for named in arguments.run]
    runs = [evidence(judged(folder, project)) for folder in folders]
    said = (
        answer(agree(*runs), as_document=arguments.json)
        if len(runs) == 2
        else answer_many(compare_many(runs), as_document=arguments.json)
    )
    notes = [f"{folder.run}: {note}" for folder in folders for note in redacted(folder)]
    return replace(said, err="\n".join(filter(None, (said.err, *notes))))


def evidence(one: Judged) -> RunEvidence:
    """A run as agreement needs it."""
    head, host = one.folder.head(), one.data.host
    return RunEvidence(
        experiment=one.data.experiment,
        records=one.data.records,
        judgement=one.judgement,
        key=comparison_key(one.data.experiment, head.versions, host, one.data.records),
        host=host_name(host),
        problems=problems(one.folder),
        name=one.data.run,
    )


def answer(found: Agreement, *, as_document: bool) -> Answer:
    """The agreement as one JSON document, or as sentences."""
    code = exit_code([found])
    if as_document:
        return Answer(code, out=_document(as_json(found)), err="\n".join(found.problems))
    return Answer(code, out="\n".join(lines(found)))


def answer_many(found: ManyRuns, *, as_document: bool) -> Answer:
    """Each run against the first, then each pair over all of them."""
    code = exit_code(found.pairwise)
    if as_document:
        return Answer(code, out=_document(many_as_json(found)))
    said: list[str] = []
    for one in found.pairwise:
        said += [f"{one.names[0]} against {one.names[1]}", *(f"  {line}" for line in lines(one)), ""]
    said.append("over all runs")
    for across in found.across:
        ratios = ", ".join("unknown" if isinstance(r, Unknown) else f"{r:.4g}" for r in across.ratios)
        why = across.found.why if isinstance(across.found, Unknown) else across.found.words
        said.append(f"  {across.metric}: {across.a} / {across.b}: {ratios}: {why}")
    return Answer(code, out="\n".join(said))


def exit_code(found: Sequence[Agreement]) -> Exit:
    """By the contract's order: a run that is no evidence (2) comes before a contradiction (4)."""
    if any(one.problems for one in found):
        return Exit.USAGE
    return Exit.CLAIM_CONTRADICTED if any(Agreed.CONTRADICTED in one.words for one in found) else Exit.OK


def lines(found: Agreement) -> Iterator[str]:
    """The agreement as sentences, the worst first: problems, the key, pairs, claims. A bundle's are a stranger's."""
    yield from map(printable, _lines(found))


def _lines(found: Agreement) -> Iterator[str]:
    yield from (f"no evidence: {problem}" for problem in found.problems)
    yield f"comparison key: {'equal' if found.key.equal else 'differs'}"
    yield from (f"  {difference}" for difference in found.key.differs)
    for pair in found.verdicts:
        yield f"{pair.metric}: {pair.a} / {pair.b}: {pair.agreement.words}: {pair.why}"
    for claim in found.claims:
        yield f"claim {claim.id}: {claim.agreement.words}: {claim.why}"


def _document(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
