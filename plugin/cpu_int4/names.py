"""Names of modules: which entry of a list means which module. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

#: An entry that begins so is a regular expression, matched from the start of a module's name.
PATTERN = "re:"


def matches(entry: str, module: str) -> bool:
    """Whether a list's entry means this module.

    An entry is a run of whole parts of a dotted name, so that `k_proj`, `layers.1` and `lm_head` mean what they say and
    `layers.1` does not mean `layers.10`; or `re:` and a regular expression.
    """
    if entry.startswith(PATTERN):
        return re.match(entry.removeprefix(PATTERN), module) is not None
    return f".{entry}." in f".{module}."


def entry_for(entries: Iterable[str], module: str) -> str | None:
    """The first entry that means this module, or None."""
    return next((entry for entry in entries if matches(entry, module)), None)


def parts_of(module: str, packed: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """A fused module's parts by name: `a.qkv_proj` is `a.q_proj`, `a.k_proj`, `a.v_proj`. Others are their own part.

    `packed` is the model class's `packed_modules_mapping`.
    """
    parent, _, last = module.rpartition(".")
    dot = "." if parent else ""
    return tuple(f"{parent}{dot}{part}" for part in packed.get(last, (last,)))


def listing(names: Iterable[str], limit: int = 12) -> str:
    """Names in a sentence: the first `limit`, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return ", ".join(found[:limit]) + more
