"""The study's records, and its page: what is promised, in which cells it held, what it costs. Same rows, same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import sqrt
from pathlib import Path

from harness.verdict.agreement_study.study import MARGINS, SHAPES, SHIFTS, Case, Row
from harness.verdict.calibration.scenarios import SCENARIOS

PROMISE = 0.05
#: Cells are looked at together, so one may lie four standard errors above a true 5 % before it breaks the promise.
Z = 4.0


def write_records(path: Path, rows: Sequence[Row], cases: Sequence[Case], *, seed: int) -> None:
    """Write agreement.json: a cell a line, nothing rounded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = ",\n".join(json.dumps(asdict(row), allow_nan=False) for row in rows)
    told = ",\n".join(json.dumps(asdict(case), allow_nan=False) for case in cases)
    path.write_text(f'{{"seed": {seed}, "cells": [\n{cells}\n], "cases": [\n{told}\n]}}\n')


def read_records(path: Path) -> tuple[list[Row], list[Case], int]:
    """Rows, cases and seed of an agreement.json. Raise `ValueError` if it is none."""
    try:
        found = json.loads(path.read_text())
        rows = [Row(**row) for row in found["cells"]]
        return rows, [Case(**case) for case in found["cases"]], int(found["seed"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no record of an agreement study: {type(error).__name__}: {error}") from error


def bound(pairs: int) -> float:
    """Largest share that a true 5 % may show in one of many cells."""
    return PROMISE + Z * sqrt(PROMISE * (1 - PROMISE) / pairs)


def write_report(folder: Path, rows: Sequence[Row], cases: Sequence[Case], *, seed: int) -> Path:
    """Write agreement_calibration.md into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "agreement_calibration.md"
    path.write_text("\n".join((_head(rows, seed), _errors(rows), _power(rows), _cases(cases), _rule())))
    return path


def _head(rows: Sequence[Row], seed: int) -> str:
    shapes = ", ".join(f"{arms} x {passes}" for arms, passes in SHAPES)
    scenarios = "\n".join(f"- `{s.name}`: {s.text}" for s in SCENARIOS.values())
    cells = len(rows) // len(MARGINS)
    return f"""# Does agreement of two runs keep its promise?

**Promise**: of pairs of runs whose true ratios are the same, or differ by no more than the margin, fewer than 5 % are
`contradicted` (any pair of arms of a metric: it decides an exit code); and where the true ratio differs by the margin
or more, fewer than 5 % of pairs of arms are `confirmed`.

**Method**: synthetic trial records go through the same `judge` and `agree` that the commands use. {cells} cells of
{rows[0].pairs} pairs of runs: arms x passes of {shapes}, shifts of {_percents(SHIFTS)} in one arm from the first run
to the second, {len(SCENARIOS)} scenarios; each pair of runs is judged under margins of {_percents(MARGINS)}. The hosts
of a pair differ in speed by a common factor (30 % standard deviation). Seed {seed}; the same seed gives the same
figures whatever the number of processes. One cell is a coarse look ({100 * bound(rows[0].pairs):.1f} % is what a true
5 % may show in the worst of many), so the shares pooled over the cells of a scenario stand beside the worst.

{scenarios}
"""


def _percents(values: Sequence[float]) -> str:
    return ", ".join(f"{100 * value:g}" for value in values) + " %"


def _errors(rows: Sequence[Row]) -> str:
    lines = [
        "## False verdicts",
        "",
        (
            "| scenario | false contradicted, no shift | shift inside or at the margin | worst cell |"
            " false confirmed, shift at the margin | shift beyond it | worst cell |"
        ),
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in (*SCENARIOS, None):
        of = [row for row in rows if name in {None, row.scenario}]
        near = [row for row in of if 0 < row.shift <= row.margin]
        cells = (
            _share([row for row in of if row.shift == 0], lambda row: row.contradicted),
            _share(near, lambda row: row.contradicted),
            f"{100 * max(row.contradicted for row in of if row.shift <= row.margin):.1f} %",
            _share([row for row in of if row.shift == row.margin], lambda row: row.confirmed),
            _share([row for row in of if row.shift > row.margin], lambda row: row.confirmed),
            f"{100 * max(row.confirmed for row in of if row.shift >= row.margin):.1f} %",
        )
        lines.append(f"| {f'`{name}`' if name else '**all**'} | {' | '.join(cells)} |")
    over = [row for row in rows if row.contradicted > bound(row.pairs) or row.confirmed > bound(row.pairs)]
    plain = [row for row in rows if max(row.contradicted, row.confirmed) > PROMISE]
    kept = f"{len(over) or 'No'} cells are over that bound, {len(plain) or 'none'} of {len(rows)} over 5 % as counted."
    return "\n".join([*lines, "", kept, ""])


def _share(rows: Sequence[Row], of: Callable[[Row], float]) -> str:
    return f"{100 * sum(map(of, rows)) / len(rows):.2f} %" if rows else ""


def _power(rows: Sequence[Row]) -> str:
    """What the caution costs: how often the right word is said."""
    head = " | ".join(f"same, margin {100 * m:g} %" for m in MARGINS)
    shifted = [(shift, margin) for shift in SHIFTS for margin in MARGINS if shift > margin]
    tail = " | ".join(f"shift {100 * s:g} %, margin {100 * m:g} %" for s, m in shifted)
    lines = [
        "## How often the right word is said",
        "",
        "Confirmed where nothing shifted, contradicted where more than the margin did; the rest is left open.",
        "At 1 % noise and five passes a ratio is known to about 1 %: a margin of 1 % can hardly ever be confirmed.",
        "",
        f"| scenario | {head} | {tail} |",
        "|---|" + "---:|" * (len(MARGINS) + len(shifted)),
    ]
    for name in SCENARIOS:
        of = [row for row in rows if row.scenario == name]
        same = [_right([row.right_same for row in of if row.shift == 0 and row.margin == m]) for m in MARGINS]
        moved = [_right([row.right_shifted for row in of if (row.shift, row.margin) == (s, m)]) for s, m in shifted]
        lines.append(f"| `{name}` | {' | '.join((*same, *moved))} |")
    return "\n".join([*lines, ""])


def _right(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"{100 * sum(known) / len(known):.0f} %" if known else ""


def _cases(cases: Sequence[Case]) -> str:
    lines = [
        "## Truths that are no matter of noise",
        "",
        "Random pairs of runs with shifts of 0, 1, 3 and 10 % in turn: the word must not depend on the figures.",
        "",
        "| case | what is done | right word | pairs of runs | said |",
        "|---|---|---|---:|---:|",
    ]
    lines += [f"| {c.name} | {c.text} | `{c.word}` | {c.pairs} | {100 * c.right:.1f} % |" for c in cases]
    return "\n".join([*lines, ""])


_REJECTED = (
    ("overlap of the two runs' intervals", "no test of agreement: two wide intervals always overlap"),
    (
        "same verdict in both runs, and inside the prediction interval",
        "lets a true shift of 1 % through 86 % of the time at 1 % noise and 5 passes",
    ),
    (
        "two one-sided tests at 5 % (a 90 % interval) for `confirmed`",
        "a shift as large as the margin is confirmed in exactly 5 %: not under 5 %",
    ),
    (
        "an estimate beyond the margin for `contradicted`",
        "a true shift as large as the margin is contradicted in half of the pairs of runs",
    ),
    (
        "95 % for each pair of arms for `contradicted`",
        "five arms have ten pairs: under noise far above the margin chance contradicts one in up to 29 % of runs",
    ),
)


def _rule() -> str:
    rejected = "\n".join(f"| {what} | {why} |" for what, why in _REJECTED)
    return f"""## The rule, and what was rejected

One difference, d2 - d1, of two log ratios with its 95 % interval (Welch-Satterthwaite). `confirmed`: the interval lies
inside the margin. `contradicted`: it lies beyond the margin, taken at a level that holds for all pairs of arms of the
metric at once (Bonferroni).

| rejected | why |
|---|---|
{rejected}

Synthetic noise is no proof for a host: what a host does beyond these scenarios (a neighbour that comes and goes between
the runs) is a real difference of the runs, and is said as one.
"""
