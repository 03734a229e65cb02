"""The command line as a newcomer meets it: every wrong turn says what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import main


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`harness` alone is a wrong command line and answers with the commands and the usual way."""
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "harness run experiments/demo.yaml" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "x"], "`harness run FILE` makes one"),
        (["agree", "x", "y"], "`harness run FILE` makes one"),
        (["check", "nothere.yaml"], "name an experiment file"),
        (["plan", "."], "name an experiment file"),
        (["run", "nothere.yaml"], "name an experiment file"),
        (["model", "nosuch"], "recipes: llama-cpp, smollm2-135m"),
        (["run", "good.yaml", "--resume", "nosuch"], "`harness run FILE` makes one"),
        (["run", "vllm.yaml"], "`make setup` makes it, or name another with `python:`"),
    ],
)
def test_a_wrong_turn_says_what_to_do_next(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and a sentence with the way out; nothing is made, neither a model nor a results folder."""
    monkeypatch.chdir(tmp_path)
    text = "question: q\npasses: 1\nengine: {command: {}}\narms: {a: {command: [python3, x.py]}}\nmetrics: [wall_s]\n"
    (tmp_path / "good.yaml").write_text(text)
    text = "question: q\npasses: 1\nmodel: tiny-random\nengine: {vllm: {python: nowhere/python}}\narms: {a: {}}\n"
    (tmp_path / "vllm.yaml").write_text(text + "metrics: [load_s]\n")
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"good.yaml", "vllm.yaml"}
