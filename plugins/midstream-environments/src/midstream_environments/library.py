"""A library of environments in processes of its own: it can neither end midstream nor write into its output.

A process that ends, or whose call takes too long, is replaced for the next call. What it had under way fails, and is
tried again like anything else around the model that fails.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from weakref import WeakValueDictionary

from pydantic import AfterValidator, Field, JsonValue

from midstream.components.component import Context, TasksConfig
from midstream.core.errors import InfrastructureError, RecipeError, UnsupportedError, UsageError
from midstream.core.threads import start_thread
from midstream.core.version import __version__
from midstream_environments.process import Call, EnvironmentFailure, GoneError, Process

_HERE = Path(__file__).parent
# Processes that one call may see end before they begin it.
_TRIES = 3


def _rises(found: tuple[float, float]) -> tuple[float, float]:
    if found[0] >= found[1]:
        raise ValueError("the lowest reward comes first, then the highest")
    return found


Range = Annotated[tuple[float, float], AfterValidator(_rises)]
# What a library gives rewards for.
Scores = Literal["answers", "own loop", "episodes"]

warn = logging.getLogger("midstream.environments").warning


class LibraryConfig(TasksConfig):
    """Settings that the tasks of every library have.

    Attributes:
        python: the interpreter that has the library, if it is not this one: libraries whose needs clash have one each
        processes: how many processes have it loaded
        load_s: seconds to load it, and to read its tasks
        call_s: seconds of one call: a score, a step; how long an environment's own loop may be stuck
        range: the environment's lowest and highest reward, which become 0 and 1
    """

    adapter: ClassVar[str]  # its file in `adapters/`, without ".py"
    library: ClassVar[str]  # the extra of this package that installs it
    module: ClassVar[str]  # what is imported of it
    tested: ClassVar[tuple[str, ...]]  # versions; others of the same first two numbers count as tested
    scores: ClassVar[Scores] = "answers"

    python: Path | None = None
    processes: int = Field(default=1, ge=1, le=64)
    load_s: float = Field(default=300.0, gt=0)
    call_s: float = Field(default=60.0, gt=0)
    range: Range = (0.0, 1.0)

    @property
    def adapter_settings(self) -> dict[str, JsonValue]:
        """What the adapter is made with: the settings that are not those of every library."""
        return self.model_dump(mode="json", exclude=set(LibraryConfig.model_fields))

    def check_machine(self, where: str) -> None:
        """Load the library, for `--dry-run`."""
        library = library_of(self)
        with library.chosen():
            pass
        library.end_unless_open()

    def opened(self, context: Context) -> Library:
        """The library of these settings, which is closed with the build."""
        library = library_of(self)
        if library not in context.build.opened:
            context.build.opened.append(library)
            library.users += 1
        return library


class Library:
    """A library of environments with its processes, which start with the first call, after `close` again.

    Attributes:
        users: builds that have it open
    """

    def __init__(self, key: str, config: LibraryConfig) -> None:
        self.key, self.config, self.users = key, config, 0
        self._processes: list[Process] = []
        self._choosing = threading.Lock()
        self._warned = False

    @contextmanager
    def chosen(self) -> Iterator[Process]:
        """A process that is loaded, the one with the fewest calls and episodes; until the end of the block it is held.

        Raises:
            UsageError: the library is not installed, or refuses the settings.
            InfrastructureError: its process ended.
        """
        with self._choosing:
            self._processes = [process for process in self._processes if not process.gone]
            idle = [process for process in self._processes if not process.busy]
            if not idle and len(self._processes) < self.config.processes:
                # Its starter uses it, though another may be idle by now: a process that nobody uses is never loaded.
                process = self._started()
                self._processes.append(process)
            else:
                process = min(self._processes, key=lambda process: process.busy)
            process.hold(+1)
        try:
            try:
                process.load()
            except EnvironmentFailure as failure:
                raise self._not_loaded(failure) from None
            self._warn_of(process.version)
            yield process
        finally:
            process.hold(-1)

    def _started(self) -> Process:
        """A new process, which begins to load the library."""
        config = self.config
        adapter = _HERE / "adapters" / f"{config.adapter}.py"
        python = str(config.python or sys.executable)
        if shutil.which(python) is None:
            raise RecipeError(
                f"tasks.python: there is no program {python!r}",
                code="file-not-found",
                fix=f"name an interpreter that has {config.library}, by its path from {Path.cwd()} or from /",
            )
        return Process(config.library, python, adapter, config.adapter_settings, config.load_s)

    def _not_loaded(self, failure: EnvironmentFailure) -> Exception:
        """The error of a library that could not be loaded: the user's, unless its process ended."""
        config = self.config
        if failure.missing.partition(".")[0] == config.module:
            where = f" for {config.python}" if config.python else ""
            return UnsupportedError(
                f"tasks of {config.library} need {failure.missing}, not installed{where}",
                code="missing-extra",
                fix=f"pip install 'midstream-environments[{config.library}]', "
                "or name an interpreter that has it: tasks.python",
            )
        if failure.kind:
            python = config.python or sys.executable
            fix = f"install {failure.missing} for {python}, or correct its name" if failure.missing else failure.fix
            return RecipeError(failure.what, code=failure.code, cause=failure.cause, fix=fix)
        return failure

    def call(self, name: str, **arguments: JsonValue) -> Any:
        """Call a method of the adapter, and wait for its result; `load_s` limits it."""
        with self.chosen() as process:
            call = process.begin(name, arguments)
        try:
            return call.result.result(self.config.load_s)
        except TimeoutError:
            raise self._hung(call, self.config.load_s, "load_s") from None

    async def hold(self) -> Process:
        """A loaded process that counts as used until `process.hold(-1)`."""

        def hold() -> Process:
            with self.chosen() as process:
                process.hold(+1)
                return process

        # In a thread: to load a library takes seconds.
        holding = start_thread(hold, "environment")
        try:
            return await asyncio.wrap_future(holding)
        except asyncio.CancelledError:
            # The thread continues, and may even start a process after `close`.
            holding.add_done_callback(self._leave)
            raise

    def _leave(self, held: Future[Process]) -> None:
        """Let go of a process for which nobody waits any longer."""
        if held.exception() is None:
            process = held.result()
            process.hold(-1)
            if self.users <= 0 and not process.busy:
                process.end()

    async def ask(self, name: str, *, process: Process | None = None, **arguments: JsonValue) -> Any:
        """Call a method of the adapter, in `process` if it is given; `call_s` limits it once it has begun.

        Raises:
            InfrastructureError: the method raised, its process ended, or it took too long, which ends the process.
        """
        call = await self._begun(name, arguments, process)
        try:
            async with asyncio.timeout(self.config.call_s):
                return await asyncio.wrap_future(call.result)
        except TimeoutError:
            raise self._hung(call, self.config.call_s, "call_s") from None
        except asyncio.CancelledError:
            call.process.cancel(call, self.config.call_s)
            raise

    async def run(self, **arguments: JsonValue) -> Any:
        """Call the adapter's `run`, which may take as long as its caller waits, but must not block its process.

        Raises:
            InfrastructureError: as `ask`.
        """
        limit_s = self.config.call_s
        call = await self._begun("run", arguments, None)
        result = asyncio.wrap_future(call.result)
        try:
            while not (await asyncio.wait({result}, timeout=min(1.0, limit_s)))[0]:
                if time.monotonic() - call.process.seen_s > limit_s:
                    raise self._hung(call, limit_s, "call_s")
            return result.result()
        except asyncio.CancelledError:
            call.process.cancel(call, limit_s)
            raise
        finally:
            # What comes later has no reader.
            result.cancel()

    async def _begun(
        self, name: str, arguments: Mapping[str, JsonValue], process: Process | None, tries: int = _TRIES
    ) -> Call:
        """A call that its process does, or never will: one that ends before is replaced, unless the caller chose it."""
        held = process or await self.hold()
        call = held.begin(name, arguments)
        if process is None:
            held.hold(-1)
        try:
            await asyncio.wrap_future(call.began)
        except GoneError:
            if process is None and tries > 1:
                return await self._begun(name, arguments, None, tries - 1)
        except asyncio.CancelledError:
            held.cancel(call, self.config.call_s)
            raise
        return call

    def _hung(self, call: Call, limit_s: float, setting: str) -> InfrastructureError:
        """End a process whose call takes too long; nothing else can stop that call."""
        what = f"{call.name!r} took more than {limit_s:g} s"
        call.process.end(what, within_s=0.0)
        return InfrastructureError(
            f"the environment's {what}",
            code="environment-timeout",
            fix=f"raise tasks.{setting}, or correct the environment",
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

    def end_unless_open(self) -> None:
        """End the processes, unless a build uses them."""
        # Not while one is being started, which would be left out.
        with self._choosing:
            if self.users <= 0:
                for process in self._processes:
                    process.end()
                self._processes = []

    async def close(self) -> None:
        """The end of one build: with the last one, the processes end."""
        self.users -= 1
        self.end_unless_open()


_libraries: WeakValueDictionary[str, Library] = WeakValueDictionary()


def library_of(config: LibraryConfig) -> Library:
    """The library of these settings: one in this process, which the sets of a recipe and several builds share."""
    text = json.dumps([config.adapter, str(config.python or ""), config.adapter_settings], sort_keys=True)
    key = f"{config.library}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
    library = _libraries.setdefault(key, Library(key, config))
    library.config = config
    return library


def library_at(key: str) -> Library:
    """The library that made a task, by the key in its `metadata["case"]`. Raises `UsageError` if none is loaded."""
    if (library := _libraries.get(key)) is None:
        raise UsageError(
            f"no environment {key!r} is loaded",
            code="environment-missing",
            fix="name its tasks in the recipe's [tasks]",
        )
    return library


def _series(version: str) -> list[str]:
    """The first two numbers of a version, "0.3" of 0.3.285."""
    return version.split(".")[:2]
