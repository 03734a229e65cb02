"""Where things lie: the project's own folders, and a run named on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Project:
    """The checkout (or any folder with `experiments/`) that a command works in; without one, the current folder.

    `found`: there is one. A folder that is no project has no analysis/: reports go to the results folder.
    """

    root: Path
    found: bool = True

    @property
    def results(self) -> Path:
        """Default results folder."""
        return self.root / "results"

    @property
    def analysis(self) -> Path:
        """Where reports of runs under the default results folder go."""
        return self.root / "analysis"

    def results_folder(self, named: str | None) -> Path:
        """The folder given as `--results`, else the default."""
        return Path(named) if named else self.results

    def report_folder(self, results: Path) -> Path:
        """Reports of the project's own runs go to analysis/; of runs elsewhere into their own results folder."""
        own = self.found and results.resolve() == self.results.resolve()
        return self.analysis if own else results


def find_project(start: Path) -> Project:
    """The nearest folder from `start` upwards that holds a pyproject.toml and experiments/, else `start`."""
    for folder in (start, *start.parents):
        if (folder / "pyproject.toml").is_file() and (folder / "experiments").is_dir():
            return Project(folder)
    return Project(start, found=False)
