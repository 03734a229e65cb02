"""A bundle: the same bytes each time, nothing that must stay, and nothing that an unpacked one can do."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from contract_lab import Lab
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.bundle import archive
from harness.bundle.manifest import MANIFEST, BundleError
from harness.bundle.scan import findings, redacted
from harness.bundle.unpack import unpack
from harness.commands import rerun
from harness.run.files import StoreError
from harness.run.integrity import problems
from harness.run.store import RunFolder

BODY = "score(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)\ndone()\n"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A bench with one run of two arms in three passes."""
    made = Lab(tmp_path_factory.mktemp("bundles"))
    answer = made.run(made.write("pair", {"a": BODY, "b": BODY}, passes=3, seed=7))
    assert answer.returncode == 0, answer.stderr
    return made


@pytest.fixture(scope="module")
def run(lab: Lab) -> Path:
    """The run."""
    return lab.runs("pair")[0]


@pytest.fixture(scope="module")
def bundle(lab: Lab, run: Path) -> Path:
    """Its bundle, made by the command."""
    answer = lab.harness("bundle", run, "--output", lab.folder / "one.tar")
    assert answer.returncode == 0, answer.stderr
    return lab.folder / "one.tar"


def members(path: Path) -> dict[str, bytes]:
    """All members of a bundle."""
    return archive.read(path)[0]


def packed(path: Path, content: dict[str, bytes]) -> Path:
    """An archive of those members, written as bundles are."""
    path.write_bytes(archive.write(content))
    return path


def test_the_same_run_gives_the_same_bytes(lab: Lab, run: Path, bundle: Path) -> None:
    """Packed again, from another folder and at another time, not a byte differs; an existing file is not replaced."""
    assert lab.harness("bundle", run, "--output", lab.folder / "two.tar").returncode == 0
    assert (lab.folder / "two.tar").read_bytes() == bundle.read_bytes()
    again = lab.harness("bundle", run, "--output", lab.folder / "two.tar")
    assert again.returncode == 2
    assert "never overwritten" in again.stderr
    assert "--output" in again.stderr


def test_a_bundle_holds_records_experiment_and_no_logs(run: Path, bundle: Path) -> None:
    """What a rerun needs is in it, byte for byte; the arms' own output is not."""
    found = members(bundle)
    for name in ("experiment.yaml", "host.json", "plan.json", "trials.jsonl"):
        assert found[f"run/{name}"] == (run / name).read_bytes()
    assert not [name for name in found if "log" in name]
    assert set(json.loads(found[MANIFEST])["files"]) == found.keys() - {MANIFEST}


