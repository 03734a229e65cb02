"""llama-server as a child process: start it, keep its log, ask it over a socket of its own, end it.

Beside llama_cpp.py, imported by path with the arms' interpreter; standard library only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: How often a loading server is asked whether it is ready, seconds: `load_s` is no finer than this.
_POLL_S = 0.02
#: Longest wait for the server's end, seconds; it ends within 0.2 s here.
_END_S = 30.0
#: sockaddr_un holds 107 bytes of a path.
_SOCKET_BYTES = 107


class EngineError(RuntimeError):
    """llama-server ended, or refused what it was asked."""


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's path; no time limit, since the harness has one for every phase."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


class Server:
    """One llama-server. It listens on a Unix socket in a fresh folder that nobody else knows, so whoever answers there
    is the process started here, and no port can be taken.
    """

    def __init__(self, program: Path, arguments: Sequence[str], cpus: Sequence[int]) -> None:
        self._folder = tempfile.mkdtemp(prefix="llama-")
        self._socket = os.path.join(self._folder, "s.sock")  # noqa: PTH118  llama-server wants text that ends in .sock
        if len(os.fsencode(self._socket)) > _SOCKET_BYTES:
            raise EngineError(f"{self._socket} is longer than the {_SOCKET_BYTES} bytes of a socket's path: set TMPDIR")
        self.lines: list[str] = []
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cpus)  # every thread of the server inherits it, those that only wait included
        try:
            self._process = subprocess.Popen(
                [str(program), *arguments, "--host", self._socket],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        finally:
            os.sched_setaffinity(0, own)
        # A thread of its own empties the pipe as long as the server lives: a full pipe would stop the server.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def refused(self, took_arguments: bool) -> bool:
        """Whether the server ended by itself, and before it had taken its arguments: a crash is no refusal."""
        code = self._process.poll()
        return code is not None and code > 0 and not took_arguments

    def _read(self) -> None:
        for line in self._process.stdout or ():
            text = line.decode(errors="replace").rstrip("\n")
            self.lines.append(text)
            print(text, flush=True)

    def wait_until_ready(self) -> None:
        """Return when the model is loaded. Raise `EngineError` if the server ends before that."""
        while True:
            try:
                status, _ = self._ask("GET", "/health", None)
            except OSError:
                status = 0  # not listening yet
            if status == http.client.OK:
                return
            if self._process.poll() is not None:
                raise EngineError(self._ending())
            time.sleep(_POLL_S)

    def ask(self, path: str, value: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer to a GET, or to a POST of `value`. Raise `EngineError` as `text` does."""
        return json.loads(self.text(path, value))

    def text(self, path: str, value: Mapping[str, Any] | None = None) -> str:
        """The answer to a GET, or to a POST of `value`. Raise `EngineError` with the server's own words if it refuses
        or ends.
        """
        try:
            status, body = self._ask("GET" if value is None else "POST", path, value)
        except (OSError, http.client.HTTPException) as error:
            self._closing()
            raise EngineError(f"{path}: {type(error).__name__}: {error}; {self._ending()}") from error
        if status != http.client.OK:
            raise EngineError(f"{path}: HTTP status {status}: {body.decode(errors='replace')[:2000]}")
        return body.decode(errors="replace")

    def _ask(self, method: str, path: str, value: Mapping[str, Any] | None) -> tuple[int, bytes]:
        connection = _Connection(self._socket)
        try:
            body = None if value is None else json.dumps(value)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _closing(self) -> None:
        """Give the process a second to end: its socket breaks a little before its exit status is there."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)

    def _ending(self) -> str:
        """How the server ended, and the last of what it said."""
        code = self._process.poll()
        self._reader.join(1.0)
        said = " | ".join(line for line in self.lines[-400:] if " E " in line or "error" in line.lower())[-1500:]
        if code is None:
            return "llama-server still runs"
        how = f"died by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"llama-server {how}; it said: {said or ' | '.join(self.lines[-5:])[-1500:]}"

    def end(self) -> None:
        """Ask the server to end and wait for it. Raise `EngineError` if it ends badly or not at all."""
        self._process.terminate()
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise EngineError(f"llama-server did not end within {_END_S:.0f} s of SIGTERM and was killed") from None
        if code not in {0, -signal.SIGTERM}:
            raise EngineError(self._ending())

    def stop(self) -> None:
        """End the server if it still runs, whatever it is doing; what made the trial fail is told elsewhere."""
        with contextlib.suppress(EngineError):
            if self._process.poll() is None:
                self.end()
