"""Reading facts from /proc and /sys below a root that tests can replace; what cannot be read leaves its reason."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: What the usual errors of /proc and /sys mean, in words that a reader of host.json can act on.
_REASONS = {
    errno.ENOENT: "{path} does not exist on this kernel",
    errno.ENOTDIR: "{path} does not exist on this kernel",
    errno.EACCES: "{path} may not be read without privilege",
    errno.EPERM: "{path} may not be read without privilege",
    errno.EOPNOTSUPP: "{path} is switched off in this kernel",
    errno.ESRCH: "{path}: the process is gone",
}


def reason_of(error: OSError, path: str) -> str:
    """One clause that says why `path` (as on a real host, without the test's root) gave nothing."""
    known = _REASONS.get(error.errno or 0)
    return known.format(path=path) if known else f"{path}: {error.strerror or type(error).__name__}"


@dataclass
class Facts:
    """Reads files below `root` and keeps in `missing`, by the fact's name, why it is unknown. A fact is never both."""

    root: Path = Path("/")
    missing: dict[str, str] = field(default_factory=dict)

    def at(self, path: str) -> Path:
        """The real place of a path that is written as on a real host."""
        return self.root / path.lstrip("/")

    def text(self, name: str, path: str) -> str | None:
        """The file's stripped text, or None with its reason under `name`. An empty file is None too."""
        try:
            found = self.at(path).read_text(encoding="utf-8", errors="replace").strip("\0 \n\t")
        except OSError as error:
            return self.known(name, None, reason_of(error, path))
        return self.known(name, found or None, f"{path} is empty")

    def number(self, name: str, path: str, factor: int = 1) -> int | None:
        """The file's integer times `factor`, or None with its reason under `name`."""
        found = self.text(name, path)
        if found is None:
            return None
        try:
            return int(found, 0) * factor
        except ValueError:
            return self.known(name, None, f"{path} holds {found[:40]!r}, no number")

    def peek(self, path: str) -> str | None:
        """The file's stripped text if there is any; its absence is no fact worth recording."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace").strip("\0 \n\t") or None
        except OSError:
            return None

    def folders(self, path: str, prefix: str) -> list[Path]:
        """Folders in `path` named `prefix` and a number (`cpu0`, `node1`, `index2`), in the order of that number."""
        try:
            entries = list(self.at(path).iterdir())
        except OSError:
            return []
        numbered = [entry for entry in entries if entry.name.startswith(prefix) and entry.name[len(prefix) :].isdigit()]
        return sorted(numbered, key=lambda entry: int(entry.name[len(prefix) :]))

    def unknown(self, name: str, reason: str) -> None:
        """Record why `name` is unknown; the first reason stands."""
        self.missing.setdefault(name, reason)

    def known(self, name: str, value: T | None, reason: str) -> T | None:
        """`value`, and `reason` on record if it is None."""
        if value is None:
            self.unknown(name, reason)
        return value


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """`"0-3,8"` -> (0, 1, 2, 3, 8), the kernel's list format. Raise `ValueError` for anything else."""
    cpus: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: set[int] | tuple[int, ...] | list[int]) -> str:
    """(0, 1, 2, 8) -> `"0-2,8"`: the kernel's own way, and what taskset and vLLM's thread binding read."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
