"""The compile-cache key: every setting that changes the graph changes it, and nothing else does."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import inside
import pytest
import tiny

import cpu_int4
from cpu_int4 import layout

OVERRIDE = "VLLM_OMNI_CPU_INT4_DIRECT_DEQUANT"

#: One change each, against the defaults at group 32. Those that describe the checkpoint come with one that fits.
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "group 64": {"group": 64},
    "copy": {"direct_dequant": False},
    "no dequantization": {"prefill_dequant": False},
    "threshold 3": {"dequant_threshold": 3},
    "embedding in bf16": {"quantize_embedding": False, "leave": ("embed_tokens",)},
    "a module in bf16": {"modules_not_converted": ["down_proj"], "leave": ("down_proj",)},
}


def key(folder: Path, **arguments: Any) -> str:
    """The hash of the configuration that vLLM would start an engine with."""
    found: str = inside.engine_config(folder, **arguments).compute_hash()
    return found


@pytest.fixture
def checkpoint(tmp_path: Path) -> Any:
    """Write a checkpoint with some setting, always at one path: the path is part of the key too."""

    def write(**changes: Any) -> Path:
        folder, _ = tiny.pair(tmp_path, tiny.llama(), **changes)
        return folder

    return write


def test_cases_46_and_52_each_setting_in_the_checkpoint_has_a_key_of_its_own(checkpoint: Any) -> None:
    """Group, copy, dequantization, threshold, embedding, modules: all keys differ pairwise, and repeat."""
    keys = {name: key(checkpoint(**changes)) for name, changes in SETTINGS.items()}
    for (one, first), (other, second) in itertools.combinations(keys.items(), 2):
        assert first != second, f"{one} and {other} share a compile cache"
    again = {name: key(checkpoint(**changes)) for name, changes in SETTINGS.items()}
    assert again == keys


def test_case_46_a_field_through_hf_overrides_has_the_same_key_as_in_the_checkpoint(checkpoint: Any) -> None:
    """It is the effective setting that counts, by whatever way it came."""
    whole = tiny.fields(direct_dequant=False)
    overridden = key(checkpoint(), hf_overrides={"quantization_config": whole})
    assert overridden == key(checkpoint(direct_dequant=False))
    assert overridden != key(checkpoint())


def test_case_46_a_default_written_out_resolves_alike(checkpoint: Any) -> None:
    """A default that stands in the file and one that does not resolve to the same settings."""
    resolved = [
        inside.engine_config(checkpoint(**fields)).model_config.hf_config.quantization_config["resolved"]
        for fields in ({}, {"direct_dequant": True, "dequant_threshold": 2})
    ]
    assert resolved[0] == resolved[1]


def test_case_52_the_override_has_a_key_of_its_own(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set against a cache that another setting filled, the variable leads to another; set alike, to the same."""
    folder = checkpoint()
    plain = key(folder)
    monkeypatch.setenv(OVERRIDE, "0")
    overridden = key(folder)
    assert overridden != plain
    monkeypatch.setenv(OVERRIDE, "1")
    assert key(folder) == plain


def test_case_55_the_probed_layout_is_part_of_the_key(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch that packs otherwise must not find graphs of this one."""
    folder = checkpoint()
    plain = key(folder)
    monkeypatch.setattr(layout, "probe", lambda: layout.Layout(32, "split"))
    assert key(folder) != plain


def test_the_plugins_version_is_part_of_the_key(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release may take other arguments in its operators."""
    folder = checkpoint()
    plain = key(folder)
    monkeypatch.setattr(cpu_int4, "__version__", "9")
    assert key(folder) != plain


def test_case_55_an_engine_that_packs_otherwise_than_the_reader_is_refused(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout that was hashed is the one that is packed, or nothing is."""
    read = inside.engine_config(checkpoint())
    monkeypatch.setattr(layout, "probe", lambda: layout.Layout(32, "adjacent"))
    with pytest.raises(
        ValueError, match=r"packs weights as adjacent-32, .* as split-\d+: give both the same ATEN_CPU_CAPAB"
    ):
        read.quant_config.get_quant_method(None, "")


def test_what_is_hashed_says_what_was_resolved(checkpoint: Any) -> None:
    """The settings stand in the configuration that vLLM hashes and prints."""
    config = inside.engine_config(checkpoint(direct_dequant=False)).model_config.hf_config
    resolved = json.loads(config.to_json_string())["quantization_config"]["resolved"]
    assert resolved["direct_dequant"] is False
    assert resolved["dequant_threshold"] == 2
    assert resolved["layout"] == str(layout.probe())
