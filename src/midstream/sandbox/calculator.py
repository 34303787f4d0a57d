"""The worker of tier "arithmetic": `arithmetic.py` in a process of its own, on any system, without fork."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from midstream.core.errors import SandboxError
from midstream.sandbox import arithmetic
from midstream.sandbox.settings import Limits
from midstream.sandbox.worker import WALL_FACTOR, PythonResult, Reason, WorkerDied

KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")  # some interpreters do not start without
START_S = 10.0  # added to the first expression's time


class Calculator:
    """One process that evaluates expressions, one at a time; belongs to no event loop.

    Raises:
        SandboxError: the process could not be started.
    """

    def __init__(self, limits: Limits, table: str) -> None:
        self._timeout_s, self._wall_s = limits.timeout_s, WALL_FACTOR * limits.timeout_s + START_S
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-B", str(Path(arithmetic.__file__)), str(limits.output_limit)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
                encoding="ascii",
            )
        except OSError as error:
            raise SandboxError(
                f"could not start a process for arithmetic: {error}",
                cause="the system is out of processes or memory, or this Python was moved",
                fix=f"free some memory, or run fewer workers ([{table}] workers = 1)",
            ) from error

    async def ask(self, code: bytes) -> PythonResult:
        """Evaluate an expression; one that takes too long ends the process.

        Raises:
            WorkerDied: the process is gone.
        """
        line = json.dumps(code.decode("utf-8", "surrogatepass"))
        exchange = asyncio.create_task(asyncio.to_thread(self._exchange, line))
        try:
            done, _ = await asyncio.wait({exchange}, timeout=self._wall_s)
        finally:
            if not exchange.done():
                self.stop()  # which ends the thread's wait
        if not done:
            await asyncio.gather(exchange, return_exceptions=True)
            return PythonResult(False, f"TimeoutError: not finished after {self._timeout_s:g} s", "timeout")
        reason, text = exchange.result()
        self._wall_s = WALL_FACTOR * self._timeout_s
        return PythonResult(reason == "ok", text, reason)

    def _exchange(self, line: str) -> tuple[Reason, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            reason, text = json.loads(self._process.stdout.readline())
        except (OSError, ValueError) as error:  # ValueError: the end of the stream is no JSON, or it is closed
            raise WorkerDied from error
        return reason, text

    def alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process, and reap it."""
        self._process.kill()
        self._process.wait()

    async def kill(self) -> None:
        """Stop, and close our ends."""
        self.stop()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # what it had not taken yet
                stream.close()
