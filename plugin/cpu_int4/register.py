"""The entry point: vLLM calls `register` once in each of its processes."""

from __future__ import annotations

import os

from cpu_int4.format import QUANT_METHOD

GROUP = "vllm.general_plugins"


def register() -> None:
    """Make `cpu_int4` known to this process's vLLM. Safe to call again; loads no kernel and no model code."""
    from vllm.model_executor.layers.quantization import register_quantization_config

    from cpu_int4.config import CpuInt4Config

    register_quantization_config(QUANT_METHOD)(CpuInt4Config)


def require_registered() -> None:
    """Raise unless vLLM loaded the plugin in this process: registering it in the calling script alone is not enough."""
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    if QUANT_METHOD not in QUANTIZATION_METHODS:
        raise RuntimeError(
            f"process {os.getpid()} of the engine does not know {QUANT_METHOD}: vLLM loads it in every process through"
            f" the entry point group {GROUP}. Install the distribution cpu-int4 into this environment; if VLLM_PLUGINS"
            f" is set (here: {os.environ.get('VLLM_PLUGINS')!r}), name {QUANT_METHOD} in it"
        )
