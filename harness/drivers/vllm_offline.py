"""vLLM's offline engine as an arm: load, prefill, decode, context growth, settle, trim, shutdown.

Run by path with the arms' interpreter; standard library and vLLM only. Reads the trial's workload file, writes the
event protocol (docs/protocol.md). Whatever goes wrong becomes an `error` event and exit code 1.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.drivers import prompts
    from harness.drivers.protocol import EventStream, from_environment, workload
else:
    import prompts
    from protocol import EventStream, from_environment, workload

#: Shortest idle pause of `settle` and `trim`, seconds, where the workload file names none: the settling rule wants a
#: quiet window of 3 s, and allocators of three processes take 2 to 4 s to come to rest after the last request.
DEFAULT_PAUSE_S = 8.0
#: Output tokens of the decode warm-up: enough that every lazily made buffer of the decode path exists.
WARM_UP_TOKENS = 4


class WrongOutputError(RuntimeError):
    """The engine computed something else than was asked for."""


@dataclass
class Trial:
    """One trial's input, the stream to report to, and how far it got. `stage`: import, config, load or run."""

    events: EventStream
    spec: Mapping[str, Any]
    stage: str = "import"
    prompts: list[list[int]] = field(default_factory=list)
    counts: list[list[int]] = field(default_factory=list)

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


def engine_arguments(trial: Trial) -> dict[str, Any]:
    """Keyword arguments of `LLM`: the arm's own, plus what every arm gets. Raise `ValueError` for what cannot be."""
    arm = trial.spec["arm"]
    arguments = dict(arm.get("args") or {})
    for name in ("model", "worker_cls"):
        if name in arguments:
            raise ValueError(f"args.{name} is set by the harness: remove it from the arm's args")
    folder = trial.spec.get("model_dir") or arm.get("model")
    if not folder:
        raise ValueError("the arm names no model: add `model:` with a recipe or a directory")
    if quantization := arm.get("quantization"):
        overrides = dict(arguments.get("hf_overrides") or {})
        # vLLM replaces the whole dictionary, so the checkpoint's own fields are merged in first.
        own = model_config(folder).get("quantization_config") or {}
        overrides["quantization_config"] = {**own, **overrides.get("quantization_config", {}), **quantization}
        arguments["hf_overrides"] = overrides
    arguments.setdefault("enable_prefix_caching", False)
    arguments.setdefault("seed", 0)
    # First and last token times of a request exist only with statistics on.
    return {**arguments, "model": str(folder), "disable_log_stats": False, "worker_cls": "vllm_hooks.Worker"}


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


@contextmanager
def config_watched(trial: Trial) -> Iterator[None]:
    """Let the stage become `load` once vLLM has accepted the configuration: before that, no engine process exists."""
    from vllm.engine.arg_utils import EngineArgs

    create = EngineArgs.create_engine_config

    def watched(*arguments: Any, **named: Any) -> Any:
        made = create(*arguments, **named)
        trial.stage = "load"
        return made

    EngineArgs.create_engine_config = watched
    try:
        yield
    finally:
        EngineArgs.create_engine_config = create


class Requests:
    """Sends one request at a time: greedy, of fixed lengths, as token ids."""

    def __init__(self, trial: Trial, llm: Any) -> None:
        self._trial = trial
        self._llm = llm
        self._vocabulary = vocabulary(model_config(trial.spec.get("model_dir") or trial.spec["arm"]["model"]))
        self._seed = int((trial.spec.get("workload") or {}).get("seed", 0))

    def send(self, phase: str, index: int, tokens_in: int, tokens_out: int) -> tuple[float, Any]:
        """Run one request. Return the seconds from sending it to having all of it, and vLLM's own times of it.

        Raise `WrongOutputError` if the engine took or made another number of tokens.
        """
        from vllm import SamplingParams

        ids = prompts.prompt(self._seed, phase, index, tokens_in, self._vocabulary)
        sampling = SamplingParams(
            temperature=0.0, max_tokens=tokens_out, min_tokens=tokens_out, ignore_eos=True, detokenize=False
        )
        begin = time.monotonic()
        (output,) = self._llm.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
        seconds = time.monotonic() - begin
        took, made = len(output.prompt_token_ids), len(output.outputs[0].token_ids)
        if (took, made) != (tokens_in, tokens_out):
            raise WrongOutputError(
                f"{phase} {index}: asked for {tokens_in} tokens in and {tokens_out} out, took {took} and made {made}"
            )
        if cached := getattr(output, "num_cached_tokens", 0):
            raise WrongOutputError(
                f"{phase} {index}: {cached} prompt tokens came from a cache, so nothing computed them"
            )
        self._trial.prompts.append(ids)
        self._trial.counts.append([tokens_in, tokens_out])
        return seconds, output.metrics


