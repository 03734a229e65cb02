"""The engine's own root exception, dug out of logs that real vLLM 0.32.0 wrote (tests/data/vllm_logs)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.run.engine_log import root_exception, without_host

LOGS = Path(__file__).parent / "data" / "vllm_logs"

#: log, exception, words of its message, innermost frame, process
KNOWN = [
    (
        "truncated_safetensors",
        "SafetensorError",
        "incomplete metadata, file not fully covered",
        "weight_utils.py:1208 in safetensors_weights_iterator",
        "Worker",
    ),
    (
        "unknown_parameter",
        "ValueError",
        "no module or parameter named 'layers.0.mlp.surprise'",
        "utils.py:448 in _load_module",
        "Worker",
    ),
    ("memory_refused", "ValueError", "is less than desired CPU memory", "cpu_worker.py:83 in __init__", "VllmWorker-0"),
    ("unknown_quantization", "ValidationError", "Unknown quantization method: cpu_int4", "_dataclasses.py:121", None),
    ("context_too_long", "ValidationError", "greater than the derived max_model_len", "_dataclasses.py:121", None),
    (
        "key_error_in_config",
        "KeyError",
        "high_freq_factor",
        "modeling_rope_utils.py:1114 in _check_received_keys",
        None,
    ),
]


@pytest.mark.parametrize(("log", "exception", "words", "frame", "process"), KNOWN, ids=[row[0] for row in KNOWN])
def test_root_of_a_real_failure(log: str, exception: str, words: str, frame: str, process: str | None) -> None:
    """Class, message, innermost frame and process are those of the process that failed, not of who reported it."""
    found = root_exception((LOGS / f"{log}.log").read_text())
    assert found is not None
    assert found.exception == exception
    assert words in found.message
    assert frame in (found.frame or "")
    assert (found.process or "").partition(" ")[0] == (process or "")


def test_case_44_a_killed_worker_leaves_no_root_exception() -> None:
    """A SIGKILL of the worker leaves only exceptions that point elsewhere ("cancelled"): none is called the root."""
    text = (LOGS / "worker_killed.log").read_text()
    assert "RuntimeError: cancelled" in text
    assert root_exception(text) is None


def test_case_45_a_clean_end_has_no_root_exception() -> None:
    """Shutdown lines, and an ERROR line that says the core died, are no exception."""
    text = (LOGS / "clean.log").read_text()
    died = (
        "(MainProcess pid=7) ERROR 12-01 12:00:00 [core_client.py:600] Engine core proc EngineCore died unexpectedly\n"
    )
    assert root_exception(text + died) is None


def test_case_48_a_plugin_that_failed_to_load_and_was_skipped_is_not_the_root() -> None:
    """A traceback that was logged and survived stands before the failure, in the same process, and is left aside."""
    plugin = "".join(
        f"(Worker pid=14118) ERROR 12-01 12:30:01 [__init__.py:69] {line}\n"
        for line in (
            "Failed to load plugin cpu_int4",
            "Traceback (most recent call last):",
            '  File "/arms/site-packages/vllm/plugins/__init__.py", line 66, in load_plugins_by_group',
            "    func = plugin.load()",
            "ImportError: libgomp.so.1: cannot open shared object file",
        )
    )
    found = root_exception(plugin + (LOGS / "truncated_safetensors.log").read_text())
    assert found is not None
    assert found.exception == "SafetensorError"


@pytest.mark.parametrize(
    "between",
    [
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    ],
)
def test_the_first_of_a_chain_is_the_root(between: str) -> None:
    """Of chained exceptions the first is the root, whatever was raised from it or while it was handled."""
    text = f"""Traceback (most recent call last):
  File "/arms/load.py", line 7, in read
    return table[name]
KeyError: 'qweight'

{between}

Traceback (most recent call last):
  File "/arms/load.py", line 9, in read
    raise RuntimeError("cannot load") from error
RuntimeError: cannot load
"""
    found = root_exception(text)
    assert found is not None
    assert (found.exception, found.message, found.frame) == ("KeyError", "'qweight'", "/arms/load.py:7 in read")


def test_lines_of_two_processes_mixed_line_by_line() -> None:
    """Each process's traceback is read on its own, though lines of another lie between."""
    text = """(Worker_TP0 pid=1) ERROR 12-01 12:00:00 [x.py:1] Traceback (most recent call last):
(Worker_TP1 pid=2) ERROR 12-01 12:00:00 [x.py:1] Traceback (most recent call last):
(Worker_TP0 pid=1) ERROR 12-01 12:00:00 [x.py:1]   File "/a.py", line 1, in first
(Worker_TP1 pid=2) ERROR 12-01 12:00:00 [x.py:1]   File "/b.py", line 2, in second
(Worker_TP1 pid=2) ERROR 12-01 12:00:00 [x.py:1] RuntimeError: cancelled
(Worker_TP0 pid=1) ERROR 12-01 12:00:00 [x.py:1] OSError: [Errno 28] No space left on device
(EngineCore pid=3) ERROR 12-01 12:00:01 [y.py:1] Traceback (most recent call last):
(EngineCore pid=3) ERROR 12-01 12:00:01 [y.py:1]   File "/c.py", line 3, in wait
(EngineCore pid=3) ERROR 12-01 12:00:01 [y.py:1] Exception: WorkerProc initialization failed. See root cause above.
"""
    found = root_exception(text)
    assert found is not None
    assert (found.exception, found.frame, found.process) == ("OSError", "/a.py:1 in first", "Worker_TP0 pid=1")


def test_an_exception_ignored_in_a_finalizer_is_not_the_root() -> None:
    """Python prints `Exception ignored in` tracebacks while it shuts down; they ended nothing."""
    text = """Traceback (most recent call last):
  File "/a.py", line 1, in load
MemoryError
Exception ignored in: <function Pool.__del__ at 0x7f>
Traceback (most recent call last):
  File "/b.py", line 2, in __del__
AttributeError: 'NoneType' object has no attribute 'close'
"""
    found = root_exception(text)
    assert found is not None
    assert (found.exception, found.message) == ("MemoryError", "")


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    """A log may hold anything: reading it never raises."""
    root_exception(text)
    root_exception("Traceback (most recent call last):\n" + text)


@pytest.mark.parametrize(
    ("frame", "short"),
    [
        (
            "/opt/lab/.venv/lib/python3.11/site-packages/vllm/config/model.py:12 in check",
            "vllm/config/model.py:12 in check",
        ),
        ("/usr/lib/python3/dist-packages/torch/nn.py:1", "torch/nn.py:1"),
        ("/usr/lib/python3.11/json/decoder.py:3 in decode", "json/decoder.py:3 in decode"),
        ("/home/x/my lab/harness/drivers/vllm_offline.py:9 in run", "harness/drivers/vllm_offline.py:9 in run"),
        ("bench.py:4", "bench.py:4"),
    ],
)
def test_a_frame_names_no_folder_of_the_host(frame: str, short: str) -> None:
    """Records are read on other hosts: a frame says the module's own path and nothing of where it was installed."""
    assert without_host(frame) == short
