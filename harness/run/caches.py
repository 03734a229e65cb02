"""The arms' private caches of one run: kept while it can be resumed, removed when it is finished."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.run.environment import private_dir, remove_private
from harness.run.names import quote_arm


@dataclass(frozen=True)
class PrivateCaches:
    """`run`: the run's id. `arms`: names of its arms."""

    run: str
    arms: Sequence[str]

    def folder(self, arm: str) -> Path:
        """The arm's private folder: all cache roots of its environment lie below it."""
        return private_dir(self.run, quote_arm(arm))

    def kept(self, arm: str) -> bool:
        """Whether the arm's private folder is still there, with what priming left in it."""
        return self.folder(arm).is_dir()

    def remove(self) -> None:
        """Remove the private folders of this run, and the run's folder around them."""
        for arm in self.arms:
            remove_private(self.folder(arm))
        with suppress(OSError):  # not there, if no arm ever ran
            shutil.rmtree(private_dir(self.run, ""))
