"""A library of environments in processes of its own: it can neither end midstream nor write into its output.

Each process (`worker.py`) has a supervisor (`midstream.core.supervise`), which ends it with all that it started. A
process that ends, or whose call takes too long, is replaced for the next call. What it had under way fails, and is
tried again like anything else around the model that fails.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from pydantic import Field, JsonValue

from midstream.components.component import Context, TasksConfig
from midstream.core import supervise
from midstream.core.errors import InfrastructureError, RecipeError, UnsupportedError, UsageError
from midstream.core.version import __version__
from midstream_environments import worker

_HERE = Path(__file__).parent
# Of what a process prints, for its error.
_KEPT_LINES = 20
# For a process to end by itself once its connection is closed.
_END_S = 2.0
# Processes that one call may see end before they begin it.
_TRIES = 3

warn = logging.getLogger("midstream.environments").warning


class LibraryConfig(TasksConfig):
    """Settings that the tasks of every library have.

    Attributes:
        python: the interpreter that has the library, if it is not this one: libraries whose needs clash have one each
        processes: how many processes have it loaded
        load_s: seconds to load it, and to read its tasks
        call_s: seconds of one call: a score, a step; of an environment's own loop the time without a request of its
            own is limited by `agent.idle_s`
    """

    adapter: ClassVar[str]  # its file in `adapters/`, without ".py"
    library: ClassVar[str]  # the extra of this package that installs it
    tested: ClassVar[tuple[str, ...]]  # versions; others of the same first two numbers count as tested

    python: Path | None = None
    processes: int = Field(default=1, ge=1, le=64)
    load_s: float = Field(default=300.0, gt=0)
    call_s: float = Field(default=60.0, gt=0)

    @property
    def adapter_settings(self) -> dict[str, JsonValue]:
        """What the adapter is made with: the settings that are not those of every library."""
        return self.model_dump(mode="json", exclude=set(LibraryConfig.model_fields))

    def check_machine(self, where: str) -> None:
        """Load the library, for `--dry-run`."""
        library_of(self).start()

    def opened(self, context: Context) -> Library:
        """The library of these settings, which is closed with the build."""
        library = library_of(self)
        if library not in context.build.opened:
            context.build.opened.append(library)
        return library


@dataclass
class _Call:
    """A call under way; `began` is set when the process does it: calls of one thread wait for each other."""

    process: _Process
    name: str
    number: int
    result: Future[Any]
    began: Future[None]


class _Process:
    """One process with the library loaded."""

    def __init__(self, config: LibraryConfig) -> None:
        self._config = config
        self._calls: dict[int, _Call] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._printed: deque[str] = deque(maxlen=_KEPT_LINES)
        self.gone = ""
        # Episodes under way in it.
        self.episodes = 0
        python = str(config.python or sys.executable)
        adapter = _HERE / "adapters" / f"{config.adapter}.py"
        with (
            tempfile.TemporaryDirectory(prefix="midstream-environment-") as directory,
            socket.socket(socket.AF_UNIX) as server,
        ):
            address = str(Path(directory, "socket"))
            server.bind(address)
            server.listen(1)
            words = [python, "-P", worker.__file__, address, str(adapter), json.dumps(config.adapter_settings)]
            self._process = subprocess.Popen(
                [sys.executable, "-IS", supervise.__file__, "--within", str(_END_S), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # Generators that go through a set make the same task in every process only with the same hashes.
                env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"},
                # Ctrl-C is for the run, which then ends the process.
                start_new_session=True,
            )
            self._output = threading.Thread(target=self._keep_output, daemon=True)
            self._output.start()
            self._connection = self._accept(server)
        self._lines = self._connection.makefile("rb")
        try:
            self._connection.settimeout(config.load_s)
            self.version = self._loaded(self._lines.readline())
            self._connection.settimeout(None)
        except BaseException as error:
            self.end()
            self._lines.close()
            self._connection.close()
            if isinstance(error, TimeoutError):
                words = f"{config.library} was not loaded within {config.load_s:g} s"
                raise self._failed(words, "raise tasks.load_s") from None
            raise
        threading.Thread(target=self._read, daemon=True).start()

    def _accept(self, server: socket.socket) -> socket.socket:
        """The connection of the process, which may end before it connects."""
        server.settimeout(0.1)
        while True:
            with suppress(TimeoutError):
                return server.accept()[0]
            if self._process.poll() is not None:
                python = str(self._config.python or sys.executable)
                raise RecipeError(
                    f"tasks.python: {python!r} ended before it loaded {self._config.library}",
                    code="environment-failed",
                    cause="\n".join(self._printed),
                    fix="name an interpreter of Python 3.11 or newer that has the library",
                )

    def _loaded(self, line: bytes) -> str:
        """The library's version. Raises `UsageError` if it could not be loaded."""
        config = self._config
        hello = json.loads(line or b"{}")
        if "version" in hello:
            return str(hello["version"])
        if (error := hello.get("error")) is None:
            self._output.join(_END_S)
            raise self._failed(f"the process that loads {config.library} ended", "correct what its output names")
        if error["missing"]:
            where = f" for {config.python}" if config.python else ""
            raise UnsupportedError(
                f"tasks of {config.library} need {error['missing']}, not installed{where}",
                code="missing-extra",
                fix=f"pip install 'midstream-environments[{config.library}]', "
                "or name an interpreter that has it: tasks.python",
            )
        raise RecipeError(
            f"{config.library} could not be loaded: {error['type']}: {error['text']}",
            code="environment-failed",
            cause=error["where"],
            fix="correct the settings of [tasks]",
        )

    def _failed(self, what: str, fix: str) -> InfrastructureError:
        """The error of a process, with the last lines that it printed."""
        return InfrastructureError(what, code="environment-failed", cause="\n".join(self._printed), fix=fix)

    def _keep_output(self) -> None:
        """Keep the last lines that the process prints, until it ends."""
        # Leaving the block closes both pipes.
        with self._process as process:
            assert process.stdout is not None
            for line in process.stdout:
                self._printed.append(line.decode("utf-8", "replace").rstrip()[:500])

    def _read(self) -> None:
        """Give every reply to its caller; at the end, an error to those that have none."""
        with suppress(OSError, ValueError):
            for line in self._lines:
                message = json.loads(line)
                if "began" in message:
                    self._calls[message["began"]].began.set_result(None)
                    continue
                with self._lock:
                    call = self._calls.pop(message["id"])
                if (error := message.get("error")) is None:
                    call.result.set_result(message["result"])
                else:
                    call.result.set_exception(EnvironmentFailure(call.name, error))
        with self._lock:
            self.gone = self.gone or "it ended"
            left, self._calls = self._calls, {}
        self._lines.close()
        self._connection.close()
        # For its last words.
        self._output.join(_END_S)
        for call in left.values():
            words = f"the process of {self._config.library} ended during {call.name!r}: {self.gone}"
            self._give_up(call, words)

    def _give_up(self, call: _Call, words: str) -> None:
        """End a call that the process will not answer."""
        if not call.began.done():
            call.began.set_exception(_GoneError())
        call.result.set_exception(self._failed(words, "correct what its output names"))

    @property
    def load(self) -> int:
        """Calls and episodes under way."""
        return len(self._calls) + self.episodes

    def begin(self, name: str, arguments: Mapping[str, JsonValue]) -> _Call:
        """Send a call."""
        call = _Call(self, name, next(self._numbers), Future(), Future())
        for future in (call.began, call.result):
            # So that a caller who no longer waits cannot cancel it, and its result can still be set.
            future.set_running_or_notify_cancel()
        with self._lock:
            if self.gone:
                self._give_up(call, f"the process of {self._config.library} is gone: {self.gone}")
                return call
            self._calls[call.number] = call
        line = json.dumps({"id": call.number, "call": name, "arguments": dict(arguments)}).encode() + b"\n"
        # If it is gone, the reader says so.
        with suppress(OSError):
            self._connection.sendall(line)
        return call

    def cancel(self, call: _Call) -> None:
        """End a call whose caller no longer waits, and the process if the call does not end: it may hang."""
        with suppress(OSError):
            self._connection.sendall(json.dumps({"cancel": call.number}).encode() + b"\n")

        def check() -> None:
            if call.began.done() and not call.result.done():
                self.end("a call that was cancelled did not end")

        timer = threading.Timer(_END_S, check)
        timer.daemon = True
        timer.start()

    def end(self, why: str = "") -> None:
        """End the process, and all that it started."""
        self.gone = self.gone or why or "it was closed"
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        assert self._process.stdin is not None
        self._process.stdin.close()


