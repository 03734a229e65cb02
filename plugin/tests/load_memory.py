"""A program that loads a checkpoint by vLLM's loader and prints the anonymous memory it took. Run by a test.

    python load_memory.py SMALL FOLDER '{"repack_bytes": 0}'

SMALL is loaded first, so that imports and caches are paid for. Prints one line of JSON, in MiB: `held`, what the model
holds in tensors; `peak` and `end`, RssAnon beyond what the process had before.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
from pathlib import Path

import inside

MIB = 1 << 20


def anonymous() -> float:
    """RssAnon of this process, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def main() -> None:
    """Load, sampling every two milliseconds."""
    small, folder, changes = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    inside.loaded(small)
    fields = json.loads((folder / "config.json").read_text())["quantization_config"]
    gc.collect()
    before = peak = anonymous()
    ended = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(0.002):
            peak = max(peak, anonymous())

    sampler = threading.Thread(target=sample)
    sampler.start()
    model, _ = inside.loaded(folder, hf_overrides={"quantization_config": {**fields, **changes}})
    ended.set()
    sampler.join()
    held = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())) / MIB
    result = {"held": held, "peak": peak - before, "end": anonymous() - before}
    sys.stdout.write("\nRESULT " + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
