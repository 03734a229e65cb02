"""What tests of trials share: a request around one command, a stop flag, and a search for survivors."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.experiment.types import Arm, Limits
from harness.plan import PlannedTrial
from harness.run import owners, process_tree
from harness.run.environment import neutral, protocol
from harness.run.trial import run_trial
from harness.run.trial_types import Now, TrialRequest, TrialResult

#: Where this checkout's package stands, for arms that import it.
ROOT = Path(__file__).parent.parent


class Flag:
    """A stop flag without signals."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.requested = False
        self.urgent = False
        self.name = ""

    def request(self, name: str) -> None:
        """Ask to stop; twice is urgent."""
        self.urgent = self.requested
        self.requested, self.name = True, name
        os.write(self._write, b"!")

    def fileno(self) -> int:
        """For select."""
        return self._read

    def __del__(self) -> None:
        os.close(self._read)
        os.close(self._write)


def request(folder: Path, argv: list[str], **changes: Any) -> TrialRequest:
    """A trial of `argv` whose files all lie in `folder`; graces are short so that tests are."""
    token = owners.new_token()
    arm_env = {"PYTHONPATH": str(ROOT), **changes.pop("env", {})}
    environment = neutral(
        folder=folder / "private",
        trial=protocol(token=token, events=folder / "events.jsonl", workload=folder / "workload.json"),
        arm=arm_env,
    )
    made = TrialRequest(
        run="20261201T000000Z-abcdef",
        trial=1,
        planned=PlannedTrial(ordinal=1, arm="a", pass_number=1, position=1),
        arm=Arm(name="a", engine="command", command=tuple(argv)),
        argv=tuple(argv),
        environment=environment,
        cwd=folder,
        log=folder / "a.log",
        events=folder / "events.jsonl",
        workload_file=folder / "workload.json",
        samples=folder / "samples.gz",
        log_name="logs/a.log",
        token=token,
        owner_dir=folder / "owners",
        limits=Limits(trial=30.0, stall=20.0, exit=3.0),
        orphan_grace_s=0.5,
        kill_grace_s=0.5,
    )
    return replace(made, **changes)


def nothing(_now: Now) -> None:
    """Watch nothing."""


def run(folder: Path, argv: list[str], *, stop: Flag | None = None, **changes: Any) -> TrialResult:
    """Run one trial and prove that nothing of it is left."""
    asked = request(folder, argv, **changes)
    before = children()
    result = run_trial(asked, stop=stop or Flag(), watch=nothing)
    assert survivors(asked.token) == []
    assert children() <= before
    assert not list((folder / "owners").glob("*"))
    return result


def survivors(token: str) -> list[str]:
    """Running processes that carry the token."""
    running = [stat for stat in process_tree.table().values() if not stat.ended]
    return [f"{stat.pid} {stat.name}" for stat in running if process_tree.token_of(stat.pid) == token]


def children() -> set[int]:
    """Children of this process, unreaped ones included."""
    return {stat.pid for stat in process_tree.table().values() if stat.parent == os.getpid()}


def shell(text: str) -> list[str]:
    """An argument list that runs `text` in a shell."""
    return ["sh", "-c", text]


def python(text: str) -> list[str]:
    """An argument list that runs `text` as a program."""
    return [sys.executable, "-c", text]


def gone(pid: int, within_s: float = 5.0) -> bool:
    """Whether the process ends within the time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        stat = process_tree.read_stat(pid)
        if stat is None or stat.ended:
            return True
        time.sleep(0.02)
    return False
