"""Experiment files: what loads, what is refused, and what the refusal says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.experiment import ExperimentError, differences, differences_text, load, loads
from harness.experiment.schema import json_schema
from harness.experiment.types import ClaimKind, Experiment, Rule

TINY = """\
question: Which is faster?
passes: 3
engine: {command: {}}
arms:
  a: {command: [python3, a.py, "x"]}
  b: {command: [python3, b.py]}
metrics: [wall_s]
"""

DESIGN = """\
question: Does dequantizing prefill weights from the packed layout save the duplicate, and what does prefill pay?
model: spark2_5-synthetic        # a recipe or a path
passes: 8                        # two full rotations of four arms
baseline: both_layouts
control: direct                  # run this arm twice under another name
engine:                          # what all arms share
  vllm:
    args: {dtype: bfloat16, max_model_len: 2048, enable_prefix_caching: false, gpu_memory_utilization: 0.6}
    env: {VLLM_CPU_KVCACHE_SPACE: "1", VLLM_CPU_OMP_THREADS_BIND: "0-1"}
workload:
  prefill: {prompt_tokens: 512, repeats: 5}
  decode:  {prompt_tokens: 32, new_tokens: 64, repeats: 3}
  context: {tokens: 1536}
arms:
  both_layouts: {quantization: {direct_dequant: false}, expect: {engaged: cpu_int4}}
  direct:       {quantization: {direct_dequant: true},  expect: {engaged: cpu_int4}}
  no_dequant:   {quantization: {prefill_dequant: false}, expect: {engaged: cpu_int4}}
metrics: [prefill_tokens_per_s, decode_tokens_per_s, settled_rss_anon, peak_rss_anon, load_s]
claims:
  - {id: duplicate-gone, metric: settled_rss_anon, arm: direct, versus: both_layouts, expect: "difference <= -550 MiB"}
  - {id: as-small-as-none, metric: settled_rss_anon, arm: direct, versus: no_dequant, expect: "equivalent within 1%"}
"""


def tiny(**changes: Any) -> Experiment:
    """The tiny file with top-level keys changed."""
    return loads(yaml.safe_dump({**yaml.safe_load(TINY), **changes}, sort_keys=False), "tiny.yaml")


def problems(text: str) -> list[str]:
    """What is said of a file that is refused."""
    with pytest.raises(ExperimentError) as caught:
        loads(text, "x.yaml")
    return [problem.text for problem in caught.value.problems]


def only(text: str) -> str:
    """The one thing that is said."""
    found = problems(text)
    assert len(found) == 1, found
    return found[0]


def tiny_with(lines: str) -> str:
    """The tiny file with lines added at the end (from line 8 on)."""
    return TINY + lines


def test_the_example_of_the_design_loads_with_its_control_behind_its_arm() -> None:
    """A full file resolves: shared settings reach every arm, the control repeats its arm, claims are in base units."""
    found = loads(DESIGN, "experiments/direct_dequant.yaml")
    assert found.name == "direct_dequant"
    assert found.names == ("both_layouts", "direct", "direct_control", "no_dequant")
    assert found.control == ("direct", "direct_control")
    assert found.arm("direct").identity == found.arm("direct_control").identity
    assert found.arm("direct").identity != found.arm("no_dequant").identity
    assert found.arm("direct").args["gpu_memory_utilization"] == 0.6
    assert found.arm("direct").args["enable_prefix_caching"] is False
    assert found.arm("no_dequant").env == {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1"}
    assert [arm.priming for arm in found.arms] == [1, 1, 1, 1]
    assert [(c.kind, c.op, c.value) for c in found.claims] == [
        (ClaimKind.DIFFERENCE, "<=", -550 * 1024 * 1024),
        (ClaimKind.EQUIVALENT, "", 0.01),
    ]


def test_defaults_are_those_of_the_contract() -> None:
    """What a minimal file leaves out is filled in as documented."""
    found = loads(TINY, "tiny.yaml")
    assert (found.baseline, found.control, found.seed, found.claims, found.precision) == (None, None, None, (), None)
    assert (found.rule, found.repeat_passes, dict(found.margins), dict(found.disturbance)) == (Rule.STRICT, 0, {}, {})
    assert [arm.priming for arm in found.arms] == [0, 0]
    assert found.arm("a").command == ("python3", "a.py", "x")
    assert found.text == TINY


def test_differences_between_arms_are_data_and_text() -> None:
    """Every setting that differs from the baseline is listed; a setting that is absent is not the same as null."""
    found = loads(DESIGN, "d.yaml")
    assert [(d.arm, d.path) for d in differences(found)] == [
        ("direct", "quantization.direct_dequant"),
        ("direct_control", "quantization.direct_dequant"),
        ("no_dequant", "quantization.direct_dequant"),
        ("no_dequant", "quantization.prefill_dequant"),
    ]
    assert differences_text(found) == (
        "direct: quantization.direct_dequant = true (both_layouts: false)",
        "direct_control: the control, the same as direct",
        "no_dequant: quantization.direct_dequant = not set (both_layouts: false)",
        "no_dequant: quantization.prefill_dequant = false (both_layouts: not set)",
    )


@pytest.mark.parametrize(
    "value", ["on", "1", "010", "1.10", "1_000", "12:30", "1e3", "true", "no", "", "~", "0x10", "2024-01-01", ".inf"]
)
def test_case_15_an_env_value_that_is_no_string_is_refused_with_line_and_hint(value: str) -> None:
    """Whatever YAML would retype must be quoted; the message names file, line, variable and the remedy."""
    said = only(TINY.replace("[python3, b.py]", f"[python3, b.py], env: {{OK: C, FOO: {value} }}"))
    assert said.startswith("x.yaml:6:")
    assert "arms.b.env.FOO" in said
    assert f'"{value}"' in said or 'write ""' in said


def test_case_15_text_that_every_yaml_reader_takes_for_text_needs_no_quotes() -> None:
    """`0-1`, `C` and a quoted `on` arrive as written."""
    text = TINY.replace("[python3, b.py]", "[python3, b.py], env: {A: 0-1, LANG: C, X: 'on', E: ''}")
    assert loads(text, "x").arm("b").env == {"A": "0-1", "LANG": "C", "X": "on", "E": ""}


@pytest.mark.parametrize("name", ["no", "1", "1.5", "true", "~", "12:30"])
def test_case_15_an_arm_name_must_be_a_string(name: str) -> None:
    """`no:` as an arm's name is refused, not turned into False."""
    assert f'"{name}"' in only(TINY.replace("  b:", f"  {name}:")) or name == "~"


