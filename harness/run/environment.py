"""The environment an arm runs in: built from nothing, so that no setting of the caller's shell reaches a measurement.

Order, later wins: a short list of inherited variables, fixed values, the arm's private cache roots, what the experiment
file states for the arm, and the protocol's own variables, which no file may change. Nothing else is inherited; what the
caller had set that engines would listen to is named in the record, by name only (values may be secrets).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.run.process_tree import TOKEN

#: Inherited as they are: they say who and where, not how fast.
INHERITED: Final = ("PATH", "HOME", "USER", "LOGNAME", "TZ")
#: The same for every arm on every host.
FIXED: Final = {
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "SPT_NOENV": "1",  # without it a process that renames itself wipes its environment, and with it the token
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
#: Cache roots of an arm, each below its private folder.
CACHE_ROOTS: Final = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "XDG_CACHE_HOME": "xdg",
    "HF_HOME": "huggingface",
}
#: Prefixes of variables that change how engines, allocators, loaders or interpreters behave.
TELLING: Final = (
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_",
    "OPENBLAS_",
    "BLIS_",
    "ONEDNN_",
    "DNNL_",
    "VLLM_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "INDUCTOR_",
    "AOT_INDUCTOR_",
    "GGML_",
    "LLAMA_",
    "HF_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
    "CUDA_",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "TCMALLOC_",
    "MIMALLOC_",
    "JEMALLOC_",
    "PYTHON",
    "LC_",
    "LANG",
    "HARNESS_",
    "NUMEXPR_",
    "SPT_",
    "XDG_CACHE",
    "TMPDIR",
)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What one trial's arm gets. `scrubbed`: names the caller had set that were kept from it. `caches`: `cold` if the
    private cache roots held no file before, else `primed`.
    """

    variables: Mapping[str, str]
    scrubbed: tuple[str, ...]
    caches: str


def cache_dir() -> Path:
    """The harness's own cache: `$HARNESS_CACHE`, else `$XDG_CACHE_HOME/harness`, else `~/.cache/harness`."""
    if stated := os.environ.get("HARNESS_CACHE"):
        return Path(stated).absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "harness"
    return Path.home() / ".cache" / "harness"


def private_dir(run: str, arm_file_name: str) -> Path:
    """Private folder of an arm in a run. `arm_file_name`: the arm's name quoted for file names."""
    return cache_dir() / "runs" / run / arm_file_name


def temporary_dir(folder: Path) -> Path:
    """The TMPDIR that goes with an arm's private folder. Not inside it: engines put sockets there, whose paths may have
    107 bytes at most, and a cache folder's path can be longer than that alone.
    """
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"harness-{os.getuid()}-{name}"


def remove_private(folder: Path) -> None:
    """Remove an arm's private folder and its TMPDIR, when its run needs them no more."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(temporary_dir(folder), ignore_errors=True)


def _make_temporary(folder: Path) -> Path:
    path = temporary_dir(folder)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user; remove it or set TMPDIR to a folder of your own")
    return path


def cache_state(folder: Path) -> str:
    """`primed` if any cache root below `folder` holds a file, else `cold`."""
    for name in CACHE_ROOTS.values():
        for _folder, _folders, files in os.walk(folder / name):
            if files:
                return "primed"
    return "cold"


def neutral(
    *,
    folder: Path,
    trial: Mapping[str, str],
    arm: Mapping[str, str],
    inherited: Mapping[str, str] | None = None,
    shared: Mapping[str, str] | None = None,
) -> Environment:
    """The environment of one trial, and its private folders, made if they are missing.

    `folder`: the arm's private folder. `trial`: the protocol's `HARNESS_*`. `arm`: what the file states. `inherited`:
    the caller's environment (this process's by default). `shared`: roots that all arms share on purpose, by variable
    name (a model hub's folder read by all); it takes the place of the private root.
    """
    caller = os.environ if inherited is None else inherited
    before = cache_state(folder)
    private = {name: str(folder / below) for name, below in CACHE_ROOTS.items()}
    private["TMPDIR"] = str(_make_temporary(folder))
    for path in private.values():
        Path(path).mkdir(parents=True, exist_ok=True)
    variables = {name: caller[name] for name in INHERITED if name in caller}
    variables |= {**FIXED, **private, **(shared or {}), **arm, **trial}
    return Environment(variables=variables, scrubbed=scrubbed(caller, variables), caches=before)


def scrubbed(caller: Mapping[str, str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the caller's telling variables that the arm does not get as they are."""
    return tuple(
        sorted(name for name, value in caller.items() if name.startswith(TELLING) and variables.get(name) != value)
    )


def protocol(*, token: str, events: Path, workload: Path) -> dict[str, str]:
    """The event protocol's variables."""
    return {TOKEN: token, "HARNESS_EVENTS": str(events), "HARNESS_WORKLOAD": str(workload)}
