"""One worker of the pool: a zygote process (`zygote.py`), and our end of its socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from midstream.core.errors import SandboxError

Reason = Literal["ok", "raised", "timeout", "output_limit", "memory", "killed"]

# As in zygote.py, which this process never imports.
REASONS: tuple[Reason, ...] = ("killed", "ok", "raised", "timeout", "output_limit", "memory")
WALL_FACTOR = 5
PLAIN, PROGRAM, READY = 0, 1, b"+"

ZYGOTE = Path(__file__).with_name("zygote.py")
GRACE_S = 10.0  # beyond the code's own timeout, which the zygote keeps: then the zygote itself hangs
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
