"""Scoring of text by the vLLM driver: the same text gives the same numbers, however the arm is set."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from test_driver_vllm import ARMS_PYTHON, driver, run, spec, tiny

__all__ = ["driver", "tiny"]  # fixtures
SIZE = 256


@pytest.fixture
def quality(driver: ModuleType) -> ModuleType:
    """The scoring part of the driver."""
    assert driver
    return importlib.import_module("vllm_quality")


def texts() -> dict[str, str]:
    """Three texts of 256 bytes, which are 256 tokens of the tiny model; the first 192 of them are the same."""
    shared = ("All happy families are alike; each unhappy one is so in its own way. " * 3)[:192]
    return {name: shared + (f" {name} " + f"{name} went on otherwise. " * 9)[:64] for name in ("one", "two", "three")}


def part_of(folder: Path, text: str, **more: Any) -> dict[str, Any]:
    """A section `quality` as the harness writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(text)
    found = {"text": "own", "path": str(folder / "text.txt"), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return {**found, "windows": len(text) // SIZE, "window_tokens": SIZE} | more


def scored(model: Path, folder: Path, order: tuple[str, ...], **args: Any) -> dict[str, float]:
    """Negative log-likelihood of each text by real vLLM, the texts in that order."""
    trial = spec(model, **args)
    trial["workload"] = {"quality": part_of(folder, "".join(texts()[name] for name in order))}
    trial["needs"] = ["quality"]
    ran = run(folder / "trial", trial)
    assert ran.code == 0, ran.log[-3000:]
    work = next(fact for fact in ran.events.facts if fact["event"] == "work")
    assert work["scoring"] == {
        "text": trial["workload"]["quality"]["sha256"],
        "windows": 3,
        "window_tokens": SIZE,
        "chunks_a_window": 1,
        "prefix_caching": False,
        "special_tokens": False,
    }
    assert all(event["tokens"] == SIZE - 1 for event in ran.events.qualities)
    return {name: event["nll"] for name, event in zip(order, ran.events.qualities, strict=True)}


_REFERENCE = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
tokenizer = json.load(open(sys.argv[1] + "/tokenizer.json"))["model"]["vocab"]
found = {}
for name, text in json.load(open(sys.argv[2])).items():
    ids = torch.tensor([[tokenizer["\\u0120" if c == " " else c] for c in text]])
    with torch.no_grad():
        logs = model(ids).logits[0, :-1].log_softmax(-1)
    found[name] = -logs.gather(1, ids[0, 1:, None]).sum().item()
print(json.dumps(found))
"""


@pytest.mark.vllm
@pytest.mark.slow
def test_case_51_order_caching_chunks_and_batches_change_no_value(tiny: Path, tmp_path: Path) -> None:
    """Overlapping texts in two orders; prefix caching on and off; a batch limit below the text; one and eight sequences
    at once: the same values to the last bit. Counted another way, by a float32 forward of the same weights without any
    engine, bits per token agree to bfloat16's grain.
    """
    plain = scored(tiny, tmp_path / "plain", ("one", "two", "three"), max_num_seqs=1)
    hostile = {"enable_prefix_caching": True, "enable_chunked_prefill": True, "max_num_batched_tokens": 64}
    turned = scored(tiny, tmp_path / "turned", ("three", "one", "two"), max_num_seqs=8, **hostile)
    assert turned == plain
    (tmp_path / "texts.json").write_text(json.dumps(texts()))
    argv = [str(ARMS_PYTHON), "-c", _REFERENCE, str(tiny), str(tmp_path / "texts.json")]
    done = subprocess.run(argv, capture_output=True, check=True, timeout=300)
    for name, nll in json.loads(done.stdout).items():
        ours, theirs = (value / (SIZE - 1) / math.log(2) for value in (plain[name], nll))
        # 2^-9 is bfloat16's relative rounding; logits of this model are of size 1 and 255 errors average out
        assert ours == pytest.approx(theirs, abs=2**-7)


@pytest.mark.parametrize(
    ("given", "pinned"),
    [
        ({}, {}),
        ({"max_num_batched_tokens": 64}, {"max_num_batched_tokens": SIZE}),
        ({"max_num_batched_tokens": 4096}, {"max_num_batched_tokens": 4096}),
        ({"enable_prefix_caching": True, "long_prefill_token_threshold": 32}, {}),
    ],
)
def test_case_51_scoring_pins_what_could_change_a_value(
    quality: ModuleType, given: dict[str, Any], pinned: dict[str, Any]
) -> None:
    """No prefix cache, no cut window, whatever the arm says; a trial that scores nothing keeps its arguments."""
    trial = SimpleNamespace(needs={"quality"}, part=lambda _: {"window_tokens": SIZE})
    fixed = {"enable_prefix_caching": False, "long_prefill_token_threshold": 0}
    assert quality.pin(trial, given) == {**given, **pinned, **fixed}
    assert quality.pin(SimpleNamespace(needs={"prefill"}, part=trial.part), given) == given


def test_case_51_a_window_that_would_be_cut_is_refused(quality: ModuleType) -> None:
    """The limit that the engine settled on counts, not the one that was asked for."""
    quality._one_chunk(SimpleNamespace(max_num_batched_tokens=256), 256)
    with pytest.raises(ValueError, match=r"a window of 257 tokens would be cut into chunks of 256: set args\.max_num"):
        quality._one_chunk(SimpleNamespace(max_num_batched_tokens=256), 257)


def test_windows_lie_end_to_end_and_a_short_text_says_how_many_fit(quality: ModuleType) -> None:
    """Ten tokens hold three windows of three; the tenth is left over."""
    assert quality.cut(range(10), 3, 3, "own") == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    with pytest.raises(ValueError, match="own has 10 tokens; 4 windows of 3 need 12: ask for 3 windows at most"):
        quality.cut(range(10), 3, 4, "own")


def test_a_text_that_changed_since_it_was_digested_is_refused(quality: ModuleType, tmp_path: Path) -> None:
    """Two arms of one run would else read two texts."""
    part = part_of(tmp_path, "abc" * 100)
    assert quality._text(part) == "abc" * 100
    (tmp_path / "text.txt").write_text("abd" * 100)
    with pytest.raises(ValueError, match=r"text\.txt changed: its SHA-256 was"):
        quality._text(part)


def test_case_51_the_first_position_is_skipped_and_a_missing_one_refused(quality: ModuleType) -> None:
    """A window of n tokens has n - 1 log-probabilities that count; a hole is an error, a NaN stays visible."""
    place = SimpleNamespace
    scored = [None, {5: place(logprob=-1.5)}, {9: place(logprob=-0.25), 5: place(logprob=-7.0)}]
    assert quality.window_nll([3, 5, 9], scored) == 1.75
    with pytest.raises(quality.WrongOutputError, match="token 2 of the window has no log-probability"):
        quality.window_nll([3, 5, 8], scored)
    with pytest.raises(quality.WrongOutputError, match="2 log-probabilities for a window of 3"):
        quality.window_nll([3, 5, 9], scored[:2])
    broken = quality.window_nll([3, 5], [None, {5: place(logprob=float("nan"))}])
    assert broken != broken  # noqa: PLR0124  NaN is the one value that differs from itself