class _GoneError(Exception):
    """A process ended before it began a call."""


class EnvironmentFailure(InfrastructureError):
    """A library raised."""

    code = "environment-failed"

    def __init__(self, call: str, error: Mapping[str, Any]) -> None:
        super().__init__(
            f"the environment failed in {call!r}: {error['type']}: {error['text']}",
            cause=str(error["where"]),
            fix="correct the environment, or leave the task out",
        )


class Library:
    """A library of environments with its processes, which start with the first call, after `close` again."""

    def __init__(self, config: LibraryConfig) -> None:
        self.config, self.key = config, _key(config)
        self._processes: list[_Process] = []
        self._starting = threading.Lock()
        self._warned = False

    def start(self) -> _Process:
        """A process that is loaded: the one with the fewest calls and episodes.

        Raises:
            UsageError: the library is not installed, or refuses the settings.
            InfrastructureError: its process ends.
        """
        with self._starting:
            self._processes = [process for process in self._processes if not process.gone]
            idle = [process for process in self._processes if not process.load]
            if not idle and len(self._processes) < self.config.processes:
                self._processes.append(_Process(self.config))
                self._warn_of(self._processes[-1].version)
            return min(self._processes, key=lambda process: process.load)

    async def started(self) -> _Process:
        """`start` in a thread: to load a library takes seconds."""
        return await asyncio.to_thread(self.start)

    def call(self, name: str, **arguments: JsonValue) -> Any:
        """Call a method of the adapter, and wait for its result; `load_s` limits it."""
        process = self.start()
        try:
            return process.begin(name, arguments).result.result(self.config.load_s)
        except TimeoutError:
            raise self._hung(process, name, self.config.load_s, "load_s") from None

    async def ask(
        self, name: str, *, process: _Process | None = None, limit_s: float | None, **arguments: JsonValue
    ) -> Any:
        """Call a method of the adapter in a process, of which `limit_s` is the longest wait.

        Raises:
            InfrastructureError: the method raised, its process ended, or it took too long, which ends the process.
        """
        call = await self._begun(name, arguments, process)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.wrap_future(call.result)
        except TimeoutError:
            raise self._hung(call.process, name, limit_s or 0.0, "call_s") from None
        except asyncio.CancelledError:
            call.process.cancel(call)
            raise

    async def _begun(
        self, name: str, arguments: Mapping[str, JsonValue], process: _Process | None, tries: int = _TRIES
    ) -> _Call:
        """A call that its process does, or never will: one that ends before is replaced, unless the caller chose it."""
        call = (process or await self.started()).begin(name, arguments)
        try:
            await asyncio.wrap_future(call.began)
        except _GoneError:
            if process is None and tries > 1:
                return await self._begun(name, arguments, None, tries - 1)
        except asyncio.CancelledError:
            call.process.cancel(call)
            raise
        return call

    def _hung(self, process: _Process, name: str, limit_s: float, setting: str) -> InfrastructureError:
        """End a process whose call takes too long; nothing else can stop that call."""
        what = f"{name!r} took more than {limit_s:g} s"
        process.end(what)
        return InfrastructureError(
            f"the environment hangs: {what}", code="environment-timeout", fix=f"raise tasks.{setting}, or correct it"
        )

    def _warn_of(self, version: str) -> None:
        """Warn once of a version outside of those tested."""
        tested = [_series(text) for text in self.config.tested]
        if version and not self._warned and _series(version) not in tested:
            self._warned = True
            warn(
                f"{self.config.library} {version} was not tested with midstream {__version__}, "
                f"{' and '.join(self.config.tested)} were: scores may differ"
            )

    async def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.end()
        self._processes = []


_libraries: WeakValueDictionary[str, Library] = WeakValueDictionary()


def library_of(config: LibraryConfig) -> Library:
    """The library of these settings: one in this process, which the sets of a recipe share."""
    return _libraries.setdefault(_key(config), Library(config))


def library_at(key: str) -> Library:
    """The library that made a task, by the key in its `metadata["case"]`. Raises `UsageError` if none is loaded."""
    if (library := _libraries.get(key)) is None:
        raise UsageError(
            f"no environment {key!r} is loaded",
            code="environment-missing",
            fix="name its tasks in the recipe's [tasks]",
        )
    return library


def _key(config: LibraryConfig) -> str:
    """A short name of the settings."""
    text = json.dumps([config.adapter, config.model_dump(mode="json")], sort_keys=True)
    return f"{config.library}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def _series(version: str) -> list[str]:
    """The first two numbers of a version, "0.3" of 0.3.285."""
    return version.split(".")[:2]
