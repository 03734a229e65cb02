"""The vLLM method of the token embedding and of the head, tied or not: one packed copy serves lookup and logits."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from cpu_int4.linear import CpuInt4LinearMethod, UnsupportedLayerError
from cpu_int4.loading import Geometry, Section


class CpuInt4EmbeddingMethod(CpuInt4LinearMethod):
    """Weights of 4 bits for an embedding: looked up by row, and multiplied with where it is (or serves) the head."""

    # The head sees one row a sequence, so a copy would cost memory (128 MiB for 131072 x 2048) and speed up nothing.
    keeps_copy = False

    def create_weights(  # noqa: PLR0917 (vLLM's signature)
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **_: Any,
    ) -> None:
        """Register parameters without storage, whose loaders gather the checkpoint's tensors."""
        del input_size_per_partition, output_partition_sizes, output_size
        self._register(layer, _geometry(layer, self.modules[0], input_size), params_dtype)

    def embedding(self, layer: torch.nn.Module, input_: torch.Tensor) -> torch.Tensor:
        """Rows `input_` [...] of the weight [N, K]: bf16 [..., K]."""
        rows: torch.Tensor
        if self.settings.kernel == "native":
            rows = torch.ops.cpu_int4.native_embedding(input_, layer.packed, *layer.int4_shape)
            return rows
        rows = torch.ops.cpu_int4.embedding(
            input_, layer.packed, layer.scales_and_zeros, layer.halves, self.settings.group_size
        )
        return rows

    def tie_weights(self, layer: torch.nn.Module, embed_tokens: torch.nn.Module) -> torch.nn.Module:
        """Let the head `layer` use the embedding's packed weight; nothing of its own is loaded."""
        if not isinstance(embed_tokens.quant_method, CpuInt4EmbeddingMethod):
            raise UnsupportedLayerError(
                f"{self.modules[0]}: the head is quantized and tied to an embedding that is not; quantize both or none"
            )
        if self.collector is not None:
            self.collector.cancel()
        for part in list(layer._parameters):  # noqa: SLF001 (placeholders only; a bias stays)
            if part != "bias":
                delattr(layer, part)
        layer.quant_method = TiedHead(embed_tokens)
        return layer


class TiedHead(CpuInt4EmbeddingMethod):
    """The method of a head that has no weight of its own."""

    def __init__(self, embedding: VocabParallelEmbedding) -> None:
        method = embedding.quant_method
        super().__init__(method.settings, method.session, method.modules)
        self.owner = embedding

    def apply(self, _layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply x [..., K] with the embedding's weight: bf16 [..., N]."""
        return super().apply(self.owner, x, bias)

    def embedding(self, _layer: torch.nn.Module, input_: torch.Tensor) -> torch.Tensor:
        """Rows of the embedding's weight."""
        return super().embedding(self.owner, input_)


def _geometry(layer: VocabParallelEmbedding, module: str, columns: int) -> Geometry:
    if type(layer) not in {VocabParallelEmbedding, ParallelLMHead} or layer.num_added_embeddings:
        raise UnsupportedLayerError(
            f"{module}: embeddings of class {type(layer).__name__} with {layer.num_added_embeddings} added rows are not"
            " supported; quantize with the embedding left in bf16"
        )
    mine = layer.shard_indices
    count = mine.org_vocab_end_index - mine.org_vocab_start_index
    section = Section(
        module=module, shard=None, rows=layer.org_vocab_size, start=mine.org_vocab_start_index, count=count
    )
    return Geometry(
        name=module,
        sections=(section,),
        columns=columns,
        column_start=0,
        column_count=columns,
        padding=layer.num_embeddings_per_partition - count,
    )
