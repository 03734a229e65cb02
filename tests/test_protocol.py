"""The event protocol: what drivers write, what the page promises, and what the reader takes."""

from __future__ import annotations

import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import events
from harness.drivers import prompts, protocol, registry

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "protocol.md").read_text()
SCHEMA: dict[str, Any] = json.loads((DOCS / "protocol.schema.json").read_text())
EXAMPLES = [line for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def check(line: str) -> None:
    """Raise `ValidationError` if a line is no event of the published schema."""
    from jsonschema import Draft202012Validator

    Draft202012Validator(SCHEMA).validate(json.loads(line))


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_of_the_page_is_valid_and_read(line: str) -> None:
    """The page shows only lines that its schema accepts and that the reader takes."""
    check(line)
    before = '{"event": "phase", "name": "load", "state": "begin", "t": 1.0}'
    assert events.parse([before, line]).malformed == 0


@pytest.mark.parametrize(
    "line",
    [
        '{"name": "load"}',
        '{"event": "phase", "name": "load", "state": "start", "t": 1.0}',
        '{"event": "phase", "name": "load", "state": "begin"}',
        '{"event": "iteration", "phase": "decode", "tokens_in": 1, "tokens_out": -1, "seconds": 1.0}',
        '{"event": "iteration", "phase": "decode", "tokens_in": 1, "tokens_out": 2, "seconds": 0}',
        '{"event": "metric", "name": "x", "value": "12"}',
        '{"event": "quality", "window": 0, "tokens": 255}',
        '{"event": "error", "stage": "somewhere", "exception": "E", "message": ""}',
    ],
)
def test_the_schema_refuses_lines_that_mean_nothing(line: str) -> None:
    """A wrong type, a missing field or an unknown word is refused."""
    from jsonschema import ValidationError

    with pytest.raises(ValidationError):
        check(line)


def test_a_stream_reads_back_as_written(tmp_path: Path) -> None:
    """Phases nest, iterations and engagements keep their fields, and `done` closes the stream."""
    path = tmp_path / "events.jsonl"
    stream = protocol.EventStream(path)
    with stream.phase("load"), stream.phase("compile"):
        assert stream.phase_name == "compile"
    stream.iteration("prefill", tokens_in=8, tokens_out=1, seconds=0.5, engine_seconds=0.4)
    stream.engagement("unquantized", {"Linear": 4}, {})
    stream.done()
    lines = path.read_text().splitlines()
    for line in lines:
        check(line)
    read = events.parse(lines)
    assert [(phase.name, phase.end is not None) for phase in read.phases] == [("load", True), ("compile", True)]
    assert read.iterations == (events.Iteration("prefill", 8, 1, 0.5),)
    assert read.engagements == (events.Engagement("unquantized", {"Linear": 4}, {}),)
    assert (read.done, read.malformed) == (True, 0)


def test_an_error_names_its_phase_stage_and_innermost_frame(tmp_path: Path) -> None:
    """A phase left by an exception stays open, and the error event says where the exception came from."""
    path = tmp_path / "events.jsonl"
    stream = protocol.EventStream(path)

    def inner() -> None:
        raise KeyError("qweight")

    def outer() -> None:
        with stream.phase("load"):
            inner()

    with pytest.raises(KeyError) as caught:
        outer()
    stream.error("load", caught.value)
    read = events.parse(path.read_text().splitlines())
    (error,) = read.errors
    assert (error["phase"], error["stage"], error["exception"], error["message"]) == (
        "load",
        "load",
        "KeyError",
        "'qweight'",
    )
    assert error["frame"].endswith("in inner")
    assert read.open_phase == "load"


def _write_many(path: Path, name: str) -> None:
    stream = protocol.EventStream(path)
    for index in range(300):
        stream.emit("metric", name=name, value=index, filler="x" * 2000)


def test_two_processes_write_one_file_without_tearing_lines(tmp_path: Path) -> None:
    """One event is one write at the end of the file, so lines of several processes never mix."""
    path = tmp_path / "events.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(path, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    read = events.parse(path.read_text().splitlines())
    assert (len(read.reported), read.malformed) == (600, 0)


def test_a_driver_without_its_variables_says_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by hand, a driver names the variable to set."""
    monkeypatch.delenv("HARNESS_EVENTS", raising=False)
    monkeypatch.delenv("HARNESS_WORKLOAD", raising=False)
    with pytest.raises(SystemExit, match="HARNESS_EVENTS is not set"):
        protocol.from_environment()
    with pytest.raises(SystemExit, match="HARNESS_WORKLOAD is not set"):
        protocol.workload()


@given(st.integers(0, 2**32), st.integers(1, 64), st.integers(8, 200_000))
def test_prompts_are_equal_for_equal_seeds_and_keep_off_special_tokens(seed: int, length: int, vocabulary: int) -> None:
    """A prompt depends on seed, phase and index only, has exactly its length, and avoids the vocabulary's ends."""
    one = prompts.prompt(seed, "prefill", 0, length, vocabulary)
    low, high = prompts.token_range(vocabulary)
    assert one == prompts.prompt(seed, "prefill", 0, length, vocabulary)
    assert len(one) == length
    assert all(low <= token < high for token in one)


def test_prompts_of_one_trial_differ_and_never_change() -> None:
    """No two requests share a prompt (a cache could help), and the ids of a seed are the same for ever."""
    made = [prompts.prompt(0, phase, index, 64, 49152) for phase in ("prefill", "decode") for index in range(5)]
    assert len({tuple(one) for one in made}) == len(made)
    assert prompts.prompt(0, "prefill", 0, 4, 49152) == KNOWN_PROMPT
    assert prompts.digest(made) != prompts.digest(made[::-1])


#: Written down once: `random.Random("0/prefill/0")` is stable from Python 3.2 on.
KNOWN_PROMPT = [44669, 34790, 43079, 31104]


def test_interpreter_is_the_files_then_the_variables_then_the_checkouts() -> None:
    """`python:` of the experiment file wins over HARNESS_ARMS_PYTHON, which wins over .venv-arms/ of the checkout."""
    checkout = Path("/check out")
    variable = {"HARNESS_ARMS_PYTHON": "/v/python"}
    assert registry.interpreter({"python": "/f/python"}, variable, checkout) == Path("/f/python")
    assert registry.interpreter({}, variable, checkout) == Path("/v/python")
    assert registry.interpreter({}, {}, checkout) == Path("/check out/.venv-arms/bin/python")


def test_argument_lists_of_the_drivers() -> None:
    """A vllm arm is the driver's file run by path; a command arm is its own command, word for word."""
    argv = registry.DRIVERS["vllm"].argv("/arms/python", [])
    assert argv[:2] == ("/arms/python", "-u")
    assert Path(argv[2]).name == "vllm_offline.py"
    assert Path(argv[2]).is_file()
    assert registry.DRIVERS["command"].argv("/arms/python", ["sleep", "a b"]) == ("sleep", "a b")
