"""The gate for merges: what fails a change, what does not, and how it says so."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from contract_lab import SCORE, Lab
from verdict_runs import experiment, run

from harness.commands.gate import is_software
from harness.experiment.types import Arm, Claim, ClaimKind, Expectation, Experiment
from harness.records import Reason, TrialRecord
from harness.report import RunData
from harness.report.gate_summary import gate_summary
from harness.verdict import judge
from harness.verdict.agreement import Agreement, RunEvidence, agree
from harness.verdict.gate import Gate, decide
from harness.verdict.types import Judgement

KEY: dict[str, Any] = {"instruction sets": ["avx2"]}
CLAIM = Claim(
    id="twice", metric="score", arm="b", versus="a", kind=ClaimKind.RATIO, op=">=", value=1.8, text="ratio >= 1.8"
)


def asked(*claims: Claim, passes: int = 6, **more: Any) -> Experiment:
    """Arms a, b, c; a margin of 5 %."""
    return experiment("abc", passes, claims=claims, margins={"score": 0.05}, **more)


def noisy(seed: int, *factors: float, passes: int = 6) -> list[TrialRecord]:
    """Arms a, b, c with these values, 0.3 % of noise."""
    random = Random(seed)
    table = {
        arm: [f * (1 + random.gauss(0, 0.003)) for _ in range(passes)] for arm, f in zip("abc", factors, strict=True)
    }
    return list(run(table, digest=str(seed)))


def judged(plan: Experiment, records: Sequence[TrialRecord], key: dict[str, Any] | None = None) -> RunEvidence:
    """A run as agreement takes it."""
    return RunEvidence(experiment=plan, records=records, judgement=judge(plan, records, {}), key=key or KEY)


def gate(plan: Experiment, before: RunEvidence, after: RunEvidence, *, required: bool = False) -> Gate:
    """The decision on `after`, with `before` as reference."""
    return decide(plan, after.judgement, agree(before, after), require_decided=required)


def test_the_same_again_passes_even_where_all_must_be_decided() -> None:
    """Ratios 1 : 2 : 3 at 0.3 % noise in both runs, margin 5 %: confirmed and supported, nothing is open."""
    plan = asked(CLAIM)
    found = gate(plan, judged(plan, noisy(1, 1, 2, 3)), judged(plan, noisy(2, 1, 2, 3)), required=True)
    assert found.passed
    assert not found.undecided


@pytest.mark.parametrize("factor", [1.2, 0.8])
def test_a_ratio_that_moved_beyond_the_margin_fails(factor: float) -> None:
    """C moves by 20 %: its ratios with a and b contradict the reference, a and b still agree. Better fails too."""
    plan = asked(CLAIM)
    found = gate(plan, judged(plan, noisy(1, 1, 2, 3)), judged(plan, noisy(2, 1, 2, 3 * factor)))
    assert not found.passed
    assert [f.what for f in found.contradicted] == ["agreement of a / c on score", "agreement of b / c on score"]


def test_a_contradicted_claim_fails_though_both_runs_agree() -> None:
    """The reference contradicts the claim as well: agreement is no excuse."""
    plan = asked(CLAIM)
    found = gate(plan, judged(plan, noisy(1, 1, 1.5, 3)), judged(plan, noisy(2, 1, 1.5, 3)))
    assert [f.what for f in found.contradicted] == ["claim twice"]


def test_a_claim_that_turned_is_told_apart_from_one_that_was_so_before() -> None:
    """Supported in the reference, contradicted now: the claim, the pairs, and the agreement on the claim."""
    plan = asked(CLAIM)
    found = gate(plan, judged(plan, noisy(1, 1, 2, 3)), judged(plan, noisy(2, 1, 1.5, 3)))
    assert {f.what for f in found.contradicted} >= {"claim twice", "agreement on claim twice"}


def test_what_cannot_be_compared_fails_only_if_asked() -> None:
    """Other instruction sets: no contradiction; the claim and its pair are open, and `--require-decided` fails."""
    plan = asked(CLAIM)
    before, after = judged(plan, noisy(1, 1, 2, 3)), judged(plan, noisy(2, 1, 2, 9), {"instruction sets": ["amx"]})
    assert gate(plan, before, after).passed
    strict = gate(plan, before, after, required=True)
    assert not strict.passed
    assert [f.what for f in strict.undecided] == ["agreement on claim twice", "agreement of a / b on score"]


def test_an_undecided_claim_fails_only_if_asked() -> None:
    """Two passes decide nothing."""
    plan = asked(CLAIM, passes=2)
    before, after = judged(plan, noisy(1, 1, 2, 3, passes=2)), judged(plan, noisy(2, 1, 2, 3, passes=2))
    assert gate(plan, before, after).passed
    assert "claim twice" in [f.what for f in gate(plan, before, after, required=True).undecided]


def test_without_claims_every_pair_is_a_question_but_for_arms_that_are_meant_to_fail() -> None:
    """C dies by declaration: its pairs have nothing to compare, and all that must be decided is a against b."""
    arms = (Arm(name="a", engine="command"), Arm(name="b", engine="command"),
            Arm(name="c", engine="command", expect=Expectation(failure="signal")))  # fmt: skip
    plan = Experiment(
        name="x", question="q", passes=6, arms=arms, metrics=asked().metrics, margins={"score": 0.05}
    )  # fmt: skip

    def dying(seed: int) -> list[TrialRecord]:
        values = noisy(seed, 1, 2, 3)
        table = {arm: [r.values["score"] for r in values if r.arm == arm] for arm in "ab"}
        return run({**table, "c": [Reason.SIGNAL] * 6}, digest=str(seed), expected=True)

    found = gate(plan, judged(plan, dying(1)), judged(plan, dying(2)), required=True)
    assert found.passed
    few = gate(plan, judged(plan, dying(1)), judged(plan, dying(2), {"instruction sets": []}), required=True)
    assert [f.what for f in few.undecided] == ["agreement of a / b on score"]


def test_the_software_under_test_is_no_difference_of_hosts() -> None:
    """A merge changes engines and plugins, which the gate measures. Models and instruction sets stay in the key."""
    assert is_software("vllm: torch")
    assert is_software("/opt/my arms/python: cpu-int4")
    assert is_software("code of cpu_int4")
    assert not any(map(is_software, ("model m", "instruction sets", "direct: threads", "huge pages")))


def page(before: RunEvidence, after: RunEvidence, plan: Experiment, *, required: bool = False, code: int) -> str:
    """The page of a decision."""
    data = RunData(experiment=plan, run="new", records=tuple(after.records))
    reference = RunData(experiment=plan, run="old", records=tuple(before.records))
    agreement: Agreement = agree(before, after)
    judgement: Judgement = after.judgement
    found = decide(plan, judgement, agreement, require_decided=required)
    changed = ["vllm: torch: 2.13 against 2.14"]
    return gate_summary(data, judgement, agreement, found, reference=reference, changed=changed, code=code)


def test_the_page_says_what_failed_first() -> None:
    """Answer and exit code in the heading, then what speaks against the change, then claims and ratios."""
    plan = asked(CLAIM)
    text = page(judged(plan, noisy(1, 1, 2, 3)), judged(plan, noisy(2, 1, 1.5, 3)), plan, code=4)
    head, rest = text.split("\n", 1)
    assert head == "## ❌ hand_made: failed: 4 contradicted (exit code 4)"
    assert rest.index("Against it") < rest.index("### Claims") < rest.index("### Agreement")
    assert "| twice | score of b against a: ratio \\>= 1.8 | **contradicted** | supported |" in rest
    assert "vllm: torch: 2.13 against 2.14" in rest
    assert "results/hand_made/new" in rest


def test_the_page_of_a_pass_that_compared_nothing_says_so() -> None:
    """Passed, and in sight: nothing could be compared, and why."""
    plan = asked(CLAIM)
    other = {"instruction sets": ["amx"]}
    text = page(judged(plan, noisy(1, 1, 2, 3)), judged(plan, noisy(2, 1, 2, 3), other), plan, code=0)
    assert "passed" in text.split("\n", 1)[0]
    assert "Of 3 ratios: 3 not comparable." in text
    assert "Not decided" in text
    assert "What differs besides" in text


PROGRAM = """
import json, os, random, sys
factor = float(open(os.path.join(os.path.dirname(__file__), "factor")).read()) if sys.argv[1] == "b" else 1.0
with open(os.environ["HARNESS_EVENTS"], "a") as file:
    value = factor * random.uniform(0.999, 1.001)
    for event in ({"event": "metric", "name": "score", "value": value}, {"event": "done"}):
        file.write(json.dumps(event) + "\\n")
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, Path, Path]:
    """A lab, an experiment of two arms whose second reads its factor from a file, and a reference run at factor 2."""
    made = Lab(tmp_path_factory.mktemp("gate"))
    made.folder.joinpath("program.py").write_text(PROGRAM)
    made.folder.joinpath("factor").write_text("2")
    command = [sys.executable, str(made.folder / "program.py")]
    claim = {"id": "slower", "metric": "score", "arm": "b", "versus": "a", "expect": "ratio >= 1.5"}
    file = made.write(
        "x", {arm: {"command": [*command, arm]} for arm in "ab"}, passes=5, margins={"score": 0.05}, claims=[claim]
    )
    assert made.run(file, "--seed", 1).returncode == 0
    return made, file, made.runs("x")[0]


