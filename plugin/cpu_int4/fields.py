"""The fields of a checkpoint's `quantization_config`: what they mean, and why some are refused. Pure.

Everything that can be refused is refused here, before a weight is touched: all errors at once, each with the field,
its value and the supported values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from cpu_int4.format import BITS, FORMAT_VERSION, GROUP_SIZES, QUANT_METHOD, REMAKE
from cpu_int4.names import PATTERN

#: Overrides the field `direct_dequant` for experiments: "0" or "1". Unlike a stray switch it reaches the compile-cache
#: key, since it is resolved while the configuration is read and the resolved settings are hashed.
OVERRIDE_VARIABLE: Final = "VLLM_OMNI_CPU_INT4_DIRECT_DEQUANT"
#: Where the resolved settings are written into the dictionary that vLLM hashes.
RESOLVED: Final = "resolved"
KERNELS: Final = ("tinygemm", "native")
REPACK_BYTES: Final = 4 << 20


class SettingsError(ValueError):
    """A `quantization_config` that cannot be used: every reason, with field, value and supported values."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A checkpoint's settings, every default filled in. Each but `repack_bytes` changes the compiled graph."""

    group_size: int  # inputs that share a scale and a zero
    quantize_embedding: bool = True  # whether the token embedding (and a head tied to it) is 4-bit
    modules_not_converted: tuple[str, ...] = ()  # modules left in bf16: names, parts of names, or `re:` and a pattern
    direct_dequant: bool = True  # wide batches read the kernel's own layout; else a row-major copy is kept
    prefill_dequant: bool = True  # wide batches dequantize and take the bf16 product; else all take the 4-bit kernel
    dequant_threshold: int = 2  # rows from which a batch is wide
    repack_bytes: int = REPACK_BYTES  # transient bytes of repacking at load; 0: a whole matrix at once
    kernel: str = "tinygemm"  # which kernel multiplies


def parse(fields: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Settings from a `quantization_config` and the override in `environment`. Raise `SettingsError`: all errors."""
    problems = [*_foreign(fields), *_values(fields), *_override_problems(environment)]
    problems += [] if problems else _without_effect(fields, environment)
    if problems:
        raise SettingsError("quantization_config cannot be used:\n" + "\n".join(f"- {problem}" for problem in problems))
    chosen = {name: fields[name] for name in _RUN_TIME if name in fields}
    if "modules_not_converted" in chosen:
        chosen["modules_not_converted"] = tuple(chosen["modules_not_converted"])
    if override := environment.get(OVERRIDE_VARIABLE):
        chosen["direct_dequant"] = override == "1"
    return Settings(**chosen)


def resolved(settings: Settings, *, layout: str, plugin: str) -> dict[str, Any]:
    """What the compile-cache key must hold: the effective settings, the probed layout, the plugin's version."""
    values = asdict(settings) | {"modules_not_converted": list(settings.modules_not_converted)}
    return {**values, "layout": layout, "plugin": plugin}


def looks_like_ours(fields: Mapping[str, Any]) -> bool:
    """Whether fields without a `quant_method` are some of ours: what is left where one field alone was overridden."""
    return not fields.get("quant_method") and any(name in fields for name in _RUN_TIME if name != "group_size")


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_name_list(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(entry, str) and _is_entry(entry) for entry in value)


def _is_entry(entry: str) -> bool:
    if not entry.startswith(PATTERN):
        return bool(entry)
    try:
        re.compile(entry.removeprefix(PATTERN))
    except re.error:
        return False
    return True


#: Field: what is accepted, and that in words. The first five say what the checkpoint holds; they have no default.
_FIELDS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "quant_method": (lambda value: value == QUANT_METHOD, f'"{QUANT_METHOD}"'),
    "format_version": (lambda value: _is_int(value) and value == FORMAT_VERSION, str(FORMAT_VERSION)),
    "bits": (lambda value: _is_int(value) and value == BITS, str(BITS)),
    "group_size": (lambda value: _is_int(value) and value in GROUP_SIZES, ", ".join(map(str, GROUP_SIZES))),
    "sym": (lambda value: value is False, "false (the grid is asymmetric)"),
    "quantize_embedding": (_is_bool, "true or false"),
    "modules_not_converted": (_is_name_list, "a list of module names, or `re:` and a regular expression"),
    "direct_dequant": (_is_bool, "true or false"),
    "prefill_dequant": (_is_bool, "true or false"),
    "dequant_threshold": (lambda value: _is_int(value) and value >= 1, "an integer from 1 on (rows)"),
    "repack_bytes": (lambda value: _is_int(value) and value >= 0, "an integer from 0 on (bytes; 0: no bound)"),
    "kernel": (lambda value: value in KERNELS, " or ".join(f'"{kernel}"' for kernel in KERNELS)),
}
_REQUIRED: Final = ("quant_method", "format_version", "bits", "group_size", "sym")
_RUN_TIME: Final = ("group_size", *(name for name in _FIELDS if name not in _REQUIRED))
#: Fields of other tools' checkpoints: what they mean there cannot be honoured here, whatever their value.
_FOREIGN: Final = {
    "desc_act": "GPTQ",
    "damp_percent": "GPTQ",
    "static_groups": "GPTQ",
    "true_sequential": "GPTQ",
    "checkpoint_format": "GPTQ",
    "zero_point": "AWQ",
    "w_bit": "AWQ",
    "q_group_size": "AWQ",
    "config_groups": "compressed-tensors",
    "load_in_4bit": "bitsandbytes",
}


def _foreign(fields: Mapping[str, Any]) -> list[str]:
    """Fields that are not ours, each with its owner or the name it resembles."""
    problems = []
    for name in fields:
        if name in _FIELDS or name == RESOLVED:
            continue
        if owner := _FOREIGN.get(name):
            meant = f"it belongs to {owner} checkpoints, which this method does not read"
        elif near := difflib.get_close_matches(name, _FIELDS, n=1):
            meant = f"did you mean {near[0]}?"
        else:
            meant = f"known fields: {', '.join(_FIELDS)}"
        problems.append(f"{name}: unknown field (value {fields[name]!r}); {meant}")
    return problems


def _values(fields: Mapping[str, Any]) -> list[str]:
    """Fields whose value is missing or not supported."""
    problems = []
    for name, (accepted, supported) in _FIELDS.items():
        if name not in fields:
            if name in _REQUIRED:
                problems.append(f"{name}: missing; supported: {supported}; {REMAKE}")
        elif not accepted(fields[name]):
            problems.append(f"{name}: {fields[name]!r} is not supported; supported: {supported}")
    return problems


def _without_effect(fields: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    """Settings of PyTorch's kernel that the native one does not have: two arms that differ in them alone would run the
    same code under two names.
    """
    if fields.get("kernel") != "native":
        return []
    default = Settings(group_size=GROUP_SIZES[0])
    names = ("direct_dequant", "prefill_dequant", "dequant_threshold", "repack_bytes")
    found = [name for name in names if name in fields and fields[name] != getattr(default, name)]
    found += [OVERRIDE_VARIABLE] if environment.get(OVERRIDE_VARIABLE) else []
    return [f'{name}: has no effect with kernel "native", which packs and multiplies its own way; remove it, or set'
            ' kernel to "tinygemm"' for name in found]  # fmt: skip


def _override_problems(environment: Mapping[str, str]) -> list[str]:
    value = environment.get(OVERRIDE_VARIABLE, "")
    if value in {"", "0", "1"}:
        return []
    return [f'{OVERRIDE_VARIABLE}: {value!r} is not supported; supported: "0", "1", or unset']
