"""Which modules are quantized, and the reasons why others are not."""

from __future__ import annotations

import pytest
import tiny

from cpu_int4.selection import Options, Selection, SelectionError, select

ATTENTION = "model.layers.0.self_attn"
MLP = "model.layers.0.mlp"


def chosen(*names: str, config: dict[str, object] | None = None, **options: object) -> Selection:
    """The selection from modules `name` or `name:NxK`, all weights 64 x 128 unless said."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        module, _, shape = name.partition(":")
        shapes[f"{module}.weight"] = tuple(int(size) for size in shape.split("x")) if shape else (64, 128)
    return select(shapes, config or {}, Options(**{"group_size": 64, **options}))  # type: ignore[arg-type]


def test_a_llama_is_quantized_but_for_its_norms() -> None:
    """Linear layers of the decoder and the tied embedding; norms are not even listed."""
    config = tiny.llama()
    found = select({name: tuple(w.shape) for name, w in tiny.weights(config).items()}, config, Options(group_size=64))
    layer = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    layer += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    assert set(found.quantized) == {
        "model.embed_tokens",
        *(f"model.layers.{number}.{name}" for number in range(2) for name in layer),
    }
    assert not found.left
    assert not found.dropped


def test_a_head_of_its_own_is_quantized_like_the_embedding() -> None:
    """Untied: both by default, neither with --no-embedding, which says so as the reason."""
    assert chosen("model.embed_tokens", "lm_head").quantized == ("model.embed_tokens", "lm_head")
    found = chosen("model.embed_tokens", "lm_head", f"{MLP}.down_proj", embedding=False)
    assert found.quantized == (f"{MLP}.down_proj",)
    assert all("--no-embedding" in reason for reason in found.left.values())


def test_a_tied_head_that_is_stored_too_is_not_written() -> None:
    """Since vLLM skips it, it is neither quantized nor kept, and that is said."""
    found = chosen("model.embed_tokens", "lm_head", config={"tie_word_embeddings": True})
    assert found.quantized == ("model.embed_tokens",)
    assert list(found.dropped) == ["lm_head"]


@pytest.mark.parametrize(
    ("module", "shape", "group", "reason"),
    [
        (f"{MLP}.down_proj", "64x4304", 32, "K = 4304 is not a multiple of the group size 32"),
        (f"{MLP}.down_proj", "64x48", 32, "K = 48 is not a multiple of the group size 32"),
        (f"{MLP}.down_proj", "64x96", 64, "K = 96 is not a multiple of the group size 64"),
        (f"{MLP}.down_proj", "15x128", 64, "N = 15 is not a multiple of 16"),
        (f"{MLP}.down_proj", "1x128", 64, "N = 1 is not a multiple of 16"),
        ("model.embed_tokens", "32001x128", 64, "N = 32001 is not a multiple of 16"),
        (f"{ATTENTION}.g_proj", "8x96", 64, "K = 96 is not a multiple of the group size 64 and N = 8 is"),
    ],
)
def test_case_66_a_shape_that_does_not_fit_is_left_with_the_numbers(
    module: str, shape: str, group: int, reason: str
) -> None:
    """K against the group, N against the packing's 16: stays in bfloat16, the reason has both numbers."""
    found = chosen(f"{module}:{shape}", f"{ATTENTION}.o_proj:128x{4 * group}", group_size=group)
    assert found.left[module].startswith(reason)
    assert found.quantized == (f"{ATTENTION}.o_proj",)


@pytest.mark.parametrize("shape", ["16x128", "80x128", "151936x4864", "64x4864"])
def test_case_66_shapes_that_fit(shape: str) -> None:
    """N = 16 and N = 80, and the sizes of large models, are no remainder."""
    assert chosen(f"{MLP}.down_proj:{shape}").quantized == (f"{MLP}.down_proj",)


