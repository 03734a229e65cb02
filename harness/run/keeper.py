"""Keeps one trial's log, and ends the trial's processes if the harness dies. Run as `python -S -E -I keeper.py SPEC`.

Why a pipe with a program behind it, and not the file itself as the arm's output: a file's length cannot be bounded
while somebody else writes to it (hole punching leaves the length, fails on several file systems and loses count), and a
full disk or a file size limit would hit the arm's own write and turn a logging fault into an arm's failure. Here the
arm never sees either: this program always reads, keeps the head on disk and the tail in memory, counts what it drops,
and goes on reading when it cannot write. The pipe holds 1 MiB, so the arm runs on while this program waits for a core.
Measured: 300 MB of flood drained in 0.3 s on one core; 12 MB resident; no wake-up while the arm is silent.

It lives in a session of its own and ignores SIGINT and SIGTERM: it leaves when the harness says `finish`, or when the
harness's end of the control channel closes without that, which is how a `kill -9` of the harness is seen. Then it ends
the arm's tree and writes what it ended into the trial's owner file, where the next start of the harness reads it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections import deque
from typing import Any

if __name__ == "__main__":  # -I leaves only the standard library in the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120 - pathlib would double this program's start

from harness.run import process_tree

_BLOCK = 1 << 20


class Log:
    """Bounded log: the first `head` bytes go to disk at once, the last `tail` bytes wait in memory for the end."""

    def __init__(self, fd: int, head: int, tail: int) -> None:
        self.fd, self.head, self.tail = fd, head, tail
        self.total = self.written = self.held = 0
        self.blocks: deque[bytes] = deque()
        self.error: str | None = None

    def add(self, block: bytes) -> None:
        """Take what the arm wrote. Never raises: a log that cannot be written is noted and the bytes are dropped."""
        self.total += len(block)
        room = self.head - self.written if self.error is None else 0
        if room > 0:
            part, block = block[:room], block[room:]
            done = self.write(part)
            self.written += done
            block = part[done:] + block
        if block:
            self.hold(block)

    def hold(self, block: bytes) -> None:
        """Keep the newest bytes; whole blocks leave at the far end."""
        self.blocks.append(block)
        self.held += len(block)
        while self.held - len(self.blocks[0]) >= self.tail:
            self.held -= len(self.blocks.popleft())

    def write(self, data: bytes) -> int:
        """Bytes written before the disk refused; the refusal is kept in `error`."""
        done = 0
        try:
            while done < len(data):
                done += os.write(self.fd, data[done:])
        except OSError as error:
            self.error = error.strerror
        return done

    def finish(self) -> dict[str, Any]:
        """Put a note of what was dropped and the tail behind the head; say what became of the log."""
        tail = b"".join(self.blocks)[-self.tail :] if self.tail else b""
        dropped = self.total - self.written - len(tail)
        if self.error is not None:
            dropped, tail = self.total - self.written, b""
        if dropped and self.error is None:
            self.write(b"\n[harness: %d bytes of output were dropped here]\n" % dropped)
        self.write(tail)
        try:
            os.fsync(self.fd)
        except OSError as error:
            self.error = self.error or error.strerror
        return {"bytes": self.total, "dropped": dropped, "error": self.error}


class Keeper:
    """The loop: output on one side, the harness's word on the other."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.control: int = spec["control_fd"]
        self.pipe: int = spec["pipe_fd"]
        self.log = Log(spec["log_fd"], spec["head"], spec["tail"])
        self.poll = select.poll()
        self.poll.register(self.control, select.POLLIN)
        self.poll.register(self.pipe, select.POLLIN)
        self.tree = process_tree.Tree(spec["token"], strangers=spec["strangers"], cgroup=self.held)
        self.words = b""

    def held(self) -> set[int]:
        """Pids in the trial's cgroup."""
        if self.spec["cgroup_procs"] is None:
            return set()
        try:
            with open(self.spec["cgroup_procs"], "rb") as file:  # noqa: PTH123 - as above
                return {int(line) for line in file}
        except OSError:
            return set()

    def run(self) -> None:
        """Drain until the harness says `finish` or is gone."""
        while True:
            ready = dict(self.poll.poll())
            if self.pipe in ready and not self.drain():
                self.poll.unregister(self.pipe)
            if self.control in ready:
                word = self.hear()
                if word is not None:
                    break
        if word == "gone":
            self.end_tree()
        self.empty()
        answer = self.log.finish()
        if word == "finish":
            os.write(self.control, (json.dumps(answer) + "\n").encode())

    def drain(self) -> bool:
        """One block of output; False at the end of all output."""
        block = os.read(self.pipe, _BLOCK)
        self.log.add(block)
        os.pwrite(self.spec["count_fd"], self.log.total.to_bytes(8, "little"), 0)
        return bool(block)

    def empty(self) -> None:
        """What is still in the pipe. A stranger may hold its other end open for ever: end of file is not waited for."""
        os.set_blocking(self.pipe, False)
        try:
            while self.drain():
                pass
        except BlockingIOError:
            return

    def hear(self) -> str | None:
        """The harness's next word: `arm PID TICKS` is taken in here, `finish` and `gone` are returned."""
        try:
            data = os.read(self.control, 4096)
        except OSError:
            data = b""
        if not data:
            return "gone"
        self.words += data
        while b"\n" in self.words:
            line, self.words = self.words.split(b"\n", 1)
            if line == b"finish":
                return "finish"
            _, pid, ticks = line.split()
            self.tree.root(process_tree.Identity(int(pid), int(ticks)))
        return None

    def end_tree(self) -> None:
        """The harness died: end what it started, at once, and leave word for its next start."""
        found = {identity: stat.name for identity, stat in self.tree.look().items() if not stat.ended}
        ended = process_tree.end(self.tree, reap=self.drain_quietly, grace_s=0)
        found.update(ended.signalled)
        leave_word(self.spec["owner_file"], found, ended.survivors)

    def drain_quietly(self) -> None:
        """A member that blocks in write() cannot see SIGTERM's handler run; keep the pipe empty meanwhile."""
        self.empty()


def leave_word(path: str, found: dict[process_tree.Identity, str], survivors: dict[process_tree.Identity, str]) -> None:
    """Add to the owner file who was ended; written beside it and renamed, so that it is never half a file."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - as above
            owner = json.load(file)
        owner["ended"] = [[*identity, name] for identity, name in found.items() if identity not in survivors]
        with open(path + ".new", "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
            json.dump(owner, file)
        os.replace(path + ".new", path)  # noqa: PTH105 - as above
    except (OSError, ValueError):
        return  # the disk is full or the file is gone; the next start still finds processes by their token


def main(spec: dict[str, Any]) -> None:
    """Run one trial's keeper."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    Keeper(spec).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
