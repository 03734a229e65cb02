"""A run in pandas, CSV and JSON: tidy, described, whole, and the same in all three."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import report_example as example

import harness
from harness.cli import TABLE_NAMES, main
from harness.commands.answer import CommandError
from harness.records import to_line
from harness.report.export import csv_text, document, table_csv
from harness.report.frames import DTYPES, Frames, dictionary
from harness.report.samples import Look
from harness.report.tables import TABLES, Source
from harness.run.store import RunFolder, UnknownRunError

ROOT = Path(__file__).resolve().parent.parent
RUN = example.data()
LOOKS = (Look(1000.0, 1, 5, 0, 7, 0), Look(1000.02, 2, None, 0, 9, 0))


def source() -> Source:
    """The made-up run: five arms, six passes, pass 4 run twice, one arm meant to fail. Two looks at each trial."""
    return Source(RUN, example.judgement(RUN), lambda _record: LOOKS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The made-up run on disk."""
    assert RUN.plan is not None
    made = RunFolder.create(tmp_path, RUN.experiment, RUN.plan, host={}, versions={}, moment=datetime.now(UTC))
    lines = "".join(map(to_line, RUN.records))
    (made.path / "trials.jsonl").write_text(lines, encoding="utf-8")
    return made.path


def cells(table: str) -> Iterator[dict[str, Any]]:
    """Rows of a table as mappings."""
    return (dict(zip(TABLES[table].names, row, strict=True)) for row in TABLES[table].rows(source()))


def test_metrics_has_a_row_for_every_trial_and_metric() -> None:
    """Trials x metrics, whole: 35 trials (pass 4 twice) by 4 metrics, failed and replaced ones included."""
    frame = Frames(source()).metrics
    assert len(frame) == 35 * 4 == len(RUN.records) * len(RUN.experiment.metrics)
    assert not frame.duplicated(["trial", "metric"]).any()


def test_a_failed_trial_is_there_with_its_reason() -> None:
    """No value without a reason: the arm that died in pass 4 and the one meant to fail stand with NaN and why."""
    frame = Frames(source()).metrics
    gone = frame[frame["value"].isna()]
    assert set(gone["arm"]) == {"no_dequant", "rejected"}
    assert (gone["why"].notna()).all()
    assert frame.loc[frame["value"].notna(), "why"].isna().all()
    died = gone[gone["arm"] == "no_dequant"]
    assert set(died["pass"]) == {4}
    assert set(died["failure"]) == {"signal"}
    assert not died["expected"].any()
    assert gone.loc[gone["arm"] == "rejected", "expected"].all()


def test_usable_is_what_statistics_use() -> None:
    """The medians over usable rows are those of the verdicts; a replaced attempt is on record and not among them."""
    found = Frames(source())
    used = found.metrics[found.metrics["usable"]]
    median = used[used["metric"] == "load_s"].groupby("arm")["value"].median()
    said = {name: arm.metrics["load_s"].median for name, arm in example.judgement(RUN).arms.items() if arm.metrics}
    assert median.dropna().to_dict() == pytest.approx(said, rel=1e-15)
    replaced = found.trials[~found.trials["counted"]]
    assert set(replaced["pass"]) == {4}
    assert set(replaced["attempt"]) == {1}


def test_failures_tell_signal_evidence_and_what_became_of_the_pass() -> None:
    """The one unexpected failure: a signal, its evidence, and that its pass was run again."""
    (died,) = [row for row in cells("failures") if not row["expected"]]
    assert (died["arm"], died["reason"], died["signal"]) == ("no_dequant", "signal", "SIGSEGV")
    assert died["evidence"] == "VLLM::Worker died of SIGSEGV in decode"
    assert died["replaced"]
    assert sum(row["expected"] for row in cells("failures")) == 7  # six passes, one of them twice


def test_a_look_at_which_a_process_could_not_be_read_has_no_sum() -> None:
    """Missing is missing, never a sum that is too small, and never a row less."""
    frame = Frames(source()).samples
    assert len(frame) == 2 * len(RUN.records)
    assert frame["rss_anon"].isna().sum() == len(RUN.records)
    assert frame["since_start"].iloc[0] == 1000.0 - RUN.records[0].began


def test_verdicts_and_claims_are_those_of_the_report() -> None:
    """Every pair on every metric, and every claim with what was expected of it."""
    found = Frames(source())
    assert len(found.verdicts) == 10 * 4
    assert set(found.verdicts["verdict"]) <= {"ranked", "equivalent", "refused"}
    (claim,) = found.claims.to_dict("records")
    assert claim["expect"] == "difference <= -550 MiB"
    assert claim["verdict"] == "supported"


@pytest.mark.parametrize("name", list(TABLES))
def test_csv_comes_back_as_the_frame_it_was(name: str) -> None:
    """Every digit, every missing value and every type survives the way through CSV."""
    frame = getattr(Frames(source()), name)
    types = {column.name: DTYPES[column.type] for column in TABLES[name].columns}
    text = table_csv(name, source())
    back = pd.read_csv(io.StringIO(text), dtype=types, keep_default_na=False, na_values=[""])
    pd.testing.assert_frame_equal(back, frame)


