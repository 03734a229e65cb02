"""4-bit weights for vLLM's CPU backend: group-wise, asymmetric, registered from outside.

Importing this package imports nothing heavy: vLLM loads general plugins in each of its processes, and the command
line must answer at once. Modules that need torch or vLLM import them themselves.

Nor does importing register anything. What vLLM's processes know they learn through the entry point group
`vllm.general_plugins`; if they will not find this package there, importing it says so.
"""

from __future__ import annotations

import os as _os
import warnings as _warnings
from importlib import metadata as _metadata

__version__ = "0.1.0"


def _unreachable() -> str:
    """Why vLLM's processes will not find this package, in words; empty if they will."""
    switched = _os.environ.get("VLLM_PLUGINS")
    if switched is not None and __name__ not in switched.split(","):
        return f"VLLM_PLUGINS is {switched!r} and does not name {__name__}: name it, or unset the variable"
    if not _metadata.entry_points(group="vllm.general_plugins", name=__name__):
        return "no installed distribution names it there: install cpu-int4, of which only the code is found here"
    return ""


if _why := _unreachable():
    _warnings.warn(
        f"vLLM's processes load {__name__} through the entry point group vllm.general_plugins and will not: {_why}",
        RuntimeWarning,
        stacklevel=2,
    )
