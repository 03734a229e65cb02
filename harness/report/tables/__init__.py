"""A run as tidy tables: what frames, CSV and JSON exports are made of. Pure."""

from harness.report.tables.column import Cell, Column, Source, Table, Type
from harness.report.tables.of_failures import FAILURES
from harness.report.tables.of_memory import LEVELS, MEMORY, SAMPLES
from harness.report.tables.of_trials import DISTURBANCE, ENGAGEMENT, ITERATIONS, PHASES, TRIALS, WORK
from harness.report.tables.of_values import METRICS, SERIES
from harness.report.tables.of_verdicts import CLAIMS, VERDICTS

__all__ = ["TABLES", "Cell", "Column", "Source", "Table", "Type"]

#: Every table, by name, in the order of the documentation.
TABLES = {
    table.name: table
    for table in (
        METRICS,
        TRIALS,
        FAILURES,
        VERDICTS,
        CLAIMS,
        MEMORY,
        LEVELS,
        SAMPLES,
        SERIES,
        PHASES,
        ITERATIONS,
        ENGAGEMENT,
        WORK,
        DISTURBANCE,
    )
}
