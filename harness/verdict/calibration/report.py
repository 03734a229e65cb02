"""The calibration report: what was promised, in which cells it held, what it costs. Same rows, same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.verdict.calibration import pictures
from harness.verdict.calibration.scenarios import SCENARIOS
from harness.verdict.calibration.shares import bound, broken, keeping, mean_power, pooled
from harness.verdict.calibration.study import EFFECT, Row

OURS = ("strict", "paired")


def write_report(folder: Path, rows: Sequence[Row], *, seed: int) -> Path:
    """Write verdict_calibration.md and its pictures into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = pictures.draw_all(folder, rows, holds=keeping(rows), bound=bound)
    path = folder / "verdict_calibration.md"
    parts = (_head(rows, seed), _rules(rows), _single(rows), _ours(rows), _power(rows), _choice(), _limits())
    text = "\n".join(parts)
    for name, caption in drawn:
        text = text.replace(f"[[{name}]]", f"![{caption}]({name})\n\n*{caption}*")
    path.write_text(text)
    return path


def _head(rows: Sequence[Row], seed: int) -> str:
    null = [row for row in rows if row.effect == 0 and row.rule == "strict"]
    effect = [row for row in rows if row.effect == EFFECT and row.rule == "strict"]
    limit = bound(null[0])
    scenarios = "\n".join(f"- `{s.name}`: {s.text}" for s in SCENARIOS.values())
    return f"""# Do the verdicts keep their promise?

**Promise**: at most 5 % false rankings per experiment and metric (not per pair), under `strict` and under `paired`,
whatever the noise looks like. A false ranking is any pair of equal arms that is ranked, or any pair ranked the wrong
way round.

**Method**: synthetic trial records go through the same function that every report uses. {len(null)} cells without
effect ({null[0].experiments} experiments each) and {len(effect)} with one arm {EFFECT * 100:.0f} % slower
({effect[0].experiments} each): 2 to 8 arms by 3 to 10 passes by {len(SCENARIOS)} scenarios. Seed {seed}; the same seed
gives the same figures whatever the number of processes. A cell breaks the promise above {limit * 100:.1f} %: 5 % plus
four standard errors, because {len(null)} cells are looked at together. One cell is a coarse look, so the shares pooled
over all cells of a scenario stand below too.

{scenarios}
"""


def _rules(rows: Sequence[Row]) -> str:
    lines = [
        "## All rules on the same data",
        "",
        "| rule | what it asks for | worst cell | where | cells over the bound | mean power |",
        "|---|---|---:|---|---:|---:|",
    ]
    for rule in dict.fromkeys(row.rule for row in rows):
        worst = max((row for row in rows if row.rule == rule and row.effect == 0), key=lambda row: row.false_rankings)
        where = f"{worst.scenario}, {worst.arms} arms, {worst.passes} passes"
        lines.append(
            f"| `{rule}` | {_WHAT.get(rule, '')} | {_share(worst.false_rankings)} | {where} |"
            f" {len(broken(rows, rule))} | {mean_power(rows, rule):.2f} |"
        )
    keep = [rule for rule in keeping(rows) if rule not in OURS]
    lines += [
        "",
        f"Power is the share of true {EFFECT * 100:.0f} % differences ranked the right way, over all cells. Power",
        "of a rule that breaks the promise is no merit: it ranks equal arms as gladly.",
        "",
        f"Other tools' rules that keep to 5 % in every cell: {_compared(rows, keep, None)}",
        "",
        "Within one scenario more of them keep to 5 % (over all its arms and passes):",
        "",
        "| scenario | `paired` | other tools' rules that keep to 5 % there |",
        "|---|---:|---|",
    ]
    for name in SCENARIOS:
        inside = [row for row in rows if row.scenario == name]
        keep = [rule for rule in keeping(inside) if rule not in OURS]
        lines.append(f"| `{name}` | {mean_power(rows, 'paired', scenario=name):.2f} | {_compared(rows, keep, name)} |")
    lines += ["", "[[verdict_calibration_rules.png]]", ""]
    return "\n".join(lines)


def _single(rows: Sequence[Row]) -> str:
    """Where another rule happens to keep to 5 %: what it sees there, and what `paired` does."""
    lines = [
        "### In single cells",
        "",
        "No one knows beforehand in which cell a host will put an experiment, so only a rule that holds in all of them",
        "can be relied on. Still, in the cells where another rule happens to keep to 5 %, it may see more: an unpaired",
        "test of two arms has twice the degrees of freedom where there is no drift to remove, and `paired` ranks",
        "nothing on fewer than 4.",
        "",
        "| rule | cells where it keeps to 5 % | its mean power there | `paired` there | cells where it sees more |",
        "|---|---:|---:|---:|---:|",
    ]
    powers = {(r.rule, r.arms, r.passes, r.scenario): r.power for r in rows if r.effect == EFFECT}
    for rule in dict.fromkeys(row.rule for row in rows if row.rule not in OURS):
        over = {(r.arms, r.passes, r.scenario) for r in broken(rows, rule)}
        kept = [(m, k, name) for found, m, k, name in powers if found == rule and (m, k, name) not in over]
        pairs = [(powers[rule, m, k, name], powers["paired", m, k, name]) for m, k, name in kept]
        if not pairs:
            lines.append(f"| `{rule}` | 0 | | | |")
            continue
        theirs, ours = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        lines.append(f"| `{rule}` | {len(kept)} | {theirs:.2f} | {ours:.2f} | {sum(a > b for a, b in pairs)} |")
    return "\n".join([*lines, ""])


