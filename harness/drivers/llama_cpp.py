"""llama.cpp as an arm: llama-server is started, asked over a socket, and ended.

Run by path with the arms' interpreter; standard library only. Reads the trial's workload file, writes the event
protocol (docs/protocol.md). Whatever goes wrong becomes an `error` event and exit code 1.

Why the server, of llama.cpp's programs: it takes prompts as token ids, so that they are the ones every other engine
gets; it samples, as an engine that serves must; and its own clock stops at the first and at the last token of a
request, which is what the metrics ask for. llama-bench times a decode without sampling, from an empty context.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.drivers import llama_log, parts, prompts, scored
    from harness.drivers.llama_server import EngineError, Server
    from harness.drivers.parts import Trial, WrongOutputError
else:
    import llama_log
    import parts
    import prompts
    import scored
    from llama_server import EngineError, Server
    from parts import Trial, WrongOutputError

#: What every arm gets, so that a request computes what it says and nothing else: one request at a time, nothing kept
#: from the last one, no context moved or shortened, no layer elsewhere, nothing fetched.
FIXED = (
    *("--parallel", "1", "--no-cache-prompt", "--cache-ram", "0", "--ctx-checkpoints", "0", "--no-context-shift"),
    *("--n-gpu-layers", "0", "--fit", "off", "--offline", "--metrics", "--log-verbosity", "4", "--log-colors", "off"),
)
#: Arguments that are the driver's own business.
_RESERVED = frozenset({"model", "host", "port", "parallel", "cpu_mask", "cpu_range", "cpu_strict", "n_gpu_layers"})
#: Why there is no phase `trim`.
_NO_TRIM = "llama-server offers no way to have malloc_trim called in it"


class ConfigError(ValueError):
    """The arm asks for what cannot be: the failure is `config_rejected`."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """What a server is started with. `cpus`: those its threads are bound to, one each; `threads`: how many compute."""

    program: Path
    model: Path
    cpus: tuple[int, ...]
    threads: int
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Times:
    """A request by the server's own clock, seconds since it took it up."""

    queued_ts: float
    first_token_ts: float
    last_token_ts: float


def started(spec: Mapping[str, Any]) -> Started:
    """The server's command line from the arm. Raise `ConfigError` for what cannot be."""
    arguments = dict(spec["arm"].get("args") or {})
    for name in sorted(_RESERVED & arguments.keys()):
        raise ConfigError(
            f"args.{name} is set by the driver: remove it from the arm's args (CPUs are stated as `cpus`)"
        )
    for name, example in (("cpus", '"0-1"'), ("ctx_size", "2048")):
        if name not in arguments:
            raise ConfigError(f"args.{name} is missing: state it, {name}: {example}, so that it can be compared")
    cpus = cpu_list(str(arguments.pop("cpus")))
    threads = int(arguments.pop("threads", len(cpus)))
    if threads > len(cpus):
        raise ConfigError(
            f"args.threads is {threads} on {len(cpus)} CPUs {cpus}: each thread is bound to one of its own"
        )
    if missing := set(cpus) - os.sched_getaffinity(0):
        raise ConfigError(f"args.cpus names {sorted(missing)}, where nothing of this trial may run")
    options = {"load_mode": "none", **arguments}
    mask = sum(1 << cpu for cpu in cpus)
    bound = ("--threads", str(threads), "--cpu-mask", f"{mask:x}", "--cpu-strict", "1")
    folder, model = Path(spec.get("engine_dir") or ""), model_file(spec)
    program = folder / "bin" / "llama-server"
    given = tuple(text for name, value in options.items() for text in option(name, value))
    return Started(
        program=program,
        model=model,
        cpus=cpus,
        threads=threads,
        arguments=("--model", str(model), *FIXED, *bound, *given),
    )


