"""Run folders on disk: exclusive, whole or absent, and readable after any crash."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records import TrialRecord, Value
from harness.run.files import BusyError, StoreError, write_whole
from harness.run.names import LONGEST, attempt_of_file, draw_run_id, is_run_id, quote_arm, read_stem, unquote_arm
from harness.run.store import RunFolder, UnknownRunError
from harness.run.trial_log import is_record, read_records
from harness.run.writer import RunWriter
from harness.testing.fakes import FakeClock, fake_experiment, fake_plan

ROOT = Path(__file__).resolve().parent.parent


def new_run(results: Path, *arms: str, clock: FakeClock | None = None) -> RunFolder:
    """A run that has started and measured nothing."""
    experiment = fake_experiment(*arms)
    moment = (clock or FakeClock()).utc()
    return RunFolder.create(
        results, experiment, fake_plan(experiment), host={"host_id": "h"}, versions={"harness": "1"}, moment=moment
    )


def record(number: int, note: str = "") -> TrialRecord:
    """A successful trial; its note makes the line hold what a torn line could end in."""
    return TrialRecord(
        trial=number,
        planned=number,
        arm="a",
        pass_number=number,
        position=1,
        started_at="2026-12-01T12:00:00Z",
        began=1.0,
        ended=2.0,
        values={"score": Value(value=1.5 + number)},
        notes=(note,) if note else (),
    )


def with_records(results: Path, count: int = 3, note: str = "é ☃ 𝄞 } ] \\n \x00") -> RunFolder:
    """A run with that many records, whose lines hold letters of one to four bytes, brackets and a zero."""
    run = new_run(results)
    with RunWriter(run) as writer:
        for number in range(1, count + 1):
            writer.append(record(number, note))
    return run


def test_what_was_started_reads_back_equal(tmp_path: Path) -> None:
    """Experiment, plan, versions, host and text of a run read back exactly as they were handed in."""
    experiment = fake_experiment("a b", "ü/ö")
    plan = fake_plan(experiment)
    moment = FakeClock().utc()
    run = RunFolder.create(tmp_path, experiment, plan, host={"cpu": None}, versions={"v": ["1"]}, moment=moment)
    head = run.head()
    assert (head.experiment, head.plan, head.versions) == (experiment, plan, {"v": ["1"]})
    assert (head.started_at, head.run, run.host()) == ("2026-10-25T00:30:00Z", run.path.name, {"cpu": None})
    assert run.path.parent == tmp_path.resolve() / "tiny"
    assert (run.path / "experiment.yaml").read_text() == experiment.text
    value = json.loads((run.path / "plan.json").read_text(), parse_constant=pytest.fail)
    assert (value["seed"], value["identity"]) == (1, experiment.identity)
    assert sorted(path.name for path in run.path.iterdir()) == [
        "experiment.yaml", "host.json", "logs", "plan.json", "samples",
    ]  # fmt: skip


def test_case_06_runs_of_one_second_never_share_a_folder(tmp_path: Path) -> None:
    """Runs started at one moment of a fixed clock, at once, get a folder each."""
    clock, made = FakeClock(), []
    threads = [threading.Thread(target=lambda: made.append(new_run(tmp_path, clock=clock).path)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 16
    assert all((path / "plan.json").is_file() for path in made)


def test_case_06_a_name_that_exists_draws_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a drawn id is taken, even by an empty folder, another is drawn and the taken one is not touched."""
    drawn = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr("harness.run.names.secrets.token_hex", lambda _bytes: next(drawn))
    first, second = new_run(tmp_path), new_run(tmp_path)
    assert (first.run[-6:], second.run[-6:]) == ("aaaaaa", "bbbbbb")


def test_case_06_the_hour_that_occurs_twice_in_autumn_is_named_in_utc() -> None:
    """An hour apart across the end of summer time, run ids differ in their hour: they are UTC."""
    clock = FakeClock()
    before = draw_run_id(clock.utc(), "000000")
    clock.advance(3600)
    assert (before, draw_run_id(clock.utc(), "000000")) == ("20261025T003000Z-000000", "20261025T013000Z-000000")
    assert is_run_id(before)


