"""The vLLM driver: one real trial of a tiny model, and the parts of it that need no engine."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness import events
from harness.drivers import registry
from harness.models import store

CHECKOUT = Path(__file__).parent.parent
DRIVERS = CHECKOUT / "harness" / "drivers"
ARMS_PYTHON = registry.interpreter({}, os.environ, CHECKOUT)
WORKLOAD = {
    "prefill": {"prompt_tokens": 64, "repeats": 2},
    "decode": {"prompt_tokens": 8, "new_tokens": 16, "repeats": 2},
    "context": {"tokens": 256},
    "quality": {"window_tokens": 32, "windows": 2},
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The driver as a module, its neighbours importable by path as in an arm."""
    monkeypatch.syspath_prepend(str(DRIVERS))
    return importlib.import_module("vllm_offline")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a trial left behind."""

    code: int
    log: str
    lines: list[str]

    @property
    def events(self) -> events.Events:
        """The stream, read."""
        return events.parse(self.lines)


def run(folder: Path, spec: dict[str, Any], **env: str) -> Ran:
    """Run the driver as the harness does, in an environment of its own."""
    (folder / "tmp").mkdir(parents=True)
    (folder / "workload.json").write_text(json.dumps(spec))
    neutral = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "TMPDIR": str(folder / "tmp"),
        "SPT_NOENV": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HARNESS_EVENTS": str(folder / "events.jsonl"),
        "HARNESS_WORKLOAD": str(folder / "workload.json"),
        "HARNESS_TRIAL": "test",
    }
    argv = registry.DRIVERS["vllm"].argv(ARMS_PYTHON, ())
    with (folder / "log").open("wb") as log:
        done = subprocess.run(argv, env=neutral | env, stdout=log, stderr=log, timeout=600, check=False)
    return Ran(
        code=done.returncode,
        log=(folder / "log").read_text(errors="replace"),
        lines=(folder / "events.jsonl").read_text().splitlines(),
    )


def spec(model: Path, **args: Any) -> dict[str, Any]:
    """A trial of the tiny model with everything switched on and short pauses."""
    common = {"dtype": "bfloat16", "max_model_len": 512, "gpu_memory_utilization": 0.2, "enforce_eager": True}
    return registry.workload_file(
        arm={"name": "a", "engine": "vllm", "model": "tiny-random", "args": common | args},
        workload=WORKLOAD,
        needs=frozenset({"prefill", "decode", "settle", "trim", "quality"}),
        model_dir=model,
        priming=False,
        settle_s=0.1,
        trim_s=0.1,
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder."""
    if not ARMS_PYTHON.exists():
        pytest.skip("`make setup` makes the arms' environment")
    models = tmp_path_factory.mktemp("models")
    return store.make("tiny-random", models=models, python=ARMS_PYTHON, say=lambda _: None).folder


@pytest.mark.vllm
@pytest.mark.slow
def test_a_real_trial_reports_all_it_promises(tiny: Path, tmp_path: Path) -> None:
    """Real vLLM, three processes: every phase begins and ends, every line is valid, work and engagement are told."""
    from jsonschema import Draft202012Validator

    trial = spec(tiny)
    text = b"It was a bright cold day in April, and all clocks agreed.\n" * 4
    (tmp_path / "text.txt").write_bytes(text)
    found_text = {"text": "own", "path": str(tmp_path / "text.txt"), "sha256": hashlib.sha256(text).hexdigest()}
    trial["workload"] = WORKLOAD | {"quality": {**WORKLOAD["quality"], **found_text}}
    ran = run(tmp_path / "trial", trial)
    assert ran.code == 0, ran.log[-3000:]
    validator = Draft202012Validator(json.loads((CHECKOUT / "docs" / "protocol.schema.json").read_text()))
    for line in ran.lines:
        validator.validate(json.loads(line))
    found = ran.events
    assert (found.done, found.malformed, found.open_phase) == (True, 0, None)
    assert [phase.name for phase in found.phases] == (
        ["import", "load", "warm-up", "prefill", "decode", "context", "quality", "settle", "trim", "shutdown"]
    )
    measured = [(one.phase, one.tokens_in, one.tokens_out) for one in found.iterations if one.phase != "warm-up"]
    assert measured == [("prefill", 64, 1)] * 2 + [("decode", 8, 16)] * 2 + [("context", 255, 1)]
    assert [event["tokens"] for event in found.qualities] == [31, 31]
    # A model of random weights guesses: a perplexity near its 512 tokens, i.e. near ln 512 = 6.2 nats a token.
    assert all(4 < event["nll"] / event["tokens"] < 9 for event in found.qualities)
    engaged = {event.name: event.modules for event in found.engagements}
    assert engaged["unquantized"]["UnquantizedLinearMethod"] == 8  # two layers: qkv, out, gate and up, down
    assert engaged["attention:CPU_ATTN"] == {"attention_layers": 2}
    facts = {fact["event"]: fact for fact in found.facts}
    assert facts["work"]["kv_bytes"] > 0
    assert facts["work"]["threads"] >= 1
    assert {"driver", "workers", "engine_core"} <= facts["trim"].keys()
    assert facts["engine"]["workers"][0]["dtype"] == "bfloat16"


