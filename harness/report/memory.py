"""The memory part of a report: the peak as a bracket, the levels, and what RssAnon does not see. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from urllib.parse import quote

from harness.records import MemoryRecord, PhaseMemory, TrialRecord
from harness.report.data import RunData
from harness.report.text import alike, escape, percent, quantity, significant, table
from harness.units import format_seconds

#: A sum that counts shared pages once per process is pointed out from this ratio to the unique memory on: below it the
#: two tell the same story; a program of 300 MB with three idle forks stands at 4.
_DOUBLE_COUNTED = 1.25

_READ = (
    "S is the sum of RssAnon over the arm's processes; a page shared after fork counts once per process. Pss counts it"
    " once in all. A peak is a bracket: the largest sampled sum is its lower end, the least valid bound its upper end."
)


def memory_section(data: RunData, figure: str | None) -> str:
    """Peaks, levels and the other counters of each arm, as medians over its usable trials."""
    by_arm = {name: _usable(data, name) for name in data.experiment.names}
    if not any(by_arm.values()):
        return "## Memory\n\nNo usable trial has a memory record."
    parts = ["## Memory", _READ]
    if figure is not None:
        parts.append(f"![memory over time by phase, one panel an arm]({quote(figure)})")
    parts += [
        _peaks(data, by_arm),
        table(_OTHER_HEAD, [_other_row(name, found) for name, found in by_arm.items()], right=range(1, 6)),
        *_double_counted(by_arm),
        _cost(by_arm),
    ]
    return "\n\n".join(part for part in parts if part)


Trials = Sequence[tuple[TrialRecord, MemoryRecord]]

_LEVELS = {"settled": "settled", "trimmed": "after trim", "pss_anon_settled": "Pss_Anon at settled"}
_OTHER_HEAD = ["arm", "U (unique), largest", "RssShmem", "RssFile", "swap", "huge pages", "back end"]


def _usable(data: RunData, arm: str) -> Trials:
    return [
        (record, record.memory)
        for record in data.latest
        if record.arm == arm and record.usable and record.memory is not None
    ]


def _peaks(data: RunData, by_arm: dict[str, Trials]) -> str:
    """The table of peaks and levels; a level that no arm has (no metric asked for it) takes no column."""
    asked = [key for key in _LEVELS if any(memory.levels.get(key) for found in by_arm.values() for _, memory in found)]
    head = ["arm", "peak S, largest trial", "where", *(_LEVELS[key] for key in asked), "n of k passes"]
    rows = [_peak_row(data, name, found, asked) for name, found in by_arm.items()]
    return table(head, rows, right=range(3, len(head)))


def _peak_row(data: RunData, name: str, found: Trials, asked: Sequence[str]) -> list[str]:
    peaks = [(record, memory, whole) for record, memory in found if (whole := memory.phase("trial")) is not None]
    top = max(peaks, key=lambda peak: peak[2].s_lower or 0, default=None)
    peak = bracket(top[2]) if top is not None else "no usable trial"
    where = _where(top[0], top[1], top[2]) if top is not None else ""
    levels = [_level(found, key) for key in asked]
    return [escape(name), peak, escape(where), *levels, f"{len(found)} of {data.passes}"]


def bracket(phase: PhaseMemory) -> str:
    """`1.21 GiB to 1.24 GiB`, or the reason why there is no upper end."""
    if phase.s_lower is None:
        return "unknown"
    if phase.s_upper is None:
        why = phase.s_upper_missing or "no reason on record"
        return f"at least {_size(phase.s_lower)}; no upper bound: {escape(why)}"
    (low, high), unit = alike([phase.s_lower, phase.s_upper], "B")
    return f"{low} {unit} to {high} {unit}"


def _size(value: float) -> str:
    return quantity(value, "B")


def _where(record: TrialRecord, memory: MemoryRecord, whole: PhaseMemory) -> str:
    """`load, most of it in VLLM::Worker (trial 7)`."""
    phases = [phase for phase in memory.phases if phase.phase != "trial" and phase.s_lower is not None]
    inside = next((phase.phase for phase in phases if phase.s_lower == whole.s_lower), "outside any phase")
    process = f", most of it in {whole.peak_process}" if whole.peak_process else ""
    return f"{inside}{process} (trial {record.trial})"


def _level(found: Trials, key: str) -> str:
    values = [value for _, memory in found if (value := memory.levels.get(key)) is not None]
    if values:
        of = "" if len(values) == len(found) else f" ({len(values)} of {len(found)} trials)"
        return _size(median(values)) + of
    if not found:
        return ""
    why = next((memory.levels_missing[key] for _, memory in found if key in memory.levels_missing), "not asked for")
    return escape(why)


def _other_row(name: str, found: Trials) -> list[str]:
    wholes = [whole for _, memory in found if (whole := memory.phase("trial")) is not None]
    fields: tuple[Callable[[PhaseMemory], int | None], ...] = (
        lambda whole: whole.u_lower,
        lambda whole: whole.max_rss_shmem,
        lambda whole: whole.max_rss_file,
        lambda whole: whole.max_vm_swap,
        lambda whole: whole.max_anon_huge,
    )
    backends = sorted({memory.backend for _, memory in found})
    return [escape(name), *(_largest(wholes, field) for field in fields), ", ".join(backends)]


def _largest(wholes: Sequence[PhaseMemory], field: Callable[[PhaseMemory], int | None]) -> str:
    values = [value for whole in wholes if (value := field(whole)) is not None]
    return _size(max(values)) if values else "unknown"


def _double_counted(by_arm: dict[str, Trials]) -> list[str]:
    lines = []
    for name, found in by_arm.items():
        pairs = [(memory.levels.get("settled"), memory.levels.get("pss_anon_settled")) for _, memory in found]
        ratios = [summed / unique for summed, unique in pairs if summed and unique]
        if ratios and median(ratios) >= _DOUBLE_COUNTED:
            lines.append(
                f"**{escape(name)} shares pages between its processes**: its sum of RssAnon is"
                f" {significant(median(ratios), 3)} times its unique memory (Pss_Anon at settled). Read its Pss."
            )
    return lines


def _cost(by_arm: dict[str, Trials]) -> str:
    """What sampling cost and how dense it was, over all arms."""
    costs = [memory.cost for found in by_arm.values() for _, memory in found if memory.cost is not None]
    shares = [cost.cpu_s / cost.wall_s for cost in costs if cost.wall_s > 0]
    gaps = [cost.gap_max_s for cost in costs if cost.gap_max_s is not None]
    if not shares:
        return ""
    gap = f"; the largest gap between two samples was {format_seconds(max(gaps))}" if gaps else ""
    period = format_seconds(median(cost.period_s for cost in costs))
    return f"Sampling every {period} took {percent(median(shares))} of one core in the median trial{gap}."
