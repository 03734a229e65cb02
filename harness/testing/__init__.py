"""Fake arms, shipped so that users can test their own drivers and limits without an engine."""

from __future__ import annotations

import sys

#: Module that holds the fake arms, for `python -m`.
ARMS = "harness.testing.arms"


def fake_arm(name: str, *args: object) -> list[str]:
    """Argument list that runs the fake arm `name` (see `harness.testing.arms`) under this interpreter."""
    return [sys.executable, "-m", ARMS, name, *map(str, args)]


__all__ = ["ARMS", "fake_arm"]
