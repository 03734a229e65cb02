"""Everything that reaches disk, as frozen types, with the format's dated history. Pure.

Raw numbers stay unrounded and in base units; a field's name or its docstring gives the unit. What could not be read is
None and the reason stands in a field beside it; no sentinel values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, get_origin

from harness.events import Engagement, Iteration, Phase
from harness.experiment.types import digest
from harness.meterlog import MeterLog as MeterLog  # noqa: PLC0414  # part of what reaches disk; re-exported here

if TYPE_CHECKING:
    from cattrs import Converter

#: Version of the record format.
#: 1 (2026-12-01): first.
FORMAT = 1


class Reason(StrEnum):
    """Why a trial has no usable value: the closed list, each defined in docs/failures.md with what it does not mean."""

    SPAWN_ERROR = "spawn_error"
    CONFIG_REJECTED = "config_rejected"
    IMPORT_ERROR = "import_error"
    LOAD_ERROR = "load_error"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    HANG = "hang"
    BAD_OUTPUT = "bad_output"
    NONZERO_EXIT = "nonzero_exit"
    NOT_ENGAGED = "not_engaged"
    ORPHAN_LEFT = "orphan_left"
    METER_LOST = "meter_lost"
    DISTURBED = "disturbed"
    INTERRUPTED = "interrupted"
    HARNESS_ERROR = "harness_error"


@dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """How one process of the arm ended. Exactly one of `exit_code` and `signal` is set, or neither and `unknown` says
    why. `source`: who told (`wait`, `adopted`, `zombie`, `engine`, `process_events`). `killed_by`: `harness` if our
    own signal ended it, else None.
    """

    pid: int
    start_ticks: int
    name: str
    exit_code: int | None = None
    signal: str | None = None
    source: str | None = None
    killed_by: str | None = None
    unknown: str | None = None


@dataclass(frozen=True, kw_only=True)
class RootException:
    """The engine's own exception. `exception`: class name. `frame`: innermost frame as `file:line in function`.
    `process`: who raised it, as named in the log or event.
    """

    exception: str
    message: str
    frame: str | None = None
    process: str | None = None


def first_line(text: str) -> str:
    """The first line of an evidence that says something, marked where more follows: lines and tables have no more room;
    the whole stands in the record and in the report's section of failures.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] + (" ..." if len(lines) > 1 else "") if lines else ""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A trial without a usable value. `signal`: its name (SIGILL, ...) for the reason `signal`. `evidence`: one
    sentence. `phase`: open when it happened. `last_memory_bytes`: last sampled sum of RssAnon. `log`: path within the
    run's folder.
    """

    reason: Reason
    evidence: str
    phase: str | None = None
    signal: str | None = None
    killed_by: str | None = None
    wall_s: float | None = None
    last_memory_bytes: int | None = None
    root: RootException | None = None
    log: str | None = None


@dataclass(frozen=True, kw_only=True)
class Value:
    """One metric of one trial, in the metric's unit. `lower`, `upper`: the bracket of a peak, else None;
    `upper_missing`: why there is no upper bound. `series`: the iterations or windows that `value` collapses.
    """

    value: float
    lower: float | None = None
    upper: float | None = None
    upper_missing: str | None = None
    series: tuple[float, ...] = ()
    unit: str | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseMemory:
    """Memory of one phase, or of the whole trial under the name `trial`; bytes.

    `s_*`: sum of RssAnon over the processes (a page shared after fork counts once per process). `u_*`: unique anonymous
    memory. `*_lower`: largest reading; `*_upper`: least valid bound, None with the reason in `*_upper_missing`.
    `peak_t`: CLOCK_MONOTONIC seconds of the largest sum; `peak_process`: the process with most of it then.
    The `max_*` fields are largest sampled sums over the tree, None where the kernel does not tell the kind. `samples`:
    looks at the tree within the phase.
    """

    phase: str
    samples: int
    s_lower: int | None = None
    s_upper: int | None = None
    s_upper_missing: str | None = None
    u_lower: int | None = None
    u_upper: int | None = None
    u_upper_missing: str | None = None
    peak_t: float | None = None
    peak_process: str | None = None
    max_rss_shmem: int | None = None
    max_rss_file: int | None = None
    max_vm_swap: int | None = None
    max_anon_huge: int | None = None


@dataclass(frozen=True, kw_only=True)
class SamplerCost:
    """What sampling cost and how dense it was, seconds and counts. `samples`: looks at the tree. `cpu_s`, `wall_s`: of
    the sampler. `period_s`: the wanted time between samples. `gap_max_s`, `gap_p999_s`: largest and 99.9th percentile
    of the time between them, None below two samples. `seen_once`: processes with a single reading. `vanished`: gone
    before their first reading. `unknown`: processes that lived and could not be read at some look.
    """

    samples: int
    cpu_s: float
    wall_s: float
    period_s: float
    gap_max_s: float | None = None
    gap_p999_s: float | None = None
    seen_once: int = 0
    vanished: int = 0
    unknown: int = 0


@dataclass(frozen=True, kw_only=True)
class MemoryRecord:
    """Memory of one trial. `backend`: `cgroup_v2`, `cgroup_v1` or `none`. `phases`: in order, `trial` last.
    `levels`: named steady readings (`settled`, `trimmed`, `pss_anon_settled`, ...) in bytes, None if never reached,
    with the reason in `levels_missing`. `processes`: per process its name, pid, samples and largest RssAnon.
    `samples_path`: within the run's folder. `lost`: why the meter's record is incomplete, None if it is whole.
    """

    backend: str
    phases: tuple[PhaseMemory, ...] = ()
    levels: Mapping[str, int | None] = field(default_factory=dict)
    levels_missing: Mapping[str, str] = field(default_factory=dict)
    processes: tuple[Mapping[str, Any], ...] = ()
    cost: SamplerCost | None = None
    samples_path: str | None = None
    lost: str | None = None

    def phase(self, name: str) -> PhaseMemory | None:
        """The record of that phase; None if the trial had none."""
        return next((phase for phase in self.phases if phase.phase == name), None)


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What the host did to a trial: counter differences over it, by name, with the unit in the name
    (`steal_s`, `foreign_cpu_s`, `psi_cpu_some_s`, ...). None where the host hides it, with the reason in `missing`.
    `exceeded`: the counters over the experiment's thresholds.
    """

    counters: Mapping[str, float | None] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    exceeded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SurvivalLimit:
    """What the probes before a counted trial found, bytes. `upper`: smallest memory limit survived; `lower`: largest
    one that was not, 0 if none. Both None without a limit, and `missing` says why; `host_lacks`: because this host
    cannot set one. `probes`: trials on record that it rests on.
    """

    lower: int | None = None
    upper: int | None = None
    probes: int = 0
    missing: str | None = None
    host_lacks: bool = False


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial that ended. One line of trials.jsonl.

    `trial`: ordinal in the run, from 1, never reused. `planned`: ordinal of the planned trial it answers.
    `pass_number`: from 1; 0 for priming. `position`: place within its pass, from 1. `attempt`: from 1; a repeated pass
    or a resumed trial counts on. `began`, `ended`: CLOCK_MONOTONIC seconds; `started_at`: UTC, for people only.
    `values`: usable metrics by name; `missing`: why a metric that was asked for has none. `expected`: the failure is
    the one the arm declared. `work`: facts that must be equal between arms (tokens, prompt digest, threads, CPU set,
    KV bytes), as the driver reported them. `caches`: state of the arm's private caches before the trial (`cold`,
    `primed`). `page_cache`: fraction of the model's weight files that lay in the page cache before the start,
    None where there is no such file. `page_cache_nodes`: bytes of them by NUMA node. `page_cache_missing`: why one of
    the two is not known. `engine`: what was read of each process at settled (threads, CPUs, allocator, mapped weights);
    `engine_missing`: why it is empty. `probe_limit_bytes`: the memory limit under which a
    probe for `survival_limit` ran; None for every other trial. A probe is marked `priming`, so that no statistics count
    it. `survival`: what the probes before this counted trial found; None where none were asked for. `scoring`: a trial
    of its own for quality, in no pass: `pass_number` is 0 and `position` the how manieth of its arm.
    `previous`: digest of the record before it; `digest`: SHA-256 of this record without that field.
    """

    trial: int
    planned: int
    arm: str
    pass_number: int
    position: int
    attempt: int = 1
    priming: bool = False
    started_at: str
    began: float
    ended: float
    failure: Failure | None = None
    expected: bool = False
    values: Mapping[str, Value] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    engagements: tuple[Engagement, ...] = ()
    work: Mapping[str, Any] = field(default_factory=dict)
    memory: MemoryRecord | None = None
    processes: tuple[ProcessEnd, ...] = ()
    disturbance: Disturbance = Disturbance()
    caches: str | None = None
    page_cache: float | None = None
    engine: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    probe_limit_bytes: int | None = None
    survival: SurvivalLimit | None = None
    page_cache_nodes: Mapping[str, int] | None = None
    page_cache_missing: str | None = None
    engine_missing: str | None = None
    scoring: bool = False
    format: int = FORMAT
    previous: str = ""
    digest: str = ""

    @property
    def usable(self) -> bool:
        """The trial ended without any failure, so its values may enter statistics."""
        return self.failure is None

    @property
    def counted(self) -> bool:
        """One of the passes' trials: neither priming nor a trial of its own for quality."""
        return not (self.priming or self.scoring)


