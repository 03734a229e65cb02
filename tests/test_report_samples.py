"""Memory curves come back from the samples files; what cannot be read is a missing curve, never a wrong one."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, replace
from pathlib import Path

import report_example as example

from harness.meterlog import SAMPLES_FORMAT, MeterHost
from harness.records import MemoryRecord, TrialRecord
from harness.report import curves, summary, write_report
from harness.verdict import judge

HEAD = json.dumps(
    {**asdict(MeterHost(backend="none", kernel=(6, 18), events=True, behind_launcher=True)), "format": SAMPLES_FORMAT}
)
#: A launcher that execs at 2 s, a worker that forked and never execs, and a child that execs at 4 s; KiB.
LINES = f"""H {HEAD}
P 0,1000000000,10,1,1,-1,0,root,-1,launcher
T 1000000000
V 0,9000,9000,100,0,0
X 0,2000000000,engine
T 2000000000
V 0,5000,4000,100,0,0
P 1,3000000000,11,2,10,0,1,child,3000000000,worker
P 2,3000000000,12,2,10,0,1,child,3000000000,child
T 3000000000
V 1,4000,1000,0,0,0
V 2,4000,4000,0,0,0
X 2,4000000000,tool
T 4000000000
V 2,500,500,0,0,0
T 5000000000
G 2,gone
"""


def record(path: str | None) -> TrialRecord:
    """A trial whose samples lie there."""
    found = next(record for record in example.records() if record.memory is not None)
    return replace(found, memory=MemoryRecord(backend="none", samples_path=path))


def test_a_curve_counts_what_the_arm_held(tmp_path: Path) -> None:
    """The launcher counts from its exec, a child on the way to an exec from then, a worker always, the gone no more."""
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "0001-a.samples.gz").write_bytes(gzip.compress(LINES.encode()))
    found = curves(tmp_path)(record("samples/0001-a.samples.gz"))
    assert list(found) == [(1.0, 0), (2.0, 4000 * 1024), (3.0, 5000 * 1024), (4.0, 5500 * 1024), (5.0, 5000 * 1024)]


def test_a_lost_or_torn_samples_file_is_a_missing_curve(tmp_path: Path) -> None:
    """No file, a cut file, a file that is no gzip, and a path that leads out of the run: an empty curve each."""
    (tmp_path / "samples").mkdir()
    whole = gzip.compress(LINES.encode())
    (tmp_path / "samples" / "torn.gz").write_bytes(whole[:-9])
    (tmp_path / "samples" / "none.gz").write_bytes(b"no gzip")
    (tmp_path / "secret.gz").write_bytes(whole)
    load = curves(tmp_path)
    for path in (None, "samples/absent.gz", "samples/torn.gz", "samples/none.gz", "samples/../secret.gz", "secret.gz"):
        assert list(load(record(path))) == [], path


def test_the_verdict_engine_and_the_report_fit(tmp_path: Path) -> None:
    """What `judge` says of a run can be written and follows the published schema."""
    import jsonschema

    run = example.data()
    judged = judge(run.experiment, run.records, run.host)
    schema = json.loads((Path(__file__).resolve().parent.parent / "docs" / "report.schema.json").read_text())
    value = json.loads(json.dumps(summary("direct_dequant", run.run, judged, asked=run.experiment), allow_nan=False))
    jsonschema.Draft202012Validator(schema).validate(value)
    text = write_report(run, judged, tmp_path).read_text()
    assert "effect of one place later in the pass" in text
    assert "How the intervals were made" in text
