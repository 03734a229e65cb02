"""What must hold between the keys of an experiment file: names that exist, arms that can run, metrics that can be had.
Pure.

Works on the values as read, of which any may be missing because it was refused already: nothing here assumes a key.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness.experiment.claims import ClaimError, parse_expected
from harness.experiment.problems import Path, near
from harness.experiment.reading import Reader
from harness.metrics import REGISTRY, Better, Metric

#: Parts of a metric's needs that the workload provides; the others (settle, trim, ...) the harness does by itself.
_WORKLOAD_NEEDS = ("prefill", "decode", "quality")
#: Keys of an arm that mean nothing to a program of one's own.
_ENGINE_ONLY = ("args", "quantization", "python")


def cross_check(values: Mapping[str, Any], reader: Reader) -> None:
    """Report everything that does not fit together."""
    names = _check_arms(values, reader)
    _check_control_and_baseline(values, names, reader)
    metrics = _check_metrics(values, reader)
    _check_needs(values, metrics, reader)
    _check_margins(values, metrics, reader)
    _check_precision(values, reader)
    _check_claims(values, _with_control(values, names), metrics, reader)
    for path, expect in _expectations(values):
        reason = expect.get("failure", expect.get("may_fail"))
        if "signal" in expect and reason != "signal":
            message = "only an arm with `failure: signal` or `may_fail: signal` ends by a signal; add one, or drop this"
            reader.report((*path, "signal"), message)
        if {"failure", "may_fail"} <= expect.keys():
            reader.report((*path, "may_fail"), "an arm that is meant to fail (`failure`) is not one that may; keep one")


def control_name(arm: str) -> str:
    """Name of the arm that repeats `arm`."""
    return f"{arm}_control"


def arm_engine(arm: Mapping[str, Any], engines: Mapping[str, Any]) -> str:
    """The engine of one arm: `command` if it has a command, else the one it names, else the file's only other one.

    Raise `LookupError` with what to do where that is none or several, or contradicts itself.
    """
    named = arm.get("engine")
    if "command" in arm:
        if named not in {None, "command"}:
            raise LookupError(f"has a `command`, so its engine is not `{named}`; take one of the two out")
        return "command"
    if named == "command":
        raise LookupError('a command arm needs its program: `command: [python3, prog.py, "x"]`')
    if named is not None:
        if named in engines:
            return str(named)
        raise LookupError(f"names the engine `{named}`, which `engine` does not list; add `{named}: {{}}` there")
    others = [name for name in engines if name != "command"]
    if len(others) == 1:
        return others[0]
    if others:
        raise LookupError(f"needs `engine: NAME`, since the file has several: {', '.join(others)}")
    raise LookupError('has no program to run: write `command: [python3, prog.py, "x"]`')


def metric_of(entry: Any) -> Metric | None:
    """The metric of one entry of `metrics`; None where it is unknown or was refused already."""
    if isinstance(entry, str):
        return REGISTRY.get(entry)
    if not isinstance(entry, dict) or not {"name", "unit", "better"} <= entry.keys():
        return None
    return Metric(
        name=entry["name"],
        unit=entry["unit"],
        better=Better(entry["better"]),
        definition=entry.get("definition", "as the arm's program reports it; median over the trial"),
        source="the experiment file",
        resolution=entry.get("resolution"),
        positive=False,
    )


def _arms(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: arm for name, arm in (values.get("arms") or {}).items() if isinstance(arm, dict)}


def _check_arms(values: Mapping[str, Any], reader: Reader) -> tuple[str, ...]:
    engines = values.get("engine")
    for name, arm in _arms(values).items():
        path: Path = ("arms", name)
        if arm.get("command") and arm["command"][0] == "":
            reader.report((*path, "command", 0), "the program's name is empty")
        if not isinstance(engines, dict) or ("command" not in arm and (*path, "command") in reader.marks):
            continue  # refused already: one mistake, one message
        try:
            engine = arm_engine(arm, engines)
        except LookupError as error:
            reader.report(path, str(error.args[0]))
            continue
        _check_arm(path, arm, engine, values, reader)
    return tuple(values.get("arms") or ())


def _check_arm(path: Path, arm: Mapping[str, Any], engine: str, values: Mapping[str, Any], reader: Reader) -> None:
    if engine == "command":
        for key in _ENGINE_ONLY:
            if key in arm:
                reader.report(
                    (*path, key), "a command arm has no engine to pass this to; put it into `command` or `env`"
                )
    elif "model" not in arm and "model" not in values and ("model",) not in reader.marks:
        reader.report(path, f"engine `{engine}` needs a model; write `model:` here or at the top")


def _same_file(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of names that would share a file where case or the spelling of accents does not count."""
    seen: dict[str, str] = {}
    for name in names:
        folded = unicodedata.normalize("NFKC", name).casefold()
        if folded in seen:
            yield seen[folded], name
        seen.setdefault(folded, name)