def option(name: str, value: Any) -> tuple[str, ...]:
    """One option of the command line from `name: value`; true and false switch it on and off."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return (f"--{dashed}" if value else f"--no-{dashed}",)
    return (f"--{dashed}", str(value))


def cpu_list(text: str) -> tuple[int, ...]:
    """CPU numbers of `0-1,4`, in order. Raise `ConfigError` for anything else."""
    try:
        ends = [piece.split("-") for piece in text.split(",")]
        found = sorted({cpu for pair in ends for cpu in range(int(pair[0]), int(pair[-1]) + 1)})
    except ValueError:
        found = []
    if not found or found[0] < 0:
        raise ConfigError(f"args.cpus is {text!r}: CPU numbers are wanted, such as 0-1 or 0,2,4")
    return tuple(found)


def model_file(spec: Mapping[str, Any]) -> Path:
    """The GGUF file of the model's directory; of a model in parts, the first one. Raise `ConfigError` without just
    one.
    """
    folder = spec.get("model_dir")
    if not folder:
        raise ConfigError("the arm names no model: add `model:` with a recipe or a directory")
    found = sorted(Path(folder).glob("*.gguf"))
    if len(found) != 1 and not (found and found[0].stem.endswith(f"-00001-of-{len(found):05}")):
        raise ConfigError(
            f"{folder} holds {len(found)} GGUF files; one model is wanted, whole or in its numbered parts"
        )
    return found[0]


class Requests:
    """Sends one request at a time: greedy, of fixed lengths, as token ids."""

    def __init__(self, trial: Trial, server: Server) -> None:
        self._trial = trial
        self._server = server
        self._seed = int((trial.spec.get("workload") or {}).get("seed", 0))
        self._vocabulary = int(server.ask("/v1/models")["data"][0]["meta"]["n_vocab"])

    def send(self, phase: str, index: int, tokens_in: int, tokens_out: int) -> tuple[float, Times]:
        """Run one request. Return the seconds from sending it to having all of it, and the server's own times of it.

        Raise `WrongOutputError` if the server took or made another number of tokens.
        """
        ids = prompts.prompt(self._seed, phase, index, tokens_in, self._vocabulary)
        asked = request(ids, tokens_out)
        begin = time.monotonic()
        answer = self._server.ask("/completion", asked)
        seconds = time.monotonic() - begin
        times = checked(f"{phase} {index}", answer, tokens_in, tokens_out)
        self._trial.prompts.append(ids)
        self._trial.counts.append([tokens_in, tokens_out])
        return seconds, times


def request(ids: Sequence[int], tokens_out: int) -> dict[str, Any]:
    """A greedy request of exactly `tokens_out` tokens: the sampler looks for the largest logit and does nothing
    else.
    """
    return {
        "prompt": list(ids),
        "n_predict": tokens_out,
        "samplers": ["top_k"],
        "top_k": 1,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": False,
    }


def checked(what: str, answer: Mapping[str, Any], tokens_in: int, tokens_out: int) -> Times:
    """The times of an answer. Raise `WrongOutputError` if other work was done than was asked for."""
    timings = answer["timings"]
    took, computed, cached = answer["tokens_evaluated"], timings["prompt_n"], timings["cache_n"]
    made = len(answer["tokens"])
    if cached:
        raise WrongOutputError(f"{what}: {cached} prompt tokens came from a cache, so nothing computed them")
    if (took, computed, made, timings["predicted_n"]) != (tokens_in, tokens_in, tokens_out, tokens_out):
        raise WrongOutputError(
            f"{what}: asked for {tokens_in} tokens in and {tokens_out} out, took {took}, computed {computed} of them"
            f" and made {made}"
        )
    if answer["truncated"]:
        raise WrongOutputError(f"{what}: the server shortened the context: args.ctx_size is too small")
    first = timings["prompt_ms"] / 1e3
    return Times(0.0, first, first + timings["predicted_ms"] / 1e3)


def quality(trial: Trial, server: Server) -> None:
    """Negative log-likelihood of a fixed text in nats, window by window; a window's first token has nothing before it.

    The server scores what it generates, so it is made to generate the text: a grammar of token ids leaves no other
    choice, and the log-probabilities that it reports are those of the model, before sampling. One token at a time is
    computed.
    """
    part = scored.asked(trial)
    if part is None or trial.spec.get("priming"):
        return
    size, count = int(part["window_tokens"]), int(part["windows"])
    ids = server.ask("/tokenize", {"content": scored.text_of(part), "add_special": False})["tokens"]
    with trial.events.phase("quality"):
        for index, window in enumerate(scored.cut(ids, size, count, part["text"])):
            answer = server.ask("/completion", forced(window))
            trial.events.emit("quality", window=index, tokens=size - 1, nll=window_nll(window, answer))
            trial.prompts.append(window)
            trial.counts.append([size, 1])
    trial.scoring.update(
        chunks_a_window=size - 1,
        prefix_caching=False,
        special_tokens=False,
        text=part["sha256"],
        windows=count,
        window_tokens=size,
    )


def forced(window: Sequence[int]) -> dict[str, Any]:
    """A request that makes the server generate the window after its first token, and say how likely each token was."""
    grammar = "root ::= " + " ".join(f"<[{token}]>" for token in window[1:])
    return {**request(window[:1], len(window) - 1), "grammar": grammar, "n_probs": 1, "ignore_eos": False}


def window_nll(window: Sequence[int], answer: Mapping[str, Any]) -> float:
    """Sum of the negative log-likelihoods of all tokens of a window but its first. Raise `WrongOutputError` if the
    server scored other tokens. A NaN stays one: it is the reader's business to refuse it.
    """
    told = answer.get("completion_probabilities") or []
    if (found := [one["id"] for one in told]) != list(window[1:]):
        where = next(
            (i for i, pair in enumerate(zip(found, window[1:], strict=False)) if pair[0] != pair[1]), len(found)
        )
        raise WrongOutputError(f"{len(found)} of {len(window) - 1} tokens were scored, the first wrong one at {where}")
    return -math.fsum(math.nan if one["logprob"] is None else float(one["logprob"]) for one in told)


def report_engine(trial: Trial, server: Server, start: Started) -> None:
    """Say what ran inside the engine, and which facts must be equal between arms for their speed to be compared."""
    said = llama_log.read(server.lines)
    trial.events.engagement("llama_cpp", said.modules(), {"llama_decode": decode_calls(server)})
    affinity = llama_log.affinity(server.pid)
    trial.events.emit(
        "work",
        prompts=prompts.digest(trial.prompts),
        tokens=trial.counts,
        threads=said.threads,
        cpus=sorted({cpu for cpus in affinity for cpu in cpu_list(cpus)}),
        kv_bytes=said.kv_bytes,
        **({"scoring": trial.scoring} if trial.scoring else {}),
    )
    trial.events.emit(
        "engine",
        engine="llama_cpp",
        versions={"llama.cpp": said.version, "python": platform.python_version()},
        workers=[{"pid": server.pid, "affinity": affinity, "isa": said.features, "buffers": said.buffers}],
        build=build_facts(start.program),
    )
    meta = server.ask("/v1/models")["data"][0]["meta"]
    trial.events.emit("metric", name="bits_per_weight", value=8 * meta["size"] / meta["n_params"])
    size = sum(path.stat().st_size for path in start.model.parent.glob("*.gguf"))
    trial.events.emit("metric", name="checkpoint_bytes", value=size)


def decode_calls(server: Server) -> int:
    """How often the model was evaluated, by the server's own counter."""
    return llama_log.counter(server.text("/metrics"), "llamacpp:n_decode_total")


