"""The `harness` command: parse arguments, wire the real effects, choose the exit code; the one place that prints."""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from collections.abc import Sequence

from harness import __version__
from harness.commands.answer import Answer, CommandError, Exit

#: Tables that `export` knows, so that `--help` can name them without loading what makes them.
TABLE_NAMES = (
    "metrics", "trials", "failures", "verdicts", "claims", "memory", "levels", "samples", "series", "phases",
    "iterations", "engagement", "work", "disturbance",
)  # fmt: skip

EPILOG = """\
the usual way:
  harness check experiments/demo.yaml     every error of the file at once
  harness plan experiments/demo.yaml      arms as resolved, what differs, the order, the time it will take
  harness run experiments/demo.yaml       measure; writes results/ and analysis/
  harness report results/demo/RUN         the report again, from the records alone

exit codes:
  0 all well (failures that were declared included)   3 finished, some trials failed unexpectedly
  1 the harness itself failed                         4 a claim is contradicted
  2 the experiment or the command line is wrong       5 interrupted; `--resume RUN` goes on
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Only the named command's module is imported, so that `--help` and `check` start no heavy library.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # An arm's name in an ASCII locale, and JSON wherever it goes: UTF-8. Bytes of a path stay what they were.
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        parser().print_help(sys.stderr)
        return Exit.USAGE
    arguments = parser().parse_args(words)
    command = importlib.import_module(f"harness.commands.{arguments.command}")
    try:
        answer = command.run(arguments)
    except CommandError as error:
        answer = Answer(error.code, err=f"harness {arguments.command}: {error}")
    except KeyboardInterrupt:
        answer = Answer(Exit.INTERRUPTED, err=f"harness {arguments.command}: interrupted")
    except BrokenPipeError:
        return Exit.HARNESS_FAILED
    return show(answer)


def show(answer: Answer) -> int:
    """Print an answer and return its code; a reader that went away (`| head`) is no failure of ours."""
    try:
        if answer.err:
            print(answer.err, file=sys.stderr, flush=True)
        if answer.out:
            print(answer.out, flush=True)
    except BrokenPipeError:
        sys.stderr.close()
    return int(answer.code)


def parser() -> argparse.ArgumentParser:
    """The whole command line as a table."""
    top = argparse.ArgumentParser(
        prog="harness",
        description="Measure LLM inference on CPUs, and refuse to rank what cannot be told apart.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"harness {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str, *files: tuple[str, str]) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        for metavar, text in files:
            plain = metavar.rstrip(".")
            made.add_argument(plain.lower(), metavar=plain, help=text, nargs="+" if metavar.endswith("...") else None)
        return made

    experiment = ("FILE", "experiment file (YAML); `harness schema` describes it")
    run = "run folder `results/EXPERIMENT/RUN`, the run's id under the default results folder, or a bundle"

    check = command("check", "Check an experiment file: every error at once, with its place and a remedy.", experiment)
    plan = command("plan", "Show the arms as resolved, what differs, the order and the expected time.", experiment)
    measure = command("run", "Run an experiment: results/ gets the records, analysis/ the report.", experiment)
    report = command("report", "Write the report of a run again, from its records alone.", ("RUN...", run))
    rerun = command(
        "rerun", "Run a recorded experiment again on this host and judge whether the two agree.", ("RUN", run)
    )
    agree = command(
        "agree", "Say of each pair and claim whether runs agree, the others against the first.", ("RUN...", run)
    )
    bundle = command("bundle", "Put a run into one file that another host can repeat it from.", ("RUN", run))
    gate = command(
        "gate", "Say whether a change may be merged: by its claims, and by agreement with a reference run.", experiment
    )
    export = command("export", "Write a run's tables, every trial included, as CSV or JSON.", ("RUN", run))
    host = command("host", "Say what this host can measure, what it cannot and why, and what would make it quieter.")
    model = command("model", "Make a model by its recipe; without a name, list the recipes.")
    command("schema", "Print the JSON Schema of experiment files, for editors.")
    calibrate = command("calibrate", "Show by simulation how often the verdicts are wrong, and their power.")

    for sub in (plan, measure, gate):
        sub.add_argument("--passes", type=_at_least_one, metavar="N", help="passes instead of the file's")
        sub.add_argument("--seed", type=int, metavar="S", help="seed of the order instead of the file's or a drawn one")
    for sub in (measure, rerun, report, agree, gate, bundle, export):
        sub.add_argument("--results", metavar="DIR", help="results folder (default: the project's results/)")
    measure.add_argument("--resume", metavar="RUN", help="go on with an interrupted run, appending to it")
    for sub in (check, plan, report, agree, host, rerun, gate):
        sub.add_argument("--json", action="store_true", help="one JSON document on standard output, nothing else")
    rerun.add_argument("--yes", action="store_true", help="run what a bundle names; without it, it is only shown")
    bundle.add_argument("--output", metavar="FILE", help="where to (default: ./EXPERIMENT-RUN.bundle.tar)")
    bundle.add_argument("--redact", action="store_true", help="replace home folders and secrets in records, on record")
    measure.add_argument(
        "--dry-run", action="store_true", help="measure nothing: say what of this host allows the run, and each claim"
    )
    gate.add_argument("--against", metavar="RUN", required=True, help=f"reference: {run}")
    gate.add_argument("--run", metavar="RUN", help="take this run of the experiment instead of measuring one")
    gate.add_argument("--require-decided", action="store_true", help="fail too where claim or agreement is not decided")
    gate.add_argument("--summary", metavar="FILE", help="append the answer as Markdown (GITHUB_STEP_SUMMARY, say)")
    export.add_argument(
        "--format", choices=("csv", "json"), required=True, help="csv: one file a table; json: one file"
    )
    export.add_argument("--out", metavar="DIR", help="folder for the files (default: standard output)")
    export.add_argument("--table", metavar="NAME", choices=TABLE_NAMES, help="csv without --out: which table (metrics)")
    host.add_argument("--prove", action="store_true", help="measure programs whose memory is known, on this host")
    host.add_argument("--repeats", type=_at_least_one, default=50, metavar="N", help="repeats of each program (50)")
    model.add_argument("recipe", nargs="?", metavar="RECIPE", help="name of the recipe")
    calibrate.add_argument("--agreement", action="store_true", help="study the agreement of two runs instead")
    calibrate.add_argument("--seed", type=int, default=1, metavar="S", help="seed of the study (1)")
    calibrate.add_argument(
        "--experiments", type=_at_least_one, metavar="N", help="simulated experiments (pairs of runs) a cell"
    )
    calibrate.add_argument("--workers", type=_at_least_one, metavar="N", help="processes (default: all cores)")
    calibrate.add_argument("--redraw", metavar="FILE", help="write the report again from these records alone")
    calibrate.add_argument("--results", metavar="DIR", help="results folder (default: the project's results/)")
    return top


def _at_least_one(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