def test_a_gate_measures_and_passes(lab: tuple[Lab, Path, Path]) -> None:
    """Nothing changed: exit code 0, a run of its own, and the page appended to what stood in the file."""
    made, file, reference = lab
    summary = made.folder / "summary.md"
    summary.write_text("before\n")
    said = made.harness("gate", file, "--against", reference, "--results", made.results, "--summary", summary)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "gate passed" in said.stdout
    assert len(made.runs("x")) == 2
    assert summary.read_text().startswith("before\n## ✅ x: passed\n")


def test_a_gate_fails_on_a_ratio_that_moved(lab: tuple[Lab, Path, Path]) -> None:
    """Factor 3 instead of 2: the claim still holds, the reference does not; exit code 4, and JSON says which."""
    made, file, reference = lab
    made.folder.joinpath("factor").write_text("3")
    try:
        words = ("gate", file, "--against", reference, "--results", made.results, "--json")
        said = made.harness(*words)
    finally:
        made.folder.joinpath("factor").write_text("2")
    value = json.loads(said.stdout)
    assert said.returncode == value["exit_code"] == 4
    assert value["passed"] is False
    assert [found["what"] for found in value["contradicted"]] == ["agreement of a / b on score"]
    assert value["report"]["claims"][0]["verdict"] == "supported"
    runs = made.runs("x")
    again = made.harness("gate", file, "--against", reference, "--run", runs[-1], "--results", made.results)
    assert again.returncode == 4
    assert made.runs("x") == runs  # a run that is named is not measured again


