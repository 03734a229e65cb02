"""Everything that docs/provenance.md promises stands in a fresh record, or is null with its reason."""

from __future__ import annotations

import json
import re
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from contract_lab import Lab

from harness.run.digests import model_digest
from harness.run.page_cache import resident_nodes
from harness.run.provenance import environment, source_digests

ROOT = Path(__file__).resolve().parent.parent
ROWS = re.findall(r"^\| (.+?) \| (`host\.json`|`plan\.json`|each trial): (.+) \|$",
                  (ROOT / "docs/provenance.md").read_text(), re.MULTILINE)  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The three kinds of record of one quick run."""
    lab = Lab(tmp_path_factory.mktemp("provenance"))
    assert lab.run(lab.write("one", {"a": "score()\ndone()\n", "b": "score()\ndone()\n"})).returncode == 0
    run = lab.runs("one")[0]
    host, plan = (json.loads((run / name).read_text()) for name in ("host.json", "plan.json"))
    return {"`host.json`": host, "`plan.json`": plan, "each trial": lab.trials(run)[0]}


def at(value: Any, path: str) -> tuple[bool, Any]:
    """Whether a dotted path exists in a JSON value, and what it holds."""
    for piece in path.split("."):
        if not isinstance(value, Mapping) or piece not in value:
            return False, None
        value = value[piece]
    return True, value


def reasons(record: Mapping[str, Any], path: str) -> list[str]:
    """Reasons that may explain a null at that path."""
    top, _, rest = path.partition(".")
    found = [(record.get("missing") or {}).get(path), record.get(f"{top}_missing")]
    found.append(record.get("page_cache_missing") if top == "page_cache_nodes" else None)
    below = record.get(top)
    if isinstance(below, Mapping):
        found.append((below.get("missing") or {}).get(rest.rpartition(".")[2]))
        inner = below.get(rest.partition(".")[0])
        if isinstance(inner, Mapping) and isinstance(inner.get("missing"), str):
            found.append(inner["missing"])
    return [reason for reason in found if reason]


@pytest.mark.parametrize(("what", "where", "paths"), ROWS, ids=[row[0][:40] for row in ROWS])
def test_each_item_is_there_or_null_with_its_reason(
    recorded: dict[str, Any], what: str, where: str, paths: str
) -> None:
    """Each named field exists in a fresh record; a null has a reason beside it. Sources that do not exist are null."""
    assert what
    for path in re.findall(r"`([\w.]+)`", re.sub(r"\(.*?\)", "", paths)):
        if "NAME" in path or path.endswith("_missing"):
            continue  # no environment and no model in a run of `command` arms: see the tests below
        there, value = at(recorded[where], path)
        assert there, f"{path} is not recorded"
        if value is None and not path.startswith("versions.sources.plugin"):
            assert reasons(recorded[where], path), f"{path} is null without a reason"


def test_the_list_is_the_whole_list() -> None:
    """The page has all that the method names: a row that is removed is missed."""
    text = " ".join(row[0] for row in ROWS)
    for word in ("model, flags, microcode", "kernel", "governor", "turbo", "SMT", "NUMA", "huge-page", "cgroup",
                 "compiler", "git", "lock", "plugin", "steal", "PSI", "context switches", "faults", "load", "throttle",
                 "swap", "not ours", "affinity", "allocator", "page cache", "recipe", "seed"):  # fmt: skip
        assert word in text, word


def test_an_environment_names_what_was_built_from_a_folder(tmp_path: Path) -> None:
    """A package installed as a link to its folder: a changed source, and a changed built extension, each show."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env/bin/python"
    site = next((tmp_path / "env/lib").glob("python*/site-packages"))
    source = tmp_path / "src dir"
    (source / "pkg").mkdir(parents=True)
    (source / "pkg/__init__.py").write_text("x = 1\n")
    (source / "pkg/_C.so").write_bytes(b"one")
    info = site / "pkg-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pkg\nVersion: 1\n")
    url = source.as_uri()
    (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))
    first = environment(python)
    assert first["missing"] is None
    assert list(first["built"]["pkg"]) == ["pkg/_C.so"]
    (source / "pkg/_C.so").write_bytes(b"two")
    second = environment(python)
    assert second["local"]["pkg"] != first["local"]["pkg"]
    assert second["built"]["pkg"] != first["built"]["pkg"]
    assert str(tmp_path) not in json.dumps(second)


def test_a_model_names_its_recipe(tmp_path: Path) -> None:
    """Recipe, version and the digest it stated stand beside the digest of the bytes; somebody's own model has none."""
    (tmp_path / "w.safetensors").write_text("abcd")
    assert model_digest(tmp_path)["recipe"] is None
    manifest = {"recipe": "r", "version": 2, "source": "s", "licence": "l", "digest": "d", "files": {}}
    (tmp_path / "harness-model.json").write_text(json.dumps(manifest))
    assert model_digest(tmp_path)["recipe"] == {name: manifest[name] for name in
                                                ("recipe", "version", "source", "licence", "digest")}  # fmt: skip


def test_the_running_code_of_the_plugin_has_a_digest_of_its_own(tmp_path: Path) -> None:
    """A word in the plugin's README changes `plugin` and not `plugin_code`; a word in a kernel changes both."""
    for path in ("plugin/README.md", "plugin/cpu_int4/ops.py", "plugin/csrc/kernel.cpp"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1")
    first = source_digests(tmp_path, {})
    (tmp_path / "plugin/README.md").write_text("2")
    second = source_digests(tmp_path, {})
    (tmp_path / "plugin/csrc/kernel.cpp").write_text("2")
    third = source_digests(tmp_path, {})
    assert first["plugin_code"] == second["plugin_code"] != third["plugin_code"]
    assert len({found["plugin"] for found in (first, second, third)}) == 3
    assert source_digests(tmp_path / "none", {})["plugin_code"] is None


def test_the_page_cache_has_a_node(tmp_path: Path) -> None:
    """A file just written lies in the page cache, and its bytes on nodes that this host has; no file, no byte."""
    file = tmp_path / "w.gguf"
    file.write_bytes(bytes(1 << 20))
    found = resident_nodes([file])
    assert found is not None
    assert sum(found.values()) == 1 << 20
    assert resident_nodes([]) == {}
    assert resident_nodes([tmp_path / "none"]) is None
