"""Scoring of a fixed text by vLLM: the log-probability of each prompt token, window by window.

What would let the same text give another number is fixed here, whatever the arm says: no prefix cache (its
positions are never computed, so vLLM has no log-probabilities of them), one window a request and one request at a time,
and a window is one chunk (attention over a cut window adds up in another order). No special token is put before a
window: each begins in the middle of the text, and its first token is context only, it is not scored.

Beside vllm_offline.py, imported by path with the arms' interpreter; standard library and vLLM only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.drivers.vllm_parts import Trial, WrongOutputError
else:
    from vllm_parts import Trial, WrongOutputError


def asked(trial: Trial) -> Mapping[str, Any] | None:
    """The workload's section `quality`, if this trial's metrics need it."""
    return trial.part("quality") if "quality" in trial.needs else None


def pin(trial: Trial, arguments: dict[str, Any]) -> dict[str, Any]:
    """Engine arguments under which a window is one chunk and nothing of it comes from a cache. Priming trials that are
    followed by scoring ones alone get them too: a batch limit is part of what vLLM compiles for.
    """
    part = asked(trial)
    if part is None:
        return arguments
    limit = arguments.get("max_num_batched_tokens")
    wider = {} if limit is None else {"max_num_batched_tokens": max(int(limit), int(part["window_tokens"]))}
    return {**arguments, **wider, "enable_prefix_caching": False, "long_prefill_token_threshold": 0}


def quality(trial: Trial, llm: Any) -> None:
    """Report the negative log-likelihood of each window in nats, summed over all of its tokens but the first."""
    part = asked(trial)
    if part is None or trial.spec.get("priming"):
        return
    from vllm import SamplingParams

    size, count = int(part["window_tokens"]), int(part["windows"])
    _one_chunk(llm.llm_engine.vllm_config.scheduler_config, size)
    windows = cut(llm.get_tokenizer().encode(_text(part), add_special_tokens=False), size, count, part["text"])
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    with trial.events.phase("quality"):
        for index, window in enumerate(windows):
            (output,) = llm.generate([{"prompt_token_ids": window}], sampling, use_tqdm=False)
            if cached := getattr(output, "num_cached_tokens", 0):
                raise WrongOutputError(f"window {index}: {cached} tokens came from a cache, nothing scored them")
            trial.events.emit("quality", window=index, tokens=size - 1, nll=window_nll(window, output.prompt_logprobs))
            trial.prompts.append(window)
            trial.counts.append([size, 1])
    trial.scoring.update(how(llm.llm_engine.vllm_config, size), text=part["sha256"], windows=count, window_tokens=size)


def how(config: Any, size: int) -> dict[str, Any]:
    """What the engine settled on of all that could change a value: facts that must be equal between arms."""
    return {
        "chunks_a_window": math.ceil(size / config.scheduler_config.max_num_batched_tokens),
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "special_tokens": False,
    }


def cut(ids: Sequence[int], size: int, count: int, name: str) -> list[list[int]]:
    """The first `count` windows of `size` tokens, end to end. Raise `ValueError` if the text is too short."""
    if len(ids) < size * count:
        raise ValueError(
            f"workload.quality: the text {name} has {len(ids)} tokens; {count} windows of {size} need {size * count}:"
            f" ask for {len(ids) // size} windows at most"
        )
    return [list(ids[index * size : (index + 1) * size]) for index in range(count)]


def window_nll(window: Sequence[int], logprobs: Sequence[Mapping[int, Any] | None]) -> float:
    """Sum of the negative log-likelihoods of all tokens of a window but its first. Raise `WrongOutputError` if any of
    them has none. A NaN stays one: it is the reader's business to refuse it.
    """
    if len(logprobs) != len(window):
        raise WrongOutputError(f"{len(logprobs)} log-probabilities for a window of {len(window)} tokens")
    scored = [(place or {}).get(token) for token, place in zip(window[1:], logprobs[1:], strict=True)]
    if None in scored:
        raise WrongOutputError(f"token {scored.index(None) + 1} of the window has no log-probability")
    return -math.fsum(float(one.logprob) for one in scored if one is not None)


def _text(part: Mapping[str, Any]) -> str:
    """The text that the harness digested. Raise `ValueError` if the file holds another one by now."""
    raw = Path(part["path"]).read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != part["sha256"]:
        raise ValueError(
            f"workload.quality: {part['path']} changed: its SHA-256 was {part['sha256']}, now it is {found}"
        )
    return raw.decode("utf-8")


def _one_chunk(scheduler: Any, size: int) -> None:
    if scheduler.max_num_batched_tokens < size:
        raise ValueError(
            f"workload.quality: a window of {size} tokens would be cut into chunks of"
            f" {scheduler.max_num_batched_tokens}: set args.max_num_batched_tokens to {size} or more"
        )
