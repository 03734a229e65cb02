"""From a file to an experiment with nothing left to inherit: reading, defaults, arms, claims. Pure but for the one read
of the file itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.experiment.check import arm_engine, control_name, cross_check, metric_of
from harness.experiment.claims import parse_expected
from harness.experiment.differences import differences, differences_text
from harness.experiment.problems import ExperimentError, Problem
from harness.experiment.reading import Reader
from harness.experiment.schema import experiment as description
from harness.experiment.schema_workload import workload_defaults
from harness.experiment.source import MAX_BYTES, parse
from harness.experiment.types import Arm, Claim, Expectation, Experiment, Limits, Precision, Rule
from harness.metrics import Metric

__all__ = ["differences", "differences_text", "load", "loads"]

#: Uncounted trials before the first pass: vLLM compiles on its first start (50 to 60 s here for 30 layers) and reads
#: the compiled artifact after that; llama.cpp compiles nothing, but reads its weights from the
#: disk the first time; a program of one's own has no cache that we know of.
DEFAULT_PRIMING: Mapping[str, int] = {"vllm": 1, "llama_cpp": 1, "command": 0}
#: `precision` without its own cap: four times the passes asked for, and four hours.
PRECISION_FACTOR = 4
PRECISION_BUDGET_S = 4 * 3600.0


def load(path: Path) -> Experiment:
    """Read, check and resolve a file. Raise `ExperimentError` with all problems at once, a missing file included."""
    name = str(path)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(4 * MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ExperimentError(
            [Problem(name, 1, 1, "file", f"cannot be read: {why}; name an experiment file")]
        ) from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        message = f"byte 0x{raw[error.start]:02X} is no UTF-8; save the file as UTF-8"
        raise ExperimentError([Problem(name, line, column, "file", message)]) from error
    return loads(text, name)


def loads(text: str, filename: str) -> Experiment:
    """As `load`, for text; `filename` gives the experiment's name (its stem) and stands in messages."""
    tree, problems = parse(text, filename)
    reader = Reader(filename, problems)
    values = description().read(tree, (), reader)
    if isinstance(values, dict):
        cross_check(values, reader)
    if reader.problems or not isinstance(values, dict):
        raise ExperimentError(reader.problems)
    return _experiment(values, Path(filename).stem, text)


def _experiment(values: Mapping[str, Any], name: str, text: str) -> Experiment:
    """Every default filled in; `values` has passed all checks."""
    metrics = tuple(metric for metric in map(metric_of, values["metrics"]) if metric is not None)
    control = values.get("control")
    return Experiment(
        name=name,
        question=values["question"],
        passes=values["passes"],
        arms=_arms(values),
        metrics=metrics,
        workload={part: {**workload_defaults(part), **given} for part, given in values.get("workload", {}).items()},
        baseline=values.get("baseline"),
        control=(control, control_name(control)) if control is not None else None,
        seed=values.get("seed"),
        claims=tuple(_claim(claim, values.get("baseline"), metrics) for claim in values.get("claims", ())),
        rule=Rule(values.get("rule", Rule.STRICT)),
        margins=values.get("margins", {}),
        disturbance=values.get("disturbance", {}),
        repeat_passes=values.get("repeat_passes", 0),
        limits=_limits(values.get("limits", {})),
        precision=_precision(values.get("precision"), values["passes"]),
        text=text,
    )


def _arms(values: Mapping[str, Any]) -> tuple[Arm, ...]:
    """In the file's order, the control right behind the arm that it repeats."""
    arms = []
    for name, given in values["arms"].items():
        arm = _arm(name, given, values)
        arms.append(arm)
        if name == values.get("control"):
            arms.append(replace(arm, name=control_name(name), control_of=name))
    return tuple(arms)


def _arm(name: str, given: Mapping[str, Any], values: Mapping[str, Any]) -> Arm:
    """What all arms of its engine share, then its own: args and env are replaced one by one, never merged deeper."""
    engine = arm_engine(given, values["engine"])
    shared = values["engine"].get(engine, {})
    return Arm(
        name=name,
        engine=engine,
        command=tuple(given.get("command", ())),
        model=given.get("model", None if engine == "command" else values.get("model")),
        args={**shared.get("args", {}), **given.get("args", {})},
        env={**shared.get("env", {}), **given.get("env", {})},
        quantization=given.get("quantization", {}),
        expect=Expectation(**{**values.get("expect", {}), **given.get("expect", {})}),
        priming=given.get("priming", values.get("priming", DEFAULT_PRIMING[engine])),
        python=given.get("python", shared.get("python")),
        sampler_hz={**values.get("sampler", {}), **given.get("sampler", {})}.get("hz"),
    )


def _claim(given: Mapping[str, Any], baseline: str | None, metrics: tuple[Metric, ...]) -> Claim:
    metric = next(metric for metric in metrics if metric.name == given["metric"])
    expected = parse_expected(given["expect"], metric)
    return Claim(
        id=given["id"],
        metric=given["metric"],
        arm=given["arm"],
        versus=given.get("versus", baseline),
        kind=expected.kind,
        op=expected.op,
        value=expected.value,
        text=given["expect"],
        host=given.get("host", {}),
        source=given.get("source"),
    )


def _limits(given: Mapping[str, float]) -> Limits:
    own = {key: given[key] for key in ("trial", "stall", "exit") if key in given}
    return Limits(**own, phases={key: value for key, value in given.items() if key not in own})


def _precision(given: float | Mapping[str, Any] | None, passes: int) -> Precision | None:
    if given is None:
        return None
    asked: Mapping[str, Any] = given if isinstance(given, Mapping) else {"target": given}
    return Precision(
        target=asked["target"],
        max_passes=asked.get("max_passes", PRECISION_FACTOR * passes),
        budget_s=asked.get("budget", PRECISION_BUDGET_S),
    )
