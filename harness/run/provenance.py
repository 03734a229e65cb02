"""Where a run's numbers come from: versions, source digests, git state, the arms' environment, the models.

With the host's fingerprint it is all that another host needs to repeat a run, and all that a resumed run compares.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import harness
from harness.experiment.types import digest
from harness.run.differences import differences
from harness.run.digests import file_digest, lock_digest, model_digest, source_digest

__all__ = ["differences", "environment", "git_state", "provenance", "source_digests", "versions"]

#: Version of the provenance's shape.
#: 1 (2026-12-01): first.
FORMAT = 1

#: Packages of the harness's own environment that take part in a number.
_OWN_PACKAGES = ("numpy", "scipy", "pandas", "matplotlib", "PyYAML", "cattrs", "psutil")

#: Asks an interpreter what is installed in it. Standard library only, no package of it is imported.
_QUERY = """
import importlib.metadata, json, platform
import hashlib, os, urllib.parse
packages, local = {}, {}
def editable(url):
    folder, lines = urllib.parse.unquote(urllib.parse.urlsplit(url).path), []
    for base, names, files in os.walk(folder):
        names[:] = sorted(n for n in names if n not in ("__pycache__", "build", "dist", "tests") and n[0] != ".")
        for file in sorted(files):
            path = os.path.join(base, file)
            if file.endswith((".py", ".so", ".cpp", ".c", ".h", ".toml")):
                with open(path, "rb") as stream:
                    found = hashlib.sha256(stream.read()).hexdigest()
                lines.append(os.path.relpath(path, folder) + ",sha256=" + found + ",")
    return "\\n".join(lines)
for item in importlib.metadata.distributions():
    name = item.metadata["Name"]
    if name and name not in packages:
        packages[name] = item.version
        told = item.read_text("direct_url.json")
        if told:
            told = json.loads(told)
            linked = told.get("dir_info", {}).get("editable")
            local[name] = editable(told["url"]) if linked else item.read_text("RECORD") or ""
python = platform.python_implementation() + " " + platform.python_version()
print(json.dumps({"python": python, "packages": packages, "local": local}))
"""
#: The query takes 0.1 s with 151 packages in a warm page cache; a cold disk takes many times that.
_QUERY_LIMIT_S = 120


def provenance(
    *,
    checkout: Path | None = None,
    pythons: Mapping[str, Path] | None = None,
    models: Mapping[str, Path] | None = None,
    sources: Mapping[str, Path] | None = None,
    model_cache: Path | None = None,
    texts: Mapping[str, Path] | None = None,
) -> dict[str, Any]:
    """All of it as a JSON value; None where unknown, with the reason in a field `missing` beside it.

    `checkout`: the project's folder, found from the package if not given. `pythons`: the arms' interpreters by engine
    name; `models`, `texts`: folders or files by the name in the experiment; `sources`: more source folders to digest
    (a plugin) by name. No path of this host is in the result.
    """
    root = checkout or Path(harness.__file__).resolve().parent.parent
    return {
        "format": FORMAT,
        "versions": versions(),
        "sources": source_digests(root, sources or {}),
        "git": git_state(root),
        "environments": {name: environment(python) for name, python in sorted((pythons or {}).items())},
        "models": {name: model_digest(path, cache=model_cache) for name, path in sorted((models or {}).items())},
        "texts": {name: file_digest(path) for name, path in sorted((texts or {}).items())},
    }


def versions() -> dict[str, str | None]:
    """The harness, the Python that runs it, and the libraries that take part in its numbers."""
    found: dict[str, str | None] = {
        "harness": harness.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    for name in _OWN_PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def source_digests(root: Path, more: Mapping[str, Path]) -> dict[str, str | None]:
    """Digests of `harness`, `drivers` and `plugin` below `root`, and of the folders in `more`; None: not there.

    `plugin_code`: of the plugin only what runs, its package and its C++ sources: its README changes no number.
    """
    package = Path(harness.__file__).resolve().parent
    folders = {"harness": package, "drivers": package / "drivers", "plugin": root / "plugin", **more}
    code = [source_digest(root / "plugin" / name) for name in ("cpu_int4", "csrc")]
    return {
        **{name: source_digest(folder) for name, folder in folders.items()},
        "plugin_code": digest(code) if any(code) else None,
        "requirements": source_digest(root / "requirements"),
    }


def environment(python: Path, *, limit_s: float = _QUERY_LIMIT_S) -> dict[str, Any]:
    """An arm's interpreter: `{"python", "packages": {name: version}, "local", "built", "lock_digest", "missing"}`.

    `local`: of each package that was installed from a folder or file of this host, a digest of what was installed:
    its version says nothing, and a plugin may have been built before its sources changed. `built`: of each of those,
    the digest of every compiled extension in it by name. An editable install is taken as it lies in its folder.
    Asked in a process of its own with nothing inherited, so that no PYTHONPATH of this shell shows packages that the
    arm will not see.
    """
    nothing = {"python": None, "packages": None, "local": None, "built": None, "lock_digest": None}
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    try:
        done = subprocess.run(
            [str(python), "-c", _QUERY], capture_output=True, timeout=limit_s, check=True, cwd="/", env=inherited
        )
        answer = json.loads(done.stdout)
    except FileNotFoundError:
        return {**nothing, "missing": "there is no such interpreter; make the arms' environment first"}
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return {**nothing, "missing": f"the interpreter did not answer: {type(error).__name__}"}
    packages = dict(sorted(answer["packages"].items(), key=lambda pair: pair[0].lower()))
    lock = lock_digest(f"{_normal(name)}=={version}" for name, version in packages.items())
    records = {name: _installed(record) for name, record in sorted(answer["local"].items())}
    return {
        "python": answer["python"],
        "packages": packages,
        "local": {name: lock_digest(record) for name, record in records.items()},
        "built": {name: built for name, record in records.items() if (built := _built(record))},
        "lock_digest": lock,
        "missing": None,
    }


def _built(record: list[str]) -> dict[str, str]:
    """Digests of the compiled extensions among a RECORD's lines, as the line gives them."""
    named = [line.split(",", 2) for line in record]
    return {pieces[0]: pieces[1].removeprefix("sha256=") for pieces in named if pieces[0].endswith(".so")}