def test_a_torn_line_at_every_byte_costs_only_itself(tmp_path: Path) -> None:
    """Cut a file of three records at every byte: whole records survive, torn bytes are named, a resume mends the file
    and loses no byte.
    """
    run = with_records(tmp_path)
    path = run.path / "trials.jsonl"
    content = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(len(content) + 1):
        kept = content[:cut]
        whole = sum(cut >= end - 1 for end in ends)  # a line without its newline is a whole record
        torn = b"" if cut in {0, *ends} or cut + 1 in ends else kept[(0, *ends)[whole] :]
        read = read_records(kept)
        assert [one.trial for one in read.records] == list(range(1, whole + 1)), cut
        assert (read.torn, bool(read.notes), read.damaged) == (torn, bool(torn), False), cut
        if cut % 37 == 0 or cut + 1 in ends:
            mend_and_check(path, kept, torn, whole)


def mend_and_check(path: Path, kept: bytes, torn: bytes, whole: int) -> None:
    """Open the cut file for writing: its last line is whole, and torn bytes stand in a file of their own."""
    folder = RunFolder(path.parent)
    for old in folder.path.glob("trials.torn-*"):
        old.unlink()
    path.write_bytes(kept)
    with RunWriter(folder) as writer:
        assert bool(writer.notes) == bool(torn or (kept and not kept.endswith(b"\n")))
        assert path.read_bytes() == (kept[: len(kept) - len(torn)] + (b"" if torn or kept[-1:] in b"\n" else b"\n"))
        writer.append(record(whole + 1))
    aside = [file.read_bytes() for file in folder.path.glob("trials.torn-*")]
    assert aside == ([torn] if torn else [])
    read = folder.records()
    assert (len(read.records), read.notes) == (whole + 1, ())


def test_a_second_torn_line_gets_a_file_of_its_own(tmp_path: Path) -> None:
    """Torn bytes of two crashes are kept apart."""
    run = with_records(tmp_path, 1)
    for _ in range(2):
        with (run.path / "trials.jsonl").open("ab") as file:
            file.write(b'{"trial": 2, "pl')
        RunWriter(run).close()
    assert sorted(file.name for file in run.path.glob("*.torn-*")) == ["trials.torn-1", "trials.torn-2"]


def test_zeros_after_a_power_cut_are_a_torn_line(tmp_path: Path) -> None:
    """A tail of zeros, with or without a newline, is torn and not a damaged record."""
    content = (with_records(tmp_path).path / "trials.jsonl").read_bytes()
    for tail in (b"\0" * 50, b"\0" * 50 + b"\n"):
        read = read_records(content + tail)
        assert (len(read.records), read.torn, read.damaged) == (3, tail, False)


def test_an_edited_removed_or_moved_record_is_named(tmp_path: Path) -> None:
    """Any change to what was recorded is seen and named, and the run counts as damaged."""
    lines = (with_records(tmp_path).path / "trials.jsonl").read_bytes().splitlines(keepends=True)
    edited = lines[0] + lines[1].replace(b"3.5", b"9.5") + lines[2]
    for content, words in (
        (edited, "trial 2: its content does not match its digest"),
        (lines[0] + lines[2], "trial 3: does not follow"),
        (lines[1] + lines[0] + lines[2], "does not follow"),
        (lines[0] + b"oops\n" + lines[1] + lines[2], "trials.jsonl:2: no trial record"),
    ):
        read = read_records(content)
        assert read.damaged
        assert any(words in note for note in read.notes), read.notes


def test_case_14_a_record_that_strict_json_cannot_hold_is_refused_unwritten(tmp_path: Path) -> None:
    """NaN never reaches the file; half a surrogate pair does, as an escape."""
    run = with_records(tmp_path, 1)
    with RunWriter(run) as writer:
        with pytest.raises(ValueError, match="Out of range"):
            writer.append(TrialRecord(**{**vars(record(2)), "work": {"tokens": float("nan")}}))
        writer.append(record(2, "half \ud800 pair"))
    read = run.records()
    assert (len(read.records), read.notes, read.records[1].notes) == (2, (), ("half \ud800 pair",))


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """A second writer of a run is refused, told who has it, and gets it as soon as the first has let go."""
    run = with_records(tmp_path)
    with RunWriter(run), pytest.raises(BusyError, match=f"process {os.getpid()}.*Remedy"):
        RunWriter(run)
    RunWriter(run).close()


