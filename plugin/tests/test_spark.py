"""The architecture of the published figures: q, k and v fused in the checkpoint, a gate that stays in bf16."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import inside
import pytest
import tiny
import torch

package = pytest.importorskip("vllm_spark2_5_plugin")

HIDDEN, INNER, HEADS, KV, HEAD, VOCABULARY = 128, 192, 4, 2, 32, 256
LAYERS = 4  # every fourth attends to all; vLLM 0.32 wants one of each kind


def config() -> dict[str, Any]:
    """A `config.json` of four layers."""
    return {
        "architectures": ["Spark2_5ForCausalLM"],
        "model_type": "spark2_5",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": HEAD,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def weights() -> tiny.Weights:
    """Every weight by the names that the package reads."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embedding.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (HIDDEN,),
            f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}.self_attn.g_proj.weight": (HEADS, HIDDEN),
            f"{prefix}.self_attn.q_k_v_proj.weight": ((HEADS + 2 * KV) * HEAD, HIDDEN),
            f"{prefix}.self_attn.out_proj.weight": (HIDDEN, HEADS * HEAD),
            f"{prefix}.mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (INNER, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (HIDDEN, INNER),
        }
    return tiny.random_weights(shapes)


@pytest.fixture
def architecture() -> None:
    """The package's model, loaded with arguments that this vLLM's loader has."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.utils import AutoWeightsLoader
    from vllm_spark2_5_plugin import spark2_5

    class Spark2_5ForCausalLM(spark2_5.Spark2_5ForCausalLM):  # type: ignore[misc]  # noqa: N801 (its name)
        """The package's."""

        def load_weights(self, loaded: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
            """By vLLM's loader."""
            names: set[str] = AutoWeightsLoader(self).load_weights(loaded, mapper=self.hf_to_vllm_mapper)
            return names

    package.register()
    ModelRegistry.register_model("Spark2_5ForCausalLM", Spark2_5ForCausalLM)


@pytest.mark.usefixtures("architecture")
@pytest.mark.parametrize("listed", [["g_proj"], []], ids=["gate listed", "gate not listed"])
def test_case_50_spark_holds_its_weights_and_its_gates_stay_bf16_by_the_models_choice(
    tmp_path: Path, listed: list[str]
) -> None:
    """Every matrix but the gates is 4-bit and bit for bit what it stands for; the census expects the gates in bf16."""
    stored, meant = tiny.convert(weights(), ("g_proj",), 32)
    fields = tiny.fields(modules_not_converted=listed)
    folder = tiny.write(tmp_path, {**config(), "quantization_config": fields}, stored)
    model, method = inside.loaded(folder)
    assert method.engagement(model)["modules"] == {"bf16:model": 4, "int4_embedding": 1, "int4_linear": 16}
    assert model.lm_head is model.model.embedding  # one packed copy
    for index, layer in enumerate(model.model.layers):
        prefix = f"model.layers.{index}"
        pairs = {
            layer.self_attn.q_k_v_proj: ["self_attn.q_k_v_proj"],
            layer.self_attn.out_proj: ["self_attn.out_proj"],
            layer.mlp.gate_up_proj: ["mlp.gate_proj", "mlp.up_proj"],
            layer.mlp.down_proj: ["mlp.down_proj"],
        }
        for module, parts in pairs.items():
            expected = torch.cat([meant[f"{prefix}.{part}.weight"] for part in parts])
            held = module.quant_method.apply(module, torch.eye(expected.shape[1]).bfloat16(), None).t()
            assert torch.equal(held, expected)
    ids = torch.tensor([0, 5, VOCABULARY - 1])
    assert torch.equal(model.model.embedding(ids), meant["model.embedding.weight"][ids])