def build_facts(program: Path) -> Any:
    """What the recipe knows of the build; None for a build of somebody's own."""
    try:
        return json.loads((program.parent.parent / "build.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def load(trial: Trial, start: Started) -> Server:
    """Start the server; it is ready when this returns. A server that ended by itself before it got to the model refused
    its arguments; whatever else ends it is a failure to load.
    """
    trial.stage = "load"
    server = Server(start.program, start.arguments, start.cpus)
    try:
        server.wait_until_ready()
    except EngineError as error:
        if not server.refused(llama_log.took_arguments(server.lines)):
            raise
        trial.stage = "config"
        raise ConfigError(str(error)) from None  # the first cause is what a reader of the log looks for
    trial.stage = "run"
    return server


def require(program: Path) -> None:
    """Raise `EngineError` if the programs are not there, or were built for a CPU that can do more than this one."""
    if not program.is_file():
        raise EngineError(f"{program} does not exist: `harness model llama-cpp` builds it")
    if unfit := llama_log.missing_flags(build_facts(program)):
        raise EngineError(
            f"{program} was built for a CPU with {', '.join(unfit)}, which this one lacks: remove"
            f" {program.parent.parent} and run again"
        )


def run(trial: Trial) -> None:
    """The whole trial, phase by phase."""
    events = trial.events
    trial.stage = "config"
    start = started(trial.spec)
    trial.stage = "import"
    with events.phase("import"):
        require(start.program)
    with events.phase("load"):
        server = load(trial, start)
    try:
        requests = Requests(trial, server)
        if trial.spec.get("probe"):
            parts.probe(trial, requests)
        else:
            measure(trial, server, requests, start)
        with events.phase("shutdown"):
            server.end()
    finally:
        server.stop()
    events.done()


def measure(trial: Trial, server: Server, requests: Requests, start: Started) -> None:
    """Everything between load and shutdown."""
    parts.warm_up(trial, requests)
    parts.prefill(trial, requests)
    parts.decode(trial, requests)
    parts.context(trial, requests)
    quality(trial, server)
    report_engine(trial, server, start)
    parts.pause(trial, "settle", lambda: None)
    if "trim" in trial.needs:
        trial.events.emit("trim", supported=False, why=_NO_TRIM)


if __name__ == "__main__":
    sys.exit(parts.main(run))
