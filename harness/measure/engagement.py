"""Did the code run that the arm declares? Expectations against evidence from inside the engine process. Pure.

A plugin that fails to load is skipped and the engine quietly does something else: without this, its arm would measure
the stock code under another name.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from harness.events import Engagement, finite
from harness.experiment.types import Expectation

_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def mismatches(expect: Expectation, engagements: Sequence[Engagement]) -> tuple[str, ...]:
    """A sentence for everything that was declared and not found; empty if the arm ran what it declares.

    Counts come from the last event of the declared name that has them (counters grow; a later report replaces an
    earlier one); without a declared name, from the last event of any name.
    """
    if expect.engaged is None and not expect.modules and not expect.calls:
        return ()
    own = [event for event in engagements if expect.engaged in {None, event.name}]
    if not own:
        names = ", ".join(sorted({event.name for event in engagements})) or "no engagement event at all"
        return (f"expected {expect.engaged or 'an engagement event'}, found {names}",)
    modules, calls = _latest(event.modules for event in own), _latest(event.calls for event in own)
    found = [*_compare("modules", expect.modules, modules), *_compare("calls", expect.calls, calls)]
    if not found:
        found = [*_idle(own[-1].name, "modules", modules, expect), *_idle(own[-1].name, "calls", calls, expect)]
    return tuple(found)


def _latest(maps: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for counts in maps:
        merged.update(counts)
    return merged


def _compare(what: str, expected: Mapping[str, int | str], found: Mapping[str, Any]) -> Iterator[str]:
    for name, bound in expected.items():
        count = finite(found.get(name))
        text = str(bound).strip()
        match = re.fullmatch(r"(==|>=|<=|>|<)\s*([0-9]+)", text)
        op, wanted = (match.group(1), match.group(2)) if match else ("==", text)
        if count is None or not _COMPARE[op](count, float(wanted)):
            shown = repr(found[name]) if name in found else f"none ({_listed(found)})"
            yield f"expected {what}.{name} {op} {wanted}, found {shown}"


def _idle(name: str, what: str, counts: Mapping[str, Any], expect: Expectation) -> Iterator[str]:
    """An event whose every counter is zero is no evidence that anything ran, unless zero was declared."""
    if counts and all(finite(count) == 0 for count in counts.values()) and not getattr(expect, what):
        yield f"expected {name}, found it with {what} all zero ({_listed(counts)})"


def _listed(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in counts.items()) or "it reported none"
