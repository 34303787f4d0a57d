"""A process that has one library of environments loaded, and does what midstream asks of it.

    python -P worker.py SOCKET ADAPTER SETTINGS        SETTINGS as JSON

It runs with the interpreter that has the library, which need not have midstream, so it imports nothing of midstream.
ADAPTER is a file with `DISTRIBUTION`, the library's name at the package index, and a class `Adapter`, which is called
with the settings. Lines of JSON go both ways over the socket:

    {"id": 1, "call": "score", "arguments": {"case": "3", "answer": "42"}}       {"cancel": 1}
    {"began": 1}     {"id": 1, "result": {"reward": 1.0}}     {"id": 1, "error": {"type": ..., "text": ...}}

Methods that are `async` run next to each other. Others have one thread and run one after the other. Those of one
episode (an argument `episode`) draw from random states of their own, so that concurrent episodes are reproducible.
What the library prints goes to standard error, and its standard input is empty.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import random
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

JsonObject = dict[str, Any]
_ALIVE_S = 1.0


class RandomStates:
    """The states of Python's and NumPy's global generators, one pair for each episode."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Any, Any]] = {}

    def run(self, episode: str, function: Callable[..., Any], arguments: JsonObject) -> Any:
        """Call the function with the episode's states in place."""
        numpy = sys.modules.get("numpy")
        if episode in self._kept:
            own, arrays = self._kept[episode]
            random.setstate(own)
            if numpy is not None and arrays is not None:
                numpy.random.set_state(arrays)
        try:
            return function(**arguments)
        finally:
            numpy = sys.modules.get("numpy")
            self._kept[episode] = (random.getstate(), numpy.random.get_state() if numpy is not None else None)

    def forget(self, episode: str) -> None:
        """Drop the states of an episode that is over."""
        self._kept.pop(episode, None)


class Worker:
    """Answers the requests of one connection."""

    def __init__(self, connection: socket.socket, adapter: Any) -> None:
        self._connection, self._adapter = connection, adapter
        self._sending = threading.Lock()
        self._states = RandomStates()
        self._thread = ThreadPoolExecutor(1)
        # All calls under way, which the event loop alone does not keep; and those that can be cancelled.
        self._all: set[asyncio.Task[None]] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def send(self, message: JsonObject) -> None:
        """Send one line. A number that JSON does not have is sent as Python writes it, so that midstream names it."""
        line = json.dumps(message, default=str).encode() + b"\n"
        with self._sending:
            self._connection.sendall(line)

    async def serve(self) -> None:
        """Answer until midstream closes the connection."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def read() -> None:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    loop.call_soon_threadsafe(self._begin, json.loads(line))
            loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=read, daemon=True).start()
        # Calls that are under way are cancelled then, so that they can clean up.
        loop.add_signal_handler(signal.SIGTERM, closed.set)
        while not closed.is_set():
            # A loop that is stuck does not say so.
            self.send({"alive": True})
            with suppress(TimeoutError):
                await asyncio.wait_for(closed.wait(), _ALIVE_S)

    def _begin(self, message: JsonObject) -> None:
        """Begin a call, or cancel one."""
        if "cancel" in message:
            if task := self._tasks.get(message["cancel"]):
                task.cancel()
            return
        method = getattr(self._adapter, message["call"], None)
        task = asyncio.create_task(self._answer(message, method))
        self._all.add(task)
        task.add_done_callback(self._all.discard)
        if inspect.iscoroutinefunction(method):
            # A thread cannot be cancelled: midstream ends the process of one that does not end.
            self._tasks[message["id"]] = task
            task.add_done_callback(lambda _: self._tasks.pop(message["id"], None))

    async def _answer(self, message: JsonObject, method: Callable[..., Any] | None) -> None:
        """Do one call, and send its result or error."""
        try:
            if method is None:
                raise NotImplementedError(f"this library has no {message['call']!r}")
            if inspect.iscoroutinefunction(method):
                self.send({"began": message["id"]})
                result = await method(**message["arguments"])
            else:
                result = await asyncio.get_running_loop().run_in_executor(self._thread, self._run, message, method)
            self.send({"id": message["id"], "result": result})
        except asyncio.CancelledError:
            self.send({"id": message["id"], "error": {"type": "Cancelled", "text": "cancelled", "where": ""}})
        # What a library raises can be anything, SystemExit too.
        except BaseException as error:  # noqa: BLE001
            self.send({"id": message["id"], "error": described(error)})

    def _run(self, message: JsonObject, method: Callable[..., Any]) -> Any:
        """Do a call in the thread."""
        self.send({"began": message["id"]})
        arguments = message["arguments"]
        if (episode := arguments.get("episode")) is None:
            return method(**arguments)
        result = self._states.run(episode, method, arguments)
        if message["call"] == "close":
            self._states.forget(episode)
        return result


def described(error: BaseException) -> JsonObject:
    """An error as data: its type, text and code, if it has one, and the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    code = getattr(error, "code", "")
    return {
        "type": type(error).__name__,
        "text": str(error)[:2000],
        "code": code if isinstance(code, str) else "",
        "where": where,
        "missing": missing,
    }


def load(path: str, settings: JsonObject) -> tuple[Any, str]:
    """Make the adapter of a file; return it and the library's version, "" for one that is no package."""
    spec = importlib.util.spec_from_file_location("midstream_adapter", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["midstream_adapter"] = module
    # Loops of some libraries draw from the generators that all share.
    random.seed(0)
    spec.loader.exec_module(module)
    adapter = module.Adapter(**settings)
    try:
        return adapter, version(module.DISTRIBUTION)
    except PackageNotFoundError:
        return adapter, ""


def main() -> None:
    """Connect, load the library, and serve."""
    address, path, settings = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    # From here on, what is printed is no reply, and nothing can be read.
    os.dup2(2, 1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    hello: JsonObject
    try:
        adapter, found = load(path, json.loads(settings))
        hello = {"version": found}
    # What a library raises while it is loaded can be anything.
    except BaseException as error:  # noqa: BLE001
        adapter, hello = None, {"error": described(error)}
    connection.sendall(json.dumps(hello).encode() + b"\n")
    if adapter is not None:
        asyncio.run(Worker(connection, adapter).serve())


if __name__ == "__main__":
    try:
        main()
    finally:
        # A thread of the library, or a call that hangs, must not keep the process.
        sys.stderr.flush()
        os._exit(0)
