"""An experiment with every default filled in: what one question, its arms and its rules are. Pure, frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from harness.metrics import Kind, Metric


class Rule(StrEnum):
    """The ranking rule. `strict`: spreads must be disjoint too; `paired`: that one condition is dropped, and said."""

    STRICT = "strict"
    PAIRED = "paired"


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What an arm declares in advance.

    `engaged`: name that an engagement event must carry. `modules`, `calls`: what that event's maps must hold, each an
    exact number or a bound such as `> 0`. `failure`: the arm is meant to fail so; met, it is a success. `may_fail`: it
    may fail so or end well. `signal`: which one, where either names the reason `signal`.
    """

    engaged: str | None = None
    modules: Mapping[str, int | str] = field(default_factory=dict)
    calls: Mapping[str, int | str] = field(default_factory=dict)
    failure: str | None = None
    may_fail: str | None = None
    signal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One configuration to compare, resolved: nothing is inherited any more.

    `engine`: name of the driver (`vllm`, `command`, ...). `command`: argument list of a `command` arm, else empty.
    `model`: recipe or path; None where the engine needs none. `args`: engine arguments. `env`: variables beyond the
    neutral environment. `quantization`: fields merged into the checkpoint's own. `priming`: uncounted trials before
    the first pass. `control_of`: the arm that this one repeats under another name. `python`: interpreter that has the
    engine; None for the arms' own environment. `sampler_hz`: memory samples a second, 0 for no sampler; None for the
    harness's own rates (50 until the phase `load` has ended, 20 from then on).
    """

    name: str
    engine: str
    command: tuple[str, ...] = ()
    model: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)
    expect: Expectation = Expectation()
    priming: int = 0
    control_of: str | None = None
    python: str | None = None
    sampler_hz: int | None = None

    def configuration(self) -> dict[str, Any]:
        """All that decides what this arm does: everything but its name, its role and what is expected of it. How it is
        watched is named only where the file names it: a setting that nobody made is no part of an arm's identity.
        """
        watched = {} if self.sampler_hz is None else {"sampler": {"hz": self.sampler_hz}}
        return {**self.work(), **watched}

    def work(self) -> dict[str, Any]:
        """`configuration()` without how the arm is watched: what the arm itself may know."""
        return {
            "engine": self.engine,
            "command": list(self.command),
            "model": self.model,
            "args": dict(self.args),
            "env": dict(self.env),
            "quantization": dict(self.quantization),
            "python": self.python,
        }

    @property
    def identity(self) -> str:
        """SHA-256 (hex) of `configuration()`: two arms of one identity are the same arm under two names."""
        return digest(self.configuration())


class ClaimKind(StrEnum):
    """What a claim says of two arms."""

    RATIO = "ratio"  # arm / versus, compared by `op` with `value`
    DIFFERENCE = "difference"  # arm - versus in the metric's unit, compared by `op` with `value`
    EQUIVALENT = "equivalent"  # ratio within 1 +- `value`
    NOT_RANKED = "not_ranked"  # the pair's verdict is a refusal or an equivalence


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement made in advance: of `arm` against `versus` on `metric`. `op`: one of `>=`, `<=`, `>`, `<` (empty
    where the kind has none). `value`: a ratio, base units for a difference, a fraction (0.01 for 1 %) for an
    equivalence. `host`: conditions the host must meet (`isa`: list of CPU flags; `cores`: least number) for the claim
    to be judged at all. `text`: as written.
    """

    id: str
    metric: str
    arm: str
    versus: str
    kind: ClaimKind
    op: str
    value: float
    text: str
    host: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on time, in seconds. `trial`: the whole trial. `phases`: by phase name. `stall`: longest time without an
    event, log output or CPU time of the tree. `exit`: from the `done` event to the exit of the last process.
    """

    trial: float = 1800.0
    phases: Mapping[str, float] = field(default_factory=dict)
    stall: float = 300.0
    exit: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Run more whole passes until every interval is narrow enough. `target`: half width of the log ratio's interval as
    a fraction (0.02). `max_passes`, `budget_s`: where it stops all the same.
    """

    target: float
    max_passes: int
    budget_s: float


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One question, resolved. `name`: the file's stem. `seed`: None until one is drawn for a run. `arms`: in the file's
    order, the control behind the arm that it repeats. `workload`: by part (`prefill`, ...), defaults filled in.
    `baseline`: the arm that ratios are stated against, None for pairs only. `control`: the arm and its repetition.
    `margins`: metric name to fraction. `disturbance`: threshold by counter name, in the counter's unit; empty means
    recorded, never a failure. `repeat_passes`: most repetitions of spoilt passes in all. `precision`: None where no
    passes are added. `text`: the file as read, so that a run can be repeated from its own folder.
    """

    name: str
    question: str
    passes: int
    arms: tuple[Arm, ...]
    metrics: tuple[Metric, ...]
    workload: Mapping[str, Any] = field(default_factory=dict)
    baseline: str | None = None
    control: tuple[str, str] | None = None
    seed: int | None = None
    claims: tuple[Claim, ...] = ()
    rule: Rule = Rule.STRICT
    margins: Mapping[str, float] = field(default_factory=dict)
    disturbance: Mapping[str, float] = field(default_factory=dict)
    repeat_passes: int = 0
    limits: Limits = Limits()
    precision: Precision | None = None
    text: str = ""

    @property
    def scored_apart(self) -> bool:
        """Text is scored in trials of its own: quality is asked for, and something else too. Where nothing else is, the
        trials of the passes score.
        """
        return len({metric.kind is Kind.WINDOWED for metric in self.metrics}) == 2

    def metrics_of(self, *, scoring: bool) -> tuple[Metric, ...]:
        """What a trial yields: one of the `scoring` trials quality alone, where these are apart; any other the rest."""
        if not self.scored_apart:
            return self.metrics
        return tuple(metric for metric in self.metrics if (metric.kind is Kind.WINDOWED) == scoring)

    @property
    def scorings(self) -> int:
        """Scoring trials of each arm; 0 where the trials of the passes score, or none do."""
        return int(self.workload.get("quality", {}).get("trials", 2)) if self.scored_apart else 0

    def sweeps_of(self, metric: Metric, passes: int) -> tuple[int, str]:
        """In how many sweeps over the arms a metric is taken, and what one is called: `passes` of them, or the sweeps
        of scoring trials.
        """
        apart = self.scored_apart and metric.kind is Kind.WINDOWED
        return (self.scorings, "scoring") if apart else (passes, "pass")

    def arm(self, name: str) -> Arm:
        """The arm of that name. Raise `KeyError` if there is none."""
        return next(arm for arm in self.arms if arm.name == name) if name in self.names else self._unknown(name)

    def _unknown(self, name: str) -> Arm:
        raise KeyError(f"no arm named {name!r}; there are {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Arm names, in the file's order, a control behind the arm that it repeats."""
        return tuple(arm.name for arm in self.arms)

    @property
    def identity(self) -> str:
        """SHA-256 (hex) of everything that decides the numbers: arms, workload, metrics; not the question's words."""
        return digest(
            {
                "arms": {arm.name: arm.configuration() for arm in self.arms},
                "workload": dict(self.workload),
                "metrics": sorted(metric.name for metric in self.metrics),
            }
        )


def digest(value: Any) -> str:
    """SHA-256 (hex) of a JSON value in canonical form (sorted keys, no blanks, no NaN)."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
