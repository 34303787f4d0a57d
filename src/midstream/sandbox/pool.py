"""A pool of warm workers that run short pieces of Python, each piece in a new process.

What holds code back depends on the tier (`tiers`, `launch`, docs/sandbox.md); on tier "unsafe" only limits do. Tier
"arithmetic" has no workers: it evaluates expressions in this process, as their size is bounded (`arithmetic`). A
program with a tool (`code_runner`) has a worker to itself until it ends (`PythonPool.on_worker`).

A call costs one fork of a small process (`inside/zygote.py`), not the start of an interpreter. Code gets the standard
library and the packages of this Python, a directory to write into that is emptied after it, the sandbox's environment,
and the same hash seed and `random` state every time, so that the same code prints the same text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from midstream.components.component import Sandbox, Tier
from midstream.core.errors import SandboxError
from midstream.sandbox.arithmetic import answer
from midstream.sandbox.launch import find_installed
from midstream.sandbox.settings import CodeLimits
from midstream.sandbox.worker import PythonResult, Worker, WorkerDied

T = TypeVar("T")

# A call waits this long for a worker.
QUEUE_S = 120.0


class PythonPool:
    """Runs code in up to `workers` processes at once; further calls wait for their turn.

    Workers start when they are first needed and serve any number of event loops one after the other. `libraries` are
    those of `limits.libraries` that code can import (unknown, so empty, in a container).

    Waiting for a worker does not count towards `limits`; it takes `queue_s` seconds at most (None: without end).
    `sandbox` holds code back (`tiers.choose`). `table` is the recipe's table of these settings, for errors.
    """

    def __init__(
        self, limits: CodeLimits, sandbox: Sandbox, *, queue_s: float | None = QUEUE_S, table: str = "tools.python"
    ) -> None:
        self.tier: Tier = sandbox.tier
        local = sandbox.tier not in ("arithmetic", "remote")
        self.libraries = find_installed(limits.libraries) if local else ()
        self._limits, self._sandbox, self._queue_s, self._table = limits, sandbox, queue_s, table
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(limits.workers)
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._closed = False

    async def run(self, code: str) -> PythonResult:
        """Run `code` in a new process; returns what it printed and how it ended. Raises as `on_worker`."""
        if self.tier == "arithmetic":
            self._check_open()
            reason, text = answer(code, self._limits.output_limit)
            return PythonResult.of(reason, text, self._limits.output_limit)
        return await self.on_worker(lambda worker: worker.ask(code.encode("utf-8", "surrogatepass")))

    async def on_worker(self, job: Callable[[Worker], Awaitable[T]]) -> T:
        """Run `job` with a worker that nothing else uses meanwhile.

        Raises `SandboxError` if no worker was free in time, it died (`WorkerDied`), or the pool is closed. There is no
        second attempt: code cannot end its worker, so the machine is in trouble; the caller decides what to repeat.
        """
        await self._attach()
        slots = self._slots
        try:
            async with asyncio.timeout(self._queue_s):
                await slots.acquire()
        except TimeoutError as error:
            raise SandboxError(
                f"no Python worker was free within {self._queue_s:g} s",
                code="sandbox-busy",
                fix=f"raise workers in [{self._table}], or lower the rollout's concurrency",
            ) from error
        try:
            worker, finished = await self._take(), False
            try:
                result = await job(worker)
                finished = True
                return result
            except WorkerDied as error:
                raise SandboxError(
                    "a Python worker died in the middle of a call",
                    code="worker-died",
                    fix=f"free some memory, or lower workers in [{self._table}]",
                ) from error
            finally:
                # A job that ends early may leave its worker in the middle of an answer: that worker ends too.
                self._busy.discard(worker)
                if finished and not self._closed:
                    self._idle.append(worker)
                else:
                    await worker.kill()
        finally:
            slots.release()

    async def close(self) -> None:
        """End all workers; calls still waiting raise, and the pool is not used afterwards."""
        self._closed = True
        await self._attach()
        for worker in self._busy:
            # The call that uses it then ends it for good.
            worker.stop()
        idle, self._idle = self._idle, []
        await asyncio.gather(*(worker.kill() for worker in idle))

    async def _attach(self) -> None:
        """Serve the running event loop; end the workers of calls that an earlier loop left unfinished."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._slots = loop, asyncio.Semaphore(self._limits.workers)
            left, self._busy = self._busy, set()
            await asyncio.gather(*(worker.kill() for worker in left))

    async def _take(self) -> Worker:
        """An idle worker that is alive, or a new one, marked busy."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive():
                break
            await worker.kill()
        else:
            self._check_open()
            worker = Worker(self._limits, self.tier, self._sandbox.image, self._table)
        self._busy.add(worker)
        return worker

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError(
                "the Python sandbox is closed", code="sandbox-closed", fix="close tools once the last rollout has ended"
            )
