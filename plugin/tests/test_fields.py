"""Fields of a `quantization_config`: what is accepted, and how the rest is refused."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from cpu_int4.fields import RESOLVED, Settings, SettingsError, looks_like_ours, parse, resolved

OVERRIDE = "VLLM_OMNI_CPU_INT4_DIRECT_DEQUANT"


def refusal(fields: dict[str, Any], environment: dict[str, str] | None = None) -> str:
    """The message with which fields are refused."""
    with pytest.raises(SettingsError) as caught:
        parse(fields, environment or {})
    return str(caught.value)


def test_absent_fields_take_their_defaults() -> None:
    """A checkpoint need not carry run-time fields: direct, with prefill dequantization, from two rows on, 4 MiB."""
    assert parse(tiny.fields(128), {}) == Settings(
        group_size=128,
        quantize_embedding=True,
        modules_not_converted=(),
        direct_dequant=True,
        prefill_dequant=True,
        dequant_threshold=2,
        repack_bytes=4_194_304,
        kernel="tinygemm",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sym": True}, r"sym: True is not supported; supported: false"),
        ({"sym": None}, r"sym: None is not supported"),
        ({"bits": 8}, r"bits: 8 is not supported; supported: 4"),
        ({"bits": True}, r"bits: True"),
        ({"group_size": -1}, r"group_size: -1 is not supported; supported: 32, 64, 128, 256"),
        ({"group_size": 0}, r"group_size: 0 is not supported; supported: 32"),
        ({"group_size": 7}, r"group_size: 7 is not supported; supported: 32"),
        ({"group_size": "128"}, r"group_size: '128'"),
        ({"group_size": 128.0}, r"group_size: 128.0"),
        ({"desc_act": True}, r"desc_act: unknown field \(value True\); it belongs to GPTQ"),
        ({"desc_act": False}, r"desc_act: unknown field"),
        ({"zero_point": False}, r"zero_point: unknown field \(value False\); it belongs to AWQ"),
        ({"quant_method": "gptq"}, r"quant_method: 'gptq' is not supported; supported: \"cpu_int4\""),
        ({"group_sise": 128}, r"group_sise: unknown field \(value 128\); did you mean group_size\?"),
        ({"direct_dequants": True}, r"did you mean direct_dequant\?"),
        ({"zzz": 1}, r"zzz: unknown field \(value 1\); known fields: quant_method, format_version"),
        ({"direct_dequant": "false"}, r"direct_dequant: 'false' is not supported; supported: true or false"),
        ({"direct_dequant": 1}, r"direct_dequant: 1 is not supported"),
        ({"dequant_threshold": 0}, r"dequant_threshold: 0 is not supported; supported: an integer from 1 on"),
        ({"dequant_threshold": True}, r"dequant_threshold: True"),
        ({"repack_bytes": -1}, r"repack_bytes: -1"),
        ({"kernel": "marlin"}, r'kernel: \'marlin\' is not supported; supported: "tinygemm" or "native"'),
        ({"modules_not_converted": "lm_head"}, r"modules_not_converted: 'lm_head' is not supported; supported: a list"),
        ({"modules_not_converted": ["re:["]}, r"modules_not_converted: \['re:\['\]"),
    ],
)
def test_case_54_a_value_that_is_not_supported_is_refused_with_field_value_and_supported_values(
    change: dict[str, Any], words: str
) -> None:
    """Each unsupported value is refused before a weight is touched, in words that name field, value and remedy."""
    assert re.search(words, refusal(tiny.fields(128, **change)))


@pytest.mark.parametrize("convention", ["gptq", "gptq_v2", ""])
@pytest.mark.parametrize("sym", [True, False])
def test_case_58_a_gptq_checkpoint_is_refused_whatever_its_label_says_of_zero_points(
    convention: str, *, sym: bool
) -> None:
    """Its label may be right, wrong or missing; none is guessed at, not even under our own method's name."""
    fields = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": sym, "desc_act": False}
    fields |= {"checkpoint_format": convention} if convention else {}
    words = refusal(fields)
    assert "quant_method: 'gptq' is not supported; supported: \"cpu_int4\"" in words
    renamed = refusal({**fields, "quant_method": "cpu_int4"})
    assert "format_version: missing; supported: 1" in renamed
    assert "desc_act: unknown field (value False); it belongs to GPTQ checkpoints" in renamed
    assert ("checkpoint_format: unknown field" in renamed) == bool(convention)