#: Fields that came after the first records were written: without a value they are no part of the digest, so that the
#: chain of a run of before still holds.
_LATER: Final = ("probe_limit_bytes", "survival", "scoring", "page_cache_nodes", "page_cache_missing", "engine_missing")


class RecordError(ValueError):
    """A record that cannot be read; the message names what is wrong with it."""


def _is_frozenset(type_: Any) -> bool:
    return get_origin(type_) is frozenset


@cache
def converter() -> Converter:
    """The one converter between records and JSON values. cattrs is imported here: 60 ms that `--help` need not pay."""
    from cattrs import Converter

    made = Converter()
    made.register_unstructure_hook_func(_is_frozenset, sorted)
    made.register_structure_hook(Any, lambda value, _type: value)
    # an expected module count is a number or a bound written as text; JSON keeps the two apart by itself
    made.register_structure_hook_func(lambda type_: type_ == int | str, lambda value, _type: value)
    return made


def as_passes(records: Iterable[TrialRecord]) -> tuple[TrialRecord, ...]:
    """The scoring trials, each as if it stood in the pass that its position names: what asks for trials by pass can
    then be asked for them too.
    """
    scoring = (record for record in records if record.scoring)
    return tuple(replace(record, scoring=False, pass_number=record.position) for record in scoring)