def test_runs_are_found_by_folder_and_by_id(tmp_path: Path) -> None:
    """A run is named by its path or by its id; anything else is refused with what there is."""
    run = new_run(tmp_path)
    assert RunFolder.open(str(run.path), tmp_path / "elsewhere").path == run.path
    assert RunFolder.open(run.run, tmp_path).path == run.path
    for named in ("20261025T003000Z-ffffff", "*", "tiny", str(tmp_path / "no")):
        with pytest.raises(UnknownRunError, match=rf"(?s){run.run}|holds no plan|neither a folder"):
            RunFolder.open(named, tmp_path)
    (run.path / "plan.json").unlink()
    with pytest.raises(UnknownRunError, match=r"holds no plan\.json"):
        RunFolder.open(run.run, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 99}'])
def test_a_plan_that_cannot_be_read_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """A broken or newer plan.json is an error that names the file, never a guess."""
    run = new_run(tmp_path)
    (run.path / "plan.json").write_text(text)
    with pytest.raises(StoreError, match=r"plan\.json"):
        run.head()


@given(st.text(), st.text(), st.integers(1, 99_999), st.integers(1, 999))
def test_case_21_arm_names_become_file_names_and_come_back(name: str, other: str, ordinal: int, attempt: int) -> None:
    """Any name becomes a bounded ASCII file name without slash, blank or quote, its own, and is read back from it."""
    quoted = quote_arm(name)
    assert 0 < len(quoted) <= LONGEST
    assert set(quoted) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.%~")
    assert not quoted.startswith(".")
    assert unquote_arm(quoted, [other, name]) == name
    assert (quoted == quote_arm(other)) == (name == other)
    stem = RunFolder(Path("x")).paths(ordinal, name, attempt).samples.name
    assert read_stem(stem) == (ordinal, quoted, attempt)
    for ending in ("", ".log", ".events.jsonl", ".samples.jsonl.gz"):
        assert attempt_of_file(stem + ending) == (ordinal, attempt)


@pytest.mark.parametrize("name", ["a/b", "a_b", "a b", "a%20b", "it's", 'a"b', "..", ".", "ü", "a~b", "x" * 300, "\n"])
def test_case_21_awkward_arm_names_keep_their_files_in_the_run(tmp_path: Path, name: str) -> None:
    """Whatever an arm is called, its files can be made, lie in the run's folder, and count as its attempts."""
    results = tmp_path / 'my lab\'s 100 % "results" ü'
    run = new_run(results, name, "other")
    for attempt in (1, 2):
        for path in vars(run.paths(7, name, attempt)).values():
            path.write_text("")
            assert path.resolve().parent.parent == run.path
    assert run.attempts_on_disk() == {7: 2}
    assert unquote_arm(read_stem(run.paths(7, name).samples.name)[1], [name]) == name


# --- disks that are full, small or read-only ------------------------------------------------------------------------

WRITE_UNTIL_IT_FAILS = """
    import sys
    from pathlib import Path
    from harness.run.files import StoreError
    from tests.test_store import new_run, record
    from harness.run.writer import RunWriter
    {limit}
    run = new_run(Path(sys.argv[1]))
    print(run.path, flush=True)
    with RunWriter(run) as writer:
        for number in range(1, 100_000):
            {before}
            try:
                writer.append(record(number, "x" * 5000))
            except StoreError as error:
                print(number - 1, error, sep="|")
                sys.exit(1)
"""


