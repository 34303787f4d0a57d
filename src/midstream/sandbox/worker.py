"""One worker of the pool: a zygote process (`inside/zygote.py`), and the host's end of its input and output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypedDict, cast

from midstream.components.component import Tier
from midstream.core.errors import SandboxError
from midstream.sandbox.inside import scratch
from midstream.sandbox.inside.running import ERROR_LIMIT, PLAIN, PROGRAM, READY, REASONS, WALL_FACTOR
from midstream.sandbox.launch import launch
from midstream.sandbox.settings import CodeLimits

Reason = Literal["ok", "raised", "timeout", "output_limit", "memory", "disk", "killed"]

# An interpreter, a sandbox, and the libraries that it imports before any code comes.
START_S = 60.0
# How long a zygote has to end a child, empty its scratch directory and exit.
SHUTDOWN_S = 1.0
# Bytes of an answer: no `output_limit` allows more.
LARGEST = 8 << 20
# Tries to remove a scratch directory, 10 ms apart.
REMOVALS = 100
# A zygote hangs if it takes longer than its code may, `CLEANING` times over, plus `GRACE_S`.
# Emptying the scratch directory takes at most this many times as long as filling it.
CLEANING = 4
GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class PythonResult:
    """The result of code; everything that the code did wrong is data.

    `text` holds what it printed, then the value of a last expression as a REPL shows it; if it raised, the error and
    the lines that led to it. `reason` says how it ended, "ok" without an error.
    """

    text: str
    reason: Reason

    @classmethod
    def of(cls, reason: Reason, text: str, output_limit: int) -> PythonResult:
        """The result of that reason; the text of one that printed too much is cut, and marked as cut."""
        if reason == "output_limit":
            text = f"{text[:output_limit]}\n[output cut after {output_limit} characters]"
        return cls(text, reason)

    @property
    def usable(self) -> bool:
        """Whether the text answers: the code ran to its end, or was stopped because it printed too much."""
        return self.reason in ("ok", "output_limit")


class Hello(TypedDict):
    """A zygote's first answer (`inside.zygote`)."""

    libraries: list[str]
    landlock: int
    calls: int
    namespaces: bool


class WorkerDied(Exception):
    """A zygote is gone or does not answer."""


async def receive(end: socket.socket, size: int) -> bytes | None:
    """Read exactly `size` bytes; None if the other end closes the stream first."""
    data = bytearray()
    while len(data) < size:
        try:
            piece = await asyncio.get_running_loop().sock_recv(end, min(size - len(data), 65536))
        except OSError:
            piece = b""
        if not piece:
            return None
        data += piece
    return bytes(data)


