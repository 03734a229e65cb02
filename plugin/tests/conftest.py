"""Shared by all tests of the plugin: one thread count, seeded generators."""

from __future__ import annotations

import pytest
import torch

# On a shared machine two threads that spin at each other's barriers made tests take five to twenty times as long.
torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of random numbers, the same in every test that asks for it."""
    return torch.Generator().manual_seed(20240229)
