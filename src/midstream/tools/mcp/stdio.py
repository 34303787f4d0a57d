"""An MCP server as a process that we start and that speaks over its standard input and output.

The process leads its own process group and gets only the environment that its settings name. It is ended in the order
that the protocol prescribes: its input is closed, then SIGTERM, then SIGKILL, each after a short grace and for the
whole group, so that children which hold its pipes end, too. The last bytes of its standard error are kept for errors.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, JSONRPCMessage, jsonrpc_message_adapter

from midstream.core.errors import RecipeError
from midstream.tools.mcp.link import Link, error_reply

if TYPE_CHECKING:
    from midstream.tools.mcp.tools import Config

GRACE_S = 2.0  # for a server to end by itself after its input is closed
TERM_S = 1.0  # and then after SIGTERM
LAST_OUTPUT_S = 0.1  # for output that is still in the pipe when a server ends
STDERR_BYTES = 4096
NOISE_BYTES = 300  # of a line that is not a message, kept for the error

_EDGE = 512  # bytes kept of both ends of a line that is too long
_ID = rb'"id"\s*:\s*(\d{1,18})'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID_FIRST = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*,")
_ID_LAST = re.compile(_ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*\Z")


class _Process(asyncio.subprocess.SubprocessStreamProtocol):
    """A process with streams, which reports its exit and the end of its input while children still hold its pipes."""

    def __init__(self, link: StdioLink) -> None:
        self._running_loop = asyncio.get_running_loop()
        super().__init__(limit=1 << 18, loop=self._running_loop)
        self.exited = asyncio.Event()
        self._link = link

    def process_exited(self) -> None:
        """The event loop's callback."""
        super().process_exited()
        self.exited.set()
        self._running_loop.call_later(LAST_OUTPUT_S, self._link.end)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """The event loop's callback."""
        super().pipe_connection_lost(fd, exc)
        if fd == 0:
            self._running_loop.call_later(LAST_OUTPUT_S, self._link.end, "it closed its input")


class StdioLink(Link):
    """A link to a process.

    Args:
        config: its settings.
        environment: all of its environment.
    """

    def __init__(self, config: Config, environment: dict[str, str]) -> None:
        super().__init__(config.max_reply_mb)
        self._command, self._cwd, self._environment = config.command, config.cwd, environment
        self._stderr, self._noise, self._signaled = b"", b"", False
        self._transport: asyncio.SubprocessTransport | None = None

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[None]:
        """Start the process; it is ended when the context exits, in at most `GRACE_S` and twice `TERM_S`.

        Raises:
            RecipeError: the command cannot be started.
        """

        async def keep_stderr(stderr: asyncio.StreamReader) -> None:
            while piece := await stderr.read(1 << 16):
                self._stderr = (self._stderr + piece)[-STDERR_BYTES:]

        async def send(stdin: asyncio.StreamWriter) -> None:
            async for item in self._outbox:
                if not stdin.is_closing():  # else the end of the process or of its input is reported soon
                    stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                    with suppress(ConnectionError):
                        await stdin.drain()
                self._sent(item.message)

        try:
            self._transport, process = await asyncio.get_running_loop().subprocess_exec(
                lambda: _Process(self),
                *self._command,
                cwd=self._cwd and str(self._cwd),
                env=self._environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as failure:
            raise RecipeError(
                f"MCP server {self._command[0]!r} cannot be started: {failure}",
                code="command-not-found",
                cause="it is not installed, not on PATH, or `cwd` is missing",
                fix="install it, or give the program's absolute path as the first word of `command`",
            ) from failure
        assert process.stdin
        assert process.stdout
        assert process.stderr
        jobs = (self._read(process.stdout), send(process.stdin), keep_stderr(process.stderr))
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            yield
        finally:
            try:
                process.stdin.close()
                if not await _within(GRACE_S, process.exited):
                    self._signaled = True
                    self._signal(signal.SIGTERM)
                    await _within(TERM_S, process.exited)
            finally:
                self.kill()
                await _within(TERM_S, process.exited)  # reaped before the transport is closed, which would look for it
                self._transport.close()
                for task in tasks:
                    task.cancel()

    def kill(self) -> None:
        """End everything that is left of the process group."""
        self._signal(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._transport is None:
            return
        with suppress(ProcessLookupError, PermissionError):  # gone; on macOS, not reaped yet
            if hasattr(os, "killpg"):
                os.killpg(self._transport.get_pid(), number)
            else:
                self._transport.kill()

    def diagnostics(self) -> str:
        """The reason, the exit code, and the last output that was not a message."""
        code = self._transport.get_returncode() if self._transport else None
        ending = f"it ended with exit code {code}" if code and not self._signaled else ""
        stderr, noise = (piece.decode("utf-8", "replace").strip() for piece in (self._stderr[-600:], self._noise))
        parts = (self._fault, ending, stderr and f"its standard error ends: {stderr}", noise and f"no message: {noise}")
        return "; ".join(part for part in parts if part)

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        """Deliver the server's messages until its output ends."""
        async for line, whole in lines_of(stdout, self._limit):
            messages = messages_of(line) if whole else [self._too_long(found) for found in call_of(line)]
            if not messages and line.strip():
                self._noise = line[:NOISE_BYTES]
            for message in messages:
                await self._deliver(SessionMessage(message))
            if self.ended.is_set():
                return
        self.end("it closed its output")


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Whether an event happens within so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def lines_of(stream: asyncio.StreamReader, limit: int) -> AsyncIterator[tuple[bytes, bool]]:
    """(line, whether it is whole) of every line. Of one with more than `limit` bytes only both ends are kept."""
    kept, size = bytearray(), 0
    while True:
        try:
            piece, complete = await stream.readuntil(b"\n"), True
        except asyncio.LimitOverrunError as overrun:  # a part of a line that fills the stream's buffer
            piece, complete = await stream.readexactly(overrun.consumed), False
        except asyncio.IncompleteReadError:
            return
        kept += piece
        size += len(piece)
        if size > limit:
            del kept[_EDGE : max(_EDGE, len(kept) - _EDGE)]
        if complete:
            yield bytes(kept), size <= limit
            kept, size = bytearray(), 0


def messages_of(line: bytes) -> list[JSONRPCMessage]:
    """The messages in a line: one, those of a batch, or none if it is not a message.

    Invalid UTF-8, and half of a surrogate pair (from `slice` in JavaScript), becomes "?". A reply that is not JSON-RPC
    becomes an error for its call.
    """
    try:
        return [jsonrpc_message_adapter.validate_json(line, by_name=False)]
    except ValueError:
        pass
    try:
        found: Any = json.loads(line.decode("utf-8", "replace"))
        items = found if isinstance(found, list) else [found]
        texts = [json.dumps(item, ensure_ascii=False).encode("utf-8", "replace") for item in items]
    except (ValueError, RecursionError):
        texts = [line]
    messages: list[JSONRPCMessage] = []
    for text in texts:
        try:
            messages.append(jsonrpc_message_adapter.validate_json(text, by_name=False))
        except ValueError:
            what = f"a reply that is not JSON-RPC: {text[:200].decode('utf-8', 'replace')}"
            messages += [error_reply(identifier, PARSE_ERROR, what) for identifier in call_of(text)]
    return messages


def call_of(line: bytes) -> list[int]:
    """The id of the call that a line answers, if it is at one of the line's ends."""
    match = _ID_FIRST.match(line) or _ID_LAST.search(line, max(0, len(line) - _EDGE))
    return [int(match[1])] if match else []
