"""`harness model RECIPE`: make a model that experiments name."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from harness.commands.answer import Answer, CommandError
from harness.commands.project import find_project
from harness.drivers.registry import interpreter
from harness.models import store
from harness.models.recipes import RECIPES


def run(arguments: argparse.Namespace) -> Answer:
    """Make it with the arms' interpreter, or say that it is there; without a name, list the recipes."""
    project = find_project(Path.cwd())
    models = store.root(project.root)
    if arguments.recipe is None:
        return Answer(out="\n".join(described(name, models) for name in RECIPES))
    try:
        model = store.make(
            arguments.recipe,
            models=models,
            python=interpreter({}, os.environ, project.root),
            say=lambda text: print(text, file=sys.stderr),  # noqa: T201 - minutes of silence are no progress
        )
    except store.ModelError as error:
        raise CommandError(str(error)) from error
    return Answer(out=f"{model.name}: {model.folder} (digest {model.digest[:16]})")


def described(name: str, models: Path) -> str:
    """One recipe in a line."""
    recipe = RECIPES[name]
    state = "made" if store.made(recipe, models) else f"not made yet: about {recipe.seconds} s, {recipe.megabytes} MB"
    return f"{name} ({state}): {recipe.description}. Source: {recipe.source}; licence: {recipe.licence}"
