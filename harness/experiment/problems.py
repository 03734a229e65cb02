"""What is wrong with an experiment file, and where. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

#: Where a value stands in the file: keys and list indices from the top.
Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_\-]+\Z")


@dataclass(frozen=True, order=True)
class Mark:
    """A place in a file; `line` and `column` count from 1."""

    line: int
    column: int


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong. `path`: where in the file's structure; `message`: what is wrong and what was meant."""

    filename: str
    line: int
    column: int
    path: str
    message: str

    @property
    def text(self) -> str:
        """`file:line:column: path: what is wrong, what was meant`."""
        return f"{self.filename}:{self.line}:{self.column}: {self.path}: {self.message}"


class ExperimentError(ValueError):
    """A file that is no experiment. `problems`: all of them at once, in the order of the file, at least one."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(problem.text for problem in self.problems))


def path_text(path: Path) -> str:
    """`("arms", "a b", "env", "X") -> 'arms."a b".env.X'`, `("claims", 0) -> "claims[0]"`, `() -> "file"`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = part if _BARE.match(part) else json.dumps(part, ensure_ascii=False)
            text += f".{shown}" if text else shown
    return text or "file"


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean ...?` for the nearest known name, else the list of what is known."""
    options = list(known)
    folded = {option.casefold().replace("-", "_"): option for option in options}
    found = get_close_matches(name.casefold().replace("-", "_"), folded, n=1, cutoff=0.6)
    if found:
        return f"did you mean `{folded[found[0]]}`?"
    return f"known here: {', '.join(options)}" if options else "nothing is known here"
