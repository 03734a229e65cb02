"""The report as files: everything a reviewer looks for is there, and the same input gives the same bytes."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest
import report_example as example

from harness.events import Phase
from harness.experiment.types import Rule
from harness.records import MemoryRecord, PhaseMemory
from harness.report import RunData, no_samples, verdict_table, write_report
from harness.report.figure_memory import thin
from harness.report.memory import bracket
from harness.units import MIB
from harness.verdict.types import Judgement

TESTS = Path(__file__).resolve().parent
ODD = ("both | layouts", "a/b $x$ `c`", "../*direct*_", "🚀 <b>no</b>\n\u202edequant", "x" * 90)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up run's report, written once."""
    run = example.data()
    return write_report(run, example.judgement(run), tmp_path_factory.mktemp("analysis"))


def links(text: str) -> list[str]:
    """File names of the figures a report shows."""
    return [unquote(link) for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)]


def bytes_of(folder: Path) -> dict[str, str]:
    """Digest of every file by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_every_figure_exists_and_is_small(written: Path) -> None:
    """Memory, and per metric values, intervals and matrix: each shown, there, a PNG, under 500 kB."""
    names = links(written.read_text())
    assert len(names) == len(set(names)) == 1 + 3 * len(example.METRICS)
    for name in names:
        picture = written.parent / name
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 500_000
    assert {path.name for path in written.parent.iterdir()} == {written.name, *names}


def test_the_same_input_gives_the_same_bytes(written: Path, tmp_path: Path) -> None:
    """Another process, hash seed, locale, time zone and working folder change no byte of text or pictures."""
    code = (
        "import sys; from pathlib import Path; import report_example as example\n"
        "from harness.report import write_report\n"
        "run = example.data(); write_report(run, example.judgement(run), Path(sys.argv[1]))"
    )
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "4321", "TZ": "Asia/Kathmandu", "LC_ALL": "C", "LANG": "C",
        "MPLCONFIGDIR": str(tmp_path / "mpl"), "SOURCE_DATE_EPOCH": "1",
    }  # fmt: skip
    (tmp_path / "mpl").mkdir()
    (tmp_path / "mpl" / "matplotlibrc").write_text("font.size: 23\naxes.linewidth: 5\nxtick.major.size: 20\n")
    out = tmp_path / "again"
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert bytes_of(out) == bytes_of(written.parent)


def test_the_report_holds_no_time_or_place_of_its_making(written: Path) -> None:
    """No absolute path of this machine and no time of generation stands in the text or in a picture's metadata."""
    text = written.read_text()
    assert str(written.parent) not in text
    assert str(Path.home()) not in text
    for name in links(text):
        raw = (written.parent / name).read_bytes()
        assert b"tEXt" not in raw, name
        assert b"tIME" not in raw, name


def test_the_sections_a_reviewer_looks_for(written: Path) -> None:
    """Question, answer, arms, metrics, failures, memory, order, disturbance, host, rerun: in this order."""
    heads = re.findall(r"^## (.+)$", written.read_text(), re.MULTILINE)
    assert heads == [
        "The answer at a glance", "Arms", "Metrics", "Failures", "Memory", "Order", "Disturbance", "Host",
        "How to rerun",
    ]  # fmt: skip
    assert "> Does dequantizing prefill weights" in written.read_text()


def test_case_8_failures_stand_beside_every_figure(written: Path) -> None:
    """Every arm's line of every metric says n of k and how many trials failed; a declared failure says so."""
    text = written.read_text()
    for metric in example.METRICS:
        part = text.split(f"### {metric.name}\n")[1].split("\n### ")[0]
        for name in example.NAMES:
            line = next(line for line in part.splitlines() if line.startswith(f"| {name} |"))
            assert re.search(r"\| \d of 6 \| \d \|$", line), line
    assert "failed as expected: `config_rejected`" in text
    assert "8 trials failed, 7 of them as expected" in text