def run_script(results: Path, limit: str) -> tuple[int, str, RunFolder]:
    """Append records in a process of its own until storing fails: how many were stored, the message, the run."""
    code = textwrap.dedent(WRITE_UNTIL_IT_FAILS).format(limit=limit, before="")
    done = subprocess.run(
        [sys.executable, "-c", code, str(results)],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr + done.stdout
    lines = done.stdout.splitlines()
    number, message = lines[1].split("|", 1)
    return int(number), message, RunFolder(Path(lines[0]))


def test_case_07_a_file_size_limit_stops_with_a_message_and_keeps_what_was_stored(tmp_path: Path) -> None:
    """Under RLIMIT_FSIZE of 1 MB the writer says so, and every record before it parses."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))"
    stored, message, run = run_script(tmp_path, limit)
    assert "trials.jsonl: File too large (EFBIG). Remedy: a file size limit (`ulimit -f`)" in message
    read = run.records()
    assert (len(read.records), read.notes) == (stored, ())
    assert stored > 100


IN_A_TMPFS = (
    'mount -t tmpfs -o size=2m none "$1" && '
    '"$2" -c "$3" "$1"; code=$?; cp -r "$1/." "$4"; exit $code'
)  # fmt: skip
CAN_MOUNT = (
    shutil.which("unshare") is not None
    and subprocess.run(
        ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True, check=False
    ).returncode
    == 0
)
needs_mount = pytest.mark.skipif(not CAN_MOUNT, reason="this host lets no user mount a tmpfs in a namespace of its own")


def in_tmpfs(tmp_path: Path, before: str = "") -> tuple[int, str, RunFolder]:
    """The same on a tmpfs of 2 MB, whose content is copied out afterwards."""
    (tmp_path / "small").mkdir()
    (tmp_path / "copy").mkdir()
    code = textwrap.dedent(WRITE_UNTIL_IT_FAILS).format(limit="", before=before)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", IN_A_TMPFS, "sh", str(tmp_path / "small"), sys.executable, code,
         str(tmp_path / "copy")],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr + done.stdout
    where, last = done.stdout.splitlines()[:2]
    number, message = last.split("|", 1)
    return int(number), message, RunFolder(tmp_path / "copy" / Path(where).relative_to(tmp_path / "small"))


@needs_mount
def test_case_07_a_full_disk_stops_with_a_message_and_keeps_what_was_stored(tmp_path: Path) -> None:
    """On a full disk the writer names file, cause and remedy; every record before parses, no torn line is left."""
    stored, message, run = in_tmpfs(tmp_path)
    assert "trials.jsonl: No space left on device (ENOSPC). Remedy: free space" in message
    read = run.records()
    assert (len(read.records), read.notes) == (stored, ())
    assert stored > 100


@needs_mount
def test_case_07_results_that_become_read_only_half_way(tmp_path: Path) -> None:
    """A file system remounted read-only stops the writer; what was stored parses."""
    remount = (
        "import subprocess\n"
        "        if number == 10:\n"
        "            writer.close(); subprocess.run(['mount', '-o', 'remount,ro', sys.argv[1]], check=True)\n"
        "            try:\n"
        "                writer = RunWriter(run)\n"
        "            except StoreError as error:\n"
        "                print(number - 1, error, sep='|'); sys.exit(1)"
    )
    stored, message, run = in_tmpfs(tmp_path, before=remount)
    assert "Read-only file system (EROFS). Remedy: the file system is read-only" in message
    assert len(run.records().records) == stored == 9


@needs_mount
def test_case_07_read_only_results_before_the_start_leave_nothing(tmp_path: Path) -> None:
    """A run that cannot even be made says so."""
    code = "import sys; from pathlib import Path; from tests.test_store import new_run; new_run(Path(sys.argv[1]))"
    script = 'mount -t tmpfs -o ro none "$1" && "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", str(tmp_path), sys.executable, code],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    assert f"cannot create a run in {tmp_path}/tiny: Read-only file system (EROFS)" in done.stderr


def test_case_07_a_run_that_cannot_be_made_whole_is_not_left_half(tmp_path: Path) -> None:
    """If plan.json does not fit, no folder of the run stays behind."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, old[1]))
    try:
        with pytest.raises(StoreError, match=r"cannot write .*: File too large \(EFBIG\)"):
            new_run(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert list((tmp_path / "tiny").iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_case_07_a_whole_file_that_fails_leaves_nothing_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Whatever the cause (quota included), the name is free, the temporary file is gone, the remedy is stated."""
    real = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 10:
            raise OSError(code, os.strerror(code))
        return real(descriptor, data[: len(data) // 2])

    monkeypatch.setattr("harness.run.files.os.write", half)
    with pytest.raises(StoreError, match=rf"{errno.errorcode[code]}\)\. Remedy: ") as caught:
        write_whole(tmp_path / "host.json", b"x" * 100)
    assert (caught.value.number, list(tmp_path.iterdir())) == (code, [])


def test_whole_files_are_never_overwritten(tmp_path: Path) -> None:
    """A second file of the same name is refused and the first stays as it is."""
    write_whole(tmp_path / "plan.json", b"first")
    with pytest.raises(StoreError, match="never overwritten"):
        write_whole(tmp_path / "plan.json", b"second")
    assert (tmp_path / "plan.json").read_bytes() == b"first"


def test_a_short_write_is_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system call that takes only part of a record is called again for the rest."""
    real: Callable[[int, bytes], int] = os.write
    monkeypatch.setattr("harness.run.files.os.write", lambda descriptor, data: real(descriptor, data[:7]))
    assert len(with_records(tmp_path).records().records) == 3
    assert is_record((tmp_path / "tiny").glob("*/trials.jsonl").__next__().read_bytes().splitlines()[0])
