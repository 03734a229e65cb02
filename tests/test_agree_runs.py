"""Pairs of runs on disk with known truth, through the command: the right word for each, and the right reason."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_runs import FLAGS, Made, lines_of, put, swapped, two_cores

from harness.commands import agree
from harness.commands.host_check import host_check, stops
from harness.experiment import load
from harness.records import TrialRecord
from harness.run.host import fingerprint
from harness.run.integrity import problems
from harness.run.store import RunFolder
from harness.testing import machines
from harness.verdict.heterogeneity import Heterogeneity, heterogeneity
from harness.verdict.types import Estimate, Unknown


def said(*runs: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and document of `harness agree RUN RUN [RUN...] --json`."""
    answer = agree.run(argparse.Namespace(run=[str(run) for run in runs], results=None, json=True))
    return int(answer.code), json.loads(answer.out)


def pair(tmp_path: Path, first: Made, second: Made) -> tuple[int, dict[str, Any]]:
    """Agreement of two made runs."""
    return said(first.write(tmp_path / "one"), second.write(tmp_path / "two"))


def words(document: dict[str, Any]) -> dict[str, str]:
    """The agreement of each metric and claim."""
    pairs = {verdict["metric"]: verdict["agreement"] for verdict in document["verdicts"]}
    return pairs | {claim["id"]: claim["agreement"] for claim in document["claims"]}


def test_the_same_truth_on_a_slower_host_is_confirmed(tmp_path: Path) -> None:
    """Same kind of host, 1.3 times as slow: ratios, bytes and claims are confirmed; the digest chain holds."""
    code, document = pair(tmp_path, Made(seed=1), Made(seed=2, scale=1.3))
    assert code == 0
    assert document["key"] == {"equal": True, "differs": []}
    assert document["problems"] == []
    assert words(document) == dict.fromkeys(
        ("score", "peak_rss_anon", "checkpoint_bytes", "slower", "half-a-second"), "confirmed"
    )


@pytest.mark.parametrize(("shift", "word"), [(1.01, "confirmed"), (1.03, "contradicted"), (1.10, "contradicted")])
def test_a_shift_is_judged_by_the_margin(tmp_path: Path, shift: float, word: str) -> None:
    """At 0.1 % noise and the default margin of 2 %: 1 % is inside, 3 % and 10 % are beyond it."""
    code, document = pair(tmp_path, Made(seed=1, noise=0.001), Made(seed=2, noise=0.001, ratio=1.5 * shift))
    assert words(document)["score"] == word
    assert code == (4 if word == "contradicted" else 0)


def test_another_instruction_set_forbids_what_depends_on_it(tmp_path: Path) -> None:
    """AMX on one host only: times and memory are not comparable whatever they read, exact metrics are."""
    other = two_cores(FLAGS + " amx_tile amx_bf16")
    code, document = pair(tmp_path, Made(seed=1), Made(seed=2, ratio=3.0, machine=other))
    found = words(document)
    assert code == 0
    assert (found["score"], found["peak_rss_anon"], found["checkpoint_bytes"]) == (
        "not_comparable", "not_comparable", "confirmed",
    )  # fmt: skip
    assert found["slower"] == "not_comparable"
    assert "amx_bf16" in document["verdicts"][0]["why"]


def test_a_crypto_instruction_forbids_nothing(tmp_path: Path) -> None:
    """`sha_ni` is in no kernel: a host without it is the same host for every number."""
    _, document = pair(tmp_path, Made(seed=1), Made(seed=2, machine=two_cores(FLAGS.replace(" sha_ni", ""))))
    assert document["key"]["equal"]


def test_another_number_of_threads_is_not_comparable(tmp_path: Path) -> None:
    """Two threads against four: the item is named with its arm."""
    _, document = pair(tmp_path, Made(seed=1), Made(seed=2, threads=4))
    assert words(document)["score"] == "not_comparable"
    assert any(line.startswith("b: threads: 2 against 4") for line in document["key"]["differs"])


