"""Engines by name: which program is an arm of that engine, which interpreter runs it, what it needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, kw_only=True)
class Driver:
    """One engine's driver. `program`: beside this file; None where the arm's own command is the program.
    `needs_model`: a recipe or directory must be named. `priming`: uncounted trials by default.
    `parts`: workload sections it understands. `recipe`: makes the engine's own programs, where its interpreter does not
    have them.
    """

    engine: str
    program: str | None
    needs_model: bool
    priming: int
    parts: frozenset[str]
    recipe: str | None = None

    def argv(self, python: str | Path, command: Sequence[str]) -> tuple[str, ...]:
        """Argument list of a trial. `python`: the arms' interpreter; `command`: the arm's own, if the engine has one.

        Interpreters are started with -u: a log then holds all that was said before a sudden end.
        """
        if self.program is None:
            return tuple(command)
        return (str(python), "-u", str(Path(__file__).resolve().with_name(self.program)))


_ALL: Final = (
    Driver(
        engine="vllm",
        program="vllm_offline.py",
        needs_model=True,
        priming=1,
        parts=frozenset({"prefill", "decode", "context", "quality"}),
    ),
    Driver(
        engine="llama_cpp",
        program="llama_cpp.py",
        needs_model=True,
        priming=1,
        parts=frozenset({"prefill", "decode", "context", "quality"}),
        recipe="llama-cpp",
    ),
    Driver(engine="command", program=None, needs_model=False, priming=0, parts=frozenset()),
)

#: Drivers by engine name.
DRIVERS: Final = {driver.engine: driver for driver in _ALL}


def interpreter(engine_section: Mapping[str, Any], environment: Mapping[str, str], checkout: Path) -> Path:
    """The arms' interpreter: `python:` of the file's engine section, else HARNESS_ARMS_PYTHON, else `.venv-arms/` of
    the checkout. Not resolved: the links of a virtual environment must stay as they are.
    """
    chosen = engine_section.get("python") or environment.get("HARNESS_ARMS_PYTHON")
    return Path(chosen).expanduser() if chosen else checkout / ".venv-arms" / "bin" / "python"


def workload_file(
    *,
    arm: Mapping[str, Any],
    workload: Mapping[str, Any],
    needs: frozenset[str],
    model_dir: Path | None,
    priming: bool,
    settle_s: float,
    trim_s: float,
    probe: bool = False,
    engine_dir: Path | None = None,
) -> dict[str, Any]:
    """The JSON value that a driver reads from HARNESS_WORKLOAD (docs/protocol.md). `arm`: `Arm.configuration()` and
    its name. `needs`: union of the needs of the metrics asked for. `probe`: stop after load and one short request.
    `engine_dir`: where the recipe of the engine's programs put them.
    """
    return {
        "protocol": 1,
        "arm": dict(arm),
        "model_dir": str(model_dir) if model_dir is not None else None,
        "engine_dir": str(engine_dir) if engine_dir is not None else None,
        "workload": dict(workload),
        "needs": sorted(needs),
        "priming": priming,
        "probe": probe,
        "settle_s": settle_s,
        "trim_s": trim_s,
    }