def test_an_arm_without_any_value_takes_one_line(written: Path, tmp_path: Path) -> None:
    """An arm that is meant to fail is said once in the answer and once a metric, never once a pair; the terminal says
    it once in all, and an arm with no value of one metric alone is compared on the others.
    """
    said = "rejected: failed as expected in 6 of 6 passes (config_rejected); not compared"
    text = written.read_text()
    answer, metrics = (
        text.split("## The answer")[1].split("## Arms")[0],
        text.split("## Metrics")[1].split("## Fail")[0],
    )
    assert answer.count("rejected") == said.count("rejected")
    assert answer.count(said) == 1
    assert metrics.count(said) == len(example.METRICS)
    assert "/ rejected" not in text
    run = example.data()
    judged = example.judgement(run)
    plain = verdict_table(run.experiment, judged, passes=run.passes)
    assert plain.count(said) == 1
    lines = [line for line in plain.splitlines() if "rejected" in line]
    assert len(lines) == 3  # two of them failures: pass 4 ran twice
    # and two among the failures: pass 4 ran twice
    direct = judged.arms["direct"]
    fewer = {name: figure for name, figure in direct.metrics.items() if name != "load_s"}
    partly = replace(judged, arms={**judged.arms, "direct": replace(direct, metrics=fewer)})
    rows = write_report(run, partly, tmp_path).read_text().split("## The answer")[1].split("## Arms")[0]
    assert "| both_layouts / direct |" not in rows.split("**load_s**")[1]
    assert rows.count("| both_layouts / direct |") == 3
    assert "direct" in verdict_table(run.experiment, partly).split("load_s")[1].split("claims")[0]


def test_a_run_in_which_nothing_has_a_value_is_short() -> None:
    """Where no arm has a value there is one line an arm and no table of refusals."""
    run = example.data()
    judged = example.judgement(run)
    bare = replace(judged, arms={name: replace(arm, metrics={}) for name, arm in judged.arms.items()}, claims=())
    plain = verdict_table(run.experiment, bare, passes=run.passes)
    assert plain.count("not compared") == 5
    assert "not ranked" not in plain


def test_evidence_of_several_lines_is_cut_in_tables_and_whole_below(tmp_path: Path) -> None:
    """Tables and the terminal show the first line and that more follows; the section of failures holds every line."""
    run = example.data()
    judged = example.judgement(run)
    long = "ValidationError: 1 error\n  Value error, `max_model_len` is 65536\n\n```\nsee https://example.org"
    rows = tuple(replace(row, evidence=long) if row.expected else row for row in judged.failures)
    judged = replace(judged, failures=rows)
    section = write_report(run, judged, tmp_path).read_text().split("## Failures")[1].split("\n## ")[0]
    line = next(line for line in section.splitlines() if line.startswith("| rejected"))
    assert "| passes 1, 2, 3, 4, 5 and 6 |" in line
    assert "| ValidationError: 1 error ... |" in line
    assert "    Value error, `max_model_len` is 65536\n    ```\n    see https://example.org" in section
    plain = verdict_table(run.experiment, judged)
    assert "ValidationError: 1 error ..." in plain
    assert "65536" not in plain


