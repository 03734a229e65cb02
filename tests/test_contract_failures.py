"""What a stranger's programs do wrong, each under the reason that the contract gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contract_lab import Lab, program

STREAM = "path = os.environ['HARNESS_EVENTS']\n"
SLEEPER = "import subprocess\nsubprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(300)'])\n"
BAD = "bad_output"


def metric(literal: str) -> str:
    """A program whose metric's value is written literally so."""
    return f"""raw('{{"event": "metric", "name": "score", "value": {literal}}}\\n'); done()"""


def phase(*times: str) -> str:
    """A program whose phase `load` begins and ends at the times as written, before a good ending."""
    lines = [
        f"""raw('{{"event": "phase", "name": "load", "state": "{state}", "t": {t}}}\\n')"""
        for state, t in zip(("begin", "end"), times, strict=True)
    ]
    return "\n".join([*lines, "score(2.0)", "done()"])


#: Arm: program, reason (None: it is well and its value is 2).
VALUES: dict[str, tuple[str, str | None]] = {
    "nan": (metric("NaN"), BAD),
    "infinity": (metric("-Infinity"), BAD),
    "1e309": (metric("1e309"), BAD),
    "400 digits": (metric("1" + "0" * 400), BAD),
    "5000 digits": (metric("1" + "0" * 5000), BAD),
    "text": (metric('"2.0"'), BAD),
    "true": (metric("true"), BAD),
    "null": (metric("null"), BAD),
    "negative": (metric("-1"), BAD),
    "missing": ("done()", BAD),
    "among others": ("score(2.0)\n" + metric("NaN"), BAD),
    "repeated": ("score(1.0); score(9.0); score(2.0); done()", None),
    "late": ("score(2.0); done(); score(50.0)", None),
    "no done": ("score(2.0)", BAD),
    "torn done": ("""score(2.0); raw('{"event": "done"')""", BAD),
    "torn after done": ("""score(2.0); done(); raw('{"event": "met')""", None),
    "no line end": ("""score(2.0); raw('{"event": "done"}')""", None),
    "no events": (r"""raw('hello\n\x00\n[]\n1\n{}\n{"event": 5}\n' + '[' * 99999 + '\n'); score(2.0); done()""", None),
    "long line": (r"""raw('x' * 9_000_000 + '\n'); score(2.0); done()""", None),
}

STREAMS: dict[str, tuple[str, str | None]] = {
    "replaced": (STREAM + "score(1.0); os.rename(path, path + '.x'); score(2.0); done()", BAD),
    "removed": (STREAM + "score(2.0); done(); os.unlink(path)", BAD),
    "a folder": (STREAM + "os.unlink(path); os.mkdir(path)", BAD),
    "a pipe": (STREAM + "score(2.0); done(); os.unlink(path); os.mkfifo(path)", BAD),
    "endless": (STREAM + "os.unlink(path); os.symlink('/dev/zero', path)", BAD),
    "emptied": (STREAM + "score(2.0); done(); open(path, 'w').close()", BAD),
    "begun anew": (STREAM + "score(9.0); done(); open(path, 'w').close(); score(2.0); done()", None),
    "t is nan": (phase("NaN", "NaN"), None),
    "t is far": (phase("1e300", "-1e300"), None),
    "t has 400 digits": (phase("1" + "0" * 400, "1"), None),
    "t since 1970": (phase("1.8e9", "1.9e9"), None),
    "t at boot": (phase("0", "1e9"), None),
}

ENDINGS: dict[str, tuple[str, str | None]] = {
    "exit 1": ("score(0.1); done(); sys.exit(1)", "nonzero_exit"),
    "exit 137": ("score(0.1); done(); sys.exit(137)", "nonzero_exit"),
    "SIGILL": ("score(0.1); os.kill(os.getpid(), signal.SIGILL)", "signal"),
    "SIGKILL": ("score(0.1); done(); os.kill(os.getpid(), signal.SIGKILL)", "signal"),
    "hang": ("score(2.0); done(); time.sleep(300)", "hang"),
    "orphan": (SLEEPER + "score(2.0); done()", "orphan_left"),
    "slow phase": ("say(event='phase', name='decode', state='begin', t=time.monotonic()); time.sleep(300)", "timeout"),
    "closed": ("score(2.0); done(); os.closerange(0, 100)", None),
    "elsewhere": ("os.chdir('/'); score(2.0); done()", None),
}


