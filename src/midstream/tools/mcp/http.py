"""An MCP server at an address (streamable HTTP): the SDK's transport over a client that keeps to limits.

A request that fails below the protocol (no connection, HTTP 500, a body that breaks off) becomes a JSON-RPC error for
that one call. Left to itself the SDK would end the session, and with it every call that is under way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, cast

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter
from pydantic import ValidationError

from midstream.tools.mcp.wire import TOO_LONG, Flood, Gate, Inbox, Outbox

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.shared._stream_protocols import ReadStream, WriteStream

FAREWELL_S = 2.0
_SESSION = "mcp-session-id"
_JSON = {"content-type": "application/json"}
_ERROR_BYTES = 65536  # of the body of a refusal


class _Broken(httpx2.StreamError):
    """A body that cannot be read on: too long, or cut off. The SDK turns it into an error of the call."""


class _Bounded(httpx2.AsyncByteStream):
    """A body of at most `limit` bytes; `on_excess` is told before a longer one is given up."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, on_excess: Any) -> None:
        self._stream, self._limit, self._on_excess = stream, limit, on_excess

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async with aclosing(cast(AsyncGenerator[bytes], self._stream.__aiter__())) as pieces:
                async for piece in pieces:
                    size += len(piece)
                    if size > self._limit:
                        self._on_excess()
                        raise _Broken("too long")
                    yield piece
        except httpx2.TransportError as failure:
            raise _Broken(f"{type(failure).__name__}: {failure}") from failure

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Client(httpx2.AsyncClient):
    """A client for the SDK: bodies are bounded and not compressed, a POST always has an answer."""

    def __init__(self, link: HttpLink, headers: Mapping[str, str], limit: int, timeout: httpx2.Timeout) -> None:
        super().__init__(
            headers={**headers, "accept-encoding": "identity"},
            timeout=timeout,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        )
        self._link, self._limit = link, limit

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """`httpx2.AsyncClient.send` within the limits."""
        posted = request.method == "POST"
        if request.method == "DELETE":  # the farewell, which nobody waits for
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), FAREWELL_S)
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as failure:
            if not posted:
                raise
            return _refusal(request, 502, f"{type(failure).__name__}: {failure}")
        packed = response.headers.get("content-encoding", "identity") != "identity"
        if posted and (packed or response.status_code >= 400):
            return await self._refused(request, response, "a compressed body" if packed else "")
        if posted and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream, self._limit, lambda: self._link.too_long(request))
        return response

    async def _refused(self, request: httpx2.Request, response: httpx2.Response, why: str) -> httpx2.Response:
        """The server's own JSON-RPC error, or one that says the status."""
        body, in_session = b"", _SESSION in request.headers
        self._link.session_lost |= response.status_code == 404 and in_session
        try:
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > _ERROR_BYTES:
                    break
            message = jsonrpc_message_adapter.validate_json(body, by_name=False)
            if not why and isinstance(message, JSONRPCError):
                # Some servers say so of a session that they do not know, instead of 404.
                self._link.session_lost |= in_session and message.error.code == CONNECTION_CLOSED
                return httpx2.Response(response.status_code, headers=_JSON, content=body, request=request)
        except (httpx2.TransportError, ValidationError):
            pass  # the status says enough
        finally:
            await response.aclose()
        return _refusal(request, max(response.status_code, 400), why or f"HTTP {response.status_code}")


def _refusal(request: httpx2.Request, status: int, text: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": CONNECTION_CLOSED, "message": text}}
    return httpx2.Response(status, headers=_JSON, content=json.dumps(error).encode(), request=request)


class HttpLink:
    """A transport as the SDK wants it: `async with link as (read, write)`. It serves once.

    Args:
        url: the server's address.
        headers: sent with every request.
        limit: bytes of a reply that are read at most.
        connect_timeout_s: for a connection.
        read_timeout_s: for the next bytes of an answer.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], limit: int, *, connect_timeout_s: float, read_timeout_s: float
    ) -> None:
        self.ended = asyncio.Event()  # it is gone or unusable, or we want it no more
        self.session_lost = False  # the server knows our session no more, and did nothing
        self._url, self._limit = url, limit
        timeout = httpx2.Timeout(read_timeout_s, connect=connect_timeout_s)
        self._client = _Client(self, headers, limit, timeout)
        self._stack = AsyncExitStack()
        self._too_long: set[Any] = set()
        self._fault = ""

    async def __aenter__(self) -> TransportStreams:
        await self._stack.enter_async_context(self._client)
        transport = streamable_http_client(self._url, http_client=self._client, max_sse_event_size=self._limit)
        read, write = await self._stack.enter_async_context(transport)
        return self._watched(read, write)

    async def __aexit__(self, *exception: Any) -> bool | None:
        self.end("")
        return await self._stack.__aexit__(*exception)

    def _watched(
        self, read: ReadStream[SessionMessage | Exception], write: WriteStream[SessionMessage]
    ) -> TransportStreams:
        """The SDK's streams, with a gate before them."""
        gate = Gate()

        async def receive() -> SessionMessage | None:
            try:
                async for item in read:
                    if not isinstance(item, Exception) and gate.admit(item.message):
                        return SessionMessage(self._named(item.message), item.metadata)
            except Flood as flood:
                self.end(f"it sends {flood}")
            return None

        async def send(item: SessionMessage) -> None:
            await write.send(item)
            gate.sent(item.message)

        return Inbox(receive), Outbox(send)

    def kill(self) -> None:
        """Nothing of ours is left to end."""

    def end(self, fault: str) -> None:
        """The link is of no more use; `fault` says why, if there is a reason."""
        self._fault = self._fault or fault
        self.ended.set()

    def story(self) -> str:
        """What is known of a server that fails."""
        return self._fault

    def too_long(self, request: httpx2.Request) -> None:
        """The reply to this request was given up because of its size."""
        self._too_long.add(json.loads(request.content).get("id"))

    def _named(self, message: JSONRPCMessage) -> JSONRPCMessage:
        """`message`, or, if it is the SDK's error for a reply that was too long, one that says so."""
        if not isinstance(message, JSONRPCError) or message.id not in self._too_long:
            return message
        self._too_long.discard(message.id)
        text = f"a reply of more than {self._limit / (1 << 20):g} MB"
        return JSONRPCError(jsonrpc="2.0", id=message.id, error=ErrorData(code=TOO_LONG, message=text))