def test_case_15_names_of_arms_must_differ_in_files_too() -> None:
    """Names that a file system without case would merge are refused; those that quote apart are kept."""
    assert "too little" in only(TINY.replace("  b:", "  A:"))
    assert loads(TINY.replace("  b:", "  a/b:") + "", "x").names == ("a", "a/b")
    assert set(loads(TINY.replace("  a:", "  a_b:").replace("  b:", "  a/b:"), "x").names) == {"a_b", "a/b"}
    assert "at most 120" in only(TINY.replace("  b:", "  " + "é" * 30 + ":"))


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        (tiny_with("arms: {c: {command: [x]}}\n"), 4, 8),
        (tiny_with("passes: 5\n"), 2, 8),
        (TINY.replace("b.py]", "b.py], env: {A: '1',\n    A: '2'}"), 6, 7),
    ],
)
def test_case_16_equal_keys_are_refused_naming_both_lines(text: str, first: int, second: int) -> None:
    """The last of two equal keys never wins silently."""
    said = only(text)
    assert f"line {first} and on line {second}" in said
    assert said.startswith(f"x.yaml:{second}:")


def test_case_16_merge_keys_still_merge_and_own_keys_win() -> None:
    """`<<: *base` and lists of maps load; the arm's own keys and the earlier map win."""
    text = """\
question: q
passes: 1
engine: {command: {}}
x-env: &env {A: "1", B: "1"}
x-more: &more {B: "2", C: "2"}
arms:
  a: &base {command: [x], env: {<<: [*env, *more], A: "0"}}
  b: {<<: *base, command: [y]}
metrics: [wall_s]
"""
    found = loads(text, "x")
    assert found.arm("b").env == {"A": "0", "B": "1", "C": "2"}
    assert found.arm("b").command == ("y",)


@pytest.mark.parametrize(("written", "passes"), [("3", 3), ("3.0", 3), ("1e1", 10), ("+4", 4), ("30e-1", 3)])
def test_case_17_an_evident_number_is_that_number(written: str, passes: int) -> None:
    """Numbers with exponent or point are read as what they say, whatever PyYAML thinks of them."""
    assert loads(TINY.replace("passes: 3", f"passes: {written}"), "x").passes == passes


