"""What the driver asks of vLLM's own processes: which code runs there, and their memory arenas back.

Loaded inside the engine's processes only: the worker class by its name (`worker_cls`), `register` through the entry
point in the `.dist-info` folder beside this file, which vLLM's plugin loader finds because the driver's folder is on
the path of every process that it starts. Neither changes what the engine computes: methods are added, and the two that
are overridden call the original between two time stamps.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.config import CompilationMode
from vllm.v1.worker.cpu_worker import CPUWorker

if TYPE_CHECKING:
    from harness.drivers.protocol import from_environment
else:
    from protocol import from_environment


def trim() -> dict[str, int]:
    """Ask the C library for this process's arenas back. `returned`: 1 if it gave something back to the system."""
    gc.collect()
    return {"pid": os.getpid(), "returned": int(ctypes.CDLL(None).malloc_trim(0))}


def register() -> None:
    """Give the engine core process its own `harness_trim`, reached by the client's `call_utility`. Safe to repeat."""
    core = sys.modules.get("vllm.v1.engine.core")
    if core is not None and not hasattr(core.EngineCore, "harness_trim"):
        core.EngineCore.harness_trim = lambda _self: trim()


class Worker(CPUWorker):  # type: ignore[misc]  # vLLM publishes no types here
    """The stock CPU worker, with time stamps around compilation and two methods to ask it questions."""

    def determine_available_memory(self) -> int:
        """Stock; on CPU this is where the model is compiled, by a first run of it."""
        if self.compilation_config.mode == CompilationMode.NONE:
            return int(super().determine_available_memory())
        with from_environment().phase("compile"):
            return int(super().determine_available_memory())

    def harness_trim(self) -> dict[str, int]:
        """Arenas of the worker process."""
        return trim()

    def harness_report(self) -> dict[str, Any]:
        """Evidence of what this process runs: quantization methods by module, threads, affinity, KV bytes."""
        import torch

        model = self.model_runner.get_model()
        modules = _modules(model)
        return {
            "pid": os.getpid(),
            "method": _method(self.vllm_config, modules),
            "modules": modules,
            "attention": _attention(self.vllm_config),
            "own": _own_engagement(self.vllm_config, model),
            "threads": torch.get_num_threads(),
            "affinity": _affinity(),
            "kv_bytes": sum(cache.nbytes for cache in _tensors(self.model_runner.kv_caches)),
            "dtype": str(self.model_config.dtype).removeprefix("torch."),
            "isa": torch.backends.cpu.get_cpu_capability(),
            "allocators": _allocators(),
            "eager": self.compilation_config.mode == CompilationMode.NONE,
        }


def _method(config: Any, modules: dict[str, int]) -> str:
    """The quantization method that serves at least one weight: a method that was asked for and left every module to
    the stock code is "unquantized" (vLLM says nothing when `awq` finds no packed weights in a checkpoint).
    """
    methods = [name for name in modules if ":" not in name]
    used = any(not name.startswith("Unquantized") and "KVCache" not in name for name in methods)
    return str(config.quant_config.get_name()) if config.quant_config is not None and used else "unquantized"


def _modules(model: Any) -> dict[str, int]:
    """How many modules each quantization method serves: by method, and by `module class:method`."""
    counts: collections.Counter[str] = collections.Counter()
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            scheme = getattr(module, "scheme", None)  # compressed-tensors keeps the real choice one level down
            name = type(method).__name__ + (f"/{type(scheme).__name__}" if scheme is not None else "")
            counts[name] += 1
            counts[f"{type(module).__name__}:{name}"] += 1
    return dict(sorted(counts.items()))


def _attention(config: Any) -> dict[str, int]:
    """How many attention layers each back end serves."""
    layers = config.compilation_config.static_forward_context.values()
    backends = [layer.get_attn_backend().get_name() for layer in layers if hasattr(layer, "get_attn_backend")]
    return dict(collections.Counter(backends))


def _own_engagement(config: Any, model: Any) -> dict[str, Any] | None:
    """What a quantization configuration says of itself by an `engagement(model)` method, if it has one:
    `{"name": str, "modules": {str: int}, "calls": {str: int}}`.
    """
    ask = getattr(config.quant_config, "engagement", None)
    if not callable(ask):
        return None
    found: dict[str, Any] = ask(model)
    return found


def _tensors(value: Any) -> list[Any]:
    """All tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    if isinstance(value, dict):
        return _tensors(list(value.values()))
    return [value] if hasattr(value, "nbytes") else []


def _affinity() -> dict[str, int]:
    """Number of this process's threads by the CPU list that they may run on."""
    counts: collections.Counter[str] = collections.Counter()
    for task in Path("/proc/self/task").iterdir():
        try:
            counts[",".join(map(str, sorted(os.sched_getaffinity(int(task.name)))))] += 1
        except ProcessLookupError:  # a thread that ended meanwhile
            continue
    return dict(counts)


def _allocators() -> list[str]:
    """Libraries mapped here that replace malloc: `malloc_trim` says nothing of those."""
    known = ("libtcmalloc", "libjemalloc", "libmimalloc")
    return sorted({name for name in known if name in Path("/proc/self/maps").read_text(encoding="utf-8")}) or ["glibc"]
