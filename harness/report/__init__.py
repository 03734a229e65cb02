"""From verdicts to Markdown, figures and JSON; same input, same bytes."""

from harness.report.data import Curve, RunData, no_samples
from harness.report.samples import curves
from harness.report.summary import summary
from harness.report.terminal import verdict_table
from harness.report.write import write_report

__all__ = ["Curve", "RunData", "curves", "no_samples", "summary", "verdict_table", "write_report"]
