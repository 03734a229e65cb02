# ruff: noqa: INP001  a script beside the lists that it writes, no package
"""Resolve requirements/arms.in and pyproject.toml into the pinned lists arms.txt and dev.txt (`make requirements`).

Standard library and pip only. `pip install --dry-run --report` does the resolving; nothing is installed. Run with a
Python 3.11 interpreter: markers are decided for the interpreter and the platform it runs on, so the lists hold for
Linux on x86_64.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def name_of(requirement: str) -> str:
    """`"Foo_Bar[x]>=1; marker" -> "foo-bar"`: a requirement's normalised project name."""
    match = _NAME.match(requirement)
    if match is None:
        raise SystemExit(f"{requirement!r} is no requirement; mend requirements/arms.in")
    return re.sub(r"[-_.]+", "-", match.group()).lower()


def resolve(requirements: Iterable[str], *options: str) -> list[dict[str, Any]]:
    """Metadata of everything that pip would install for these requirements."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "in.txt"
        listed.write_text("\n".join(requirements) + "\n")
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed", *options]
        done = subprocess.run([*pip, "--report", "-", "-r", str(listed)], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit("pip could not resolve the requirements; what it said stands above")
    return [item["metadata"] for item in json.loads(done.stdout)["install"]]


def pins(packages: Iterable[dict[str, Any]]) -> list[str]:
    """`name==version` sorted by name. A local part (`+cpu`) is cut: the plain pin accepts both builds, and pip takes
    the CPU build wherever it is offered one.
    """
    found = {name_of(item["name"]): item["version"].partition("+")[0] for item in packages}
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def option(lines: Sequence[str], key: str) -> frozenset[str]:
    """The names in a comment line `# key: a b c`."""
    return frozenset(name for line in lines if line.startswith(f"# {key}: ") for name in line.split(": ", 1)[1].split())


def arms() -> list[str]:
    """Pins of the arms' environment."""
    lines = (HERE / "arms.in").read_text().splitlines()
    wanted = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    alone = [line for line in wanted if name_of(line) in option(lines, "alone")]
    engine = next(line for line in wanted if name_of(line).startswith("vllm"))
    asked = resolve([engine], "--no-deps")[0]["requires_dist"]
    without = option(lines, "without")
    theirs = [line for line in asked if "extra ==" not in line and name_of(line) not in without]
    ours = [line for line in wanted if line not in alone and line != engine]
    packages = [*resolve([*theirs, *ours]), *resolve([engine, *alone], "--no-deps")]
    return pins(item for item in packages if name_of(item["name"]) not in without)


def dev() -> list[str]:
    """Pins of the harness's own environment: its dependencies, its `dev` group, and what builds it."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    return pins(resolve([*wanted, *project["build-system"]["requires"], "editables"]))


def write(name: str, lines: Sequence[str], source: str) -> None:
    """Write one list with its origin on top."""
    python = ".".join(map(str, sys.version_info[:3]))
    made = f"{datetime.now(UTC):%Y-%m-%d}, Python {python}, {sys.platform}"
    head = [
        f"# Pinned from {source} by `make requirements` ({made}). Do not edit: change the source and make it again.",
        f"# Installed by `make setup` with `pip install --no-deps -r requirements/{name}`.",
    ]
    (HERE / name).write_text("\n".join([*head, *lines]) + "\n")
    sys.stdout.write(f"requirements/{name}: {len(lines)} packages\n")


if __name__ == "__main__":
    write("dev.txt", dev(), "pyproject.toml")
    write("arms.txt", arms(), "requirements/arms.in")