@pytest.mark.parametrize("field", ["quant_method", "format_version", "bits", "group_size", "sym"])
def test_case_54_what_describes_the_checkpoint_has_no_default(field: str) -> None:
    """A checkpoint that does not say what it holds is refused rather than guessed at."""
    fields = tiny.fields(128)
    del fields[field]
    assert f"{field}: missing; supported:" in refusal(fields)


@pytest.mark.parametrize("version", [0, 2, "1", 1.0, True])
def test_case_59_another_format_version_is_refused(version: object) -> None:
    """Older, newer and misspelt versions are refused with the one that is read."""
    assert f"format_version: {version!r} is not supported; supported: 1" in refusal(tiny.fields(format_version=version))


def test_all_errors_are_told_at_once() -> None:
    """Two wrong fields and a wrong override give three lines."""
    message = refusal(tiny.fields(7, bits=3), {OVERRIDE: "yes"})
    assert message.count("\n- ") == 3
    assert f"{OVERRIDE}: 'yes' is not supported" in message


@pytest.mark.parametrize(("value", "direct"), [("0", False), ("1", True), ("", False)])
def test_the_override_wins_over_the_field(value: str, *, direct: bool) -> None:
    """The experiment's variable decides `direct_dequant`; an empty one leaves the field alone."""
    assert parse(tiny.fields(direct_dequant=False), {OVERRIDE: value}).direct_dequant is direct


def test_settings_once_resolved_are_read_again_alike() -> None:
    """The dictionary is read more than once: what was written into it for the hash changes nothing."""
    fields = tiny.fields(direct_dequant=False)
    settings = parse(fields, {})
    fields[RESOLVED] = resolved(settings, layout="split-64", plugin="1")
    assert parse(fields, {}) == settings


def test_one_overridden_field_alone_is_recognised() -> None:
    """A dictionary with a field of ours and no method is what replacing the checkpoint's whole dictionary leaves."""
    assert looks_like_ours({"direct_dequant": False})
    assert not looks_like_ours(tiny.fields())
    assert not looks_like_ours({"quant_method": "gptq", "kernel": "x"})
    assert not looks_like_ours({"bits": 4, "group_size": 128})


@given(st.dictionaries(st.text(max_size=12) | st.sampled_from(sorted(tiny.fields())), st.none() | st.integers()))
def test_any_dictionary_is_parsed_or_refused_with_a_settings_error(fields: dict[str, Any]) -> None:
    """Whatever stands in a config.json, nothing but `SettingsError` comes out."""
    with contextlib.suppress(SettingsError):
        parse(fields, {})


@pytest.mark.parametrize(
    "field", [{"direct_dequant": False}, {"prefill_dequant": False}, {"dequant_threshold": 8}, {"repack_bytes": 0}]
)
def test_case_68_a_setting_without_effect_on_the_native_kernel_is_refused(field: dict[str, object]) -> None:
    """Two arms that differ in it alone would run the same code under two names; at its default it may stand."""
    (name,) = field
    base = {"quant_method": "cpu_int4", "format_version": 1, "bits": 4, "group_size": 128, "sym": False}
    with pytest.raises(SettingsError, match=f'{name}: has no effect with kernel "native"'):
        parse({**base, **field, "kernel": "native"}, {})
    assert parse({**base, **field, "kernel": "tinygemm"}, {}).kernel == "tinygemm"
    assert parse({**base, "direct_dequant": True, "kernel": "native"}, {}).kernel == "native"


def test_case_68_the_override_is_refused_with_the_native_kernel() -> None:
    """The variable chooses between two ways that the native kernel does not have."""
    base = {"quant_method": "cpu_int4", "format_version": 1, "bits": 4, "group_size": 128, "sym": False}
    with pytest.raises(SettingsError, match=OVERRIDE):
        parse({**base, "kernel": "native"}, {OVERRIDE: "0"})
