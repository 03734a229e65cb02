"""Requests to vLLM, and what of a trial only vLLM's own interface offers: the log-probabilities of a text.

Beside vllm_offline.py, imported by path with the arms' interpreter; standard library and vLLM only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.drivers import prompts
    from harness.drivers.parts import Trial, WrongOutputError, model_config, vocabulary
else:
    import prompts
    from parts import Trial, WrongOutputError, model_config, vocabulary


class Requests:
    """Sends one request at a time: greedy, of fixed lengths, as token ids."""

    def __init__(self, trial: Trial, llm: Any) -> None:
        self._trial = trial
        self._llm = llm
        self._vocabulary = vocabulary(model_config(trial.spec.get("model_dir") or trial.spec["arm"]["model"]))
        self._seed = int((trial.spec.get("workload") or {}).get("seed", 0))

    def send(self, phase: str, index: int, tokens_in: int, tokens_out: int) -> tuple[float, Any]:
        """Run one request. Return the seconds from sending it to having all of it, and vLLM's own times of it.

        Raise `WrongOutputError` if the engine took or made another number of tokens.
        """
        from vllm import SamplingParams

        ids = prompts.prompt(self._seed, phase, index, tokens_in, self._vocabulary)
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens_out, ignore_eos=True, detokenize=False)
        begin = time.monotonic()
        (output,) = self._llm.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
        seconds = time.monotonic() - begin
        took, made = len(output.prompt_token_ids), len(output.outputs[0].token_ids)
        if (took, made) != (tokens_in, tokens_out):
            raise WrongOutputError(
                f"{phase} {index}: asked for {tokens_in} tokens in and {tokens_out} out, took {took} and made {made}"
            )
        if cached := getattr(output, "num_cached_tokens", 0):
            raise WrongOutputError(
                f"{phase} {index}: {cached} prompt tokens came from a cache, so nothing computed them"
            )
        self._trial.prompts.append(ids)
        self._trial.counts.append([tokens_in, tokens_out])
        return seconds, output.metrics


def quality(trial: Trial, llm: Any) -> None:
    """Negative log-likelihood of a fixed text in nats, window by window; a window's first token has nothing before it.

    vLLM gives the log-probability of each prompt token; windows are sent one by one, with no prefix cache (checked).
    """
    part = trial.part("quality")
    if part is None or "quality" not in trial.needs or trial.spec.get("priming"):
        return
    from vllm import SamplingParams

    size, count = int(part["window_tokens"]), int(part["windows"])
    text = (trial.start / part["text"]).read_text(encoding="utf-8")
    ids = llm.get_tokenizer().encode(text, add_special_tokens=False)
    if len(ids) < size * count:
        raise ValueError(f"workload.quality: {part['text']} has {len(ids)} tokens; {count} windows of {size} need more")
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    with trial.events.phase("quality"):
        for index in range(count):
            window = ids[index * size : (index + 1) * size]
            (output,) = llm.generate([{"prompt_token_ids": window}], sampling, use_tqdm=False)
            if cached := getattr(output, "num_cached_tokens", 0):
                raise WrongOutputError(f"window {index}: {cached} tokens came from a cache, nothing scored them")
            trial.events.emit("quality", window=index, tokens=size - 1, nll=window_nll(window, output.prompt_logprobs))
            trial.prompts.append(window)
            trial.counts.append([size, 1])


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
