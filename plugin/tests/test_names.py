"""Which entry of a list means which module."""

from __future__ import annotations

import pytest

from cpu_int4.names import entry_for, listing, matches, parts_of


@pytest.mark.parametrize(
    ("entry", "module", "meant"),
    [
        ("lm_head", "lm_head", True),
        ("k_proj", "model.layers.0.self_attn.k_proj", True),
        ("self_attn.k_proj", "model.layers.0.self_attn.k_proj", True),
        ("model.layers.1", "model.layers.1.mlp.up_proj", True),
        ("model.layers.1", "model.layers.10.mlp.up_proj", False),
        ("proj", "model.layers.0.self_attn.k_proj", False),
        ("k_proj", "model.layers.0.self_attn.qk_proj", False),
        ("mlp.k_proj", "model.layers.0.self_attn.k_proj", False),
        ("re:.*k_proj", "model.layers.0.self_attn.k_proj", True),
        (r"re:model\.layers\.[0-3]\.", "model.layers.2.mlp.up_proj", True),
        (r"re:layers\.2", "model.layers.2.mlp.up_proj", False),  # from the start of the name
    ],
)
def test_an_entry_means_whole_parts_of_a_name(entry: str, module: str, *, meant: bool) -> None:
    """An entry is a run of whole dotted parts, or `re:` and a pattern matched from the start."""
    assert matches(entry, module) is meant


def test_the_first_entry_that_fits_is_found() -> None:
    """Of several entries that mean a module the first is named; none that does is None."""
    assert entry_for(["lm_head", "k_proj", "re:.*"], "a.k_proj") == "k_proj"
    assert entry_for(["lm_head"], "a.k_proj") is None


def test_a_fused_module_has_its_parts_beside_it() -> None:
    """Parts stand where the fused module stands; a module that is not fused is its own part."""
    packed = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    assert parts_of("a.0.qkv_proj", packed) == ("a.0.q_proj", "a.0.k_proj", "a.0.v_proj")
    assert parts_of("qkv_proj", packed) == ("q_proj", "k_proj", "v_proj")
    assert parts_of("a.o_proj", packed) == ("a.o_proj",)


def test_long_listings_say_how_many_more() -> None:
    """A sentence stays a sentence: names past the limit are counted."""
    assert listing(["b", "a"]) == "a, b"
    assert listing(map(str, range(15)), 2) == "0, 1 and 13 more"