def test_two_cpus_of_one_core_are_not_two_cores(tmp_path: Path) -> None:
    """The same binding `0-1` on a host where CPU 1 is CPU 0's sibling thread: not comparable, and said why."""
    siblings = two_cores()
    for cpu in (0, 1):
        siblings[f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"] = "0-1\n"
    _, document = pair(tmp_path, Made(seed=1), Made(seed=2, machine=siblings))
    assert words(document)["score"] == "not_comparable"
    assert any("cores under its threads: 2 against 1" in line for line in document["key"]["differs"])


def test_another_allocator_forbids_memory_only(tmp_path: Path) -> None:
    """The C library's against tcmalloc: peaks are not comparable, times are."""

    def tcmalloc(record: TrialRecord) -> TrialRecord:
        return replace(record, engine=({"pid": 1, "allocator": "tcmalloc"},))

    _, document = pair(tmp_path, Made(seed=1), Made(seed=2, change=tcmalloc))
    found = words(document)
    assert (found["peak_rss_anon"], found["score"]) == ("not_comparable", "confirmed")
    assert "allocator" in document["verdicts"][1]["why"]


def test_another_c_library_is_another_allocator(tmp_path: Path) -> None:
    """Version 2.39 against 2.36: memory is not comparable, times are."""
    _, document = pair(tmp_path, Made(seed=1), Made(seed=2, libc="glibc 2.36"))
    assert (words(document)["peak_rss_anon"], words(document)["score"]) == ("not_comparable", "confirmed")


def test_exact_metrics_are_compared_exactly(tmp_path: Path) -> None:
    """One byte more in both arms: the ratio is the same to nine digits, and the metric is contradicted."""
    code, document = pair(tmp_path, Made(seed=1), Made(seed=2, size=4e9 + 8))
    assert (words(document)["checkpoint_bytes"], code) == ("contradicted", 4)


@pytest.mark.parametrize(("upper", "word"), [(1.001, "contradicted"), (1.2, "consistent_but_imprecise"),
                                             (None, "consistent_but_imprecise")])  # fmt: skip
def test_a_peak_is_contradicted_only_beyond_its_brackets(tmp_path: Path, upper: float | None, word: str) -> None:
    """The sampled ratios of the peaks differ by 10 %. Where a bracket of 20 %, or none at all, leaves room for the same
    true ratio, that is no contradiction.
    """

    def bracketed(record: TrialRecord) -> TrialRecord:
        peak = record.values["peak_rss_anon"]
        wide = replace(peak, upper=None if upper is None else peak.value * upper)
        return replace(record, values={**record.values, "peak_rss_anon": wide})

    _, document = pair(tmp_path, Made(seed=1, change=bracketed), Made(seed=2, memory=2.2, change=bracketed))
    assert words(document)["peak_rss_anon"] == word


def test_an_absolute_time_is_never_compared_across_hosts(tmp_path: Path) -> None:
    """A claim on a difference in seconds, judged on two machines: not comparable; on one machine it is."""
    one, two = two_cores(), two_cores()
    one["/etc/machine-id"], two["/etc/machine-id"] = "1" * 32, "2" * 32
    _, document = pair(tmp_path, Made(seed=1, machine=one), Made(seed=2, machine=two))
    claim = next(claim for claim in document["claims"] if claim["id"] == "half-a-second")
    assert claim["agreement"] == "not_comparable"
    assert "absolute" in claim["why"]
    assert words(document)["slower"] == "confirmed"


def test_a_machine_that_is_not_known_may_be_another(tmp_path: Path) -> None:
    """Two hosts of one kind without a machine id, two containers say: no proof that their seconds are of one host."""
    unknown = {path: text for path, text in two_cores().items() if path != "/etc/machine-id"}
    _, document = pair(tmp_path, Made(seed=1, machine=unknown), Made(seed=2, machine=unknown))
    claim = next(claim for claim in document["claims"] if claim["id"] == "half-a-second")
    assert claim["agreement"] == "not_comparable"
    assert "machine-id" in claim["why"]
    assert words(document)["slower"] == "confirmed"


def test_a_trial_hidden_as_priming_is_named(tmp_path: Path) -> None:
    """Every digest fits, and one counted trial says that no statistics count it."""

    def hidden(record: TrialRecord) -> TrialRecord:
        return replace(record, priming=record.trial == 3)

    run = Made(seed=2, change=hidden).write(tmp_path)
    assert len(found := problems(RunFolder(run))) == 1
    assert found[0].startswith("trial 3: marked as priming")


def test_a_plan_without_end_is_not_made(tmp_path: Path) -> None:
    """plan.json asks for a thousand million passes: named, and not planned to see."""
    run = Made(seed=2).write(tmp_path)
    plan = json.loads((run / "plan.json").read_text())
    plan["experiment"]["passes"] = 10**9
    (run / "plan.json").write_text(json.dumps(plan))
    assert any("at least 2000000000" in sentence for sentence in problems(RunFolder(run)))


def test_fewer_passes_say_less(tmp_path: Path) -> None:
    """Three passes of two arms leave 2 degrees of freedom: consistent but imprecise, never contradicted."""
    code, document = pair(tmp_path, Made(seed=1), Made(seed=2, passes=3, ratio=1.6))
    assert (words(document)["score"], code) == ("consistent_but_imprecise", 0)


def test_an_edited_figure_is_named(tmp_path: Path) -> None:
    """One value changed after it was written: nothing is compared, the trial is named, exit code 2."""
    run = Made(seed=2).write(tmp_path / "two")
    lines = lines_of(run)
    lines[4]["values"]["score"]["value"] *= 0.9
    put(run, lines)
    code, document = said(Made(seed=1).write(tmp_path / "one"), run)
    assert code == 2
    assert set(words(document).values()) == {"not_comparable"}
    assert document["problems"] == [
        f"the second run ({run.name}): trial 5: its content does not match its digest: edited after it was written"
    ]


def test_a_removed_record_is_named(tmp_path: Path) -> None:
    """A line that is gone breaks the chain behind it."""
    run = Made(seed=2).write(tmp_path)
    put(run, lines_of(run)[:3] + lines_of(run)[4:])
    assert any("a line is missing or moved" in sentence for sentence in problems(RunFolder(run)))


def test_trials_out_of_the_recorded_order_are_named(tmp_path: Path) -> None:
    """Every digest fits, and the first two trials ran the other way round than planned."""
    run = Made(seed=2, order=swapped).write(tmp_path)
    assert len(found := problems(RunFolder(run))) == 1
    assert found[0].startswith("trial 1 ran out of the recorded order: planned trial 2")


def test_a_plan_of_another_experiment_is_named(tmp_path: Path) -> None:
    """The experiment file was edited after the run: its arm, its claim, each named; the plan is not its plan."""
    run = Made(seed=2).write(tmp_path)
    text = (run / "experiment.yaml").read_text()
    (run / "experiment.yaml").write_text(
        text.replace("['true', b]", "['true', c]").replace("ratio >= 1.2", "ratio >= 1")
    )
    found = problems(RunFolder(run))
    assert any(s.startswith("the plan does not match its experiment: experiment.arms.b.command") for s in found)
    assert any("claims.slower" in sentence for sentence in found)


def test_a_plan_that_its_seed_does_not_give_is_named(tmp_path: Path) -> None:
    """Two planned trials swapped in plan.json."""
    run = Made(seed=2).write(tmp_path)
    plan = json.loads((run / "plan.json").read_text())
    trials = plan["plan"]["trials"]
    trials[0]["arm"], trials[1]["arm"] = trials[1]["arm"], trials[0]["arm"]
    (run / "plan.json").write_text(json.dumps(plan))
    assert any("planned trial 1 is the first that differs" in sentence for sentence in problems(RunFolder(run)))


def test_an_arm_changed_in_the_plan_is_named(tmp_path: Path) -> None:
    """plan.json's experiment edited: it matches neither the identity beside it nor the file."""
    run = Made(seed=2).write(tmp_path)
    (run / "plan.json").write_text((run / "plan.json").read_text().replace('"true",\n     "b"', '"false"'))
    found = problems(RunFolder(run))
    assert any("does not match the identity" in sentence for sentence in found)
    assert any("experiment.arms.b" in sentence for sentence in found)


def test_a_run_cut_short_is_no_fraud(tmp_path: Path) -> None:
    """A torn last line is what a crash leaves: nothing to say against the records before it."""
    run = Made(seed=2).write(tmp_path)
    whole = (run / "trials.jsonl").read_bytes()
    (run / "trials.jsonl").write_bytes(whole[:-40])
    assert problems(RunFolder(run)) == ()


def test_committed_runs_are_evidence() -> None:
    """Every run that the project publishes holds together."""
    root = Path(__file__).resolve().parent.parent / "results"
    runs = [plan.parent for plan in root.glob("*/*/plan.json")]
    assert runs
    assert {run.name: problems(RunFolder(run)) for run in runs} == {run.name: () for run in runs}


def test_three_runs_are_set_against_the_first_and_against_each_other(tmp_path: Path) -> None:
    """Two hosts agree, a third differs by 10 %: its pair is contradicted, and over all runs the hosts differ."""
    runs = [Made(seed=n, ratio=ratio).write(tmp_path / str(n)) for n, ratio in ((1, 1.5), (2, 1.5), (3, 1.65))]
    code, document = said(*runs)
    assert code == 4
    scores = [v["agreement"] for v in document["verdicts"] if v["metric"] == "score"]
    assert scores == ["confirmed", "contradicted"]
    across = next(one for one in document["across"] if one["metric"] == "score")
    assert across["p"] < 0.001
    assert across["between_hosts"] == pytest.approx(0.055, rel=0.2)  # deviation of 0, 0 and log 1.1, by weights
    assert document["runs"] == [run.name for run in runs]


def test_a_run_named_twice_is_no_third_host(tmp_path: Path) -> None:
    """One run and the same other one twice: two runs, for which there is no view over all."""
    one, two = (Made(seed=n).write(tmp_path / str(n)) for n in (1, 2))
    _, document = said(one, two, two)
    across = next(one for one in document["across"] if one["metric"] == "score")
    assert (across["judged"], across["p"]) == ([one.name, two.name], None)


def test_one_run_alone_is_no_agreement() -> None:
    """`harness agree RUN` is refused with the usage."""
    with pytest.raises(Exception, match="two or more"):
        agree.run(argparse.Namespace(run=["x"], results=None, json=False))


def test_heterogeneity_is_welchs_test() -> None:
    """Three groups of 5 with means 0, 1 and 2 and variance 1: F by hand. With equal weights lack = 3 (2/3)^2 / 4 = 1/3,
    F = 5 / (1 + 2/8/3) = 4.6154, df2 = 8 / (3/3) = 8.
    """
    found = heterogeneity([Estimate(mean, 5**-0.5, 4) for mean in (0.0, 1.0, 2.0)])
    assert isinstance(found, Heterogeneity)
    assert found.statistic == pytest.approx(4.6154, rel=1e-4)
    assert found.df == pytest.approx((2.0, 8.0))
    assert found.between == pytest.approx(0.8**0.5)  # Q = 10, so (10 - 2) / (15 - 5)
    assert isinstance(heterogeneity([Estimate(0, 1, 4)] * 2), Unknown)


def test_the_host_check_says_what_is_forbidden_before_anything_runs(tmp_path: Path) -> None:
    """Measured here, to be repeated on a Xeon: what differs, and which metrics that keeps from being compared."""
    run = RunFolder(Made(seed=1).write(tmp_path))
    xeon = fingerprint(machines.write_machine(tmp_path / "xeon", machines.xeon_8480c()), here=machines.here())
    found = host_check(run.head().experiment, run.records().records, recorded=(run.host(), {}), now=(xeon, {}))
    assert any(line.startswith("CPU model: recorded Some CPU") for line in found.differs)
    forbidden = [line for line in found.forbids if "instruction sets" in line]
    assert len(forbidden) == 1
    assert forbidden[0].startswith("comparing score, peak_rss_anon (")
    same = host_check(run.head().experiment, run.records().records, recorded=(run.host(), {}), now=(run.host(), {}))
    assert (same.differs, same.forbids) == ((), ())


def test_cpus_that_do_not_exist_here_stop_a_rerun(tmp_path: Path) -> None:
    """An arm that binds 32 threads, on a process that may use two CPUs: refused with the arm and what is missing."""
    file = tmp_path / "wide.yaml"
    file.write_text(
        "question: q\npasses: 3\nengine: {command: {}}\nmetrics: [wall_s]\n"
        "arms:\n  a: {command: ['true'], env: {VLLM_CPU_OMP_THREADS_BIND: '0-31'}}\n  b: {command: ['true', b]}\n"
    )
    found = list(stops(load(file), {"allowed_cpus": "0-1"}))
    assert len(found) == 1
    assert "VLLM_CPU_OMP_THREADS_BIND=0-31 (a)" in found[0]
    assert "(2-31)" in found[0]
