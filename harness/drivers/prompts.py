"""Prompts of a trial as token ids: byte for byte the same for every arm, different for every request of a trial.

Pure and standard library only, like the drivers that import it by path.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence


def token_range(vocabulary: int) -> tuple[int, int]:
    """Ids to draw from, low to high exclusive. Both ends of a vocabulary are left out: special tokens lie there."""
    margin = min(1000, vocabulary // 4)
    return margin, vocabulary - margin


def prompt(seed: int, phase: str, index: int, length: int, vocabulary: int) -> list[int]:
    """Token ids of one request. Python keeps `random.Random` of a text seed stable from version to version."""
    low, high = token_range(vocabulary)
    source = random.Random(f"{seed}/{phase}/{index}")  # noqa: S311  seeded on purpose: repeatable, not secret
    return [low + int(source.random() * (high - low)) for _ in range(length)]


def digest(prompts: Sequence[Sequence[int]]) -> str:
    """SHA-256 (hex) of all prompts in order: equal digests mean equal work was asked for."""
    return hashlib.sha256(json.dumps([list(one) for one in prompts], separators=(",", ":")).encode()).hexdigest()
