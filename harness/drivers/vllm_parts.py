"""Timed requests to vLLM.

Beside vllm_offline.py, imported by path with the arms' interpreter; standard library and vLLM only.
"""

from __future__ import annotations

import time
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