def test_case_66_strict_refuses_and_counts() -> None:
    """--strict: the modules, how often, why, and what to do instead."""
    with pytest.raises(SelectionError, match=r"(?s)2 modules.*--skip.*2 x model\.layers\.\*\.mlp\.down_proj: K = 96"):
        chosen("model.layers.0.mlp.down_proj:64x96", "model.layers.1.mlp.down_proj:64x96", "lm_head", strict=True)
    assert chosen(f"{MLP}.down_proj:64x96", "lm_head", strict=True, skip=("down_proj",)).quantized == ("lm_head",)


def test_case_65_parts_that_vllm_fuses_are_left_together() -> None:
    """One part of q, k, v left in bfloat16 takes the others along, each with the reason; other layers stay."""
    found = chosen(
        *(f"{ATTENTION}.{part}_proj" for part in "qkvo"),
        "model.layers.1.self_attn.q_proj",
        skip=("layers.0.self_attn.k_proj",),
    )
    assert found.quantized == (f"{ATTENTION}.o_proj", "model.layers.1.self_attn.q_proj")
    assert (
        found.left[f"{ATTENTION}.q_proj"]
        == "vLLM fuses it with k_proj, which is left: --skip layers.0.self_attn.k_proj"
    )


def test_case_65_gate_and_up_are_left_together_when_one_does_not_fit() -> None:
    """The same for gate and up when a shape is the reason."""
    found = chosen(f"{MLP}.gate_proj:64x128", f"{MLP}.up_proj:72x128", f"{MLP}.down_proj")
    assert found.quantized == (f"{MLP}.down_proj",)
    assert "fuses it with up_proj" in found.left[f"{MLP}.gate_proj"]


def test_names_to_skip_mean_whole_parts() -> None:
    """`layers.1` is not `layers.10`, `proj` is no part at all."""
    names = [f"model.layers.{number}.mlp.down_proj" for number in (1, 10, 11)]
    assert chosen(*names, skip=("layers.1",)).quantized == tuple(names[1:])
    with pytest.raises(SelectionError, match="matches no module"):
        chosen(*names, skip=("proj",))


def test_patterns_to_skip_are_searched() -> None:
    """Anything that is no plain name is a regular expression."""
    names = [f"model.layers.{number}.mlp.down_proj" for number in (0, 1, 2)]
    assert chosen(*names, skip=(r"layers\.[01]\.",)).quantized == (names[2],)


def test_a_name_that_matches_nothing_is_an_error_with_a_near_match() -> None:
    """A typing error must not quantize what was to be spared."""
    with pytest.raises(SelectionError, match=r"'kproj' matches no module.*did you mean k_proj"):
        chosen(f"{ATTENTION}.k_proj", skip=("kproj",))


def test_a_pattern_that_is_none_is_an_error() -> None:
    """The regular expression's own complaint is passed on."""
    with pytest.raises(SelectionError, match=r"is no regular expression: .*unterminated"):
        chosen(f"{ATTENTION}.k_proj", skip=("k_proj[",))


@pytest.mark.parametrize(
    "module",
    [
        "vision_tower.encoder.layers.0.self_attn.o_proj",
        "model.visual.layers.0.mlp.down_proj",
        "model.embed_positions",
        "model.layers.0.mlp.experts.3.down_proj",
        "model.layers.0.mlp.gate",
    ],
)
def test_what_is_no_linear_layer_of_the_decoder_is_left(module: str) -> None:
    """Other towers, learned positions, experts and their router stay in bfloat16, listed."""
    assert list(chosen(module, "lm_head").left) == [module]


def test_two_dimensional_norms_are_never_quantized() -> None:
    """Norms of each head are matrices by shape only."""
    found = chosen(f"{ATTENTION}.q_norm:16x128", "model.layers.0.ln_1:16x128", "lm_head")
    assert found.quantized == ("lm_head",)
    assert not found.left


def test_nothing_to_quantize_is_an_error() -> None:
    """With the reasons, so that the group size can be chosen better."""
    with pytest.raises(SelectionError, match=r"no module is left to quantize with group size 64.*K = 96"):
        chosen(f"{MLP}.down_proj:64x96")
