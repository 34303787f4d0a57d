"""An MCP server at an address (streamable HTTP): the SDK's transport with a client that enforces limits.

A request that fails below the protocol (no connection, HTTP 500, a body that breaks off) becomes a JSON-RPC error for
that one call. Without this the SDK would end the session, and with it every call in progress. The SDK limits the events
of a stream, but neither a JSON body nor the decompressed size.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError

from midstream.tools.mcp.link import Link

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import ReadStream, WriteStream

    from midstream.tools.mcp.tools import Config

CLOSE_S = 2.0  # for the request that closes the session
_SESSION = "mcp-session-id"
_JSON = {"content-type": "application/json"}
_ERROR_BYTES = 65536  # of the body of a refusal


class _BodyError(httpx2.StreamError):
    """A body that is too long or broke off. The SDK turns it into an error of the call."""


class _Bounded(httpx2.AsyncByteStream):
    """A body of at most `limit` bytes; `on_excess` is called before a longer one is abandoned."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, on_excess: Callable[[], None]) -> None:
        self._stream, self._limit, self._on_excess = stream, limit, on_excess

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async with aclosing(cast(AsyncGenerator[bytes], self._stream.__aiter__())) as pieces:
                async for piece in pieces:
                    size += len(piece)
                    if size > self._limit:
                        self._on_excess()
                        raise _BodyError("too long")
                    yield piece
        except httpx2.TransportError as failure:
            raise _BodyError(f"{type(failure).__name__}: {failure}") from failure

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Client(httpx2.AsyncClient):
    """A client for the SDK: bodies are bounded and not compressed, and every POST gets a response."""

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
        if request.method == "DELETE":  # closes the session; nobody waits for it
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), CLOSE_S)
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as failure:
            if not posted:
                raise
            return _refusal(request, 502, f"{type(failure).__name__}: {failure}")
        compressed = response.headers.get("content-encoding", "identity") != "identity"
        if posted and (compressed or response.status_code >= 400):
            return await self._refused(request, response, "a compressed body" if compressed else "")
        if posted and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream, self._limit, lambda: self._link.too_long(request))
        return response

    async def _refused(self, request: httpx2.Request, response: httpx2.Response, why: str) -> httpx2.Response:
        """The server's own JSON-RPC error, or one that names the status."""
        body, in_session = b"", _SESSION in request.headers
        self._link.session_lost |= response.status_code == 404 and in_session
        try:
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > _ERROR_BYTES:
                    break
            message = jsonrpc_message_adapter.validate_json(body, by_name=False)
            if not why and isinstance(message, JSONRPCError):
                # Some servers answer this for an unknown session, instead of 404.
                self._link.session_lost |= in_session and message.error.code == CONNECTION_CLOSED
                return httpx2.Response(response.status_code, headers=_JSON, content=body, request=request)
        except (httpx2.TransportError, ValidationError):
            pass  # the status is enough
        finally:
            await response.aclose()
        return _refusal(request, max(response.status_code, 400), why or f"HTTP {response.status_code}")


def _refusal(request: httpx2.Request, status: int, text: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": CONNECTION_CLOSED, "message": text}}
    return httpx2.Response(status, headers=_JSON, content=json.dumps(error).encode(), request=request)


class HttpLink(Link):
    """A link to a server at an address.

    Args:
        config: its settings.
        headers: sent with every request.
    """

    def __init__(self, config: Config, headers: Mapping[str, str]) -> None:
        super().__init__(config.max_reply_mb)
        self._url = config.url
        # Calls have their own limit; this one only ends a stream that the server forgot.
        read_timeout_s = max(config.timeout_s, config.connect_timeout_s) + 5
        timeout = httpx2.Timeout(read_timeout_s, connect=config.connect_timeout_s)
        self._client = _Client(self, headers, self._limit, timeout)
        self._replies_too_long: set[int | str] = set()

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[None]:
        """Open the SDK's transport; nothing is sent yet."""

        async def receive(read: ReadStream[SessionMessage | Exception]) -> None:
            async for item in read:
                if isinstance(item, Exception) or self.ended.is_set():
                    continue
                message = item.message
                if isinstance(message, JSONRPCError) and message.id in self._replies_too_long:
                    self._replies_too_long.discard(message.id)
                    item = SessionMessage(self._too_long(message.id), item.metadata)  # replaces the SDK's parse error
                await self._deliver(item)

        async def send(write: WriteStream[SessionMessage]) -> None:
            async for item in self._outbox:
                await write.send(item)
                self._sent(item.message)

        transport = streamable_http_client(self._url, http_client=self._client, max_sse_event_size=self._limit)
        async with self._client, transport as (read, write):
            tasks = [asyncio.create_task(receive(read)), asyncio.create_task(send(write))]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    def too_long(self, request: httpx2.Request) -> None:
        """Note that the reply to this request was abandoned because of its size."""
        self._replies_too_long.add(json.loads(request.content).get("id"))
