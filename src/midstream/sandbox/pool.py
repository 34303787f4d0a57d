"""A pool of warm workers that run short pieces of Python, each in a process of its own.

**This is no security boundary.** It bounds what code may use up: seconds, memory, output, open files, processes; it may
not write into files. It does not stop hostile code from reading files or using the network. For code from people you
do not trust, run midstream as a whole in a container or a virtual machine.

A program with a tool (`code_runner`) runs in a worker that is its own until it ends (`PythonPool.on_worker`).

A call costs one fork of a small process (`zygote.py`), not the start of an interpreter. Code gets the standard library,
an empty environment, and the same hash seed and `random` state every time, so that the same code prints the same text.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal, TypeVar

from midstream.core.errors import SandboxError, UnsupportedError
from midstream.sandbox import arithmetic
from midstream.sandbox.worker import PythonResult, Worker, WorkerDied

Tier = Literal["process", "arithmetic"]
T = TypeVar("T")

QUEUE_S = 120.0  # a call waits this long for a worker


class PythonPool:
    """Runs code in up to `workers` processes at once; further calls wait for their turn.

    Workers start when they are first needed and serve any number of event loops one after the other. On a system
    without `os.fork` (Windows) the pool evaluates arithmetic expressions only (`arithmetic.evaluate`): `tier` says so.

    Args:
        workers: pieces of code that run at the same time.
        timeout_s: CPU-seconds one piece may take, rounded up; five times that on the wall clock, for code that sleeps.
            Waiting for a worker does not count.
        memory_mb: address space of one piece (not enforced by macOS).
        output_limit: characters it may print.
        tier: "auto" takes "process" where the system can fork.
        queue_s: seconds that a call waits for a worker at most; None: without end.
        table: the recipe's table that these settings come from, for what errors advise.
    """

    def __init__(
        self,
        workers: int = 2,
        timeout_s: float = 2.0,
        memory_mb: int = 512,
        output_limit: int = 4000,
        *,
        tier: Literal["auto", "process", "arithmetic"] = "auto",
        queue_s: float | None = QUEUE_S,
        table: str = "tools.python",
    ) -> None:
        can_fork = hasattr(os, "fork")
        if tier == "process" and not can_fork:
            raise UnsupportedError(
                f"the Python sandbox cannot run processes on {sys.platform}",
                cause="it needs os.fork, which Linux and macOS have",
                mend='use tier = "arithmetic", or run midstream under Linux, macOS or WSL',
            )
        self.tier: Tier = tier if tier != "auto" else ("process" if can_fork else "arithmetic")
        self._workers, self._output_limit, self._queue_s, self._table = workers, output_limit, queue_s, table
        self._settings = (timeout_s, memory_mb, output_limit, table)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(workers)
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._closed = False

    async def run(self, code: str) -> PythonResult:
        """Run `code` in a process of its own and give what it printed and how it ended.

        Raises:
            SandboxError: a worker broke down twice over this call, or the pool is closed.
        """
        if self.tier == "arithmetic":
            return self._arithmetic(code)
        return await self.on_worker(lambda worker: worker.ask(code.encode("utf-8", "surrogatepass")))

    async def on_worker(self, job: Callable[[Worker], Awaitable[T]]) -> T:
        """Do `job` on a worker of its own, and once more on another if the first dies (`WorkerDied`).

        Raises:
            SandboxError: both died, or the pool is closed.
        """
        self._attach()
        async with self._slot():
            for _ in range(2):
                try:
                    async with self._worker() as worker:
                        return await job(worker)
                except WorkerDied:
                    self._drop_dead()
        raise SandboxError(
            "the Python sandbox broke down twice over one call",
            cause="the system ends its processes, for example for want of memory",
            mend=f"free some memory, or lower memory_mb and workers in [{self._table}]",
        )

    @asynccontextmanager
    async def _worker(self) -> AsyncGenerator[Worker]:
        """A worker, idle again after the block; if the block ends early, the worker ends too."""
        worker, finished = self._take(), False
        try:
            yield worker
            finished = True
        finally:
            self._busy.discard(worker)
            if finished and not self._closed:
                self._idle.append(worker)
            else:
                worker.kill()

    @asynccontextmanager
    async def _slot(self) -> AsyncGenerator[None]:
        """Hold one of the pool's places; a wait without end is the sandbox's failure, not the code's."""
        try:
            async with asyncio.timeout(self._queue_s):
                await self._slots.acquire()
        except TimeoutError as error:
            raise SandboxError(
                f"no Python worker was free within {self._queue_s:g} s",
                cause=f"{self._workers} workers are too few for so many calls, or each takes too long",
                mend=f"raise workers in [{self._table}], or lower the rollout's concurrency",
            ) from error
        slots = self._slots
        try:
            yield
        finally:
            slots.release()

    async def close(self) -> None:
        """End all workers; calls still waiting raise, and the pool is not used afterwards."""
        self._closed = True
        self._attach()
        for worker in self._idle:
            worker.kill()
        self._idle.clear()
        for worker in self._busy:
            worker.stop()  # its call closes our end

    def _attach(self) -> None:
        """Serve the running event loop; calls that an earlier loop left unfinished lose their worker."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._slots = loop, asyncio.Semaphore(self._workers)
            for worker in self._busy:
                worker.kill()
            self._busy.clear()

    def _take(self) -> Worker:
        """An idle worker, or a new one, marked busy."""
        if self._closed:
            raise SandboxError(
                "the Python sandbox is closed",
                cause="a tool was called after its close()",
                mend="close tools once the last rollout has ended",
            )
        worker = self._idle.pop() if self._idle else Worker(*self._settings)
        self._busy.add(worker)
        return worker

    def _drop_dead(self) -> None:
        """Take dead workers off the idle list, so that a retry does not meet one."""
        dead = [worker for worker in self._idle if not worker.alive()]
        self._idle = [worker for worker in self._idle if worker not in dead]
        for worker in dead:
            worker.kill()

    def _arithmetic(self, code: str) -> PythonResult:
        """The value of an arithmetic expression; anything else counts as code that raised."""
        try:
            text = repr(arithmetic.evaluate(code))
        except (arithmetic.NotArithmetic, ArithmeticError) as error:
            return PythonResult(False, f"{type(error).__name__}: {error}", "raised")
        if len(text) > self._output_limit:
            return PythonResult(False, text[: self._output_limit], "output_limit")
        return PythonResult(True, text, "ok")
