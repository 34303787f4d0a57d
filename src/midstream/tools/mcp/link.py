"""A connection to an MCP server, with limits on what the server may send.

A server is another program, and may be broken or hostile. The SDK's stdio transport buffers a line of any length and
logs lines that are not messages; for every notification and request of a server the SDK starts a task. So a `Link`
stands between the SDK and the server: it bounds a reply's size, drops what was not requested (progress, logs, changed
lists), and answers a call with an error at once if its reply cannot be read, instead of letting it time out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

TOO_LONG = -32413  # our own error code: a reply that was not read because of its size
OPEN_REQUESTS = 16  # requests of the server (sampling and the like) that may wait for their refusal at a time


class Link:
    """A transport for the SDK that knows when it ended, and why. It is opened once.

    A reply of more than `max_reply_mb` is not read.
    """

    def __init__(self, max_reply_mb: float) -> None:
        self.ended = asyncio.Event()  # the server is gone or unusable, or is no longer needed
        self.session_lost = False  # the server does not know the session any more, and did not act on the request
        self._limit, self._fault = int(max_reply_mb * (1 << 20)), ""
        self._open_requests = 0
        self._inbox: MemoryObjectSendStream[SessionMessage | Exception] | None = None

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[TransportStreams]:
        """Connect; the context's value is the pair of streams that the SDK reads and writes."""
        self._inbox, sdk_reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sdk_writes, self._outbox = anyio.create_memory_object_stream[SessionMessage](0)
        with self._inbox, sdk_reads, sdk_writes, self._outbox:
            async with self._connected():
                try:
                    yield sdk_reads, sdk_writes
                finally:
                    self.end()

    def _connected(self) -> AbstractAsyncContextManager[None]:
        """The transport, which calls `_deliver` with messages of the server and sends those of `_outbox`."""
        raise NotImplementedError

    def end(self, fault: str = "") -> None:
        """End the session; `fault` is the reason, if it is the server's."""
        if not self.ended.is_set():
            self._fault = fault
            self.ended.set()
            if self._inbox is not None:
                self._inbox.close()

    def kill(self) -> None:
        """End immediately what is left of the server, from any thread."""

    def diagnostics(self) -> str:
        """What is known about a server that failed."""
        return self._fault

    async def _deliver(self, item: SessionMessage) -> None:
        """Pass a message of the server to the SDK, unless it was not requested."""
        if isinstance(item.message, JSONRPCNotification):
            return
        if isinstance(item.message, JSONRPCRequest):
            # The SDK refuses requests of the server; it gets a few of them at a time.
            if self._open_requests >= OPEN_REQUESTS:
                return
            self._open_requests += 1
        assert self._inbox is not None
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the session has ended
            await self._inbox.send(item)

    def _sent(self, message: JSONRPCMessage) -> None:
        """Note that a message went to the server: an answer makes room for another of its requests."""
        if not isinstance(message, JSONRPCRequest | JSONRPCNotification):
            self._open_requests -= 1

    def _too_long(self, identifier: int | str | None) -> JSONRPCError:
        return error_reply(identifier, TOO_LONG, f"a reply of more than {self._limit / (1 << 20):g} MB")


def error_reply(identifier: int | str | None, code: int, text: str) -> JSONRPCError:
    """The error for the call of that id."""
    return JSONRPCError(jsonrpc="2.0", id=identifier, error=ErrorData(code=code, message=text))
