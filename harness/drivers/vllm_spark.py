"""Spark2_5 in the vLLM that arms run: the package's model with a `load_weights` that this vLLM understands.

`vllm-spark2-5-plugin` 0.1.0 was cut from a later vLLM; its `load_weights` passes `skip_prefixes` to vLLM's loader, and
vLLM 0.32 refuses that with a TypeError before the first weight. All else of the package is used as it is.
`register` is an entry point of the `.dist-info` folder beside this file, read in every process of the engine.
"""

from __future__ import annotations

import importlib.util

_PACKAGE = "vllm_spark2_5_plugin"


def register() -> None:
    """Put the model of `vllm_spark_model.py` in the place of the package's. Without the package, or where vLLM has an
    architecture of that name of its own, nothing is done. Safe to repeat, before and after the package's own.
    """
    if importlib.util.find_spec(_PACKAGE) is None:
        return
    import vllm_spark2_5_plugin as package
    from vllm import ModelRegistry

    package.register()  # it stands down where the architecture is known, so it has to come first
    known = ModelRegistry.models[package.ARCHITECTURE]
    if known.module_name.startswith(_PACKAGE):
        ModelRegistry.register_model(package.ARCHITECTURE, f"vllm_spark_model:{package.ARCHITECTURE}")
