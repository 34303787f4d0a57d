"""An MCP server as a process of ours that speaks over its standard input and output.

The process leads a group of its own and gets only the environment it was promised. It ends in the order that the
protocol asks for: its input is closed, then SIGTERM, then SIGKILL, each after a short grace and for the whole group,
so that children which hold its pipes go too. What it writes to standard error is kept to its last bytes, for errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from anyio import BrokenResourceError
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage

from midstream.core.errors import RecipeError
from midstream.tools.mcp.wire import (
    NOISE_BYTES,
    TOO_LONG,
    Flood,
    Gate,
    Inbox,
    LineBuffer,
    Outbox,
    failures,
    messages_of,
)

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

GRACE_S = 2.0  # for a server to end by itself once its input is closed
TERM_S = 1.0  # and then after SIGTERM
STDERR_BYTES = 4096
UNREAD_BYTES = 16 << 20  # of what the server is sent and does not read
_MANY, _FEW = 64, 16  # messages waiting for the SDK: its output is not read, read again


class StdioLink(asyncio.SubprocessProtocol):
    """A transport as the SDK wants it: `async with link as (read, write)`. It serves once.

    Args:
        command: the program and its arguments.
        cwd: its working directory, or ours.
        environment: all of its environment.
        limit: bytes of a line that are read at most.

    Raises:
        RecipeError: the command cannot be started.
    """

    def __init__(self, command: Sequence[str], cwd: Path | None, environment: Mapping[str, str], limit: int) -> None:
        self.ended = asyncio.Event()  # it is gone or unusable, or we want it no more
        self.session_lost = False
        self._command, self._cwd, self._environment = command, cwd, environment
        self._limit, self._lines, self._gate = limit, LineBuffer(limit), Gate()
        self._messages: asyncio.Queue[JSONRPCMessage | None] = asyncio.Queue()
        self._exited = asyncio.Event()
        self._stderr, self._noise, self._fault, self._by_us = b"", b"", "", False
        self._transport: asyncio.SubprocessTransport | None = None

    async def __aenter__(self) -> TransportStreams:
        try:
            self._transport, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                *self._command,
                cwd=self._cwd and str(self._cwd),
                env=dict(self._environment),
                start_new_session=True,
            )
        except (OSError, ValueError) as failure:
            raise RecipeError(
                f"MCP server {self._command[0]!r} cannot be started: {failure}",
                cause="it is not installed, not on PATH, or `cwd` is missing",
                fix="install it, or give the program's whole path as the first word of `command`",
            ) from failure
        return Inbox(self._receive), Outbox(self._send)

    async def __aexit__(self, *exception: object) -> None:
        """End the process and its group, in at most `GRACE_S` and twice `TERM_S`."""
        self.end("")
        assert self._transport is not None
        try:
            if stdin := self._transport.get_pipe_transport(0):
                stdin.close()
            if not await self._exits_within(GRACE_S):
                self._by_us = True
                self._signal(signal.SIGTERM)
                await self._exits_within(TERM_S)
        finally:
            self.kill()
            await self._exits_within(TERM_S)  # reaped before the transport is closed, which would look for it
            self._transport.close()

    async def _exits_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._exited.wait()
        return self._exited.is_set()

    def kill(self) -> None:
        """End whatever is left of the group, at once."""
        self._signal(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._transport is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # gone; macOS, where it is not reaped yet
            if hasattr(os, "killpg"):
                os.killpg(self._transport.get_pid(), number)
            else:
                self._transport.kill()

    def end(self, fault: str) -> None:
        """No more messages come; `fault` says why, "" if it is for the process to say."""
        if not self.ended.is_set():
            self._fault = fault
            self.ended.set()
            self._messages.put_nowait(None)

    def story(self) -> str:
        """What is known of a server that fails: how it ended, what it wrote beside messages."""
        code = self._transport.get_returncode() if self._transport else None
        ending = f"it ended with exit code {code}" if code and not self._by_us else ""
        stderr, noise = (piece.decode("utf-8", "replace").strip() for piece in (self._stderr[-600:], self._noise))
        parts = (self._fault, ending, stderr and f"its standard error ends: {stderr}", noise and f"no message: {noise}")
        return "; ".join(part for part in parts if part)

    # --- between process and SDK --------------------------------------------------------------------------------------

    async def _receive(self) -> SessionMessage | None:
        message = await self._messages.get()
        if self._messages.qsize() == _FEW:
            self._stdout().resume_reading()
        return None if message is None else SessionMessage(message)

    async def _send(self, item: SessionMessage) -> None:
        """What is not taken at once waits in the pipe's buffer; raises anyio's error for a peer that is gone."""
        if self.ended.is_set():
            raise BrokenResourceError
        message = item.message
        assert self._transport is not None
        stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        if not stdin.is_closing():  # else nobody reads it, and the end that follows says so
            stdin.write(message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        self._gate.sent(message)
        if stdin.get_write_buffer_size() > UNREAD_BYTES:
            self.end("it does not read its input")

    def _stdout(self) -> asyncio.ReadTransport:
        assert self._transport is not None
        return cast(asyncio.ReadTransport, self._transport.get_pipe_transport(1))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """The event loop's: bytes from standard output (1) or standard error (2)."""
        if fd == 2:
            self._stderr = (self._stderr + data[-STDERR_BYTES:])[-STDERR_BYTES:]
            return
        if self.ended.is_set():
            return
        try:
            for line, whole in self._lines.feed(data):
                self._take(line, whole)
        except Flood as flood:
            self.end(f"it sends {flood}")
        if self._messages.qsize() >= _MANY:
            self._stdout().pause_reading()

    def _take(self, line: bytes, whole: bool) -> None:
        if whole:
            messages = messages_of(line)
        else:
            messages = failures(line, TOO_LONG, f"a reply of more than {self._limit / (1 << 20):g} MB")
        if not messages and line.strip():
            self._noise = line[:NOISE_BYTES]
        for message in messages:
            if self._gate.admit(message):
                self._messages.put_nowait(message)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """The event loop's: the server closed a pipe."""
        if fd == 0:
            self._end_soon("it closed its input")
        elif fd == 1:
            self.end("it closed its output")

    def process_exited(self) -> None:
        """The event loop's: the server ended. Children of its own may still hold its pipes."""
        self._exited.set()
        self._end_soon("")

    def _end_soon(self, fault: str) -> None:
        """The end, after what the server wrote last and is still in the pipe."""
        asyncio.get_running_loop().call_later(0.1, self.end, fault)
