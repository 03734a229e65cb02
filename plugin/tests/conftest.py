"""Shared by all tests of the plugin: one thread count, seeded generators."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of random numbers, the same in every test that asks for it."""
    return torch.Generator().manual_seed(20240229)