def test_an_unpacked_bundle_is_the_run(bundle: Path, run: Path, tmp_path: Path) -> None:
    """Its records are those of the run, its chain holds, and it lies under its own experiment and id."""
    made = unpack(bundle, tmp_path)
    assert made.folder.records() == RunFolder(run).records()
    assert problems(made.folder) == ()
    assert made.folder.path.parts[-2:] == ("pair", run.name)


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../../evil", "run/../../evil", "run/samples/../../evil", "run/evil.sh", "run/samples/.hidden"],
)
def test_no_name_leaves_the_folder(bundle: Path, tmp_path: Path, name: str) -> None:
    """A member whose name leads out, is hidden or has no place in a bundle: refused before anything is written."""
    bad = packed(tmp_path / "bad.tar", {**members(bundle), name: b"evil"})
    with pytest.raises(BundleError, match="a name that no bundle has"):
        unpack(bad, tmp_path / "into")
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_devices_and_folders_are_refused(bundle: Path, tmp_path: Path, kind: bytes) -> None:
    """Only plain files: a link under a good name could lead anywhere."""
    buffer = io.BytesIO(bundle.read_bytes())
    with tarfile.open(fileobj=buffer, mode="a:") as tar:
        entry = tarfile.TarInfo("run/samples/0009-a.txt")
        entry.type, entry.linkname = kind, "/etc/passwd"
        tar.addfile(entry)
    (tmp_path / "bad.tar").write_bytes(buffer.getvalue())
    with pytest.raises(BundleError, match=r"no plain file|a name that no bundle has"):
        unpack(tmp_path / "bad.tar", tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_a_sample_that_expands_without_end_is_refused(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 KiB of gzip that would be 64 MiB of text: refused by what it expands to, not by what it weighs."""
    monkeypatch.setattr(archive, "MAX_EXPANDED", 1024**2)
    bad = packed(tmp_path / "bad.tar", {**members(bundle), "run/samples/0001-a.txt.gz": gzip.compress(bytes(2**26))})
    with pytest.raises(BundleError, match="expands beyond"):
        unpack(bad, tmp_path / "into")


def test_a_second_stream_in_a_sample_is_refused(bundle: Path, tmp_path: Path) -> None:
    """A reader of gzip expands every stream of a file; only the first was counted. No sample of ours has two."""
    two = gzip.compress(b"x") + gzip.compress(bytes(2**20))
    bad = packed(tmp_path / "bad.tar", {**members(bundle), "run/samples/0001-a.txt.gz": two})
    with pytest.raises(BundleError, match="more than one stream"):
        unpack(bad, tmp_path / "into")


def test_headers_without_end_are_no_traceback(tmp_path: Path) -> None:
    """Each long-name header leads tarfile one call deeper: a chain of them is no bundle, and no RecursionError."""
    head = tarfile.TarInfo("././@LongLink")
    head.type, head.size = tarfile.GNUTYPE_LONGNAME, 1
    (tmp_path / "bad.tar").write_bytes((head.tobuf(tarfile.GNU_FORMAT) + b"a" + bytes(511)) * 5000)
    with pytest.raises(BundleError, match="is no bundle"):
        unpack(tmp_path / "bad.tar", tmp_path / "into")


def test_a_half_written_sample_is_left_out(run: Path, lab: Lab, tmp_path: Path) -> None:
    """What a crash left under a hidden name has no place in a bundle, and does not make one that nobody can unpack."""
    copy = tmp_path / "pair" / run.name
    shutil.copytree(run, copy)
    (copy / "samples" / ".0001-a.txt.gz.7.part").write_bytes(b"torn")
    answer = lab.harness("bundle", copy, "--output", tmp_path / "x.tar")
    assert answer.returncode == 0, answer.stderr
    assert problems(unpack(tmp_path / "x.tar", tmp_path / "into").folder) == ()


def test_sizes_and_numbers_are_bounded(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file, the whole archive, and the number of files: each has a bound."""
    for name, bound in (("MAX_BYTES", 1000), ("MAX_MEMBER", 100), ("MAX_MEMBERS", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(archive, name, bound)
            with pytest.raises(BundleError, match=r"over|too large"):
                unpack(bundle, tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: {**m, "run/host.json": b"{}"}, "run/host.json was changed"),
        (lambda m: {n: c for n, c in m.items() if n != "run/trials.jsonl"}, "run/trials.jsonl is missing"),
        (lambda m: {**m, "run/samples/0099-x.txt": b""}, "run/samples/0099-x.txt is not in the manifest"),
    ],
)
def test_files_that_do_not_match_the_manifest_are_named(
    bundle: Path, tmp_path: Path, change: object, said: str
) -> None:
    """Changed, missing and added members: refused, each by name."""
    assert callable(change)
    bad = packed(tmp_path / "bad.tar", change(members(bundle)))
    with pytest.raises(BundleError, match=said):
        unpack(bad, tmp_path / "into")


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_bit_that_flips_is_seen_or_does_not_matter(
    bundle: Path, tmp_path: Path, run: Path, place: float, bit: int
) -> None:
    """Wherever one bit of the archive changes, it is refused, or what is unpacked is the run all the same (padding)."""
    content = bytearray(bundle.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    (tmp_path / "bad.tar").write_bytes(content)
    try:
        made = unpack(tmp_path / "bad.tar", tmp_path / "into")
    except BundleError:
        return
    for name in ("experiment.yaml", "host.json", "plan.json", "trials.jsonl"):
        assert (made.folder.path / name).read_bytes() == (run / name).read_bytes()


@pytest.mark.parametrize("content", [b"", b"no tar", b"\x1f\x8b" + bytes(600), bytes(10240)])
def test_what_is_no_bundle_is_said_to_be_none(lab: Lab, tmp_path: Path, content: bytes) -> None:
    """Any other file: exit code 2 and a sentence, no traceback."""
    (tmp_path / "x.tar").write_bytes(content)
    answer = lab.harness("rerun", tmp_path / "x.tar")
    assert answer.returncode == 2
    assert "is no bundle" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    "manifest", [b"[]", b"{", b'{"kind": "harness bundle", "format": 9}', b"[" * 100_000, b'{"kind": 1, "format": 1}']
)
def test_a_manifest_of_any_content_is_no_traceback(bundle: Path, tmp_path: Path, manifest: bytes) -> None:
    """Whatever stands in it, the answer is a `BundleError`."""
    with pytest.raises(BundleError, match=r"manifest\.json"):
        unpack(packed(tmp_path / "bad.tar", {**members(bundle), MANIFEST: manifest}), tmp_path / "into")


@pytest.mark.parametrize(("key", "value"), [("run", "../../x"), ("experiment", ".."), ("experiment", "a/b"),
                                           ("experiment", "\ud800"), ("experiment", "\x9b2J")])  # fmt: skip
def test_the_manifest_names_no_other_folder(bundle: Path, tmp_path: Path, key: str, value: str) -> None:
    """Experiment and run become folder names: neither may lead out."""
    found = json.loads(members(bundle)[MANIFEST])
    bad = {**members(bundle), MANIFEST: json.dumps({**found, key: value}).encode()}
    with pytest.raises(BundleError, match="no name that a bundle may hold"):
        unpack(packed(tmp_path / "bad.tar", bad), tmp_path / "into")


def renamed(content: dict[str, bytes], name: str) -> dict[str, bytes]:
    """The members with another experiment's name in plan.json, and a manifest that fits."""
    plan = json.loads(content["run/plan.json"])
    plan["experiment"]["name"] = name
    found = json.loads(content[MANIFEST])
    content = {**content, "run/plan.json": json.dumps(plan).encode()}
    found["files"]["run/plan.json"]["sha256"] = hashlib.sha256(content["run/plan.json"]).hexdigest()
    return {**content, MANIFEST: json.dumps(found).encode()}


@pytest.mark.parametrize("name", ["../../../evil", "/evil", "..", "other"])
def test_the_plan_names_no_other_folder(lab: Lab, bundle: Path, tmp_path: Path, name: str) -> None:
    """`harness report` writes `NAME.md`: a name in plan.json that leads out, or that is not the manifest's, is refused
    before anything is written, by every command that takes a bundle.
    """
    bad = packed(tmp_path / "bad.tar", renamed(members(bundle), name))
    for words in (("report", bad), ("export", bad, "--format", "json", "--out", tmp_path / "out"), ("rerun", bad)):
        answer = lab.harness(*words)
        assert answer.returncode == 2
        assert "run/plan.json is of" in answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tar"]


def test_a_plan_with_a_path_for_a_name_is_no_plan(run: Path, tmp_path: Path) -> None:
    """The same of a run's folder, however it came here."""
    copy = tmp_path / "pair" / run.name
    shutil.copytree(run, copy)
    (copy / "plan.json").write_text((copy / "plan.json").read_text().replace('"name": "pair"', '"name": "../x"'))
    with pytest.raises(StoreError, match="names no experiment"):
        RunFolder(copy).head()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x = '/home/ann/models'", "home folder"),
        ("at /root/x.py", "home folder"),
        ("/Users/Ann: no", "home folder"),
        ("HF_TOKEN: hf_abcdefghijklmnopqrstuvwxyz", "access token"),
        ('"env": {"MY_PASSWORD": "tr0ub4dor"}', "value of a secret's name"),
        ("api_key=abcd1234", "value of a secret's name"),
        ("https://ann:tr0ub4dor@example.org/x", "password in an address"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "private key"),
        ("Authorization: Bearer abcdefghijklmnop1234", "bearer token"),
        (r'"message": "no model:\n/home/ann/models"', "home folder"),  # as JSON writes the end of a line
        (r'"message": "\u001b[31m/home/ann/models"', "home folder"),
        (r'"message": "see\tAKIAABCDEFGHIJKLMNOP"', "access key"),
        (r'"message": "said:\npassword: tr0ub4dor"', "value of a secret's name"),
        ('"--api-key",\n  "tr0ub4dor"', "argument of a secret's name"),
        ("prog --hf-token tr0ub4dor", "argument of a secret's name"),
    ],
)
def test_secrets_and_homes_are_found(text: str, kind: str) -> None:
    """Each kind is found, and gone after redaction."""
    found = list(findings(text))
    assert kind in {one.kind for one in found}
    assert list(findings(redacted(text, found))) == []
    assert all("tr0ub4dor" not in one.shown for one in found)


