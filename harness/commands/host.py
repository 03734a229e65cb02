"""`harness host`: what this host can measure, what it cannot and why; `--prove` shows it with known programs."""

from __future__ import annotations

import argparse
import json
import sys

from harness.commands.answer import Answer, Exit
from harness.run import cgroup, procfs
from harness.run.counters import read_counters
from harness.run.host import fingerprint
from harness.run.host_report import abilities, host_json, host_lines

#: Names of the meter's back ends as a person reads them.
_BACKENDS = {"cgroup_v2": "memory by cgroup v2", "cgroup_v1": "memory by cgroup v1"}


def run(arguments: argparse.Namespace) -> Answer:
    """Describe the host, or prove the meter on it: exit code 1 if a known program's memory was not held."""
    if arguments.prove:
        return proved(arguments)
    facts, counters = fingerprint(), read_counters()
    found = abilities(facts, counters, probes())
    if arguments.json:
        return Answer(out=json.dumps(host_json(facts, found, counters), indent=2, ensure_ascii=False))
    return Answer(out="\n".join(host_lines(facts, found)))


def probes() -> dict[str, str | None]:
    """What was tried of the meter: None where it works, else why not."""
    problems = procfs.probe()
    found: dict[str, str | None] = {"memory by /proc (RssAnon, VmHWM)": "; ".join(problems) or None}
    for name, words in _BACKENDS.items():
        backend = cgroup.probe(only=name)
        found[words] = None if backend.parent is not None else backend.why
    found["survival_limit (a memory limit for a trial)"] = cgroup.cannot_limit(cgroup.probe())
    return found


def proved(arguments: argparse.Namespace) -> Answer:
    """The known-answer suite."""
    from harness.testing import prove

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - minutes of silence are no progress

    found = prove.prove(arguments.repeats, progress=say)
    code = Exit.OK if found["ok"] else Exit.HARNESS_FAILED
    if arguments.json:
        return Answer(code, out=json.dumps(found, indent=2, allow_nan=False))
    held = sum(prove.good(entry) for entry in found["programs"])
    return Answer(code, out=f"{held} of {len(found['programs'])} brackets hold the truth or say that they cannot")
