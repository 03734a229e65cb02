"""vLLM's offline engine as an arm: load, prefill, decode, context growth, quality, settle, trim, shutdown.

Run by path with the arms' interpreter; standard library and vLLM only. Reads the trial's workload file, writes the
event protocol (docs/protocol.md). Whatever goes wrong becomes an `error` event and exit code 1.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.drivers import checkpoint, parts, prompts, vllm_parts, vllm_quality
    from harness.drivers.parts import Trial, model_config
else:
    import checkpoint
    import parts
    import prompts
    import vllm_parts
    import vllm_quality
    from parts import Trial, model_config


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
    arguments = vllm_quality.pin(trial, arguments)
    return {**arguments, "model": str(folder), "disable_log_stats": False, "worker_cls": "vllm_hooks.Worker"}


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
        **({"scoring": trial.scoring} if trial.scoring else {}),
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


def report_checkpoint(trial: Trial) -> None:
    """What the model takes on disk. One that cannot be counted says why in the stream, and has no number."""
    folder = trial.spec.get("model_dir") or trial.spec["arm"]["model"]
    match checkpoint.size(Path(folder), model_config(folder)):
        case checkpoint.Size() as found:
            trial.events.emit("metric", name="checkpoint_bytes", value=found.file_bytes)
            trial.events.emit("metric", name="bits_per_weight", value=found.bits_per_weight)
        case checkpoint.UnknownSize() as unknown:
            trial.events.emit("checkpoint_unknown", why=unknown.why)


def shorten_socket_paths() -> None:
    """Let vLLM name its sockets relative to the temporary folder where that folder's own path is too long.

    A socket's path may have 107 bytes (sockaddr_un), and vLLM appends 37 to the temporary folder; results in a deep
    folder would fail with "ipc path is longer than 107 characters". All its processes share this working directory.
    """
    folder = os.environ.get("VLLM_RPC_BASE_PATH") or tempfile.gettempdir()
    if len(os.fsencode(folder)) + 37 > 107:
        os.chdir(folder)
        os.environ["VLLM_RPC_BASE_PATH"] = "."


def run(trial: Trial) -> None:
    """The whole trial, phase by phase."""
    events = trial.events
    shorten_socket_paths()
    with events.phase("import"):
        import vllm
    trial.stage = "config"
    with events.phase("load"), config_watched(trial):
        llm = vllm.LLM(**engine_arguments(trial))
    trial.stage = "run"
    requests = vllm_parts.Requests(trial, llm)
    if trial.spec.get("probe"):
        parts.probe(trial, requests)
    else:
        measure(trial, llm, requests)
    with events.phase("shutdown"):
        llm.llm_engine.engine_core.shutdown()
    events.done()


def measure(trial: Trial, llm: Any, requests: vllm_parts.Requests) -> None:
    """Everything between load and shutdown."""
    parts.warm_up(trial, requests)
    parts.prefill(trial, requests)
    parts.decode(trial, requests)
    parts.context(trial, requests)
    vllm_quality.quality(trial, llm)
    report_engine(trial, llm)
    report_checkpoint(trial)
    parts.pause(trial, "settle", lambda: None)
    parts.pause(trial, "trim", lambda: trim_all(trial, llm))


def share_this_folder() -> None:
    """Let every process that vLLM starts find the modules beside this file. Engine processes are given this one's
    path; the process in which vLLM looks at a model's class, started anew as `python -m`, is not.
    """
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - text, as PYTHONPATH wants it
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))


if __name__ == "__main__":
    share_this_folder()
    sys.exit(parts.main(run))
