"""A process with a library loaded (`worker.py`), as midstream sees it.

Calls go out and results come in by threads of their own, so a process that reads nothing blocks nobody. A supervisor
(`midstream.core.supervise`) ends the process, with all that it started, also where midstream is killed.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from midstream.core import supervise
from midstream.core.errors import InfrastructureError
from midstream.gateway.http import LOOPBACK
from midstream.gateway.server import ADMIN_KEY
from midstream_environments import worker

# Of what a process prints, for its error.
_KEPT_LINES = 20
# How often a load looks whether the process is still there.
_POLL_S = 0.1
# For a process to end by itself once its connection is closed.
_END_S = 2.0


class EnvironmentFailure(InfrastructureError):
    """A library raised, or its process ended.

    Attributes:
        kind: the type of what the library raised, "" if its process ended
        missing: the module that an import did not find
    """

    code = "environment-failed"
    kind = ""
    missing = ""


class GoneError(Exception):
    """A process ended before it began a call."""


@dataclass
class Call:
    """A call under way; `began` is set when the process does it: calls of one thread wait for each other."""

    process: Process
    name: str
    number: int
    result: Future[Any] = field(default_factory=Future)
    began: Future[None] = field(default_factory=Future)


class Process:
    """One process that has a library loaded, or loads it.

    Attributes:
        version: of the library, once it is loaded
        gone: why the process has ended, or "" while it runs
        held: callers that have chosen this process, and episodes under way in it; `hold` changes it
        seen_s: when its event loop last said that it runs, as a time of `time.monotonic()`
    """

    def __init__(self, what: str, python: str, adapter: Path, settings: Mapping[str, JsonValue], load_s: float) -> None:
        self.version, self.gone, self.held, self.seen_s = "", "", 0, time.monotonic()
        self._what, self._python, self._load_s = what, python, load_s
        self._calls: dict[int, Call] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._error: BaseException | None = None
        self._connection: socket.socket | None = None
        self._sending: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._printed: deque[str] = deque(maxlen=_KEPT_LINES)
        self._directory = tempfile.TemporaryDirectory(prefix="midstream-environment-")
        self._server = socket.socket(socket.AF_UNIX)
        address = str(Path(self._directory.name, "socket"))
        words = [python, "-P", worker.__file__, address, str(adapter), json.dumps(settings)]
        try:
            self._server.bind(address)
            self._server.listen(1)
            self._server.settimeout(_POLL_S)
            self._process = subprocess.Popen(
                [sys.executable, "-IS", supervise.__file__, "--within", str(_END_S), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(),
                # Ctrl-C is for the run, which then ends the process.
                start_new_session=True,
            )
        except BaseException:
            self._close_server()
            raise
        self._output = threading.Thread(target=self._keep_output, daemon=True)
        self._output.start()

    def load(self) -> None:
        """Wait until the library is loaded. Raises what it raised, to everybody who waits.

        Raises:
            EnvironmentFailure: the library raised, or its process ended.
            InfrastructureError: it was not loaded in time.
        """
        with self._loading:
            if self._error is not None:
                raise self._error
            if self._connection is None:
                try:
                    self._connect()
                except BaseException as error:
                    self._error = error
                    self.end("it could not load the library")
                    if self._connection is not None:
                        self._lines.close()
                        self._connection.close()
                    raise
                finally:
                    self._close_server()

    def _close_server(self) -> None:
        """Accept no connection any longer; repeating does nothing."""
        self._server.close()
        self._directory.cleanup()

    def _connect(self) -> None:
        """Accept the process's connection, and read what became of the library."""
        until = time.monotonic() + self._load_s
        late = f"{self._what} was not loaded within {self._load_s:g} s"
        try:
            self._connection = self._accept(until)
            self._lines = self._connection.makefile("rb")
            self._connection.settimeout(max(0.1, until - time.monotonic()))
            hello = json.loads(self._lines.readline() or b"{}")
            self._connection.settimeout(None)
        except TimeoutError:
            raise self._failed(late, "raise tasks.load_s, or correct what its output names") from None
        if (error := hello.get("error")) is not None:
            raise _raised(f"{self._what} could not be loaded", error, "correct the settings of [tasks]")
        if "version" not in hello:
            self._output.join(_END_S)
            what = f"the process that loads {self._what} ended: {self._how()}"
            raise self._failed(what, "correct what its output names, if it printed any")
        self.version = str(hello["version"])
        for work in (self._read, self._send):
            threading.Thread(target=work, daemon=True).start()

    def _accept(self, until: float) -> socket.socket:
        """The connection of the process. Raises `TimeoutError`, and `EnvironmentFailure` if it ends before."""
        while True:
            if self.gone:
                raise self._failed(f"the process that loads {self._what} was ended: {self.gone}", "try again")
            try:
                return self._server.accept()[0]
            except TimeoutError:
                if time.monotonic() > until:
                    raise
            if self._process.poll() is not None:
                what = f"tasks.python: {self._python!r} ended before it loaded {self._what}"
                self._output.join(_END_S)
                raise self._failed(what, "name an interpreter of Python 3.11 or newer that has the library")

    def _how(self) -> str:
        """How the process ended."""
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        if status > 128:
            return f"by signal {status - 128}" + " (out of memory?)" * (status == 137)
        return f"with exit code {status}"

    def _failed(self, what: str, fix: str) -> EnvironmentFailure:
        """The error of a process, with the last lines that it printed."""
        return EnvironmentFailure(what, cause="\n".join(self._printed), fix=fix)

    def _keep_output(self) -> None:
        """Keep the last lines that the process prints, until it ends."""
        # Leaving the block closes both pipes.
        with self._process as process:
            assert process.stdout is not None
            for line in process.stdout:
                self._printed.append(line.decode("utf-8", "replace").rstrip()[:500])

    def _send(self) -> None:
        """Send what is to be sent."""
        assert self._connection is not None
        # If the process is gone, the reader says so.
        with suppress(OSError):
            while (line := self._sending.get()) is not None:
                self._connection.sendall(line)

    def _read(self) -> None:
        """Give every reply to its caller; at the end, an error to those that have none."""
        assert self._connection is not None
        with suppress(OSError, ValueError):
            for line in self._lines:
                self.seen_s = time.monotonic()
                message = json.loads(line)
                if "began" in message:
                    self._calls[message["began"]].began.set_result(None)
                elif "id" in message:
                    with self._lock:
                        call = self._calls.pop(message["id"])
                    if (error := message.get("error")) is None:
                        call.result.set_result(message["result"])
                    else:
                        words = f"the environment failed in {call.name!r}"
                        fix = "correct the environment, or leave the task out"
                        self._give_up(call, _raised(words, error, fix))
        how = self._how() if not self.gone else ""
        with self._lock:
            self.gone = self.gone or how
            left, self._calls = self._calls, {}
        self._sending.put(None)
        self._lines.close()
        self._connection.close()
        # For its last words.
        self._output.join(_END_S)
        for call in left.values():
            words = f"the process of {self._what} ended during {call.name!r}: {self.gone}"
            self._give_up(call, self._failed(words, "correct what its output names"))

    def _give_up(self, call: Call, error: EnvironmentFailure) -> None:
        """End a call that has no result."""
        if not call.began.done():
            call.began.set_exception(GoneError())
        call.result.set_exception(error)

    def hold(self, change: int) -> None:
        """One user more, or with -1 one less."""
        with self._lock:
            self.held += change

    @property
    def busy(self) -> int:
        """How many calls, callers and episodes are under way."""
        return len(self._calls) + self.held

    def begin(self, name: str, arguments: Mapping[str, JsonValue]) -> Call:
        """Send a call."""
        call = Call(self, name, next(self._numbers))
        for future in (call.began, call.result):
            # So that a caller who no longer waits cannot cancel it, and its result can still be set.
            future.set_running_or_notify_cancel()
        with self._lock:
            if self.gone:
                self._give_up(
                    call, self._failed(f"the process of {self._what} is gone: {self.gone}", "raise tasks.processes")
                )
                return call
            self._calls[call.number] = call
        self._put({"id": call.number, "call": name, "arguments": dict(arguments)})
        return call

    def cancel(self, call: Call, within_s: float) -> None:
        """End a call whose caller no longer waits, and the process if the call does not end: it may hang."""
        self._put({"cancel": call.number})

        def check() -> None:
            if call.began.done() and not call.result.done():
                self.end("a call that was cancelled did not end", within_s=0.0)

        _later(within_s, check)

    def _put(self, message: Mapping[str, JsonValue]) -> None:
        self._sending.put(json.dumps(message).encode() + b"\n")

    def end(self, why: str = "it was closed", *, within_s: float = _END_S) -> None:
        """End the process, and all that it started: at first by itself, then by its supervisor."""
        self.gone = self.gone or why
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        # A load under way closes it by itself, and this process may never have been loaded.
        if self._loading.acquire(blocking=False):
            try:
                self._close_server()
            finally:
                self._loading.release()
        assert self._process.stdin is not None
        if self._process.poll() is None:
            _later(within_s, self._process.stdin.close)


def _later(after_s: float, work: Any) -> None:
    """Do the work in a while, unless midstream has ended by then."""
    timer = threading.Timer(after_s, work)
    timer.daemon = True
    timer.start()


def _raised(what: str, error: Mapping[str, Any], fix: str) -> EnvironmentFailure:
    """The error of what a library raised: a code of the adapter's own stays."""
    words = f"{what}: {error['type']}: {error['text']}"
    failure = EnvironmentFailure(words, code=str(error.get("code") or ""), cause=str(error["where"]), fix=fix)
    failure.kind, failure.missing = str(error["type"]), str(error.get("missing") or "")
    return failure


def _environment() -> dict[str, str]:
    """The variables of a process: those of this one, without what is for callers of the gateway alone."""
    # Generators that go through a set make the same task in every process only with the same hashes.
    found = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}
    found.pop(ADMIN_KEY, None)
    for name in ("NO_PROXY", "no_proxy"):
        # The gateway is on this machine, where no proxy finds it.
        found[name] = ",".join(filter(None, (found.get(name), *LOOPBACK)))
    return found
