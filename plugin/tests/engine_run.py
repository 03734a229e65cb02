"""A program that runs one checkpoint in a real engine and prints what came of it. Run by the tests, never imported.

    python engine_run.py FOLDER '{"enforce_eager": true}'

Prints one line of JSON: tokens, their log-probabilities, and the report from inside the worker.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

PROMPT = [5, 9, 100, 200, 30, 7, 63, 64]


def report(worker: Any) -> dict[str, Any]:
    """What the worker's own configuration says of the model that runs there."""
    found: dict[str, Any] = worker.vllm_config.quant_config.engagement(worker.model_runner.get_model())
    return {**found, "pid": os.getpid()}


def main() -> None:
    """Load, generate eight tokens greedily, ask the worker."""
    if os.environ.get("TEST_REGISTER_HERE"):
        from cpu_int4.register import register

        register()
    if os.environ.get("TEST_IMPORT_HERE"):
        import cpu_int4  # noqa: F401 (a script that believes importing is enough)

    from vllm import LLM, SamplingParams

    folder, arguments = sys.argv[1], json.loads(sys.argv[2])
    shared = {"dtype": "bfloat16", "max_model_len": 64, "max_num_seqs": 4, "gpu_memory_utilization": 0.3}
    llm = LLM(folder, skip_tokenizer_init=True, enable_prefix_caching=False, **{**shared, **arguments})
    sampling = SamplingParams(temperature=0, max_tokens=8, logprobs=0, prompt_logprobs=0, detokenize=False)
    answer = llm.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)[0]
    prompt = [next(iter(row.values())).logprob for row in answer.prompt_logprobs[1:]]
    steps = [next(iter(row.values())).logprob for row in answer.outputs[0].logprobs]
    worker = None if os.environ.get("TEST_NO_REPORT") else llm.collective_rpc(report)[0]
    result = {"tokens": list(answer.outputs[0].token_ids), "prompt": prompt, "steps": steps, "pid": os.getpid()}
    sys.stdout.write("\nRESULT " + json.dumps({**result, "worker": worker}) + "\n")


if __name__ == "__main__":
    main()