class Worker:
    """One zygote, in a new session, and the host's end of its socket; not bound to an event loop.

    After anything that ends a run early (an error, a cancellation) the caller must end the worker, which may be in the
    middle of an answer. `image` is that of tier "remote", `table` the recipe's table of the limits, for errors. Raises
    `SandboxError` if the process could not be started (`ready` finds out whether it works), and `UnsupportedError` if
    what the tier needs is not installed.
    """

    def __init__(self, limits: CodeLimits, tier: Tier, image: str, table: str) -> None:
        self._deadline_s = CLEANING * WALL_FACTOR * limits.timeout_s + GRACE_S
        self._tier, self._table, self._output_limit = tier, table, limits.output_limit
        self._hello: Hello | None = None
        self._scratch = ""
        self._socket, other = socket.socketpair()
        self._socket.setblocking(False)
        try:
            start = launch(tier, limits, image)
            self._scratch = start.scratch
            self._process = subprocess.Popen(
                start.command,
                stdin=other.fileno(),
                stdout=other.fileno(),
                stderr=subprocess.PIPE,
                cwd=os.sep,
                env=start.environment,
                start_new_session=True,
            )
        except BaseException as error:
            self._socket.close()
            self._remove_scratch()
            if not isinstance(error, OSError):
                raise
            raise SandboxError(
                f"could not start a Python worker: {error}",
                code="worker-not-started",
                fix=f"free some memory, or run fewer workers ([{table}] workers = 1)",
            ) from error
        finally:
            other.close()

    async def ready(self) -> Hello:
        """Wait for the zygote; returns its hello. Raises `SandboxError` if it did not start."""
        if self._hello is None:
            try:
                async with asyncio.timeout(START_S):
                    self._hello = json.loads((await self._frame())[1])
            except (WorkerDied, TimeoutError, ValueError) as error:
                # A `ValueError`: some other program wrote no JSON.
                raise self._no_start(error) from error
            assert self._process.stderr is not None
            self._process.stderr.close()
        assert self._hello is not None
        return self._hello

    def _no_start(self, error: Exception) -> SandboxError:
        """The error of a worker that did not start: its last line on stderr, or that it was silent for too long."""
        self.stop()
        self._process.wait()
        assert self._process.stderr is not None
        # Somebody else may hold its other end.
        os.set_blocking(self._process.stderr.fileno(), False)
        lines = (self._process.stderr.read() or b"").decode("utf-8", "replace").strip().splitlines()
        # Docker's last line is advice.
        lines = [line for line in lines if line.strip() and "--help" not in line]
        said = lines[-1] if lines else f"it ended with exit code {self._process.returncode}"
        late = isinstance(error, TimeoutError)
        return SandboxError(
            f"a Python worker ({self._tier}) did not start" + (f" within {START_S:g} s" if late else f": {said[:500]}"),
            code="worker-not-started",
            fix=f"run midstream doctor to see what the sandbox lacks; or shorten `libraries` in [{self._table}]",
        )

    async def ask(self, code: bytes) -> PythonResult:
        """Run `code`. Raises `WorkerDied` if the worker is gone or does not answer, `SandboxError` as `ready`."""
        await self.ready()
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._send(_header(PLAIN, code) + code)
                return await self.result()
        except (OSError, TimeoutError) as error:
            raise WorkerDied from error

    @asynccontextmanager
    async def start(self, program: bytes) -> AsyncGenerator[socket.socket]:
        """Start a program (JSON, as in zygote.py); yields the host's end of its channel until the end of the block.

        The program runs by then: the time to start the worker does not count as its time.
        """
        await self.ready()
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

    async def _send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def result(self) -> PythonResult:
        """Read one answer; of a started program the caller keeps the clock. Raises as `_frame`.

        Code runs in the process that writes the answer, so the text may be longer than code is allowed to print.
        """
        reason, text = await self._frame()
        limit = self._output_limit
        if len(text) > limit + (0 if reason == "ok" else 1 + ERROR_LIMIT):
            reason = "output_limit"
        return PythonResult.of(reason, text, limit)

    async def _frame(self) -> tuple[Reason, str]:
        """Read a reason, a length, a text. Raises `WorkerDied` if they end early or no zygote wrote them."""
        head = await receive(self._socket, 5)
        if head is None or head[0] >= len(REASONS) or int.from_bytes(head[1:], "big") > LARGEST:
            raise WorkerDied
        text = await receive(self._socket, int.from_bytes(head[1:], "big"))
        if text is None:
            raise WorkerDied
        return cast(Reason, REASONS[head[0]]), text.decode("utf-8", "replace")

    def alive(self) -> bool:
        """Whether the zygote still holds its end of the socket."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def stop(self) -> None:
        """End the zygote and its children at once; a call that waits for it sees the end of the stream."""
        if self._process.returncode is None:
            # It may have ended already; macOS then raises PermissionError for a process that is not reaped yet.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """Close the host's end, so that the zygote cleans up and exits; stop it if it does not.

        Runs in a thread, which a cancellation does not end: the code's files may take seconds to remove.
        """
        self._socket.close()
        await asyncio.to_thread(self._end_process)

    def _end_process(self) -> None:
        """Wait for the process to end, reap it, and remove its scratch directory."""
        until = time.monotonic() + SHUTDOWN_S
        # WNOWAIT does not reap the process, so that its id stays valid as its group's for `stop`.
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < until:
                if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    break
                time.sleep(0.001)
        self.stop()
        self._process.wait()
        self._remove_scratch()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _remove_scratch(self) -> None:
        """Remove the host's scratch directory; a child that was just killed may still be in its last system call."""
        for _ in range(REMOVALS if self._scratch else 0):
            try:
                scratch.remove(self._scratch)
            except OSError:
                time.sleep(0.01)
            else:
                self._scratch = ""
                return


def _header(kind: int, code: bytes) -> bytes:
    return bytes([kind]) + len(code).to_bytes(4, "big")