def test_a_gate_against_itself_compares_nothing(lab: tuple[Lab, Path, Path]) -> None:
    """A run is no second piece of evidence for itself: not comparable, so it passes, unless that must be decided."""
    made, file, reference = lab
    words = ("gate", file, "--against", reference, "--run", reference, "--results", made.results)
    assert made.harness(*words).returncode == 0
    assert made.harness(*words, "--require-decided").returncode == 4


def test_a_gate_refuses_a_reference_of_another_experiment(lab: tuple[Lab, Path, Path], tmp_path: Path) -> None:
    """Exit code 2 before anything is measured, with both names; and the same for `--run` and an unwritable page."""
    made, file, reference = lab
    other = made.write("y", {"a": "score(); done()"}, metrics=[SCORE])
    before = len(made.runs("x"))
    words = ("--against", reference, "--results", made.results)
    said = made.harness("gate", other, *words)
    assert said.returncode == 2
    assert "another experiment (x, not y)" in said.stderr
    assert not (made.results / "y").exists()
    said = made.harness("gate", file, *words, "--summary", tmp_path / "no" / "such")
    assert said.returncode == 2
    assert "--summary" in said.stderr
    assert len(made.runs("x")) == before


def test_a_gate_refuses_a_reference_that_was_edited(lab: tuple[Lab, Path, Path], tmp_path: Path) -> None:
    """A touched-up reference is no evidence: exit code 2 before anything is measured, naming the trial."""
    made, file, reference = lab
    edited = tmp_path / "x" / reference.name
    shutil.copytree(reference, edited)
    records = edited / "trials.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace('"attempt": 1', '"attempt": 2', 1)
    records.write_text("".join(lines))
    before = len(made.runs("x"))
    said = made.harness("gate", file, "--against", edited, "--results", made.results)
    assert said.returncode == 2
    assert "is no evidence" in said.stderr
    assert "trial 3" in said.stderr
    assert len(made.runs("x")) == before


def test_a_gate_takes_a_bundle_as_its_reference(lab: tuple[Lab, Path, Path]) -> None:
    """What a reviewer sent back can be the reference: the same answer as from the folder."""
    made, file, reference = lab
    bundle = made.folder / "x.bundle.tar"
    assert made.harness("bundle", reference, "--output", bundle).returncode == 0
    said = made.harness("gate", file, "--against", bundle, "--run", reference, "--results", made.results)
    assert said.returncode == 0, said.stderr
    assert "not comparable" in said.stdout


def test_a_gate_fails_on_trials_that_failed(lab: tuple[Lab, Path, Path]) -> None:
    """A run whose trials died keeps its own exit code: 3, and the page names them."""
    made, file, reference = lab
    made.folder.joinpath("factor").write_text("x")
    summary = made.folder / "died.md"
    try:
        words = ("gate", file, "--against", reference, "--results", made.results, "--summary", summary)
        assert made.harness(*words).returncode == 3
    finally:
        made.folder.joinpath("factor").write_text("2")
    assert "the run did not end well (exit code 3)" in summary.read_text()
    assert "nonzero_exit" in summary.read_text()
