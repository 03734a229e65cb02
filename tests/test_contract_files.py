"""Files, JSON shapes, exit codes and resuming, as a program of somebody else relies on them."""

from __future__ import annotations

import json
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from contract_lab import ROOT, Lab, program

#: Values that differ from trial to trial, so that spreads are real.
NEAR = "score({} + 0.001 * (time.monotonic() % 1)); done()"
ARMS = {"a": NEAR.format(1), "b": NEAR.format(2)}
SLOW = {"a": "score(1.0); time.sleep(0.2); done()", "b": "score(2.0); time.sleep(0.2); done()"}
NUMBER = (int, float)


def claim(expect: str) -> list[dict[str, str]]:
    """One claim on a against b."""
    return [{"id": "c", "metric": "score", "arm": "a", "versus": "b", "expect": expect}]


def tree(folder: Path) -> set[str]:
    """Every file below."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def has(document: dict[str, Any], **types: Any) -> None:
    """Each key is there with its type; NoneType by None."""
    for key, kind in types.items():
        assert key in document, (key, document)
        kinds = tuple(type(None) if one is None else one for one in (kind if isinstance(kind, tuple) else (kind,)))
        assert isinstance(document[key], kinds), (key, document[key])
        assert bool in kinds or not isinstance(document[key], bool), (key, document[key])


def test_case_20_and_21_files_stand_where_the_contract_says(tmp_path: Path) -> None:
    """Odd names of folders and arms in an ASCII locale: the files of the contract, and nothing beside them."""
    lab = Lab(tmp_path / "my lab's 100% süß ☃", {"LC_ALL": "C", "PYTHONUTF8": "0"})
    arms = {
        "a b/c": "score(1.0); done()",
        "%41": "score(1.0); done()",
        "ü'\"": {"command": program(NEAR.format(1)), "priming": 1},
    }
    file = lab.write("odd one", arms, passes=2)
    answer = lab.run(file, "--seed", "7")
    assert answer.returncode == 0, answer.stderr
    assert "ü'\"" in answer.stdout
    (run,) = lab.runs("odd one")
    assert {path.name for path in run.iterdir()} >= {"trials.jsonl", "host.json", "plan.json", "samples", "logs"}
    assert json.loads((run / "plan.json").read_text(encoding="utf-8"))["seed"] == 7
    trials = lab.trials(run)
    assert [trial["priming"] for trial in trials].count(True) == 1
    assert {(trial["arm"], trial["pass"]) for trial in trials if not trial["priming"]} == {
        (arm, number) for arm in arms for number in (1, 2)
    }
    outside = {path for path in tree(lab.folder) if not path.startswith(("results/", "cache/"))}
    assert outside == {"odd one.yaml", "lock"}
    beside = {path.name for path in lab.results.iterdir()}
    assert "odd one.md" in beside
    assert all(name == "odd one" or name.startswith("odd one") for name in beside)
    assert [path.name for path in (lab.results / "odd one").iterdir()] == [run.name]
    code, document = lab.report(run)
    assert (code, document["experiment"], document["run"]) == (0, "odd one", run.name)
    assert set(document["arms"]) == set(arms)


def test_report_and_agree_have_the_shape_of_the_contract(tmp_path: Path) -> None:
    """Every key with its type, one verdict a pair and metric; a run against itself is not comparable. A contradicted
    claim comes before failed trials.
    """
    lab = Lab(tmp_path)
    arms = {**ARMS, "bad": "score(0.1); sys.exit(1)", "zero": "score(0); done()"}
    file = lab.write("shape", arms, passes=5, seed=1, claims=claim("ratio >= 2"))
    assert lab.run(file).returncode == 4
    assert lab.run(file, "--passes", "1").returncode == 3
    first, second = lab.runs("shape")
    code, document = lab.report(first)
    assert code == 4
    has(document, experiment=str, run=str, arms=dict, verdicts=list, claims=list, failures=list)
    for name, arm in document["arms"].items():
        has(arm, trials=dict, metrics=dict)
        has(arm["trials"], ok=int, failed=int)
        assert (arm["metrics"] == {}) is (name == "bad")
        for figure in arm["metrics"].values():
            has(figure, median=NUMBER, low=NUMBER, high=NUMBER, unit=str, n=int)
    pairs = {frozenset((one["a"], one["b"])): one for one in document["verdicts"]}
    assert len(pairs) == len(document["verdicts"]) == 6
    for one in pairs.values():
        has(one, metric=str, a=str, b=str, verdict=str, better=(str, None), ratio=(*NUMBER, None))
        has(one, interval=(list, None), reasons=list, within_passes=dict)
        has(one["within_passes"], a_better=int, passes=int)
        assert (one["verdict"] == "ranked") is (one["better"] is not None)
        assert (one["verdict"] == "refused") is bool(one["reasons"])
    ranked = pairs[frozenset("ab")]
    assert (ranked["verdict"], ranked["better"]) == ("ranked", "a")
    assert ranked["interval"][0] < ranked["ratio"] < ranked["interval"][1]
    assert "not_comparable" in pairs[frozenset(("a", "zero"))]["reasons"]
    assert [(one["id"], one["verdict"]) for one in document["claims"]] == [("c", "contradicted")]
    for row in document["failures"]:
        has(row, arm=str, reason=str, evidence=str, expected=bool)
        has(row, **{"pass": int})
    for other, said in (
        (second, {"confirmed", "consistent_but_imprecise", "contradicted", "not_comparable"}),
        (first, {"not_comparable"}),
    ):
        answer = lab.harness("agree", first, other, "--json")
        found = json.loads(answer.stdout)
        has(found, verdicts=list, claims=list, key=dict)
        has(found["key"], equal=bool, differs=list)
        for one in found["verdicts"]:
            has(one, metric=str, a=str, b=str, agreement=str, ratios=list, why=str)
            assert "difference_interval" in one
            assert one["agreement"] in said


def test_exit_codes_come_in_the_order_of_the_contract(tmp_path: Path) -> None:
    """2 for what is asked wrongly, 0 for what went well; `report` answers like `run`."""
    lab = Lab(tmp_path)
    for words in (
        ["check", "none.yaml"], ["run", "none.yaml"], ["report", "none"], ["agree", "x", "y"], ["bogus"], [],
    ):  # fmt: skip
        assert lab.harness(*words).returncode == 2, words
    good = lab.write("good", ARMS, passes=5, claims=claim("ratio <= 0.9"))
    assert lab.harness("check", good).returncode == 0
    assert lab.run(good).returncode == 0
    code, document = lab.report(lab.runs("good")[0])
    assert (code, document["claims"][0]["verdict"], document["failures"]) == (0, "supported", [])
    assert lab.run(good, "--resume", "nothing").returncode == 2
    assert lab.run(good, "--passes", "0").returncode == 2


@contextmanager
def begun(lab: Lab, file: Path, *words: str, trials: int) -> Iterator[tuple[Popen[str], Path]]:
    """A run in which so many trials have ended."""
    process = lab.start("run", file, "--results", lab.results, *words)
    try:
        end = time.monotonic() + 60
        while (
            not (found := list(lab.results.glob(f"{file.stem}/*/trials.jsonl")))
            or len(lab.trials(found[0].parent)) < trials
        ):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.02)
        yield process, found[0].parent
    finally:
        process.kill()
        process.communicate()


def test_case_04_and_05_a_killed_run_resumes_only_as_it_was(tmp_path: Path) -> None:
    """Killed in pass 3 with a torn line: passes 1 and 2 stand, another env, command or seed is refused by name."""
    lab = Lab(tmp_path)
    arms: dict[str, Any] = {"a": {"command": program(SLOW["a"]), "env": {"X": "1"}}, "b": SLOW["b"]}
    file = lab.write("cut", arms, passes=3, seed=3)
    with begun(lab, file, trials=4) as (process, run):
        process.send_signal(signal.SIGKILL)
        process.wait()
    with (run / "trials.jsonl").open("a") as records:
        records.write('{"torn":')
    code, document = lab.report(run)
    assert code == 5
    assert all(one["verdict"] == "refused" for one in document["verdicts"])
    changes: dict[str, dict[str, Any]] = {
        "arms.a.env.X": {"arms": {**arms, "a": {"command": program(SLOW["a"]), "env": {"X": "2"}}}},
        "arms.b.command": {"arms": {**arms, "b": SLOW["b"] + "; pass"}},
        "seed": {"seed": 4},
    }
    for what, changed in changes.items():
        lab.write("cut", changed.get("arms", arms), passes=3, seed=changed.get("seed", 3))
        answer = lab.run(file, "--resume", run)
        assert answer.returncode == 2
        assert f"experiment.{what}" in answer.stderr
    lab.write("cut", arms, passes=3, seed=3)
    answer = lab.run(file, "--resume", run.name)
    assert answer.returncode == 0, answer.stderr
    assert sorted((one["arm"], one["pass"]) for one in lab.trials(run) if not one["failure"]) == [
        (arm, number) for arm in "ab" for number in (1, 2, 3)
    ]
    assert lab.report(run)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_case_03_the_command_a_stopped_run_prints_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    """Stopped: exit 5, and the line it prints, typed as it stands, finishes the run with the passes it had."""
    lab = Lab(tmp_path / "my lab")
    file = lab.write("stop", SLOW, passes=5)
    with begun(lab, file, "--passes", "2", "--seed", "5", trials=1) as (process, run):
        process.send_signal(number)
        said = process.communicate(timeout=20)[1]
        assert process.returncode == 5, said
    line = next(line for line in said.splitlines() if line.startswith("to go on: "))
    words = shlex.split(line.removeprefix("to go on: "))
    assert words[0] == "harness"
    answer = lab.harness(*words[1:])
    assert answer.returncode == 0, answer.stderr
    assert len([one for one in lab.trials(run) if not one["failure"]]) == 4


def test_the_checkout_stays_clean(tmp_path: Path) -> None:
    """`--results DIR` from within the project: the report goes to DIR, and no file of the checkout is new."""
    lab = Lab(tmp_path)
    before = tree(ROOT / "analysis") | tree(ROOT / "results")
    process = lab.start("run", lab.write("mine", ARMS), "--results", lab.results, cwd=ROOT)
    assert process.communicate(timeout=60)
    assert process.returncode == 0
    assert (lab.results / "mine.md").is_file()
    assert tree(ROOT / "analysis") | tree(ROOT / "results") == before
