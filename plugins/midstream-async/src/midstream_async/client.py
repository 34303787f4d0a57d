"""The side of `sampler.py` that asks: an engine's `Sampler`, in the process that trains."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from midstream.core.engine import Pin, Request
from midstream.core.errors import EngineError
from midstream.core.events import ignore_event
from midstream.engines.local.decoding import Sampled


class SamplerClient:
    """Asks a process that samples from given versions of the weights; it starts with the first version.

    `table` is the resolved recipe. Where the process is lost, what it was asked fails, and the next request starts it
    again.
    """

    def __init__(self, table: Mapping[str, Any], name: str) -> None:
        self._table, self._name = table, name
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._paths: dict[int, Path] = {}
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[list[Sampled]]] = {}

    def use(self, version: int, path: Path) -> None:
        """Sample what is pinned to a version from the weights in a file."""
        self._paths[version] = path
        self._send("use", version, path)

    async def generate(
        self, pin: Pin, asked: Sequence[tuple[tuple[int, ...], Request]], reference: bool, adapter: str
    ) -> list[Sampled]:
        """What `decoding.generate` returns. Raises `EngineError`."""
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._asked[number] = future
        # What the agent does with a request stays here, and so do its texts: the sampler reads ids.
        sent = [
            (ids, replace(request, messages=(), prompt="", prompt_ids=(), tools=(), relay=None, emit=ignore_event))
            for ids, request in asked
        ]
        try:
            self._send("generate", pin, number, sent, reference, adapter)
            return await future
        finally:
            self._asked.pop(number, None)

    def leave(self, pin: Pin, order: int | None) -> None:
        """Forget the prompts of a trajectory that has ended; of all if `order` is None."""
        self._send("leave", pin, order)

    async def close(self) -> None:
        """End the process."""
        process, connection, self._process, self._connection = self._process, self._connection, None, None
        if connection is not None:
            connection.close()
        if process is not None:
            # It has nothing to save.
            process.kill()
            await asyncio.to_thread(process.wait)

    def _send(self, *message: object) -> None:
        if self._connection is None:
            self._start()
        assert self._connection is not None
        with suppress(OSError):
            self._connection.send(message)

    def _start(self) -> None:
        mine, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "midstream_async.sampler", str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._connection = Connection(mine.detach())
        self._connection.send((self._table, torch.get_num_threads()))
        for version, path in self._paths.items():
            self._connection.send(("use", version, path))
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(self._connection, loop), daemon=True).start()

    def _read(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(OSError, EOFError, RuntimeError):
            while True:
                loop.call_soon_threadsafe(self._settle, *connection.recv())
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(partial(self._lost, connection))

    def _settle(self, number: int, found: list[Sampled] | str) -> None:
        future = self._asked.get(number)
        if future is None or future.done():
            return
        if isinstance(found, str):
            future.set_exception(_failed(self._name, found))
        else:
            future.set_result(found)

    def _lost(self, connection: Connection) -> None:
        if self._connection is not connection:
            return
        code = None if self._process is None else self._process.wait()
        self._process = self._connection = None
        for number in [*self._asked]:
            self._settle(number, f"its process ended with exit code {code}")


def _failed(name: str, why: str) -> EngineError:
    return EngineError(
        f"{name} could not sample in its own process: {why}",
        code="sampling-failed",
        fix="read what it printed, if anything; two copies of the weights must fit, and components must be installed",
    )