@pytest.mark.vllm
@pytest.mark.slow
def test_case_47_a_method_unknown_to_the_engine_is_a_refused_configuration(tiny: Path, tmp_path: Path) -> None:
    """A quantization method whose plugin is not there is refused before any engine process exists, and said so."""
    ran = run(tmp_path / "trial", spec(tiny, quantization="none_such"))
    (error,) = ran.events.errors
    assert ran.code == 1
    assert (error["stage"], error["phase"], ran.events.done) == ("config", "load", False)
    assert "Unknown quantization method" in error["message"]


def test_quantization_fields_are_merged_into_the_checkpoints_own(driver: ModuleType, tmp_path: Path) -> None:
    """VLLM replaces the whole dictionary, so the driver hands over all of it: the arm's fields win, the others stay."""
    own = {"quant_method": "cpu_int4", "group_size": 32, "direct_dequant": False}
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 512, "quantization_config": own}))
    trial = SimpleNamespace(
        spec={
            "arm": {"args": {"dtype": "bfloat16"}, "quantization": {"direct_dequant": True}},
            "model_dir": str(tmp_path),
        },
        needs=frozenset(),
    )
    arguments = driver.engine_arguments(trial)
    assert arguments["hf_overrides"] == {"quantization_config": own | {"direct_dequant": True}}
    assert (arguments["enable_prefix_caching"], arguments["disable_log_stats"]) == (False, False)


@pytest.mark.parametrize("name", ["model", "worker_cls"])
def test_arguments_that_belong_to_the_harness_are_refused(driver: ModuleType, name: str) -> None:
    """An arm that sets them is told which key to remove."""
    trial = SimpleNamespace(spec={"arm": {"args": {name: "x"}}, "model_dir": "/m"})
    with pytest.raises(ValueError, match=f"args.{name} is set by the harness: remove it"):
        driver.engine_arguments(trial)


class FakeEngine:
    """Answers with a fixed number of tokens, whatever was asked for."""

    def __init__(self, *, made: int, cached: int = 0, first: float = 1.0, last: float = 1.0) -> None:
        self.made, self.cached, self.times = made, cached, SimpleNamespace(first_token_ts=first, last_token_ts=last)

    def generate(self, asked: list[dict[str, list[int]]], _sampling: object, *, use_tqdm: bool) -> list[Any]:
        """One answer to one prompt, as vLLM shapes it."""
        assert not use_tqdm
        return [
            SimpleNamespace(
                prompt_token_ids=asked[0]["prompt_token_ids"],
                outputs=[SimpleNamespace(token_ids=[7] * self.made)],
                num_cached_tokens=self.cached,
                metrics=self.times,
            )
        ]


@pytest.fixture
def parts(driver: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The request parts, with a stand-in for vLLM's sampling parameters."""
    assert driver
    monkeypatch.setitem(__import__("sys").modules, "vllm", SimpleNamespace(SamplingParams=lambda **_: None))
    return importlib.import_module("vllm_parts")


def trial_of(parts: ModuleType, folder: Path) -> Any:
    """A trial that decodes 4 tokens after a prompt of 8."""
    from harness.drivers.protocol import EventStream

    (folder / "config.json").write_text('{"vocab_size": 512}')
    workload = {"decode": {"prompt_tokens": 8, "new_tokens": 4, "repeats": 1}}
    value = {"arm": {}, "model_dir": str(folder), "workload": workload, "needs": ["decode"]}
    return parts.Trial(events=EventStream(folder / "events.jsonl"), spec=value)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (FakeEngine(made=3), "took 8 and made 3"),
        (FakeEngine(made=4, cached=4), "4 prompt tokens came from a cache"),
        (FakeEngine(made=4, first=0.0, last=1e6), "from first to last token within"),
        (FakeEngine(made=4, first=2.0, last=2.0), r"0\.0 s from first to last"),
    ],
)
def test_an_engine_that_does_other_work_ends_the_trial(
    parts: ModuleType, tmp_path: Path, engine: FakeEngine, words: str
) -> None:
    """A short answer, a cached prompt and token times that cannot be true are errors, never values."""
    trial = trial_of(parts, tmp_path)
    with pytest.raises(parts.WrongOutputError, match=words):
        importlib.import_module("parts").decode(trial, parts.Requests(trial, engine))
    assert events.parse((tmp_path / "events.jsonl").read_text().splitlines()).iterations == ()
