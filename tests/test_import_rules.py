"""The architecture is part of the product: who may import whom, read from the imports themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "harness"

#: Which parts of the harness each part may import (itself always). Data flows one way.
ALLOWED = {
    "units": set(),
    "events": set(),
    "meterlog": {"units"},
    "metrics": {"units"},
    "experiment": {"units", "metrics", "records"},
    "records": {"units", "events", "meterlog", "metrics", "experiment"},
    "plan": {"units", "metrics", "records", "experiment"},
    "run": {"units", "events", "meterlog", "metrics", "records", "experiment", "plan"},
    "measure": {"units", "events", "meterlog", "metrics", "records", "experiment", "plan"},
    "verdict": {"units", "events", "meterlog", "metrics", "records", "experiment", "plan", "measure"},
    "report": {"units", "events", "meterlog", "metrics", "records", "experiment", "plan", "measure", "verdict"},
    "bundle": {"units", "events", "meterlog", "metrics", "records", "experiment", "plan", "run"},
    "drivers": {"drivers"},
    "models": {"models"},
    "testing": {"units", "events", "meterlog", "metrics", "records", "experiment", "plan", "run", "measure"},
    "commands": {
        "units", "events", "meterlog", "metrics", "records", "experiment", "plan", "run", "measure", "verdict",
        "report", "bundle", "drivers", "models", "testing", "commands",
    },
    "cli": {"commands", "units"},
    "__main__": {"cli"},
    "__init__": {"commands", "report"},  # `harness.load`: imported when it is called
}  # fmt: skip

#: Parts that compute and touch nothing: no process, clock, file system or socket.
PURE = {"units", "events", "meterlog", "metrics", "experiment", "plan", "records", "measure", "verdict"}
EFFECTS = {
    "subprocess",
    "threading",
    "time",
    "os",
    "socket",
    "multiprocessing",
    "signal",
    "fcntl",
    "shutil",
    "tempfile",
}
#: Randomness is handed in, seeded; the module-level functions of `random` share hidden state.
GLOBAL_RANDOM = {"random", "randint", "choice", "shuffle", "seed", "gauss", "uniform", "sample"}


def part_of(path: Path) -> str:
    """The part of the harness a file belongs to: its folder, or its own name at the top."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported(path: Path) -> list[tuple[str, int]]:
    """Every module a file imports, wherever in the file, with its line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.module, node.lineno))
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_part_imports_only_what_lies_before_it(path: Path) -> None:
    """A part of the harness imports only the parts that the design puts before it."""
    part = part_of(path)
    for name, line in imported(path):
        pieces = name.split(".")
        if pieces[0] == "harness" and len(pieces) > 1:
            other = pieces[1]
            assert other in {"__version__", part} | ALLOWED[part], f"{path}:{line}: {part} may not import {other}"


@pytest.mark.parametrize("path", [p for p in FILES if part_of(p) in PURE], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_pure_parts_have_no_effects(path: Path) -> None:
    """A pure module imports no process, clock, file or socket module and draws no hidden random number."""
    for name, line in imported(path):
        assert name.split(".")[0] not in EFFECTS, f"{path}:{line}: a pure module imports {name}"
    for node in ast.walk(ast.parse(path.read_text())):
        hidden = (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "random"
            and node.attr in GLOBAL_RANDOM
        )
        assert not hidden, f"{path}: random.{getattr(node, 'attr', '')} shares hidden state; take a seeded Random"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_engines_are_imported_only_inside_an_arm(path: Path) -> None:
    """torch, vllm and the plugin are imported only in drivers/ and models/, which run in an arm's interpreter."""
    for name, line in imported(path):
        if name.split(".")[0] in {"torch", "vllm", "transformers", "safetensors", "gguf"}:
            assert part_of(path) in {"drivers", "models"}, f"{path}:{line}: imports {name}"
        assert name.split(".")[0] != "cpu_int4", f"{path}:{line}: the harness never imports the plugin"


def test_imports_are_absolute() -> None:
    """No file imports by dots: what these rules read is all that is imported."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}:{node.lineno}: a relative import"


def test_every_part_has_its_line_in_the_table() -> None:
    """A new part of the harness gets its place in the architecture before it is used, and no line outlives its part."""
    assert {part_of(path) for path in FILES} == ALLOWED.keys()


def test_the_page_on_the_architecture_says_what_these_rules_say() -> None:
    """docs/architecture.md lists every part but the entry points, with what it may import and whether it is pure."""
    rows = re.findall(
        r"^\| `(\w+)` \| .* \| (pure|effects) \| (.*) \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE
    )
    said = {part: (kind == "pure", set(re.findall(r"`(\w+)`", allowed))) for part, kind, allowed in rows}
    inner = ALLOWED.keys() - {"__main__", "__init__"}
    assert said == {part: (part in PURE, ALLOWED[part] - {part}) for part in inner}


def modules_behind(path: Path, seen: set[Path]) -> Iterator[tuple[Path, str]]:
    """Every module from outside the harness that a file needs, with the file of ours that imports it."""
    if path in seen:
        return
    seen.add(path)
    for name, _ in imported(path):
        if name.split(".")[0] != "harness":
            yield path, name.split(".")[0]
            continue
        own = ROOT / Path(*name.split("."))
        for file in (own.with_suffix(".py"), own / "__init__.py"):
            if file.exists():
                yield from modules_behind(file, seen)


@pytest.mark.parametrize("name", ["run/keeper.py", "run/launcher.py", "run/sampler.py", "testing/arms.py"])
def test_programs_that_start_fast_need_the_standard_library_only(name: str) -> None:
    """The keeper, the launcher, the sampler and the fake arms run without site packages, whatever they import."""
    for path, module in modules_behind(PACKAGE / name, set()):
        assert module in sys.stdlib_module_names, f"{path}: imports {module}, needed by {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_lint_ignore_has_its_reason(path: Path) -> None:
    """A line that is exempt from a check says why, on the line."""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        found = re.search(r"# (?:noqa: [A-Z]+[0-9]+(?:, ?[A-Z]+[0-9]+)*|type: ignore\[[a-z, -]+\])(.*)", line)
        assert found is None or re.search("[a-z]", found[1]), f"{path}:{number}: no reason"


def test_the_version_stands_once() -> None:
    """`harness --version` says what the distribution says."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    assert project["version"] == harness.__version__


def test_the_plugin_never_imports_the_harness() -> None:
    """The plugin and the harness meet in an arm's environment and in the event stream, nowhere else."""
    for path in sorted((ROOT / "plugin").rglob("*.py")):
        assert all(name.split(".")[0] != "harness" for name, _ in imported(path)), path


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["--version"]])
def test_the_command_line_starts_without_heavy_libraries(arguments: list[str]) -> None:
    """`harness --help` answers in the time of a small program: nothing heavy is imported for it."""
    code = (
        "import sys\n"
        "from harness.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "heavy = {'pandas', 'scipy', 'matplotlib', 'torch', 'vllm', 'numpy', 'cattrs', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_check_imports_no_heavy_library(tmp_path: Path) -> None:
    """`harness check` reads a file without pandas, scipy, matplotlib, torch or vllm."""
    file = tmp_path / "tiny.yaml"
    file.write_text(
        "question: q?\npasses: 3\nengine: {command: {}}\nmetrics: [{name: score, unit: s, better: lower}]\n"
        "arms: {a: {command: ['true']}, b: {command: ['true']}}\n"
    )
    code = (
        "import sys\nfrom harness.cli import main\ncode = main(sys.argv[1:])\n"
        "heavy = {'pandas', 'scipy', 'matplotlib', 'torch', 'vllm', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "check", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