#: What each rule asks for before it calls two arms different.
_WHAT = {
    "strict": "all gates of a report",
    "paired": "the same, but spreads may overlap",
    "hyperfine_order": "nothing: arms in the order of their means",
    "hyperfine_sigma": "mean +- one standard deviation apart",
    "pyperf_t": "unpaired t test, 95 %",
    "asv": "medians apart by a tenth, and Mann-Whitney at 0.002",
    "criterion": "bootstrapped t test, and a change beyond 1 %",
    "min_max": "spreads disjoint",
    "welch_t": "unpaired t test, unequal variances",
    "mann_whitney": "exact rank test, 95 %",
}


def _share(value: float) -> str:
    return f"{value * 100:.1f} %"


def _compared(rows: Sequence[Row], rules: Sequence[str], scenario: str | None) -> str:
    """Each rule with its power, and whether `paired` has more."""
    if not rules:
        return "none."
    ours = mean_power(rows, "paired", scenario=scenario)
    powers = {rule: mean_power(rows, rule, scenario=scenario) for rule in rules}
    said = ", ".join(f"`{rule}` ({power:.2f})" for rule, power in powers.items())
    ahead = [rule for rule, power in powers.items() if power >= ours]
    return f"{said}: " + (f"**not behind `paired`: {', '.join(ahead)}**." if ahead else "all behind `paired`.")


def _ours(rows: Sequence[Row]) -> str:
    lines = ["## `strict` and `paired`, cell by cell", ""]
    for rule in OURS:
        over = broken(rows, rule)
        lines.append(
            f"- `{rule}`: no cell over the bound."
            if not over
            else f"- `{rule}`: **{len(over)} cells over the bound**: "
            + "; ".join(f"{r.scenario}, {r.arms} arms, {r.passes} passes: {_share(r.false_rankings)}" for r in over)
        )
    lines += [
        "",
        "Pooled over all arms and passes of a scenario:",
        "",
        "| scenario | `strict` | `paired` |",
        "|---|---:|---:|",
    ]
    for name in SCENARIOS:
        strict, paired = (_share(pooled(rows, rule, name)) for rule in OURS)
        lines.append(f"| `{name}` | {strict} | {paired} |")
    return "\n".join([*lines, "", "[[verdict_calibration_cells.png]]", ""])


def _power(rows: Sequence[Row]) -> str:
    lines = [
        "## Power, and what `strict` costs",
        "",
        "| scenario | `paired` | `strict` | cost of `strict` |",
        "|---|---:|---:|---:|",
    ]
    for name in SCENARIOS:
        paired, strict = (mean_power(rows, rule, scenario=name) for rule in ("paired", "strict"))
        lines.append(f"| `{name}` | {paired:.2f} | {strict:.2f} | {paired - strict:.2f} |")
    lines += [
        "",
        "`strict` asks that spreads be disjoint. Spreads only grow with passes, so its power falls as passes are",
        "added; and drift of the host, which the passes remove as blocks, stays in the spreads.",
        "",
        "[[verdict_calibration_power.png]]",
        "",
        "[[verdict_calibration_effect.png]]",
        "",
    ]
    return "\n".join(lines)


def _choice() -> str:
    return """## How the interval was chosen

The criterion was fixed first: at most 5 % false rankings in every cell with standard deviations from 0.3 to 3 (eleven
patterns: geometric, linear and random steps, one, two, three or half of the arms noisy, one arm quiet), then the most
power for eight equal arms, 5 passes, a difference of three standard deviations. Candidates, 8,000 to 20,000
experiments a cell:

| rule | worst false rankings, 3 to 8 arms | power |
|---|---:|---:|
| pooled studentized range | 22 % | .92 |
| per-pair t, Bonferroni | 5 % | .22 |
| studentized range on each pair's own variance, k-1 df | 27 % | .49 |
| pair variances shrunk toward the pooled one, 2 prior df | 9 % | .66 |
| pair variances shrunk toward the pooled one, 4 prior df | 12 % | .76 |
| the wider of pooled and the pair's own t at 1 % | 5 % | .59 |
| **the wider of pooled and own variances (Welch-Satterthwaite) at min(1/40, 0.3/(m k^2/3))** | **5.2 %** | **.82** |

The last estimates each arm's variance from its row of residuals, which gives a pair of equally noisy arms about twice
the degrees of freedom of their difference. It never switches, so it cannot switch by chance, and it can only be wider
than the pooled interval. The report of a run says for each pair which of the two counted.
"""


def _limits() -> str:
    return """## What no rule can promise

- An arm that lives in two modes while its rivals do not falls wholly into one mode with probability 2^(1-k): 25 % at 3
  passes, 6 % at 5. Its mean is then known precisely, and is not its mean. The verdict warns when it sees two modes; at
  3 passes it cannot see them. So too an arm that reads far more in one trial of ten: without such a trial among its
  passes, its typical value is all that anybody can see.
- Trials of one arm that hang together over passes (a file laid out badly once, a cache that stays) look like a property
  of the arm, to any rule. Private caches and a fresh process for each trial are there to prevent it; an A/A control in
  the run shows it.
- Experiments whose (arms - 1)(passes - 1) is under 4 are refused whatever they show; their power is 0 by design.
- A position effect of 2 % a place is removed from nothing: it stays in the residual, and the rule pays with power.
  Places are balanced over passes, estimated and reported, so that it is seen.
"""
