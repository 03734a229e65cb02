"""Where models lie, and making them there: whole or not at all, with a digest of every file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.models.recipes import RECIPES, Recipe

MANIFEST = "harness-model.json"


class ModelError(RuntimeError):
    """A model that cannot be had; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model on disk. `digest`: SHA-256 (hex) over its files' digests: equal digests, equal weights and tokenizer."""

    name: str
    folder: Path
    digest: str


def root(checkout: Path) -> Path:
    """The folder that models are made in: HARNESS_MODELS, else `.models/` of the checkout."""
    return Path(os.environ.get("HARNESS_MODELS") or checkout / ".models")


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 (hex) by relative path of every file of a model but its manifest."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            with path.open("rb") as stream:
                found[str(path.relative_to(folder))] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def combined(digests: dict[str, str]) -> str:
    """One digest of many."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def resolve(name: str, *, models: Path, relative_to: Path) -> Model | None:
    """The model that an experiment names: a recipe made already, or a directory (relative to the experiment file's
    folder). None for a recipe that is still to be made. Raise `ModelError` for anything else.
    """
    if name in RECIPES:
        return made(RECIPES[name], models)
    folder = (relative_to / Path(name).expanduser()).resolve()
    if (folder / "config.json").is_file():
        return Model(name=name, folder=folder, digest=combined(file_digests(folder)))
    what = "has no config.json" if folder.is_dir() else "is no directory"
    raise ModelError(f"model {name!r}: {folder} {what}, and no recipe has that name; recipes: {', '.join(RECIPES)}")


def made(recipe: Recipe, models: Path) -> Model | None:
    """The recipe's model if it lies there, whole, of this version, and made from the parent that lies there now, if one
    does. Sizes are compared, not digests: 1 ms.
    """
    folder = models / recipe.name
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == size for name, size in manifest["sizes"].items())
    except (OSError, ValueError, KeyError):
        return None
    parent = made(RECIPES[recipe.parent], models) if recipe.parent is not None else None
    other = parent is not None and manifest.get("parent") != parent.digest
    if manifest.get("version") != recipe.version or not whole or other:
        return None
    return Model(name=recipe.name, folder=folder.resolve(), digest=manifest["digest"])


def make(name: str, *, models: Path, python: Path, say: Callable[[str], None]) -> Model:
    """Make a recipe's model with the arms' interpreter, or return the one made before. What it is made from is made
    first. Raise `ModelError`.
    """
    if name not in RECIPES:
        raise ModelError(f"no recipe is named {name!r}; recipes: {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    if found := made(recipe, models):
        return found
    if not python.exists():
        raise ModelError(f"{python} does not exist; `make setup` makes the environment that recipes run in")
    if recipe.parent is not None:
        _require_plugin(name, python)
    parent = make(recipe.parent, models=models, python=python, say=say) if recipe.parent is not None else None
    models.mkdir(parents=True, exist_ok=True)
    _require_space(recipe, models)
    say(f"model {name}: making {models / name} (about {recipe.seconds} s, {recipe.megabytes} MB)")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=models, prefix=f".{name}-") as scratch:
        folder = Path(scratch) / "model"
        _run(recipe, _argv(recipe, folder, python, parent), say)
        digests = file_digests(folder)
        _write_manifest(recipe, folder, digests, parent)
        _move(folder, models / name)
    say(f"model {name}: made in {time.monotonic() - began:.0f} s (digest {combined(digests)[:16]})")
    return Model(name=name, folder=(models / name).resolve(), digest=combined(digests))


def _require_plugin(name: str, python: Path) -> None:
    """Before minutes are spent on its parent: a model in 4 bits is made by the plugin's own command."""
    query = "import importlib.util, sys; sys.exit(importlib.util.find_spec('cpu_int4') is None)"
    if subprocess.run([str(python), "-c", query], check=False).returncode:
        raise ModelError(f"recipe {name}: the plugin cpu-int4 is not installed for {python}: `make setup` installs it")


def _require_space(recipe: Recipe, models: Path) -> None:
    free = shutil.disk_usage(models).free // 10**6
    if free < recipe.megabytes:
        raise ModelError(
            f"recipe {recipe.name}: needs {recipe.megabytes} MB below {models}, which has {free} MB free: make room, or"
            " name a folder on another disk by HARNESS_MODELS"
        )


def _argv(recipe: Recipe, folder: Path, python: Path, parent: Model | None) -> list[str]:
    """What makes the model in `folder`, which does not exist yet."""
    if parent is None:
        folder.mkdir()
        return [str(python), str(Path(__file__).with_name("make.py")), recipe.name, str(folder)]
    verb, *options = recipe.command
    return [str(python), "-m", "cpu_int4.cli", verb, str(parent.folder), str(folder), *options]


def _run(recipe: Recipe, argv: list[str], say: Callable[[str], None]) -> None:
    """Run it, and pass on what it says of its progress as it says it."""
    said: deque[str] = deque(maxlen=40)
    with subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stderr is not None  # noqa: S101 -- a pipe was asked for; for the type checker
        for line in filter(None, map(str.strip, process.stderr)):
            said.append(line)
            say(f"model {recipe.name}: {line}")
    if process.returncode:
        whole = "\n".join(said)[-2000:]
        raise ModelError(f"recipe {recipe.name} failed with exit code {process.returncode}; it said:\n{whole}")


def _write_manifest(recipe: Recipe, folder: Path, digests: dict[str, str], parent: Model | None) -> None:
    manifest = {
        "recipe": recipe.name,
        "version": recipe.version,
        "source": recipe.source,
        "licence": recipe.licence,
        **({"parent": parent.digest} if parent is not None else {}),
        "digest": combined(digests),
        "files": digests,
        "sizes": {name: (folder / name).stat().st_size for name in digests},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _move(folder: Path, place: Path) -> None:
    """Put a finished model in its place; what lay there before (torn, or of another version) goes first."""
    if place.exists():
        shutil.rmtree(place)
    try:
        folder.rename(place)
    except OSError:  # another call was quicker: its model is as good
        if not (place / MANIFEST).is_file():
            raise
