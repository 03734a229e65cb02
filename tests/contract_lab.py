"""A stranger's bench: experiments written from the contract's text alone, run through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: What a stranger writes at the head of a program: append one JSON line to the file that HARNESS_EVENTS names.
SAY = """
import json, os, signal, sys, time
def raw(text):
    with open(os.environ["HARNESS_EVENTS"], "a") as file:
        file.write(text)
def say(**event):
    raw(json.dumps(event) + "\\n")
def score(value=1.0):
    say(event="metric", name="score", value=value)
def done():
    say(event="done")
"""

SCORE = {"name": "score", "unit": "s", "better": "lower", "resolution": 0.001}


def program(body: str) -> list[str]:
    """A command that runs a few lines of Python with `say`, `score`, `done` and `raw` at hand."""
    return [sys.executable, "-S", "-E", "-c", SAY + body]


def _heed_hangup() -> None:
    """These tests may run under nohup, and a SIGHUP that is ignored at the start stays ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@dataclass
class Lab:
    """One folder with experiments and results, and the command line beside it. `environment`: added to the caller's."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def results(self) -> Path:
        """Where runs go."""
        return self.folder / "results"

    def env(self) -> dict[str, str]:
        """A private cache and lock, so that labs do not wait for each other."""
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HARNESS_CACHE": str(self.folder / "cache"),
            "HARNESS_HOST_LOCK": str(self.folder / "lock"),
            **self.environment,
        }

    def write(self, name: str, arms: Mapping[str, Any], **keys: Any) -> Path:
        """An experiment file of `command` arms; an arm is a program's lines, or a mapping."""
        made = {arm: {"command": program(what)} if isinstance(what, str) else what for arm, what in arms.items()}
        whole = {"question": "q", "passes": 1, "engine": {"command": {}}, "arms": made, "metrics": [SCORE]} | keys
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(whole), encoding="utf-8")
        return file

    def start(self, *words: object, cwd: Path | None = None) -> subprocess.Popen[str]:
        """`harness WORDS` in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "harness", *map(str, words)],
            cwd=cwd or self.folder, env=self.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            encoding="utf-8", errors="replace", process_group=0,
            preexec_fn=_heed_hangup,  # noqa: PLW1509 - this process has one thread
        )  # fmt: skip

    def harness(self, *words: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """`harness WORDS` to its end."""
        process = self.start(*words)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess([str(word) for word in words], process.returncode, out, err)

    def run(self, file: Path, *words: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """`harness run FILE --results DIR`."""
        return self.harness("run", file, "--results", self.results, *words, timeout=timeout)

    def runs(self, name: str) -> list[Path]:
        """Folders of an experiment's runs, oldest first."""
        return sorted((self.results / name).iterdir(), key=lambda path: path.stat().st_mtime)

    def trials(self, run: Path) -> list[dict[str, Any]]:
        """Lines of trials.jsonl."""
        return [json.loads(line) for line in (run / "trials.jsonl").read_text(encoding="utf-8").splitlines()]

    def report(self, *runs: Path) -> tuple[int, Any]:
        """Exit code and document of `harness report RUN --json`; bare NaN and Infinity are refused."""
        answer = self.harness("report", *runs, "--json")
        return answer.returncode, json.loads(answer.stdout, parse_constant=_refused)


def _refused(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")