def warm_up(trial: Trial, requests: Requests) -> None:
    """One request of each kind that will be measured; reported, never counted."""
    with trial.events.phase("warm-up"):
        for name, tokens_out in (("prefill", 1), ("decode", WARM_UP_TOKENS)):
            part = trial.part(name)
            if part is not None and name in trial.needs:
                tokens_in = int(part["prompt_tokens"])
                seconds, _ = requests.send(f"warm-up {name}", 0, tokens_in, tokens_out)
                trial.events.iteration("warm-up", tokens_in=tokens_in, tokens_out=tokens_out, seconds=seconds, of=name)


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


def trim_all(trial: Trial, llm: Any) -> None:
    """Ask every process of the engine for its arenas back, and say who answered."""
    if TYPE_CHECKING:
        from harness.drivers.vllm_hooks import trim
    else:
        from vllm_hooks import trim  # here, since it imports vllm

    answered: dict[str, Any] = {"driver": trim(), "workers": llm.collective_rpc("harness_trim")}
    client = llm.llm_engine.engine_core
    try:
        answered["engine_core"] = client.call_utility("harness_trim")
    except Exception as error:  # VLLM_PLUGINS without harness_vllm_hooks keeps the hook out of that process
        answered["engine_core_skipped"] = f"{type(error).__name__}: {error}"[:300]
    trial.events.emit("trim", **answered)


def report_engine(trial: Trial, llm: Any) -> None:
    """Say what ran inside the engine, and which facts must be equal between arms for their speed to be compared."""
    import torch
    import transformers
    import vllm

    reports = llm.collective_rpc("harness_report")
    first = reports[0]
    own = first["own"] or {}
    modules = {**first["modules"], **own.get("modules", {})}
    trial.events.engagement(own.get("name", first["method"]), modules, own.get("calls", {}))
    for backend, layers in first["attention"].items():
        trial.events.engagement(f"attention:{backend}", {"attention_layers": layers}, {})
    cpus = sorted({int(cpu) for report in reports for cpus in report["affinity"] for cpu in cpus.split(",")})
    trial.events.emit(
        "work",
        prompts=prompts.digest(trial.prompts),
        tokens=trial.counts,
        threads=sum(report["threads"] for report in reports),
        cpus=cpus,
        kv_bytes=sum(report["kv_bytes"] for report in reports),
    )
    trial.events.emit(
        "engine",
        engine="vllm",
        versions={
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        workers=[
            {key: report[key] for key in ("pid", "affinity", "dtype", "isa", "allocators", "eager")}
            for report in reports
        ],
    )


def run(trial: Trial) -> None:
    """The whole trial, phase by phase."""
    events = trial.events
    with events.phase("import"):
        import vllm
    trial.stage = "config"
    with events.phase("load"), config_watched(trial):
        llm = vllm.LLM(**engine_arguments(trial))
    trial.stage = "run"
    requests = Requests(trial, llm)
    warm_up(trial, requests)
    prefill(trial, requests)
    decode(trial, requests)
    context(trial, requests)
    report_engine(trial, llm)
    pause(trial, "settle", lambda: None)
    pause(trial, "trim", lambda: trim_all(trial, llm))
    with events.phase("shutdown"):
        llm.llm_engine.engine_core.shutdown()
    events.done()


def main() -> int:
    """Run the trial of this process's environment; the exit code is 0 only if `done` was reported."""
    trial = Trial(events=from_environment(), spec=workload())
    try:
        run(trial)
    except Exception as error:
        trial.events.error(trial.stage, error)
        sys.stdout.flush()
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
