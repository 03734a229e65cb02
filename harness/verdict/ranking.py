"""The ranking as a partial order: groups of arms that are not told apart, in an order that no pair contradicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.verdict.types import PairVerdict, Ranked


def tie_groups(arms: Sequence[str], verdicts: Iterable[PairVerdict]) -> tuple[tuple[str, ...], ...]:
    """Largest groups in which no pair is ranked, better groups first. `arms`: those with a value.

    Overlap is not transitive, so an arm may stand in several groups. Group A comes before group B if some arm of A is
    ranked over one of B. Should pairs point both ways between two groups, no order of them is supported: they merge.
    """
    better = {
        (v.outcome.better, v.b if v.outcome.better == v.a else v.a) for v in verdicts if isinstance(v.outcome, Ranked)
    }
    if not better:
        return (tuple(arms),) if arms else ()
    tied = {
        arm: {other for other in arms if other != arm and not {(arm, other), (other, arm)} & better} for arm in arms
    }
    groups = _merge_contradicted(_maximal(set(), set(arms), set(), tied), better)
    rank = {arm: index for index, arm in enumerate(arms)}
    ordered = _in_order(sorted(groups, key=lambda group: sorted(rank[arm] for arm in group)), better)
    return tuple(tuple(sorted(group, key=rank.__getitem__)) for group in ordered)


def _maximal(group: set[str], rest: set[str], done: set[str], tied: dict[str, set[str]]) -> list[frozenset[str]]:
    """All maximal sets of mutually tied arms (Bron and Kerbosch, with Tomita's pivot: without it, 24 arms of which one
    stands out take half a minute).
    """
    if not rest and not done:
        return [frozenset(group)]
    found = []
    pivot = max(sorted(rest | done), key=lambda arm: len(rest & tied[arm]))
    for arm in sorted(rest - tied[pivot]):
        found += _maximal(group | {arm}, rest & tied[arm], done & tied[arm], tied)
        rest, done = rest - {arm}, done | {arm}
    return found


def _beats(one: frozenset[str], other: frozenset[str], better: set[tuple[str, str]]) -> bool:
    return any((x, y) in better for x in one for y in other)


def _merge_contradicted(groups: list[frozenset[str]], better: set[tuple[str, str]]) -> list[frozenset[str]]:
    for i, one in enumerate(groups):
        for other in groups[i + 1 :]:
            if _beats(one, other, better) and _beats(other, one, better):
                left = [group for group in groups if group not in {one, other}]
                return _merge_contradicted([*left, one | other], better)
    return groups


def _in_order(groups: list[frozenset[str]], better: set[tuple[str, str]]) -> list[frozenset[str]]:
    """Groups beaten by none that is left come first; a cycle merges what is left of it."""
    ordered: list[frozenset[str]] = []
    while groups:
        first = [g for g in groups if not any(_beats(other, g, better) for other in groups if other is not g)]
        if not first:
            return [*ordered, frozenset().union(*groups)]
        ordered.append(first[0])
        groups = [group for group in groups if group is not first[0]]
    return ordered
