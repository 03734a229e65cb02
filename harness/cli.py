"""The `harness` command: parse arguments, wire the real effects, choose the exit code; the one place that prints."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (docs/contracts: 0, 1, 2, 4, 3, 5)."""
    parser = argparse.ArgumentParser(prog="harness")
    parser.parse_args(argv)
    return 0