@pytest.mark.parametrize(
    "written",
    [
        '"3"',
        "true",
        "yes",
        "-1",
        "0",
        ".inf",
        ".nan",
        "nan",
        "1e999",
        "3.5",
        "0x3",
        "03",
        "3_0",
        "1:30",
        "~",
        "",
        "[3]",
    ],
)
def test_case_17_anything_else_is_refused_by_name(written: str) -> None:
    """No text, bool, base-60, octal, negative or endless number passes for a count of passes."""
    said = only(TINY.replace("passes: 3", f"passes: {written}"))
    assert said.startswith("x.yaml:2:")
    assert ": passes: " in said


def test_case_17_times_take_numbers_and_units() -> None:
    """`1e2`, `"90 s"` and `2 min` are seconds; nothing else is."""
    found = loads(tiny_with("limits: {trial: 1e2, load: '90 s', decode: 2 min, exit: 5e-2}\n"), "x").limits
    assert (found.trial, found.exit, dict(found.phases)) == (100.0, 0.05, {"load": 90.0, "decode": 120.0})
    for wrong in (".inf", "-1", "0", "true", '"3"', "1e999", "3 parsecs", "1e308 h"):
        assert "limits.load" in only(tiny_with(f"limits: {{load: {wrong}}}\n"))


def test_case_18_every_unknown_key_is_listed_with_a_near_match() -> None:
    """All problems come at once, each with its path and what was probably meant."""
    text = TINY.replace("command: [python3, b.py]", 'comand: [x], envs: {OMP_NUM_THREADS: "2"}') + "repeat_pass: 5\n"
    said = problems(text)
    assert len(said) == 4
    assert any("arms.b.comand" in line and "`command`" in line for line in said)
    assert any("arms.b.envs" in line and "`env`" in line for line in said)
    assert any("x.yaml:8:1: repeat_pass:" in line and "`repeat_passes`" in line for line in said)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("baseline: aa\n", "did you mean `a`?"),
        ("control: zebra\n", "no arm `zebra`"),
        ("limits: {timeout: 3}\n", "`trial`"),
        ("limits: {lod: 3}\n", "`load`"),
        ("disturbance: {steal: 3}\n", "`steal_s`"),
        ("margins: {load_s: 1%}\n", "no metric `load_s`"),
        ("margins: {wall_s: 1}\n", "less than 1"),
        ("rule: lenient\n", "strict, paired"),
        ("expect: {failure: sigill}\n", "did you mean `signal`"),
        ("expect: {failure: timeout, signal: SIGILL}\n", "failure: signal"),
        ("expect: {signal: SIGILL}\n", "failure: signal"),
        ("expect: {may_fail: timeout, signal: SIGILL}\n", "may_fail: signal"),
        ("expect: {may_fail: timeout, failure: signal}\n", "keep one"),
        ("expect: {failure: signal, signal: SIGIL}\n", "`SIGILL`"),
        ("expect: {engaged: x, calls: {fast: '>> 1'}}\n", "> 0"),
        ("workload: {prefil: {prompt_tokens: 1}}\n", "`prefill`"),
        ("workload: {decode: {prompt_tokens: 1, new_tokens: 1}}\n", "out of range"),
        ("workload: {prefill: {repeats: 1}}\n", "`prompt_tokens` is missing"),
        ("precision: 200%\n", "less than 1"),
        ("precision: {target: 2%, max_passes: 2}\n", "fewer than the 3"),
        ("seed: -1\n", "out of range"),
        ("claims: [{id: a, metric: wall_s, arm: c, versus: b, expect: ratio > 1}]\n", "no arm `c`"),
        ("claims: [{id: a, metric: wall_s, arm: a, expect: ratio > 1}]\n", "`versus` is missing"),
        ("claims: [{id: a, metric: wall_s, arm: a, versus: a, expect: ratio > 1}]\n", "itself"),
        ("claims: [{id: a, metric: load_s, arm: a, versus: b, expect: ratio > 1}]\n", "add it to `metrics`"),
        ("claims: [{id: a, metric: wall_s, arm: a, versus: b, expect: ratio about 1}]\n", "ratio >= 1.8"),
        ("claims: [{id: a, metric: wall_s, arm: a, versus: b, expect: ratio > 1 s}]\n", "no unit"),
        ("claims: [{id: a, metric: wall_s, arm: a, versus: b, expect: difference < 1 MiB}]\n", "does not fit"),
        ("claims: [{id: a, metric: wall_s, arm: a, versus: b, expect: difference < 1}]\n", "no unit"),
        ("claims: [{id: a, metric: wall_s, arm: a, versus: b, expect: equivalent within 0%}]\n", "more than 0%"),
        (
            "claims: [{id: a, metric: wall_s, arm: a, versus: b, expect: not ranked, host: {cores: 0}}]\n",
            "out of range",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_meant(line: str, says: str) -> None:
    """One mistake, one message, at its own line."""
    said = only(tiny_with(line))
    assert said.startswith("x.yaml:8:")
    assert says in said


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[wall_s]", "[wall]", "`wall_s`"),
        ("[wall_s]", "[wall_s, wall_s]", "stands twice"),
        ("[wall_s]", "[{name: wall_s, unit: s, better: lower}]", "built in"),
        ("[wall_s]", "[{name: x, unit: s, better: smaller}]", "lower, higher"),
        ("[wall_s]", "[{name: x, unit: s, better: lower, resolution: 0}]", "more than 0"),
        ("[wall_s]", "[]", "at least 1"),
        ("[python3, b.py]", "python3 b.py", '[python3, prog.py, "x"]'),
        ("[python3, b.py]", "[]", "at least 1"),
        ("[python3, b.py]", "[x, on]", 'quote it: "on"'),
        ("[python3, b.py]", "[x], args: {a: 1}", "no engine to pass this to"),
        ("[python3, b.py]", "[x], engine: vllm", "take one of the two out"),
        ("[python3, b.py]", "[x], env: {HARNESS_TRIAL: x}", "set by the harness"),
        ("[python3, b.py]", '[x, "a\\0b"]', "NUL"),
        ("{command: [python3, b.py]}", "{}", "no program"),
        ("engine: {command: {}}", "engine: {vlm: {}, command: {}}", "`vllm`"),
        ("question: Which is faster?", "question: ''", "is empty"),
    ],
)
def test_a_change_for_the_worse_is_refused(old: str, new: str, says: str) -> None:
    """Metrics, commands and engines that cannot work are refused before anything runs."""
    assert says in only(TINY.replace(old, new))


