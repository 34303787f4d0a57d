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
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from midstream.core.errors import SandboxError, UnsupportedError
from midstream.sandbox import arithmetic

Reason = Literal["ok", "raised", "timeout", "output_limit", "memory", "killed"]
Tier = Literal["process", "arithmetic"]
T = TypeVar("T")

REASONS: tuple[Reason, ...] = ("killed", "ok", "raised", "timeout", "output_limit", "memory")  # as in zygote.py
ZYGOTE = Path(__file__).with_name("zygote.py")
GRACE_S = 10.0  # beyond the code's own timeout, which the zygote keeps: then the zygote itself hangs
QUEUE_S = 120.0  # a call waits this long for a worker
WALL_FACTOR = 5  # as in zygote.py, which this process never imports
PLAIN, PROGRAM, READY = 0, 1, b"+"  # as in zygote.py
KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # without them some interpreters do not start


@dataclass(frozen=True, slots=True)
class PythonResult:
    """What code gave back: everything it did wrong is data.

    `text` holds what it printed, then the value of a last expression as a REPL shows it; if it raised, the error and
    the lines that led to it. `reason` says how it ended, `ok` is short for `reason == "ok"`.
    """

    ok: bool
    text: str
    reason: Reason


class WorkerDied(Exception):
    """A zygote is gone or does not answer."""


class Worker:
    """One zygote, in a session of its own, and our end of its socket; belongs to no event loop.

    Whatever ends a run early (an error, a cancellation) must end the worker: it may be in the middle of an answer.
    """

    def __init__(self, timeout_s: float, memory_mb: int, output_limit: int, table: str) -> None:
        self._deadline_s = WALL_FACTOR * timeout_s + GRACE_S
        self._socket, other = socket.socketpair()
        self._socket.setblocking(False)
        command = [sys.executable, "-s", "-S", "-P", "-B", str(ZYGOTE), str(other.fileno())]
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        environment |= {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LD_BIND_NOW": "1"}  # bound now, not in every child
        try:
            self._process = subprocess.Popen(
                [*command, str(timeout_s), str(memory_mb), str(output_limit)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                cwd=os.sep,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            raise SandboxError(
                f"could not start a Python worker with {sys.executable}: {error}",
                cause="the system is out of processes or memory, or this Python was moved",
                mend=f"free some memory, or run fewer workers ([{table}] workers = 1)",
            ) from error
        finally:
            other.close()

    async def ask(self, code: bytes) -> PythonResult:
        """Run `code`."""
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._send(_header(PLAIN, code) + code)
                return await self._receive()
        except (OSError, TimeoutError) as error:
            raise WorkerDied from error

    @asynccontextmanager
    async def start(self, program: bytes) -> AsyncGenerator[socket.socket]:
        """Start a program (JSON, as zygote.py says); gives our end of its channel, until the end of the block.

        By then the program runs: what it took to start the worker is not to be counted as its time.
        """
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            try:
                async with asyncio.timeout(self._deadline_s):
                    with theirs:
                        await self._send(_header(PROGRAM, program))
                        socket.send_fds(self._socket, [b"\0"], [theirs.fileno()])
                    await self._send(program)
                    await asyncio.get_running_loop().sock_recv(ours, len(READY))
            except (OSError, TimeoutError) as error:
                raise WorkerDied from error
            yield ours

    async def result(self) -> PythonResult:
        """How the program that was started ended; waits without end, because only the host knows its clock."""
        try:
            return await self._receive()
        except OSError as error:
            raise WorkerDied from error

    async def _send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def _receive(self) -> PythonResult:
        """Read one answer: reason, length, text."""
        loop, answer = asyncio.get_running_loop(), b""
        while len(answer) < 5 or len(answer) < 5 + int.from_bytes(answer[1:5], "big"):
            piece = await loop.sock_recv(self._socket, 65536)
            if not piece:
                raise ConnectionResetError
            answer += piece
        reason = REASONS[answer[0]]
        return PythonResult(reason == "ok", answer[5:].decode("utf-8", "replace"), reason)

    def alive(self) -> bool:
        """Whether the zygote still holds its end of the socket."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def stop(self) -> None:
        """End the zygote and its children, and reap it; a call that waits for it sees the end of the stream."""
        if self._process.returncode is None:
            # Gone already; macOS says PermissionError of a process that is not reaped yet.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill(self) -> None:
        """Stop, and close our end."""
        self._socket.close()
        self.stop()


def _header(kind: int, code: bytes) -> bytes:
    return bytes([kind]) + len(code).to_bytes(4, "big")


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
