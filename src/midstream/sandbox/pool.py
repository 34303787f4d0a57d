"""A pool of warm workers that run short pieces of Python, each in a process of its own.

What holds code back depends on the tier (`tiers`, `launch`, docs/sandbox.md); on tier "unsafe" nothing but limits of
what it uses up.

A program with a tool (`code_runner`) runs in a worker that is its own until it ends (`PythonPool.on_worker`).

A call costs one fork of a small process (`inside/zygote.py`), not the start of an interpreter. Code gets the standard
library and the packages of this Python, a directory to write into that is emptied after it, an environment of the
sandbox's own, and the same hash seed and `random` state every time, so that the same code prints the same text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from midstream.core.errors import SandboxError
from midstream.sandbox.calculator import Calculator
from midstream.sandbox.launch import installed
from midstream.sandbox.settings import Limits, Tier
from midstream.sandbox.tiers import Sandbox
from midstream.sandbox.worker import PythonResult, Worker, WorkerDied

T = TypeVar("T")

QUEUE_S = 120.0  # a call waits this long for a worker


class PythonPool:
    """Runs code in up to `workers` processes at once; further calls wait for their turn.

    Workers start when they are first needed and serve any number of event loops one after the other. On tier
    "arithmetic" they evaluate expressions only. `libraries` are those of `limits.libraries` that code can import (none
    are known of a container).

    Args:
        limits: what one piece of code may use up; waiting for a worker does not count.
        sandbox: what holds it back (`tiers.choose`).
        queue_s: seconds that a call waits for a worker at most; None: without end.
        table: the recipe's table that these settings come from, for what errors advise.
    """

    def __init__(
        self,
        limits: Limits,
        sandbox: Sandbox,
        *,
        queue_s: float | None = QUEUE_S,
        table: str = "tools.python",
    ) -> None:
        self.tier: Tier = sandbox.tier
        local = sandbox.tier not in ("arithmetic", "remote")
        self.libraries = installed(limits.libraries) if local else ()
        self._limits, self._sandbox, self._queue_s, self._table = limits, sandbox, queue_s, table
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(limits.workers)
        self._idle: list[Worker | Calculator] = []
        self._busy: set[Worker | Calculator] = set()
        self._closed = False

    async def run(self, code: str) -> PythonResult:
        """Run `code` in a process of its own and give what it printed and how it ended.

        Raises:
            SandboxError: the worker died over this call or never started, or the pool is closed.
        """
        return await self.on_worker(lambda worker: worker.ask(code.encode("utf-8", "surrogatepass")))

    async def on_worker(self, job: Callable[[Any], Awaitable[T]]) -> T:
        """Do `job` on a worker of its own (a `Worker`, or a `Calculator` on tier "arithmetic").

        Raises:
            SandboxError: it died (`WorkerDied`), or the pool is closed. It is not tried again: code cannot end its
                worker, so that the machine is in trouble, and whoever called knows best what to repeat.
        """
        await self._attach()
        async with self._slot():
            try:
                async with self._worker() as worker:
                    return await job(worker)
            except WorkerDied as error:
                raise SandboxError(
                    "a Python worker died in the middle of a call",
                    cause="the system ended its processes, for example for want of memory, or somebody did",
                    fix=f"free some memory, or lower memory_mb and workers in [{self._table}]",
                ) from error

    @asynccontextmanager
    async def _worker(self) -> AsyncGenerator[Worker | Calculator]:
        """A worker, idle again after the block; if the block ends early, the worker ends too."""
        worker, finished = await self._take(), False
        try:
            yield worker
            finished = True
        finally:
            self._busy.discard(worker)
            if finished and not self._closed:
                self._idle.append(worker)
            else:
                await worker.kill()

    @asynccontextmanager
    async def _slot(self) -> AsyncGenerator[None]:
        """Hold one of the pool's places; a wait without end is the sandbox's failure, not the code's."""
        slots = self._slots
        try:
            async with asyncio.timeout(self._queue_s):
                await slots.acquire()
        except TimeoutError as error:
            raise SandboxError(
                f"no Python worker was free within {self._queue_s:g} s",
                cause=f"{self._limits.workers} workers are too few for so many calls, or each takes too long",
                fix=f"raise workers in [{self._table}], or lower the rollout's concurrency",
            ) from error
        try:
            yield
        finally:
            slots.release()

    async def close(self) -> None:
        """End all workers; calls still waiting raise, and the pool is not used afterwards."""
        self._closed = True
        await self._attach()
        for worker in self._busy:
            worker.stop()  # its call does the rest
        idle, self._idle = self._idle, []
        await asyncio.gather(*(worker.kill() for worker in idle))

    async def _attach(self) -> None:
        """Serve the running event loop; calls that an earlier loop left unfinished lose their worker."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._slots = loop, asyncio.Semaphore(self._limits.workers)
            left, self._busy = self._busy, set()
            await asyncio.gather(*(worker.kill() for worker in left))

    async def _take(self) -> Worker | Calculator:
        """An idle worker that lives, or a new one, marked busy."""
        worker = None
        while self._idle and worker is None:
            worker = self._idle.pop()
            if not worker.alive():
                await worker.kill()
                worker = None
        if self._closed:
            raise SandboxError(
                "the Python sandbox is closed",
                cause="a tool was called after its close()",
                fix="close tools once the last rollout has ended",
            )
        worker = worker or self._start()
        self._busy.add(worker)
        return worker

    def _start(self) -> Worker | Calculator:
        if self.tier == "arithmetic":
            return Calculator(self._limits, self._table)
        return Worker(self._limits, self.tier, self._sandbox.image, self._table)
