"""Which modules are quantized, which are left in bfloat16, and why. Pure: names and shapes in, a selection out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cpu_int4.format import CheckpointError, unsuitable
from cpu_int4.names import matches

EMBEDDINGS: Final = ("embed_tokens", "embedding", "embed_in", "word_embeddings", "tok_embeddings", "wte")
HEADS: Final = ("lm_head", "embed_out")
#: Linear layers that vLLM fuses into one: all parts are quantized, or none.
FUSED: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
FLOATS: Final = ("F64", "F32", "F16", "BF16")
_DECODER: Final = re.compile(r"(^|\.)layers\.\d+\.")
_OTHER_TOWER: Final = re.compile(r"(^|\.|_)(vision|visual|audio|image|encoder)([._]|$)")
_NORM: Final = re.compile(r"norm|(^|_)ln(_|\d|$)")
_ROUTERS: Final = ("gate", "router")


class SelectionError(CheckpointError):
    """What was asked for does not fit the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to quantize and how."""

    group_size: int = 128
    embedding: bool = True  # the token embedding, and a head of its own where the two are not tied
    skip: Sequence[str] = field(default_factory=tuple)  # whole parts of names, or regular expressions found in them
    strict: bool = False  # a module whose shape does not fit is an error, not left in bfloat16


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Modules by what becomes of them; every two-dimensional weight is in exactly one, norms in none."""

    quantized: tuple[str, ...]
    left: Mapping[str, str]  # stays in bfloat16: module -> reason
    dropped: Mapping[str, str]  # not written: module -> reason


def select(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], options: Options) -> Selection:
    """Sort the modules of a checkpoint. `shapes`: of all floating tensors, by tensor name.

    Raise `SelectionError` for a `skip` that is no regular expression or matches nothing, and, if `options.strict`, for
    shapes that do not fit.
    """
    modules = {name.removesuffix(".weight"): shape for name, shape in shapes.items() if _is_matrix(name, shape)}
    skipped = _skipped(modules, options.skip)
    dropped = {name: "tied: the embedding serves as head" for name in modules if is_head(name) and tied(config)}
    unfit: dict[str, str] = {}
    left: dict[str, str] = {}
    for module, (n, k) in ((module, shape) for module, shape in modules.items() if module not in dropped):
        if reason := skipped.get(module) or _by_nature(module, options):
            left[module] = reason
        elif reason := unsuitable(n, k, options.group_size):
            left[module] = unfit[module] = reason
    if options.strict and unfit:
        raise SelectionError(_strictly(unfit))
    left |= _companions(modules, left)
    quantized = tuple(module for module in modules if module not in left and module not in dropped)
    if not quantized:
        raise SelectionError(_nothing(left, options))
    return Selection(quantized=quantized, left={name: left[name] for name in modules if name in left}, dropped=dropped)


def is_embedding(module: str) -> bool:
    """Whether a module is the token embedding, by its name."""
    return _last(module) in EMBEDDINGS and not _DECODER.search(module)


def is_head(module: str) -> bool:
    """Whether a module is the output head, by its name."""
    return _last(module) in HEADS


def tied(config: Mapping[str, Any]) -> bool:
    """Whether the configuration says that the embedding serves as head too."""
    scopes = (config, config.get("text_config") or {})
    return any(scope.get("tie_word_embeddings") is True for scope in scopes)


def grouped(left: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """How many modules were left, by (name with the layer's number as *, reason)."""
    counts: dict[tuple[str, str], int] = {}
    for module, reason in left.items():
        counts[kind(module), reason] = counts.get((kind(module), reason), 0) + 1
    return counts


def kind(module: str) -> str:
    """A module's name with its layer's number as *."""
    return ".".join("*" if part.isdigit() else part for part in module.split("."))


def _is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    module = name.removesuffix(".weight")
    return name.endswith(".weight") and len(shape) == 2 and not _NORM.search(_last(module))


def _last(module: str) -> str:
    return module.rpartition(".")[2]


def _by_nature(module: str, options: Options) -> str:
    """Why a module is left whatever its shape; empty if it is one to quantize."""
    if is_embedding(module) or is_head(module):
        return "" if options.embedding else "embedding and head are left in bf16 (--no-embedding)"
    if not _DECODER.search(module) or _OTHER_TOWER.search(module):
        return "neither a linear layer of the decoder, nor the token embedding, nor the head"
    if ".experts." in module or _last(module) in _ROUTERS:
        return "part of a mixture of experts, which is not supported"
    return ""


def _companions(modules: Iterable[str], left: Mapping[str, str]) -> dict[str, str]:
    """Modules to leave because another part of the same fused layer is left."""
    found: dict[str, str] = {}
    for module in modules:
        parent, _, last = module.rpartition(".")
        for part in (part for parts in FUSED if last in parts for part in parts):
            if module not in left and (other := f"{parent}.{part}") in left:
                found[module] = f"vLLM fuses it with {part}, which is left: {left[other]}"
                break
    return found


def _skipped(modules: Iterable[str], patterns: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pattern in patterns:
        meant = [module for module in modules if _matcher(pattern)(module)]
        if not meant:
            near = difflib.get_close_matches(pattern, {*modules, *map(_last, modules)}, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise SelectionError(f"--skip {pattern!r} matches no module of this checkpoint{hint}")
        found |= dict.fromkeys(meant, f"--skip {pattern}")
    return found


def _matcher(pattern: str) -> Callable[[str], object]:
    """Names mean whole parts, as in modules_not_converted: `layers.1` is not `layers.10`."""
    if re.fullmatch(r"[\w.]+", pattern):
        return lambda module: matches(pattern, module)
    try:
        return re.compile(pattern).search
    except re.error as error:
        raise SelectionError(f"--skip {pattern!r} is no regular expression: {error}") from error


def _strictly(unfit: Mapping[str, str]) -> str:
    lines = "\n".join(f"  {count:4} x {kind}: {reason}" for (kind, reason), count in grouped(unfit).items())
    return (
        f"--strict: {len(unfit)} modules cannot be quantized; name them with --skip, choose another --group-size, or"
        f" leave out --strict to keep them in bf16:\n{lines}"
    )


def _nothing(left: Mapping[str, str], options: Options) -> str:
    reasons = "; ".join(f"{module}: {reason}" for module, reason in list(left.items())[:3])
    return f"no module is left to quantize with group size {options.group_size} ({reasons or 'there is no 2-D weight'})"
