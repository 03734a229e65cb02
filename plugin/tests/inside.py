"""vLLM's own loading inside the test's process: real model classes and loaders, no engine, a second a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def engine_config(folder: Path, **arguments: Any) -> Any:
    """The configuration that vLLM makes of a checkpoint, as `LLM` does before it starts an engine process."""
    from vllm.engine.arg_utils import EngineArgs

    from cpu_int4.register import register

    register()
    defaults = {"dtype": "bfloat16", "enforce_eager": True, "max_model_len": 64, "skip_tokenizer_init": True}
    return EngineArgs(model=str(folder), **{**defaults, **arguments}).create_engine_config()


@contextmanager
def distributed(config: Any) -> Iterator[None]:
    """A world of one process, set up once: what a worker does before it loads a model."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

    torch.accelerator.empty_cache = lambda: None  # as vLLM's CPU worker does
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            folder = os.environ.get("TMPDIR", "/tmp")  # noqa: S108 (a rendezvous file of one process)
            init_distributed_environment(1, 0, f"file://{folder}/cpu-int4-tests-{os.getpid()}", 0, backend="gloo")
        ensure_model_parallel_initialized(1, 1)
        yield


def loaded(folder: Path, **arguments: Any) -> tuple[torch.nn.Module, Any]:
    """A checkpoint loaded by vLLM, and the configuration of its method."""
    from vllm.model_executor.model_loader import get_model

    config = engine_config(folder, **arguments)
    with distributed(config):
        return get_model(vllm_config=config), config.quant_config
