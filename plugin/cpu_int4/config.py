"""The quantization configuration that vLLM reads, hashes, sends to its engine processes and asks for methods.

vLLM's compile-cache key (0.32: `VllmConfig.compute_hash`) does not ask a quantization configuration anything. It covers
the checkpoint's `config.json` as vLLM holds it, hf_overrides merged in, because `ModelConfig.compute_hash` hashes
`hf_config.to_json_string()`. So the resolved settings, the probed layout and the plugin's version are written into that
very dictionary while the configuration is read, in the process that reads it, before any hash is taken.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase

import cpu_int4
from cpu_int4 import native
from cpu_int4.checkpoint import Checkpoint, open_checkpoint
from cpu_int4.fields import RESOLVED, Settings, SettingsError, looks_like_ours, parse, resolved
from cpu_int4.format import QUANT_METHOD

#: Fields of a model's `config.json` that say it has experts, whose weights this method does not serve.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


class SupportedTypes(list[torch.dtype]):
    """Activation dtypes; vLLM prints them where it refuses another one, and so says what to pass."""

    def __repr__(self) -> str:
        return f'{list(self)}: pass dtype="bfloat16" (--dtype bfloat16)'

    __str__ = __repr__


class CpuInt4Config(QuantizationConfig):  # type: ignore[misc]  # vLLM publishes no types here
    """Settings of one checkpoint, and the checkpoint. At module level: it is pickled to the engine's processes."""

    def __init__(self, settings: Settings | None = None, layout: str = "") -> None:
        super().__init__()
        if settings is None:
            raise SettingsError(
                f'quantization="{QUANT_METHOD}" needs a quantized checkpoint: this one has no quantization_config in'
                " its config.json. Make one with `cpu-int4 quantize`"
            )
        self.settings = settings
        self.layout = layout
        self.checkpoint: Checkpoint | None = None
        self._rename: Any = None
        self._chooser: Any = None

    @classmethod
    def get_name(cls) -> str:
        """The method's name in `quantization_config` and in `quantization=`."""
        return QUANT_METHOD

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """bfloat16 alone: scales are stored in it, and the kernel computes in it."""
        return SupportedTypes([torch.bfloat16])

    @classmethod
    def get_min_capability(cls) -> int:
        """No GPU is asked for."""
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        """None: the fields stand in `config.json`."""
        return []

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Refuse, at the earliest point that vLLM offers, what cannot be used, and make the rest part of the hash.

        vLLM asks this of every registered method for every quantized checkpoint; others' checkpoints are left alone.
        """
        del hf_config
        if looks_like_ours(hf_quant_cfg):
            raise SettingsError(
                f"quantization_config has fields of {QUANT_METHOD} and no quant_method: hf_overrides replaces the whole"
                " dictionary, so pass the checkpoint's own quantization_config with the changed field in it"
            )
        if QUANT_METHOD in {hf_quant_cfg.get("quant_method"), user_quant}:
            read(hf_quant_cfg)
        return None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CpuInt4Config:
        """The configuration of a `quantization_config`. Raise `SettingsError` for what is not supported."""
        return cls(*read(config))

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        """Compare the checkpoint's headers with its manifest, still while the configuration is read."""
        del revision
        folder = Path(model_name)
        if not folder.is_dir():
            raise SettingsError(
                f"model {model_name!r} is not a local folder; download the checkpoint and pass its path"
            )
        if found := [name for name in _EXPERTS if (getattr(hf_config, name, None) or 0) > 1]:
            raise SettingsError(
                f"{found[0]} in config.json: models with experts are not supported; run the checkpoint it was made from"
            )
        self.checkpoint = open_checkpoint(folder, self.settings.group_size)

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        """Learn how the model's class renames the checkpoint's modules."""
        self._rename = hf_to_vllm_mapper

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """The method of one layer: 4-bit, vLLM's own for what is left in bf16, or a refusal that names it."""
        method: QuantizeMethodBase | None = self._choices().method(layer, prefix)
        return method

    def get_checkpoint_weight_mapper(self) -> Any:
        """No tensor is renamed or dropped. vLLM asks when loading begins: the model is built, nothing is in."""
        from vllm.model_executor.models.utils import WeightsMapper

        self._choices().session.begin()
        return WeightsMapper()

    def engagement(self, model: torch.nn.Module) -> dict[str, Any]:
        """What runs in this process: `{"name", "modules": {str: int}, "calls": {str: int}}`."""
        from cpu_int4.engagement import report

        return report(model, self)

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to one process."""
        return {**self.__dict__, "_chooser": None}

    def _choices(self) -> Any:
        if self._chooser is None:
            from cpu_int4.choice import Chooser

            self._chooser = Chooser.of(self)
        return self._chooser


def read(fields: dict[str, Any]) -> tuple[Settings, str]:
    """Settings and probed layout; writes both into `fields`, which vLLM hashes."""
    from cpu_int4 import layout, selftest

    settings = parse(fields, os.environ)
    if settings.kernel == "native":
        _check_native()
    selftest.check()
    probed = str(layout.probe())
    fields[RESOLVED] = resolved(settings, layout=probed, plugin=cpu_int4.__version__)
    return settings, probed


def _check_native() -> None:
    """Raise `SettingsError` where the native kernel is not built or gives wrong numbers on this CPU."""
    try:
        native.check()
    except native.NativeKernelError as error:
        raise SettingsError(f'kernel: "native": {error}; or take kernel: "tinygemm"') from error
