"""One model's loading, seen whole: what its modules expect, what the checkpoint holds, what arrived.

vLLM skips its own check of missing parameters for quantized models, and drops some unexpected tensors without a word.
So the census is taken here, over every parameter of the model, quantized or not: at the start against the checkpoint's
names and bytes, at the end against what the weight loaders were given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.nn.modules.module import register_module_module_registration_hook

from cpu_int4.checkpoint import Checkpoint, verify_bytes
from cpu_int4.format import PARTS, CheckpointError
from cpu_int4.loading import Collector
from cpu_int4.names import listing, parts_of

if TYPE_CHECKING:
    import torch

Rename = Callable[[str], str]


class Family:
    """Which module holds which, learned while the model is built: a layer is made before it has a parent."""

    def __init__(self) -> None:
        # The child is kept too: were it freed, another module could take its id and its place here.
        self._parents: dict[int, tuple[torch.nn.Module, torch.nn.Module]] = {}
        self._hook = register_module_module_registration_hook(self._note)

    def root(self, module: torch.nn.Module) -> torch.nn.Module:
        """The model that holds a module."""
        while (found := self._parents.get(id(module))) is not None:
            _, module = found
        return module

    def forget(self) -> None:
        """Stop listening and let go of every module."""
        self._hook.remove()
        self._parents.clear()

    def _note(self, parent: torch.nn.Module, _name: str, child: torch.nn.Module | None) -> None:
        if child is not None:
            self._parents[id(child)] = (child, parent)


@dataclass(kw_only=True)
class Session:
    """The loading of one model in one process."""

    checkpoint: Checkpoint
    rename: Rename  # a module's name in the checkpoint -> in the model
    packed: Mapping[str, list[str]]  # a fused module's last name -> its parts' last names
    _family: Family = field(default_factory=Family)
    _collectors: list[tuple[torch.nn.Module, Collector]] = field(default_factory=list)
    _arrived: dict[str, set[Any]] = field(default_factory=lambda: defaultdict(set))  # parameter: shards loaded into it
    _watched: list[tuple[str, torch.nn.Parameter, Any, set[Any]]] = field(default_factory=list)
    _begun: bool = False
    _finished: bool = False

    def join(self, layer: torch.nn.Module, collector: Collector) -> None:
        """Expect a quantized module's tensors."""
        self._collectors.append((layer, collector))

    def begin(self) -> None:
        """Before the first tensor: check names, then bytes, then watch every parameter. Once."""
        if self._begun or not self._collectors:
            return
        self._begun = True
        model = self._family.root(self._collectors[0][0])
        self._family.forget()
        if problems := [*self._unexpected(model)]:
            raise CheckpointError(_report(self.checkpoint, problems))
        verify_bytes(self.checkpoint)
        self._watch(model)

    def finish(self) -> None:
        """After the last tensor: raise `CheckpointError` with the names of all that did not arrive."""
        self.begin()
        if self._finished:
            return
        self._finished = True
        missing = [name for _, collector in self._collectors for name in collector.missing()]
        missing += self._not_arrived()
        if missing:
            what = f"{len(missing)} tensors were not loaded: {listing(missing, 40)}"
            raise CheckpointError(_report(self.checkpoint, [what]))

    def _unexpected(self, model: torch.nn.Module) -> Iterator[str]:
        """Tensors of the checkpoint that no module of the model takes."""
        modules = dict(model.named_modules(remove_duplicate=False))
        taken = {
            section.module for _, collector in self._collectors if not collector.done
            for section in collector.geometry.sections
        }  # fmt: skip
        for module in sorted(set(self.checkpoint.quantized) - taken):
            yield (
                f"{module}.{{{','.join(PARTS)}}}: no module of {type(model).__name__} takes them: the model has no such"
                " module, or its class passes no quantization config to it; quantize with this module left in bf16"
            )
        for name in self.checkpoint.tensors:
            if name.endswith(".bias") and self._biasless(name.removesuffix(".bias"), modules):
                yield f"{name}: the module has no bias in {type(model).__name__}, and vLLM would drop it"

    def _biasless(self, module: str, modules: Mapping[str, torch.nn.Module]) -> bool:
        """Whether a module of the checkpoint is one of the model's that has no bias."""
        name = self.rename(module)
        owners = [name, *(key for key in modules if name in parts_of(key, self.packed))]
        owner = next((modules[key] for key in owners if key in modules), None)
        return owner is not None and "bias" in owner._parameters and owner._parameters["bias"] is None  # noqa: SLF001

    def _watch(self, model: torch.nn.Module) -> None:
        """Have every parameter that this method does not load itself tell what it is given."""
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        modules = dict(model.named_modules())
        for name, parameter in model.named_parameters():
            owner, _, last = name.rpartition(".")
            if last in PARTS and parameter.is_meta:
                continue
            inner = getattr(parameter, "weight_loader", default_weight_loader)
            self._watched.append((name, parameter, inner, _shards(modules.get(owner))))
            parameter.weight_loader = self._telling(name, inner)

    def _telling(self, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def load(parameter: torch.nn.Parameter, tensor: torch.Tensor, *shard: Any, **named: Any) -> Any:
            answer = inner(parameter, tensor, *shard, **named)
            given = [*shard, *named.values(), None][0]
            self._arrived[name].update(given if isinstance(given, tuple) else (given,))
            return answer

        return load

    def _not_arrived(self) -> Iterator[str]:
        stored = {self.rename(name) for name in self.checkpoint.tensors}
        # A model that fills parameters by its own means is taken at its word, if the checkpoint has all that they need.
        for name, parameter, inner, shards in self._watched:
            parameter.weight_loader = inner
            given = self._arrived[name]
            if None in given or (shards and shards <= given):
                continue
            if given:
                yield f"{name} (parts {listing(map(str, shards - given))})"
            elif name not in stored and not stored.issuperset(self._part_names(name)):
                yield name

    def _part_names(self, name: str) -> tuple[str, ...]:
        """Names of the parts that fill a parameter of a fused module."""
        module, _, last = name.rpartition(".")
        return tuple(f"{part}.{last}" for part in parts_of(module, self.packed))


def _shards(module: torch.nn.Module | None) -> set[Any]:
    """What vLLM calls the parts of a fused module; empty for others."""
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear

    if isinstance(module, QKVParallelLinear):
        return {"q", "k", "v"}
    if isinstance(module, MergedColumnParallelLinear):
        return set(range(len(module.output_sizes)))
    return set()


def _report(checkpoint: Checkpoint, problems: list[str]) -> str:
    listed = "\n".join(f"- {problem}" for problem in problems[:40])
    return f"{checkpoint.folder}: checkpoint and model do not fit:\n{listed}"