def _check_control_and_baseline(values: Mapping[str, Any], names: tuple[str, ...], reader: Reader) -> None:
    if not names:
        return
    for key in ("baseline", "control"):
        if key in values and values[key] not in names:
            reader.report((key,), f"no arm `{values[key]}`; {near(values[key], names)}")
    control = values.get("control")
    added = control_name(control) if control in names else None
    for first, second in _same_file(_with_control(values, names)):
        if second == added:
            reader.report(("control",), f"the control is named `{added}`, and there is an arm `{first}`; rename that")
        else:
            reader.report(("arms", second), f"differs from arm `{first}` too little to name files; rename one")


def _with_control(values: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    control = values.get("control")
    return (*names, control_name(control)) if control is not None and control in names else names


def _check_metrics(values: Mapping[str, Any], reader: Reader) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for index, entry in enumerate(values.get("metrics") or ()):
        path: Path = ("metrics", index)
        if isinstance(entry, str) and entry not in REGISTRY:
            define = f"define it: {{name: {entry}, unit: s, better: lower}}"
            reader.report(path, f"no metric `{entry}`; {near(entry, REGISTRY)} Or {define}")
        metric = metric_of(entry)
        if metric is None:
            continue
        if isinstance(entry, dict) and metric.name in REGISTRY:
            reader.report(
                path, f"`{metric.name}` is built in and cannot be defined anew; write its name, or take another"
            )
        elif metric.name in found:
            reader.report(path, f"metric `{metric.name}` stands twice; keep one")
        found.setdefault(metric.name, metric)
    return found


def _check_needs(values: Mapping[str, Any], metrics: Mapping[str, Metric], reader: Reader) -> None:
    """An engine that is told its work cannot yield a metric whose work is missing."""
    engines = values.get("engine") or {}
    worked = [name for name, arm in _arms(values).items() if "command" not in arm and arm.get("engine") != "command"]
    if not worked or all(name == "command" for name in engines):
        return
    workload = values.get("workload") or {}
    for index, entry in enumerate(values.get("metrics") or ()):
        metric = metrics.get(entry) if isinstance(entry, str) else None
        for part in _WORKLOAD_NEEDS:
            if metric and part in metric.needs and part not in workload and ("workload", part) not in reader.marks:
                reader.report(("metrics", index), f"`{entry}` needs `workload: {{{part}: {{...}}}}`; add it")


def _check_margins(values: Mapping[str, Any], metrics: Mapping[str, Metric], reader: Reader) -> None:
    for name in values.get("margins") or {}:
        if name not in metrics and metrics:
            reader.report(("margins", name), f"no metric `{name}` is measured here; {near(name, metrics)}")


def _check_precision(values: Mapping[str, Any], reader: Reader) -> None:
    precision, passes = values.get("precision"), values.get("passes")
    most = precision.get("max_passes") if isinstance(precision, dict) else None
    if most is not None and passes is not None and most < passes:
        reader.report(("precision", "max_passes"), f"`{most}` is fewer than the {passes} `passes` asked for anyway")


def _check_claims(
    values: Mapping[str, Any], names: tuple[str, ...], metrics: Mapping[str, Metric], reader: Reader
) -> None:
    ids: set[str] = set()
    for index, claim in enumerate(values.get("claims") or ()):
        if not isinstance(claim, dict):
            continue
        path: Path = ("claims", index)
        if claim.get("id") in ids:
            reader.report((*path, "id"), f"the id `{claim['id']}` stands twice; give each claim its own")
        ids.add(claim.get("id", ""))
        _check_pair(values, claim, names, path, reader)
        _check_expected(claim, metrics, path, reader)


def _check_pair(
    values: Mapping[str, Any], claim: Mapping[str, Any], names: tuple[str, ...], path: Path, reader: Reader
) -> None:
    for key in ("arm", "versus"):
        if names and key in claim and claim[key] not in names:
            reader.report((*path, key), f"no arm `{claim[key]}`; {near(claim[key], names)}")
    versus = claim.get("versus", values.get("baseline"))
    if versus is None and (*path, "versus") not in reader.marks:
        reader.report(path, "`versus` is missing, and no `baseline` stands in for it; name the arm to compare with")
    if versus is not None and claim.get("arm") == versus:
        reader.report((*path, "arm"), f"compares `{versus}` with itself; a claim needs two arms")


def _check_expected(claim: Mapping[str, Any], metrics: Mapping[str, Metric], path: Path, reader: Reader) -> None:
    name = claim.get("metric")
    if name is None or not metrics:
        return
    if name not in metrics:
        hint = "add it to `metrics`" if name in REGISTRY else near(name, metrics)
        reader.report((*path, "metric"), f"metric `{name}` is not measured here; {hint}")
    elif "expect" in claim:
        try:
            parse_expected(claim["expect"], metrics[name])
        except ClaimError as error:
            reader.report((*path, "expect"), str(error))


def _expectations(values: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every `expect` of the file; an arm's on top of the file's, for that is what it means."""
    top = values.get("expect") or {}
    if top:
        yield ("expect",), top
    for name, arm in _arms(values).items():
        if arm.get("expect"):
            own = arm["expect"]
            yield ("arms", name, "expect"), {**top, **own} if own.keys() & {"signal", "failure", "may_fail"} else own
