"""The parts of a trial that send requests, whatever the engine: warm-up, prefill, decode, context growth.

Beside the drivers, imported by path with the arms' interpreter; standard library only. That every engine runs through
the same functions is what makes their prompts, their order and their token counts equal.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from harness.drivers.protocol import EventStream, from_environment, workload
else:
    from protocol import from_environment, workload

#: Output tokens of the decode warm-up: enough that every lazily made buffer of the decode path exists.
WARM_UP_TOKENS = 4


class WrongOutputError(RuntimeError):
    """The engine computed something else than was asked for."""


#: Shortest idle pause of `settle` and `trim`, seconds, where the workload file names none: the settling rule wants a
#: quiet window of 3 s, and allocators of three processes take 2 to 4 s to come to rest after the last request.
DEFAULT_PAUSE_S = 8.0


@dataclass
class Trial:
    """One trial's input, the stream to report to, and how far it got. `stage`: import, config, load or run."""

    events: EventStream
    spec: Mapping[str, Any]
    stage: str = "import"
    prompts: list[list[int]] = field(default_factory=list)
    counts: list[list[int]] = field(default_factory=list)
    scoring: dict[str, Any] = field(default_factory=dict)  # how text was scored: a fact of the work, empty if none was

    @property
    def needs(self) -> frozenset[str]:
        """Parts of a trial that the metrics asked for need."""
        return frozenset(self.spec.get("needs", ()))

    def part(self, name: str) -> Mapping[str, Any] | None:
        """The workload's section of that name; None if it has none."""
        found: Mapping[str, Any] | None = (self.spec.get("workload") or {}).get(name)
        return found

    def repeats(self, part: Mapping[str, Any]) -> int:
        """Iterations to run. A priming trial fills caches and is not counted: one will do."""
        return 1 if self.spec.get("priming") else int(part.get("repeats", 3))


def model_config(folder: str) -> dict[str, Any]:
    """`config.json` of the model, {} if it has none (vLLM will say so in its own words)."""
    try:
        found: dict[str, Any] = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def vocabulary(config: Mapping[str, Any]) -> int:
    """Number of token ids of the model."""
    return int(config.get("vocab_size") or config.get("text_config", {})["vocab_size"])


class Times(Protocol):
    """When an engine did what, by its own clock: seconds, comparable with each other only."""

    @property
    def queued_ts(self) -> float:
        """The engine took the request up."""

    @property
    def first_token_ts(self) -> float:
        """It had the first token."""

    @property
    def last_token_ts(self) -> float:
        """It had the last token."""


class Requests(Protocol):
    """What an engine's driver provides: sends one request at a time, greedy, of fixed lengths, as token ids."""

    def send(self, phase: str, index: int, tokens_in: int, tokens_out: int) -> tuple[float, Times | None]:
        """Run one request. Return the caller's seconds for all of it, and the engine's own times of it.

        Raise `WrongOutputError` if the engine took or made another number of tokens.
        """


def warm_up(trial: Trial, requests: Requests) -> None:
    """One request of each kind that will be measured; reported, never counted."""
    with trial.events.phase("warm-up"):
        for name, tokens_out in (("prefill", 1), ("decode", WARM_UP_TOKENS)):
            part = trial.part(name)
            if part is not None and name in trial.needs:
                tokens_in = int(part["prompt_tokens"])
                seconds, _ = requests.send(f"warm-up {name}", 0, tokens_in, tokens_out)
                trial.events.iteration("warm-up", tokens_in=tokens_in, tokens_out=tokens_out, seconds=seconds, of=name)


def probe(trial: Trial, requests: Requests) -> None:
    """One short request: a load that survives this under a memory limit can serve."""
    with trial.events.phase("warm-up"):
        tokens_in = 8
        seconds, _ = requests.send("probe", 0, tokens_in, WARM_UP_TOKENS)
        trial.events.iteration("warm-up", tokens_in=tokens_in, tokens_out=WARM_UP_TOKENS, seconds=seconds, of="probe")


def prefill(trial: Trial, requests: Requests) -> None:
    """Time to the first token, as the caller sees it, of requests of exactly n tokens with one output token."""
    part = trial.part("prefill")
    if part is None or "prefill" not in trial.needs:
        return
    tokens_in = int(part["prompt_tokens"])
    with trial.events.phase("prefill"):
        for index in range(trial.repeats(part)):
            seconds, times = requests.send("prefill", index, tokens_in, 1)
            inside = times.first_token_ts - times.queued_ts if times is not None else None
            trial.events.iteration("prefill", tokens_in=tokens_in, tokens_out=1, seconds=seconds, engine_seconds=inside)


def decode(trial: Trial, requests: Requests) -> None:
    """Time from the first to the last token, by the engine core's own clock at each of the two."""
    part = trial.part("decode")
    if part is None or "decode" not in trial.needs:
        return
    tokens_in, tokens_out = int(part["prompt_tokens"]), int(part["new_tokens"])
    with trial.events.phase("decode"):
        for index in range(trial.repeats(part)):
            whole, times = requests.send("decode", index, tokens_in, tokens_out)
            if times is None:
                raise WrongOutputError("the engine reports no token times, though disable_log_stats is False")
            seconds = times.last_token_ts - times.first_token_ts
            if not 0 < seconds < whole:  # cross-check of the engine's clock by the caller's
                raise WrongOutputError(f"decode {index}: {seconds} s from first to last token within {whole} s in all")
            trial.events.iteration(
                "decode", tokens_in=tokens_in, tokens_out=tokens_out, seconds=seconds, whole_seconds=whole
            )


def context(trial: Trial, requests: Requests) -> None:
    """Fill the context to n tokens once: memory that grows with it shows in this phase."""
    part = trial.part("context")
    if part is None:
        return
    tokens_in = int(part["tokens"]) - 1
    with trial.events.phase("context"):
        seconds, _ = requests.send("context", 0, tokens_in, 1)
        trial.events.iteration("context", tokens_in=tokens_in, tokens_out=1, seconds=seconds)


def pause(trial: Trial, name: str, prepare: Callable[[], None]) -> None:
    """An idle phase for the memory meter, if a metric needs it: `prepare`, then sleep."""
    if name in trial.needs and not trial.spec.get("priming"):
        with trial.events.phase(name):
            prepare()
            time.sleep(float(trial.spec.get(f"{name}_s", DEFAULT_PAUSE_S)))


def main(run: Callable[[Trial], None]) -> int:
    """Run the trial of this process's environment; the exit code is 0 only if `done` was reported. What `run` raises
    becomes an `error` event before it ends the process.
    """
    trial = Trial(events=from_environment(), spec=workload())
    try:
        run(trial)
    except Exception as error:
        trial.events.error(trial.stage, error)
        sys.stdout.flush()
        raise
    return 0