@pytest.mark.parametrize(
    "text",
    [
        '"tokens_in": 512, "tokens_out": 1',
        '{"TOKENIZERS_PARALLELISM": "false"}',
        "decode_tokens_per_s: 78.1",
        "new_tokens: 64}",
        "/srv/rooted/x /opt/home/x /data/root",
        '"max_tokens": 16',
        '"token": null',
        "page_cache: 0.99",
        '"--max-tokens", "512"',
        '"--tokenizer", "some/name"',
        '"--token", "--verbose"',
    ],
)
def test_words_of_every_day_are_no_secrets(text: str) -> None:
    """What any run holds is not refused."""
    assert list(findings(text)) == []


def failing(lab: Lab, name: str) -> Path:
    """A run one arm of which failed with a home folder in its message."""
    # written in two pieces: the experiment itself names no home folder
    body = "say(event='error', exception='OSError', message='no /home/' 'ann/m')\nsys.exit(3)\n"
    file = lab.write(name, {"a": BODY, "b": body})
    assert lab.run(file).returncode == 3
    return lab.runs(name)[0]


def test_a_home_folder_in_a_record_is_refused_or_redacted_on_record(lab: Lab, tmp_path: Path) -> None:
    """Refused with its place; with --redact gone from every byte, named in the manifest, and still believed."""
    run = failing(lab, "failing")
    refused = lab.harness("bundle", run, "--output", tmp_path / "x.tar")
    assert refused.returncode == 2
    assert "run/trials.jsonl:" in refused.stderr
    assert "--redact" in refused.stderr
    assert not (tmp_path / "x.tar").exists()
    answer = lab.harness("bundle", run, "--output", tmp_path / "x.tar", "--redact")
    assert answer.returncode == 0, answer.stderr
    assert b"/home/ann" not in (tmp_path / "x.tar").read_bytes()
    made = unpack(tmp_path / "x.tar", tmp_path / "into")
    assert [(one.file, one.kind) for one in made.manifest.redacted] == [("run/trials.jsonl", "home folder")]
    assert made.manifest.redacted[0].trials
    assert problems(made.folder) == ()
    assert any("cannot be checked" in line for line in made.said)
    again = lab.harness("bundle", made.folder.path, "--output", tmp_path / "again.tar")
    assert again.returncode == 0, again.stderr  # what was replaced before is still on record
    assert problems(unpack(tmp_path / "again.tar", tmp_path / "into").folder) == ()
    said = lab.harness("agree", run, made.folder.path)
    assert "cannot be checked" in said.stderr


