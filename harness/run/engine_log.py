"""Digs the engine's own root exception out of a vLLM log. Pure.

vLLM reports one failure several times: in the process where it happened, in the engine core that waited for that
process, and in the caller, whose exception says only "See root cause above". Each process prefixes its lines, and the
lines of different processes mix. The root is found by following the failure downwards: from the caller's last
exception, as long as that one only points elsewhere, to the process below it. Tracebacks that were logged and survived
(a plugin that failed to load) stand before it and are left aside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from harness.records import RootException

_PREFIX: Final = re.compile(r"^\((?P<process>[\w.\-]+ pid=\d+)\) ?")
_RECORD: Final = re.compile(r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*:\d+\] ?")
_PROCESS: Final = re.compile(r"^Process (?P<name>[\w.\-]+):$")
_FRAME: Final = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_RAISED: Final = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?$")
_CHAIN: Final = ("The above exception was the direct cause", "During handling of the above exception")
#: What exceptions say that only report another process's failure.
_POINTS_ELSEWHERE: Final = re.compile(
    r"see root cause above|see stack trace .*for (?:the )?root cause|check the stack trace above for the root cause"
    r"|engine core initialization failed|engine core proc .* died|enginecore encountered an issue"
    r"|workerproc initialization failed|executor failed|cancelled",
    re.IGNORECASE,
)
_WRAPPERS: Final = frozenset({"EngineDeadError", "EngineGenerateError", "SystemExit", "KeyboardInterrupt"})
_MESSAGE_LINES: Final = 12
_MESSAGE_CHARACTERS: Final = 2000
#: What stands before a module's own path: an environment's packages, the standard library, or a checkout of ours.
_HOST_FOLDERS: Final = re.compile(r"^/(?:.*/(?:site|dist)-packages/|.*/lib/python3\.\d+/|.*/(?=harness/drivers/))")


@dataclass
class _Raised:
    """One exception of a log. `level`: 0 the caller, 1 the engine core, 2 a worker."""

    process: str | None
    name: str
    lines: list[str]
    frame: str | None

    @property
    def level(self) -> int:
        name = self.process or ""
        return 2 if "Worker" in name else 1 if name.startswith("EngineCore") else 0

    @property
    def message(self) -> str:
        return "\n".join(self.lines).strip()[:_MESSAGE_CHARACTERS]

    @property
    def points_elsewhere(self) -> bool:
        return self.name.rpartition(".")[2] in _WRAPPERS or bool(_POINTS_ELSEWHERE.search(self.message))


@dataclass
class _Reader:
    """Reads the lines of one process and collects its exceptions, the first of each chain."""

    process: str | None
    found: list[_Raised] = field(default_factory=list)
    frame: str | None = None
    inside: bool = False
    chained: bool = False
    ignored: bool = False
    open_message: _Raised | None = None

    def feed(self, line: str, *, continues: bool) -> None:
        """Take one line, its prefix removed. `continues`: it may belong to the message of the exception before it."""
        if (frame := _FRAME.match(line)) is not None:
            self.inside, self.open_message = True, None
            function = f" in {frame['function']}" if frame["function"] else ""
            self.frame = f"{frame['file']}:{frame['line']}{function}"
        elif line.startswith("Traceback (most recent call last)"):
            self.inside, self.frame, self.open_message = True, None, None
        elif line.startswith(_CHAIN):
            self.chained, self.open_message = True, None
        elif line.startswith("Exception ignored in"):
            self.ignored = True
        elif self.inside and (raised := _RAISED.match(line)) is not None and self.frame is not None:
            self._end_of_traceback(raised["name"], raised["message"] or "")
        elif self.open_message is not None and continues and line.strip():
            if len(self.open_message.lines) < _MESSAGE_LINES:
                self.open_message.lines.append(line.strip())
        elif not continues:
            self.open_message = None

    def _end_of_traceback(self, name: str, message: str) -> None:
        raised = _Raised(self.process, name, [message], self.frame)
        if not self.chained and not self.ignored:
            self.found.append(raised)
            self.open_message = raised
        self.inside = self.chained = self.ignored = False
        self.frame = None


def _split(text: str) -> Iterator[tuple[str | None, str, bool]]:
    """Process, line without prefix, and whether the line may continue a message: plain ones and records of `ERROR`."""
    plain: str | None = None
    for whole in text.splitlines():
        prefix = _PREFIX.match(whole)
        line = whole[prefix.end() :] if prefix else whole
        record = _RECORD.match(line)
        process = prefix["process"] if prefix else None
        if record is not None:
            yield process, line[record.end() :], line.startswith(("ERROR", "CRITICAL"))
        elif process is not None:
            yield process, line, True
        elif (named := _PROCESS.match(line)) is not None:
            plain = named["name"]
        else:
            if line.startswith("Traceback") and plain is not None and not plain.startswith("*"):
                plain = "*" + plain  # the traceback that belongs to the name above it
            elif line.startswith("Traceback"):
                plain = None
            yield plain and plain.removeprefix("*"), line, True


def _exceptions(lines: Iterable[tuple[str | None, str, bool]]) -> list[_Raised]:
    """All exceptions in the order in which their tracebacks ended."""
    readers: dict[str | None, _Reader] = {}
    order: list[_Raised] = []
    for process, line, continues in lines:
        reader = readers.setdefault(process, _Reader(process))
        before = len(reader.found)
        reader.feed(line, continues=continues)
        order += reader.found[before:]
    return order


def root_exception(text: str) -> RootException | None:
    """The exception that ended the engine, from its whole log; None if the log holds none that says a cause (a process
    that was killed leaves no traceback: the processes' exit statuses tell then).

    `exception` is the class name without its module; `message` is cut at 2000 characters; `process` as the log names
    it, None for the program that was started.
    """
    raised = _exceptions(_split(text))
    for level in (0, 1, 2):
        here = [one for one in raised if one.level == level]
        if here and not here[-1].points_elsewhere:
            last = here[-1]
            name = last.name.rpartition(".")[2]
            frame = without_host(last.frame)
            return RootException(exception=name, message=last.message, frame=frame, process=last.process)
    return None


def without_host(frame: str | None) -> str | None:
    """A frame without the folders of the host that it comes from: `/opt/x/site-packages/vllm/a.py:1` is `vllm/a.py:1`.

    Records are read and compared on other hosts, where only the module says anything.
    """
    return None if frame is None else _HOST_FOLDERS.sub("", frame)
