"""Which method serves which layer: what the checkpoint holds decides, and the configuration must say the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed import get_pp_group
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from cpu_int4 import layout
from cpu_int4.checkpoint import Checkpoint
from cpu_int4.embedding import CpuInt4EmbeddingMethod
from cpu_int4.fields import Settings, SettingsError
from cpu_int4.linear import CpuInt4LinearMethod
from cpu_int4.names import entry_for, parts_of
from cpu_int4.register import require_registered
from cpu_int4.selection import EMBEDDINGS
from cpu_int4.session import Session

if TYPE_CHECKING:
    import torch
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    from cpu_int4.config import CpuInt4Config


@dataclass(kw_only=True)
class Chooser:
    """Chooses methods for the layers of one model in one process."""

    settings: Settings
    checkpoint: Checkpoint
    packed: Mapping[str, list[str]]
    session: Session
    original: Mapping[str, str]  # a module's name in the model: in the checkpoint
    left: dict[int, str] = field(default_factory=dict)  # id of a layer left in bf16: why

    @classmethod
    def of(cls, config: CpuInt4Config) -> Chooser:
        """Begin with a model. Raise `SettingsError` if this process cannot load what the reader of the config saw."""
        require_registered()
        if config.checkpoint is None:
            raise SettingsError(
                "the configuration was made without its checkpoint: vLLM's `maybe_update_config` opens it"
            )
        if (found := str(layout.probe())) != config.layout:
            raise SettingsError(
                f"this process packs weights as {found}, the one that read the configuration as {config.layout}: give"
                " both the same ATEN_CPU_CAPABILITY"
            )
        if get_pp_group().world_size > 1:
            raise SettingsError("pipeline parallelism is not supported: the census of tensors needs the whole model")
        renaming = config._rename  # noqa: SLF001 (its own configuration)
        session = Session(
            checkpoint=config.checkpoint,
            rename=lambda name: name if renaming is None else (renaming.map_name(name) or name),
            packed=config.packed_modules_mapping,
        )
        modules = dict.fromkeys(name.rpartition(".")[0] for name in config.checkpoint.tensors)
        return cls(
            original={session.rename(module): module for module in modules},
            settings=config.settings,
            checkpoint=config.checkpoint,
            packed=config.packed_modules_mapping,
            session=session,
        )

    def method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """The method of a layer; None for layers without weights of their own. Raise `SettingsError` by name."""
        if isinstance(layer, VocabParallelEmbedding):
            return self._embedding(layer, prefix)
        if isinstance(layer, LinearBase):
            return self._linear(layer, prefix)
        if isinstance(layer, Attention) or not hasattr(layer, "weight_loader"):
            return None
        raise SettingsError(f"{prefix}: layers of class {type(layer).__name__} are not supported")

    def _linear(self, layer: LinearBase, prefix: str) -> QuantizeMethodBase:
        modules = self._modules(prefix)
        if self._quantized(layer, prefix, modules):
            return CpuInt4LinearMethod(self.settings, self.session, modules)
        return UnquantizedLinearMethod()

    def _embedding(self, layer: VocabParallelEmbedding, prefix: str) -> QuantizeMethodBase:
        is_head = isinstance(layer, ParallelLMHead)
        module = self._checkpoint_name(prefix) if prefix else self._nameless(layer)
        if is_head and not self._stored(module):
            module = self._nameless(layer)  # tied: it has nothing of its own
            if entry := entry_for(self.settings.modules_not_converted, prefix):
                self._refuse_listed(prefix, entry, module)
        if self._quantized(layer, module, (module,)):
            return CpuInt4EmbeddingMethod(self.settings, self.session, (module,))
        return UnquantizedEmbeddingMethod()

    def _refuse_listed(self, head: str, entry: str, module: str) -> None:
        if module in self.checkpoint.quantized:
            raise SettingsError(
                f"modules_not_converted: {entry!r} means {head}, which is tied to the quantized {module}: remove the"
                " entry, or quantize with the embedding left in bf16"
            )

    def _quantized(self, layer: torch.nn.Module, name: str, modules: tuple[str, ...]) -> bool:
        """Whether a layer is quantized, checkpoint and configuration saying the same of all its parts."""
        embedding = isinstance(layer, VocabParallelEmbedding)
        quantized = [module for module in modules if module in self.checkpoint.quantized]
        plain = [module for module in modules if module not in quantized]
        listed = {module: entry for module in modules if (entry := self._entry(name, module)) is not None}
        if quantized and plain:
            raise SettingsError(
                f"{name}: its parts are one matrix here, so all or none can be quantized; quantized in the checkpoint:"
                f" {', '.join(quantized)}; not: {', '.join(plain)}"
            )
        if wrongly := [module for module in quantized if module in listed]:
            raise SettingsError(
                f"{name}: modules_not_converted lists {', '.join(sorted({listed[m] for m in wrongly}))}, but the"
                f" checkpoint holds {', '.join(wrongly)} quantized; {_others(quantized, wrongly)}the list says what the"
                " checkpoint holds and cannot change it: quantize again with this list"
            )
        if quantized and embedding and not self.settings.quantize_embedding:
            raise SettingsError(
                f"{name}: quantize_embedding is false, but the checkpoint holds {quantized[0]} quantized: the field"
                " says what the checkpoint holds and cannot change it"
            )
        if not quantized:
            self.left[id(layer)] = self._why_left(name, plain, listed, embedding=embedding)
        return bool(quantized)

    def _why_left(self, layer: str, plain: list[str], listed: Mapping[str, str], *, embedding: bool) -> str:
        if embedding and not self.settings.quantize_embedding:
            return "quantize_embedding_off"
        if unlisted := [module for module in plain if module not in listed]:
            stored = "in bf16" if all(map(self.checkpoint.plain, unlisted)) else "not at all"
            field_name = "quantize_embedding is true" if embedding else "modules_not_converted does not list them"
            raise SettingsError(
                f"{layer}: the checkpoint holds {', '.join(unlisted)} {stored}, and {field_name}: a layer is left in"
                " bf16 only where the configuration says so"
            )
        return "listed"

    def _entry(self, layer: str, module: str) -> str | None:
        """The entry of modules_not_converted that means a part, by its own name or by the fused one."""
        names = dict.fromkeys((module, self.session.rename(module), layer))
        entries = (entry_for(self.settings.modules_not_converted, name) for name in names)
        return next((entry for entry in entries if entry is not None), None)

    def _modules(self, prefix: str) -> tuple[str, ...]:
        """A layer's parts in the checkpoint: itself where the checkpoint is fused too."""
        whole = self._checkpoint_name(prefix)
        if self._stored(whole):
            return (whole,)
        return tuple(self._checkpoint_name(part) for part in parts_of(prefix, self.packed))

    def _stored(self, module: str) -> bool:
        return module in self.checkpoint.quantized or self.checkpoint.plain(module)

    def _checkpoint_name(self, name: str) -> str:
        """The checkpoint's name of a module of the model."""
        return self.original.get(name, name)

    def _nameless(self, layer: VocabParallelEmbedding) -> str:
        """The module in the checkpoint of an embedding whose model gives it no name: by its shape and kind of name."""
        size = (layer.org_vocab_size, layer.embedding_dim)
        sizes: dict[str, Any] = dict(self.checkpoint.quantized)
        plain = ((name, entry.shape) for name, entry in self.checkpoint.tensors.items() if name.endswith(".weight"))
        sizes |= {name.removesuffix(".weight"): shape for name, shape in plain}
        fits = [name for name, found in sizes.items() if found == size]
        found = [name for name in fits if name.rpartition(".")[2] in EMBEDDINGS]
        if len(found) != 1:
            raise SettingsError(
                f"{type(layer).__name__} of {size[0]} x {size[1]}: the model passes no name for it, and the checkpoint"
                f" has {len(found)} embeddings of this size ({', '.join(found) or 'none'})"
            )
        return found[0]


def _others(quantized: list[str], listed: list[str]) -> str:
    others = [module for module in quantized if module not in listed]
    return f"not listed: {', '.join(others)}; " if others else ""