@pytest.mark.parametrize("name", list(TABLES))
def test_json_comes_back_as_the_frame_it_was(name: str) -> None:
    """The same through JSON, which stays strict: no NaN."""
    frame = getattr(Frames(source()), name)
    objects = json.loads(json.dumps(document(source()), allow_nan=False))["tables"][name]
    types = {column.name: DTYPES[column.type] for column in TABLES[name].columns}
    back = pd.DataFrame(objects, columns=list(TABLES[name].names)).astype(types)
    pd.testing.assert_frame_equal(back, frame)


def test_text_of_any_kind_survives_csv() -> None:
    """Commas, quotes, line ends, and a name that readers take for a missing value."""
    row = ["a,b", 'say "no"', "two\nlines", "NA", None, 0.1 + 0.2, True]
    (back,) = list(csv.reader(io.StringIO(csv_text(list("abcdefg"), [row]))))[1:]
    assert back == ["a,b", 'say "no"', "two\nlines", "NA", "", "0.30000000000000004", "True"]


def test_every_column_says_what_it_holds() -> None:
    """In `columns`, in `help(frames)`, and in docs/exports.md, and nowhere differently."""
    page = (ROOT / "docs" / "exports.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    assert said == [(column, kind, unit, meaning) for _, column, kind, unit, meaning in dictionary()]
    assert re.findall(r"^### `(\w+)`: one row is (.*)$", page, re.MULTILINE) == [
        (t.name, t.what) for t in TABLES.values()
    ]
    told = Frames.__doc__ or ""
    assert all(
        meaning and f"{column} ({kind}" in told and meaning in told for _, column, kind, _, meaning in dictionary()
    )
    assert Frames(source()).columns["meaning"].notna().all()


def test_every_table_is_a_frame_and_an_argument() -> None:
    """What CSV holds, `Frames` has under the same name, and `--table` knows."""
    assert tuple(TABLES) == TABLE_NAMES
    assert all(isinstance(vars(Frames)[name].func.__doc__, str) for name in TABLES)


def test_load_reads_a_run_by_folder_and_by_id(folder: Path) -> None:
    """A folder as text or path, or an id under a results folder."""
    by_path, by_id = harness.load(folder), harness.load(folder.name, results=folder.parent.parent)
    assert by_path.run == by_id.run == folder.name
    pd.testing.assert_frame_equal(harness.load(str(folder)).metrics, by_id.metrics)
    assert len(by_path.metrics) == 140
    assert by_path.samples.empty  # no samples lie in this folder: no rows, and still every column
    assert list(by_path.samples.columns) == list(TABLES["samples"].names)


def test_load_says_what_is_wrong(folder: Path) -> None:
    """No such run, and a run that cannot be read: an error that names the remedy."""
    with pytest.raises(UnknownRunError, match="neither a folder nor an id"):
        harness.load("nosuch", results=folder.parent.parent)
    (folder / "plan.json").write_text("{}")
    with pytest.raises(CommandError, match="restore it"):
        harness.load(folder)


def test_an_edited_record_is_said_in_the_notes(folder: Path) -> None:
    """Frames of a run whose records were changed by hand say so."""
    record = replace(RUN.records[0], began=0.5)
    (folder / "trials.jsonl").write_text("".join(map(to_line, (record, *RUN.records[1:]))), encoding="utf-8")
    assert any("edited after it was written" in note for note in harness.load(folder).notes)


def test_import_harness_is_cheap() -> None:
    """`import harness` loads neither pandas nor anything else that is not Python's own."""
    code = "import sys, harness; sys.exit(any(m in sys.modules for m in ('pandas', 'numpy', 'cattrs', 'yaml')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_export_writes_one_file_a_table(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CSV files with their description beside them; the answer names them; nothing else is written."""
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["export", str(folder), "--format", "csv", "--out", "made"]) == 0
    assert {path.stem for path in (tmp_path / "made").iterdir()} == {*TABLES, "columns"}
    assert "made/metrics.csv" in capsys.readouterr().out.split()
    assert main(["export", str(folder), "--format", "json", "--out", "made"]) == 0
    value = json.loads((tmp_path / f"made/direct_dequant-{folder.name}.json").read_text(encoding="utf-8"))
    assert len(value["tables"]["metrics"]) == 140
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_export_without_out_goes_to_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole as JSON, or one table as CSV, alone on standard output."""
    assert main(["export", str(folder), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == 1
    assert main(["export", str(folder), "--format", "csv", "--table", "claims"]) == 0
    assert capsys.readouterr().out.startswith("id,metric,arm,versus,expect,")


def test_export_never_writes_into_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run's folder is append-only and the meter's alone."""
    assert main(["export", str(folder), "--format", "csv", "--out", str(folder / "csv")]) == 2
    assert "never changed" in capsys.readouterr().err
    assert not (folder / "csv").exists()
