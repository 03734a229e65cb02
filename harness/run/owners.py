"""Who owns which trial, on disk, so that what a killed harness left behind is found, named and ended at the next start.

`<state>/trials/<token>.json` exists while a trial runs: run, log, and the harness's pid with its start time and the
boot it belongs to. A process is a leftover only if its environment carries the token of such a file whose harness is
dead; anything else is left alone, whatever it is called.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.run import process_tree
from harness.run.environment import cache_dir
from harness.run.process_tree import Identity


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A process that a killed harness had started. `ended`: who ended it (`keeper`, at once; `harness`, at the next
    start), None if it could not be ended.
    """

    identity: Identity
    name: str
    run: str
    token: str
    ended: str | None

    @property
    def sentence(self) -> str:
        """What was found and what became of it, for people."""
        fate = {
            "keeper": "was ended when its harness was killed",
            "harness": "was still running and has been ended now",
        }.get(self.ended or "", f"is still running and could not be ended: end it with `kill -9 {self.identity.pid}`")
        return f"leftover of run {self.run}: process {self.identity.pid} ({self.name}) {fate}"


def state_dir() -> Path:
    """Where owner files stand."""
    return cache_dir() / "state" / "trials"


def new_token() -> str:
    """A trial's token: 128 random bits, so that it is nobody else's."""
    return secrets.token_hex(16)


def write_owner(token: str, *, run: str, log: str, folder: Path) -> Path:
    """Claim the token for this harness. The file is made exclusively: one token, one trial."""
    folder.mkdir(parents=True, exist_ok=True)
    stat = process_tree.read_stat(os.getpid())
    owner = {"token": token, "run": run, "log": log, "pid": os.getpid(), "boot": _boot()}
    owner["start_ticks"] = stat.start_ticks if stat is not None else 0
    path = folder / f"{token}.json"
    with path.open("x", encoding="utf-8") as file:
        json.dump(owner, file)
    return path


def end_leftovers(folder: Path) -> tuple[Leftover, ...]:
    """Find, name and end what dead harnesses left behind, and forget their owner files. Call at each start."""
    found: list[Leftover] = []
    for path in sorted(folder.glob("*.json")):
        owner = _read(path)
        if owner is None or _lives(owner):
            continue
        found += _of_keeper(owner)
        remaining = _end_tree(owner)
        found += remaining
        if all(leftover.ended for leftover in remaining):
            path.unlink(missing_ok=True)
    return tuple(found)


def _of_keeper(owner: dict[str, Any]) -> list[Leftover]:
    return [
        Leftover(identity=Identity(pid, ticks), name=name, run=owner["run"], token=owner["token"], ended="keeper")
        for pid, ticks, name in owner.get("ended", ())
    ]


def _end_tree(owner: dict[str, Any]) -> list[Leftover]:
    if owner["boot"] != _boot():
        return []
    tree = process_tree.Tree(owner["token"])
    names = {identity: stat.name for identity, stat in tree.look().items() if not stat.ended}
    if not names:
        return []
    ended = process_tree.end(tree, reap=_nothing)
    names.update(ended.signalled)
    return [
        Leftover(
            identity=identity,
            name=name,
            run=owner["run"],
            token=owner["token"],
            ended=None if identity in ended.survivors else "harness",
        )
        for identity, name in names.items()
    ]


def _nothing() -> None:
    """Leftovers of another harness are reaped by whoever adopted them."""


def _read(path: Path) -> dict[str, Any] | None:
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # being written by a harness that starts just now
    needed = {"token", "run", "pid", "start_ticks", "boot"}
    return owner if isinstance(owner, dict) and needed <= owner.keys() else None


def _lives(owner: dict[str, Any]) -> bool:
    stat = process_tree.read_stat(owner["pid"])
    same = stat is not None and stat.start_ticks == owner["start_ticks"] and not stat.ended
    return same and owner["boot"] == _boot()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
