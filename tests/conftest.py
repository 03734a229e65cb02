"""Tests use a lock and a cache of their own: they never queue behind a real measurement, nor touch its state."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_PRIVATE = Path(tempfile.mkdtemp(prefix="harness-tests-"))
os.environ.setdefault("HARNESS_HOST_LOCK", str(_PRIVATE / "lock"))
os.environ.setdefault("HARNESS_CACHE", str(_PRIVATE / "cache"))