def test_case_40_every_trial_value_is_shown(written: Path) -> None:
    """Raw values of every pass stand in the report, those of a repeated pass marked and out of the figures."""
    part = written.read_text().split("### load_s\n")[1]
    table = part.split("<details>")[1].split("</details>")[0]
    rows = [line for line in table.splitlines() if re.match(r"\| \d \|", line)]
    assert [row.split("|")[1].strip() for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert "~~signal SIGSEGV~~ (attempt 1, pass repeated)" in rows[3]


def test_case_13_the_order_of_every_pass_is_shown(written: Path) -> None:
    """The order in which the arms ran stands in the report, with what each position did to the values."""
    text = written.read_text().split("## Order")[1].split("## Disturbance")[0]
    assert "| 1 | 1 | direct_control no_dequant rejected both_layouts direct |" in text
    assert "| 4 | 2 |" in text
    assert re.search(r"\| load_s \| [\d.]+ \| [\d.]+ \| [\d.]+ \| [\d.]+ \| [\d.]+ \|", text)


def test_case_25_and_34_what_rss_anon_does_not_see_stands_beside_it(written: Path) -> None:
    """Shared and file-backed memory, swap and huge pages are shown for every arm, and the host's huge-page mode."""
    text = written.read_text()
    for word in ("RssShmem", "RssFile", "swap", "huge pages", "| memory.thp | madvise |"):
        assert word in text


def test_case_24_shared_pages_counted_twice_are_pointed_out(tmp_path: Path) -> None:
    """Where the sum of RssAnon is four times the unique memory, the report says so and sends the reader to the Pss."""
    run = example.data()
    levels = {"settled": 1200 * MIB, "pss_anon_settled": 300 * MIB}
    forked = tuple(
        replace(record, memory=replace(record.memory, levels=levels))
        if record.arm == "direct" and record.memory is not None
        else record
        for record in run.records
    )
    text = write_report(replace(run, records=forked), example.judgement(run), tmp_path).read_text()
    assert "**direct shares pages between its processes**: its sum of RssAnon is 4.00 times its unique memory" in text
    assert text.count("shares pages between its processes") == 1


def test_a_peak_without_a_valid_bound_says_why() -> None:
    """An open bracket is printed as `at least`, with the reason; never as a value."""
    open_end = PhaseMemory(phase="trial", samples=9, s_lower=256 * MIB, s_upper_missing="a process was gone before")
    assert bracket(open_end) == "at least 256.0 MiB; no upper bound: a process was gone before"
    assert bracket(replace(open_end, s_upper=260 * MIB)) == "256.0 MiB to 260.0 MiB"
    assert bracket(PhaseMemory(phase="trial", samples=0)) == "unknown"


def test_case_4_an_incomplete_run_says_so_at_the_top(tmp_path: Path) -> None:
    """A run cut off in pass 3 is marked incomplete before any figure, and missing cells are shown as missing."""
    run = example.data()
    cut = replace(run, records=run.records[:12])
    judged = replace(example.judgement(run), complete=False)
    text = write_report(cut, judged, tmp_path).read_text()
    assert "**This run is incomplete**: 12 of 30 planned trials have a record" in text.split("## ")[0]
    assert "no record" in text
    assert "not complete" in verdict_table(run.experiment, judged)


def test_an_incomplete_run_says_so_once(tmp_path: Path) -> None:
    """What the verdict engine notes of an incomplete run and what the head says of it are one sentence, not two."""
    run = example.data()
    note = "The run is not complete: some planned trials have no record. Resume it before you rely on it."
    judged = replace(example.judgement(run), complete=False, notes=(note,))
    head = write_report(run, judged, tmp_path).read_text().split("## ")[0]
    assert len(re.findall("incomplete|not complete", head)) == 1
    assert len(re.findall("incomplete|not complete", verdict_table(run.experiment, judged))) == 1


@pytest.mark.parametrize("names", [ODD])
def test_odd_arm_names_stay_names(names: tuple[str, ...], tmp_path: Path) -> None:
    """Pipes, slashes, blanks, mathematics, markup, emoji and very long names break no table, figure or file name."""
    run = example.data(names)
    path = write_report(run, example.judgement(run), tmp_path)
    text = path.read_text()
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(cells) == 1, block
    assert "<b>" not in re.sub(r"\\<", "", text)
    assert "\u202e" not in text
    assert {found.name for found in tmp_path.iterdir()} == {path.name, *links(text)}
    assert all((tmp_path / name).stat().st_size < 500_000 for name in links(text))
    plain = verdict_table(run.experiment, example.judgement(run))
    assert "\u202e" not in plain


def test_figures_of_an_earlier_report_go_with_it(tmp_path: Path) -> None:
    """A figure the new report does not show is removed; files of other reports stay."""
    run = example.data()
    write_report(run, example.judgement(run), tmp_path)
    other = tmp_path / "direct_dequant-values-of-somebody.png"
    other.write_bytes(b"kept")
    fewer = replace(run, experiment=replace(run.experiment, metrics=example.METRICS[:1]), samples=no_samples)
    path = write_report(fewer, example.judgement(run), tmp_path)
    assert {found.name for found in tmp_path.iterdir()} == {path.name, other.name, *links(path.read_text())}
    assert len(links(path.read_text())) == 3


def test_a_run_without_records_still_has_a_report(tmp_path: Path) -> None:
    """Nothing recorded yet: the report says so instead of failing."""
    run = RunData(experiment=example.experiment(), run="r", records=())
    empty = Judgement(arms={}, verdicts=(), claims=(), failures=(), tie_groups={}, complete=False)
    text = write_report(run, empty, tmp_path).read_text()
    assert "**This run is incomplete**" in text
    assert "No usable trial has a memory record" in text
    assert "unknown host" in text


def test_case_11_an_arm_that_never_got_warm_is_flagged(tmp_path: Path) -> None:
    """The flag of an arm whose iterations drift beyond its spread stands beside that arm; no other has one."""
    run = example.data()
    judged = example.judgement(run)
    flagged = replace(judged.arms["direct"], flags=("direct, load_s: not at a steady state",))
    text = write_report(run, replace(judged, arms={**judged.arms, "direct": flagged}), tmp_path).read_text()
    arms = text.split("## Arms")[1].split("## Metrics")[0]
    assert "\n- direct, load_s: not at a steady state.\n" in arms
    assert arms.count("steady state") == 1


@pytest.mark.parametrize("note", ["", "No control pair guards this run: nothing shows what the host adds by itself."])
def test_a_run_without_a_control_says_so_once(note: str, tmp_path: Path) -> None:
    """Without an A/A control the head says that nothing guards the run, whoever says it, and says it once."""
    run = example.data()
    open_run = replace(run, experiment=replace(run.experiment, control=None))
    judged = replace(example.judgement(run), notes=(note,) if note else ())
    head = write_report(open_run, judged, tmp_path).read_text().split("## ")[0]
    assert head.count("guards this run") == 1


def test_the_rule_paired_is_said(tmp_path: Path) -> None:
    """A report under `rule: paired` says so at its top."""
    run = example.data(rule=Rule.PAIRED)
    assert "rule `paired`" in write_report(run, example.judgement(run), tmp_path).read_text().split("## ")[0]


def test_thinning_a_curve_keeps_every_extreme() -> None:
    """Of a long curve the figure keeps the one sample that is the peak, and the one that is the dip."""
    curve = [(step / 100, 100 * MIB) for step in range(20_000)]
    curve[12_345] = (123.45, 400 * MIB)
    curve[3_210] = (32.10, 7 * MIB)
    kept = thin(curve)
    assert len(kept) <= 1000
    assert (123.45, 400 * MIB) in kept
    assert (32.10, 7 * MIB) in kept
    assert list(kept) == sorted(kept)


def test_a_trial_that_died_inside_a_phase_is_drawn(tmp_path: Path) -> None:
    """A phase without an end, a memory record without bounds and a single sample draw without an error."""
    run = example.data()
    torn = tuple(
        replace(
            record,
            phases=(Phase("load", record.began + 1, None),),
            memory=MemoryRecord(
                backend="none", phases=(PhaseMemory(phase="trial", samples=1, s_lower=5, peak_t=record.began),)
            ),
        )
        for record in run.records
    )
    write_report(
        replace(run, records=torn, samples=lambda record: [(record.began, 5), (record.ended, 5)]),
        example.judgement(run),
        tmp_path,
    )


def test_the_terminal_table_is_plain_unless_a_person_watches() -> None:
    """Plain text holds no escape sequence and every arm, verdict, claim and failure; the other has colours."""
    run = example.data()
    judged = example.judgement(run)
    plain = verdict_table(run.experiment, judged, passes=run.passes)
    assert "\x1b" not in plain
    assert "6 of 6" in plain
    assert "direct / direct_control: not ranked" in plain
    assert "duplicate-gone is supported" in plain
    assert "no_dequant failed in pass 4 (signal)" in plain
    assert "logs/ in the run's folder" in plain
    assert "\x1b[" in verdict_table(run.experiment, judged, terminal=True, width=100)