def test_an_engine_needs_its_model_and_the_work_that_its_metrics_read() -> None:
    """Speed of an engine without a workload, or an engine without a model, is refused."""
    assert "workload: {prefill" in only(DESIGN.replace("  prefill: {prompt_tokens: 512, repeats: 5}\n", ""))
    assert len(problems(DESIGN.replace("model: spark2_5-synthetic", "x-model: y"))) == 3


def test_a_number_in_a_command_stands_as_it_is_written() -> None:
    """Arguments are text: `0.50` is not shortened."""
    assert loads(TINY.replace("[python3, b.py]", "[sleep, 0.50, 3]"), "x").arm("b").command == ("sleep", "0.50", "3")


def test_the_name_of_the_control_must_be_free() -> None:
    """An arm that already has the control's name is refused."""
    said = only(TINY.replace("  b:", "  a_control:") + "control: a\n")
    assert "rename that" in said


def test_a_metric_of_the_file_and_claims_in_its_unit() -> None:
    """A metric defined in the file may be zero; a difference is converted to its unit."""
    found = tiny(
        metrics=[{"name": "size", "unit": "MiB", "better": "lower", "resolution": 0.5}, "wall_s"],
        claims=[
            {"id": "1", "metric": "size", "arm": "a", "versus": "b", "expect": "difference <= -1 GiB"},
            {"id": "2", "metric": "wall_s", "arm": "a", "versus": "b", "expect": "difference > 5 ms"},
            {
                "id": "3",
                "metric": "wall_s",
                "arm": "a",
                "versus": "b",
                "expect": "not ranked",
                "host": {"isa": "amx_tile", "cores": ">= 32"},
            },
        ],
    )
    assert (found.metrics[0].positive, found.metrics[0].resolution) == (False, 0.5)
    assert [claim.value for claim in found.claims] == [-1024.0, 0.005, 0.0]
    assert dict(found.claims[2].host) == {"isa": ["amx_tile"], "cores": 32}


@pytest.mark.parametrize(("text", "cores"), [("32", 32), ('">= 32"', 32), ('"<= 4"', "<= 4"), ('"==2"', "== 2")])
def test_a_claim_may_be_held_to_large_or_to_small_hosts(text: str, cores: int | str) -> None:
    """A plain number is the least; bounds say otherwise."""
    claim = f"claims: [{{id: a, metric: wall_s, arm: a, versus: b, expect: not ranked, host: {{cores: {text}}}}}]\n"
    arms = "engine: {command: {}}\narms: {a: {command: [x]}, b: {command: [y]}}\nmetrics: [wall_s]\n"
    assert dict(loads(f"question: q\npasses: 1\n{arms}{claim}", "e.yaml").claims[0].host) == {"cores": cores}


