"""4-bit weights for vLLM's CPU backend: group-wise, asymmetric, registered from outside.

Importing this package imports nothing heavy: vLLM loads general plugins in each of its processes, and the command
line must answer at once. Modules that need torch or vLLM import them themselves.
"""

from __future__ import annotations

__version__ = "0.1.0"