def test_a_secret_in_the_experiment_is_never_packed(lab: Lab, tmp_path: Path) -> None:
    """Replacing it would make another experiment: refused with and without --redact, and the secret is not printed."""
    arms = {"a": {"command": ["true"], "env": {"MY_API_KEY": "abcd1234efgh"}}, "b": {"command": ["true"]}}
    lab.run(lab.write("secret", arms))
    for words in ((), ("--redact",)):
        answer = lab.harness("bundle", lab.runs("secret")[0], "--output", tmp_path / "x.tar", *words)
        assert answer.returncode == 2
        assert "run/experiment.yaml:" in answer.stderr
        assert "abcd1234efgh" not in answer.stderr + answer.stdout
        assert not (tmp_path / "x.tar").exists()


def touching(marker: Path) -> str:
    """An arm that leaves a mark wherever it runs."""
    return f"open({str(marker)!r}, 'a').write('x')\n" + BODY


def test_nothing_of_a_bundle_runs_before_it_was_shown_and_agreed_to(lab: Lab, tmp_path: Path) -> None:
    """Without --yes the commands are shown, exit code 2, and nothing ran; with it all run and are compared."""
    marker = tmp_path / "marker"
    arms = {"a": touching(marker), "b": touching(marker)}
    assert lab.run(lab.write("touch", arms, passes=3)).returncode == 0
    bundle = tmp_path / "touch.tar"
    assert lab.harness("bundle", lab.runs("touch")[0], "--output", bundle).returncode == 0
    marker.unlink()
    shown = lab.harness("rerun", bundle, "--results", tmp_path / "again")
    assert shown.returncode == 2
    assert str(marker) in shown.stdout
    assert "--yes" in shown.stderr
    assert not marker.exists()
    assert not (tmp_path / "again").exists()
    answer = lab.harness("rerun", bundle, "--yes", "--results", tmp_path / "again")
    assert answer.returncode == 0, answer.stderr
    assert marker.read_text() == "x" * 6
    assert "this host against the recorded one: no differences" in answer.stdout
    assert "comparison key: equal" in answer.stdout
    again = next((tmp_path / "again" / "touch").iterdir())
    assert json.loads((again / "plan.json").read_text())["versions"]["repeats"]["run"] == lab.runs("touch")[0].name