def test_precision_thresholds_and_margins_take_shares_and_units() -> None:
    """`2%` is 0.02, `64 MiB` is bytes; the short and the long form of `precision` mean the same."""
    text = "margins: {wall_s: 1%}\ndisturbance: {steal_fraction: 2%, swap_in_bytes: 1 MiB, major_faults: 10}\n"
    found = loads(tiny_with(text + "precision: 2%\n"), "x")
    assert dict(found.margins) == {"wall_s": 0.01}
    assert dict(found.disturbance) == {"steal_fraction": 0.02, "swap_in_bytes": 1048576, "major_faults": 10}
    assert found.precision is not None
    assert (found.precision.target, found.precision.max_passes, found.precision.budget_s) == (0.02, 12, 14400)
    long = loads(tiny_with("precision: {target: 0.02, max_passes: 12, budget: 4 h}\n"), "x")
    assert long.precision == found.precision


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "x.yaml:1:1: file: holds nothing"),
        (b"a: [1\nb: 2\n", "x.yaml:2:2: file: no YAML"),
        (b"a:\n\t- b\n", "tabs"),
        (b"\xff\xfe", "no UTF-8"),
        (b"a: 'b\x07'\n", "U+0007"),
        (b"- a\n", "a map, not a list"),
        (b"a: &a [*a]\n", "too large"),
        (b"[" * 5000, "nested too deeply"),
        (b"a: 1\n---\nb: 2\n", "no second"),
        (b"a: !!python/object/apply:os.getcwd []\n", "tag"),
        (b"? [a]\n: b\n", "a key must be text"),
        (b'a: "\\UFFFFFFFF"\n', "no YAML"),
        (b"cores: >= 3\n", "must be quoted"),
        (b"{cores: >= 3}\n", "quote the text"),
    ],
)
def test_a_file_that_is_no_experiment_is_a_problem_not_a_crash(tmp_path: Path, raw: bytes, says: str) -> None:
    """Whatever the bytes, the answer names file, line and cause."""
    path = tmp_path / "x.yaml"
    path.write_bytes(raw)
    with pytest.raises(ExperimentError) as caught:
        load(path)
    assert says in str(caught.value)


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """A missing file and a folder are named with the cause."""
    with pytest.raises(ExperimentError, match="No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ExperimentError, match="Is a directory"):
        load(tmp_path)


def test_aliases_that_multiply_are_bounded() -> None:
    """A file of a few lines whose aliases stand for billions of values is refused in no time."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    assert "too large" in only("\n".join(lines))


_WORDS = st.sampled_from(
    [
        "question",
        "passes",
        "engine",
        "arms",
        "metrics",
        "claims",
        "command",
        "vllm",
        "wall_s",
        "expect",
        "<<",
        "&a",
        "*a",
        ": ",
        "- ",
        "\n",
        "\n  ",
        "{",
        "}",
        "[",
        "]",
        ",",
        "1e-3",
        "on",
        "2%",
        '"',
        "'",
        "!!str ",
        "~",
        "limits",
        "x-",
        "é",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(_WORDS, max_size=30).map("".join), st.text(max_size=60)))
def test_reading_raises_nothing_but_an_experiment_error(text: str) -> None:
    """No text, however broken, escapes as another exception."""
    try:
        loads(text, "x.yaml")
    except ExperimentError as error:
        assert error.problems  # noqa: PT017 - the error is expected for nearly every text, not for every one


_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.sampled_from(["a", "wall_s"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(json_schema()["properties"])), _VALUES)
def test_any_value_at_any_key_is_read_or_refused(key: str, value: Any) -> None:
    """A valid file with one key replaced by anything at all loads or is refused; it never crashes."""
    try:
        tiny(**{key: value})
    except ExperimentError as error:
        assert error.problems  # noqa: PT017 - see above


def test_the_json_schema_is_valid_and_accepts_what_loads() -> None:
    """Editors get draft 2020-12 with descriptions; the design's example and the tiny file pass, a typo does not."""
    import jsonschema

    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for text in (DESIGN, TINY, tiny_with("precision: 2%\nlimits: {trial: 90 s}\nx-a: 1\n")):
        assert not list(validator.iter_errors(yaml.safe_load(text)))
    assert list(validator.iter_errors(yaml.safe_load(tiny_with("pases: 3\n"))))
    assert all(value["description"] for value in schema["properties"].values())
