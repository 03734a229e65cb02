"""`harness run FILE --dry-run`: whether this host could run the file, and which of its claims could be judged here.

Nothing is started, made or written. Every claim gets its line: one that needs what this host lacks would be "not
comparable" after a run too, in the very same words.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.commands.answer import Answer, Exit
from harness.commands.host_check import stops
from harness.commands.project import Project
from harness.commands.scored_text import scored_text
from harness.drivers.registry import DRIVERS, interpreter
from harness.experiment import Experiment
from harness.models import store as models
from harness.models.recipes import RECIPES
from harness.plan import make_plan
from harness.report.text import count
from harness.run.host import conditions, fingerprint
from harness.verdict import judge
from harness.verdict.types import ClaimVerdict


def answer(experiment: Experiment, project: Project, *, beside: Path) -> Answer:
    """Exit code 0 if the run could start here, 2 if something forbids it. `beside`: where relative models lie."""
    host = fingerprint()
    against = [*_of_arms(experiment, project, beside), *stops(experiment, host)]
    lines = [f"{experiment.name}: nothing is measured", "", *needs(experiment, project, beside)]
    lines += ["", "what forbids it here:", *(f"  {line}" for line in dict.fromkeys(against))] if against else []
    lines += ["", "claims:", *claims(experiment, host)] if experiment.claims else []
    verdict = "this host cannot run it as it is written" if against else "this host can run it: harness run FILE"
    return Answer(Exit.USAGE if against else Exit.OK, out="\n".join([*lines, "", verdict]))


def needs(experiment: Experiment, project: Project, beside: Path) -> Iterator[str]:
    """The size of it, and each model: made, or what making it takes."""
    plan = make_plan(experiment, seed=0)
    passes = count(experiment.passes, "pass", "passes")
    scoring = " and scoring of text" if experiment.scored_apart else ""
    yield f"{count(len(experiment.arms), 'arm')} x {passes}: {len(plan.trials)} trials with priming{scoring}"
    for name in dict.fromkeys(arm.model for arm in experiment.arms if arm.model is not None):
        yield f"model {name}: {_model(name, project, beside)}"


def _model(name: str, project: Project, beside: Path) -> str:
    try:
        found = models.resolve(name, models=models.root(project.root), relative_to=beside)
    except models.ModelError:
        return "cannot be had, see below"
    if found is not None:
        return str(found.folder)
    recipe = RECIPES[name]
    return f"not made yet; the run makes it first (about {recipe.seconds} s, {recipe.megabytes} MB)"


def _of_arms(experiment: Experiment, project: Project, beside: Path) -> Iterator[str]:
    """Interpreters, models and texts that are not there."""
    for arm in experiment.arms:
        python = interpreter({"python": arm.python}, os.environ, project.root)
        if DRIVERS[arm.engine].program is not None and not python.exists():
            yield f"the arms' interpreter {python} does not exist; `make setup` makes it"
        if arm.model is not None:
            try:
                models.resolve(arm.model, models=models.root(project.root), relative_to=beside)
            except models.ModelError as error:
                yield str(error)
    try:
        scored_text(experiment, project, beside)
    except models.ModelError as error:
        yield f"workload.quality: {error}"


def claims(experiment: Experiment, host: Mapping[str, Any]) -> Iterator[str]:
    """Each claim as a run without a single trial would judge it: what the host lacks is known before anything runs."""
    texts = {claim.id: claim.text for claim in experiment.claims}
    for claim in judge(experiment, (), conditions(host)).claims:
        if claim.verdict is ClaimVerdict.NOT_COMPARABLE:
            yield f"  {claim.id} is not comparable: {claim.why}"
        else:
            yield f"  {claim.id} can be judged here: {texts[claim.id]}"