def test_without_yes_not_even_an_interpreter_is_asked_for_its_version(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python:` of an engine section is a program too: preparing, which asks it, comes only after --yes."""

    def prepared(*_: object, **__: object) -> None:
        raise AssertionError("something was prepared")

    monkeypatch.setattr(rerun, "prepared_for", prepared)
    monkeypatch.setattr(subprocess, "Popen", prepared)
    answer = rerun.run(argparse.Namespace(run=str(bundle), results=None, json=False, yes=False))
    assert answer.code == 2


def test_what_is_shown_cannot_steer_the_terminal(lab: Lab, tmp_path: Path) -> None:
    """Control characters in somebody else's command are shown as what they are."""
    arms = {"a": {"command": ["true", "\x1b[2Jhidden"]}, "b": {"command": ["true"]}}
    lab.run(lab.write("escape", arms))
    bundle = tmp_path / "escape.tar"
    assert lab.harness("bundle", lab.runs("escape")[0], "--output", bundle).returncode == 0
    shown = lab.harness("rerun", bundle)
    assert "\\x1b[2Jhidden" in shown.stdout
    assert "\x1b" not in shown.stdout


def test_an_edited_run_is_neither_packed_nor_repeated(lab: Lab, run: Path, tmp_path: Path) -> None:
    """A run whose records were touched up is no evidence: refused with the trial's number."""
    copy = tmp_path / "results" / "pair" / run.name
    shutil.copytree(run, copy)
    text = (copy / "trials.jsonl").read_text()
    (copy / "trials.jsonl").write_text(text.replace('"value": 1.0', '"value": 0.9', 1))
    for words in (("bundle", copy, "--output", tmp_path / "x.tar"), ("rerun", copy)):
        answer = lab.harness(*words)
        assert answer.returncode == 2
        assert "trial 1: its content does not match its digest" in answer.stderr


def test_a_rerun_says_as_json_what_its_exit_code_says(lab: Lab, tmp_path: Path) -> None:
    """Trials that failed again: exit code 3 with --json as without; standard output is the document alone."""
    run = failing(lab, "failing_again")
    answer = lab.harness("rerun", run, "--json", "--results", tmp_path / "again")
    assert answer.returncode == 3
    assert set(json.loads(answer.stdout)) >= {"verdicts", "claims", "key"}


def test_what_a_bundle_would_run_is_no_json(lab: Lab, bundle: Path) -> None:
    """Without --yes there is no document: standard output stays empty under --json, and the list goes to the other."""
    answer = lab.harness("rerun", bundle, "--json")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "what it will run here" in answer.stderr


@pytest.mark.parametrize(("name", "content"), [("plan.json", "{}"), ("plan-extra.jsonl", "{}\n")])
def test_a_plan_that_cannot_be_read_is_no_traceback(
    lab: Lab, run: Path, tmp_path: Path, name: str, content: str
) -> None:
    """Of another shape than ours: named, for every command that reads it."""
    copy = tmp_path / "pair" / run.name
    shutil.copytree(run, copy)
    (copy / name).write_text(content)
    for words in (("rerun", copy), ("bundle", copy, "--output", tmp_path / "x.tar"), ("agree", copy, run)):
        answer = lab.harness(*words)
        assert answer.returncode == 1
        assert name in answer.stderr
        assert "Traceback" not in answer.stderr