def outcome(trial: dict[str, Any]) -> tuple[str | None, float | None]:
    """Reason and value of a trial."""
    reason = trial["failure"]["reason"] if trial["failure"] else None
    return reason, trial["values"]["score"]["value"] if "score" in trial["values"] else None


@pytest.mark.parametrize("table", [VALUES, STREAMS, ENDINGS], ids=["values", "streams", "endings"])
def test_case_14_and_22_every_bad_ending_has_its_reason(
    tmp_path: Path, table: dict[str, tuple[str, str | None]]
) -> None:
    """Whatever a program does to its metric, its stream or itself, the run goes on to its report and names it."""
    lab = Lab(tmp_path)
    limits = {"trial": "20 s", "exit": "1 s", "decode": "500 ms"}
    answer = lab.run(lab.write("odd", {name: what for name, (what, _) in table.items()}, limits=limits))
    assert answer.returncode == 3, answer.stderr
    (run,) = lab.runs("odd")
    found = {trial["arm"]: outcome(trial) for trial in lab.trials(run)}
    assert found == {name: (reason, None if reason else 2.0) for name, (_, reason) in table.items()}
    code, document = lab.report(run)
    assert code == 3
    assert {row["arm"]: row["reason"] for row in document["failures"]} == {
        name: reason for name, (_, reason) in table.items() if reason
    }
    for name, (_, reason) in table.items():
        arm = document["arms"][name]
        assert arm["trials"] == {"ok": int(reason is None), "failed": int(reason is not None)}
        assert ("score" in arm["metrics"]) is (reason is None)


def test_engagement_and_expected_failures_decide_the_exit_code(tmp_path: Path) -> None:
    """A declared failure that comes counts as success; one that does not, or engagement that is missing, is code 3."""
    lab = Lab(tmp_path)
    engaged = "say(event='engagement', name='kernel', modules={'a': 3}, calls={'x': 5}); "
    good = "score(2.0); done()"
    ill = {"failure": "signal", "signal": "SIGILL"}
    met = {
        "engaged": {"command": program(engaged + good), "expect": {"engaged": "kernel"}},
        "died so": {"command": program("score(); done(); os.kill(os.getpid(), signal.SIGILL)"), "expect": ill},
        "exited so": {"command": program("sys.exit(4)"), "expect": {"failure": "nonzero_exit"}},
    }
    unmet = {
        "another": {"command": program(engaged + good), "expect": {"engaged": "other"}},
        "none": {"command": program(good), "expect": {"engaged": "kernel"}},
        "no calls": {
            "command": program("say(event='engagement', name='kernel', modules={'a': 1}, calls={'x': 0}); " + good),
            "expect": {"engaged": "kernel"},
        },
        "died otherwise": {"command": program("os.kill(os.getpid(), signal.SIGSEGV)"), "expect": ill},
        "lived": {"command": program(good), "expect": {"failure": "signal"}},
    }
    assert lab.run(lab.write("met", met)).returncode == 0
    code, document = lab.report(lab.runs("met")[0])
    assert code == 0
    assert {row["arm"]: row["expected"] for row in document["failures"]} == {"died so": True, "exited so": True}
    assert lab.run(lab.write("unmet", unmet)).returncode == 3
    code, document = lab.report(lab.runs("unmet")[0])
    assert {row["arm"]: (row["reason"], row["expected"]) for row in document["failures"]} == {
        "another": ("not_engaged", False),
        "none": ("not_engaged", False),
        "no calls": ("not_engaged", False),
        "died otherwise": ("signal", False),
        "lived": ("bad_output", False),
    }