def _installed(record: str) -> list[str]:
    """Lines of a RECORD that name content: `path,sha256=...,size`, without what names the place it came from."""
    places = ("/direct_url.json,", "/INSTALLER,", "/REQUESTED,", "/RECORD,")
    return [line for line in record.splitlines() if "sha256=" in line and not any(place in line for place in places)]


def _normal(name: str) -> str:
    """A package's name as indexes compare it: `Foo_Bar` and `foo-bar` are one."""
    return re.sub(r"[-_.]+", "-", name).lower()


def git_state(root: Path) -> dict[str, Any]:
    """`{"commit", "dirty", "missing"}` of the checkout. What runs write (`results`, `analysis`) does not make it dirty.

    An installed harness may lie inside somebody else's repository: only one that tracks the harness itself counts.
    """
    nothing = {"commit": None, "dirty": None}
    commit = _git(root, "rev-parse", "HEAD")
    if isinstance(commit, Exception):
        return {**nothing, "missing": _git_reason(commit)}
    if isinstance(_git(root, "ls-files", "--error-unmatch", "harness/__init__.py"), Exception):
        return {**nothing, "missing": "the harness is installed, not run from its own checkout"}
    changed = _git(root, "status", "--porcelain", "--", ".", ":(exclude)results", ":(exclude)analysis")
    if isinstance(changed, Exception):
        return {**nothing, "commit": commit.strip(), "missing": "git status failed: whether it is dirty is unknown"}
    return {"commit": commit.strip(), "dirty": bool(changed.strip()), "missing": None}


def _git(root: Path, *arguments: str) -> str | Exception:
    """What git printed, or why it did not. It takes no lock and asks nothing; its messages may name paths."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    environment |= {"HOME": os.environ["HOME"]} if "HOME" in os.environ else {}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, timeout=60, check=True, env=environment,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return error
    return done.stdout.decode(errors="replace")


def _git_reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "git is not installed"
    said = error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else ""
    if "dubious ownership" in said:
        return "git refuses a checkout that belongs to another user"
    if "not a git repository" in said:
        return "the harness is not in a git checkout"
    return f"git did not answer: {type(error).__name__}"