def seal(record: TrialRecord, previous: str) -> TrialRecord:
    """Chain a record to the one before it: any later change to either is seen by `broken_links`."""
    linked = replace(record, previous=previous, digest="")
    return replace(linked, digest=_digest(linked))


def _digest(record: TrialRecord) -> str:
    value = converter().unstructure(record)
    value.pop("digest")
    for name in _LATER:
        if value[name] is None or value[name] is False:
            del value[name]
    return digest(value)


def to_line(record: TrialRecord) -> str:
    """One line of strict JSON, newline included. The contract's word for `pass_number` is `pass`."""
    value = converter().unstructure(record)
    value["pass"] = value.pop("pass_number")
    return json.dumps(value, allow_nan=False, ensure_ascii=False) + "\n"


def from_line(line: str) -> TrialRecord:
    """The record of one line. Raise `RecordError` if it is torn, no JSON, or of a format this version cannot read."""
    try:
        value = json.loads(line)
        value["pass_number"] = value.pop("pass")
        found = value["format"]
        record = converter().structure(value, TrialRecord) if found == FORMAT else None
    except Exception as error:
        raise RecordError(f"no trial record: {type(error).__name__}: {error}") from error
    if record is None:
        raise RecordError(f"format {found} of a trial record; this version reads format {FORMAT}")
    return record


def broken_links(records: tuple[TrialRecord, ...]) -> tuple[str, ...]:
    """A sentence for each record that was edited, removed or put elsewhere after it was written."""
    found, previous = [], ""
    for record in records:
        if _digest(replace(record, digest="")) != record.digest:
            found.append(f"trial {record.trial}: its content does not match its digest: edited after it was written")
        elif record.previous != previous:
            found.append(f"trial {record.trial}: does not follow the record before it: a line is missing or moved")
        previous = record.digest
    return tuple(found)
