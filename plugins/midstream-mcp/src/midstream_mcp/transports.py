"""Connections to MCP servers by the SDK's transports: a process that is started here, or an address."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR
from pydantic import ValidationError

from midstream.core.errors import RecipeError

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

    from midstream_mcp.tools import McpConfig

# Our own error codes, outside of those that the protocol reserves.
TOO_LONG = -32413  # the reply is larger than `max_reply_mb`
SESSION_LOST = -32414  # the server does not know the session, so it did nothing
STDERR_BYTES = 4096  # kept of the end of a server's standard error
_SESSION = "mcp-session-id"


class ServerOutput:
    """What a server wrote besides messages: the end of its standard error, and a line that was no message."""

    def __init__(self) -> None:
        self._stderr, self._noise = b"", ""

    def collect(self) -> tuple[int, threading.Thread]:
        """Return a file descriptor for a new server's standard error, and the thread that reads its other end."""
        self._stderr, self._noise = b"", ""
        reading, writing = os.pipe()
        reader = threading.Thread(target=self._read, args=(reading,), name="mcp stderr", daemon=True)
        reader.start()
        return writing, reader

    def _read(self, reading: int) -> None:
        with open(reading, "rb", buffering=0) as pipe:
            while piece := pipe.read(1 << 16):
                self._stderr = (self._stderr + piece)[-STDERR_BYTES:]

    async def on_message(self, message: object) -> None:
        """The SDK's callback for notifications, which are ignored, and for lines that it could not parse."""
        if isinstance(message, ValidationError):
            self._noise = str(message.errors()[0]["input"])

    def texts(self) -> tuple[str, str]:
        """(end of the standard error, line that was no message)."""
        return self._stderr.decode("utf-8", "replace").strip(), self._noise.strip()


@asynccontextmanager
async def open_process(
    config: McpConfig, secrets: Mapping[str, str], output: ServerOutput
) -> AsyncGenerator[TransportStreams]:
    """Start the server in its own process group, and end it on exit.

    The SDK closes its input, waits two seconds, and sends SIGTERM and then SIGKILL to the group.
    Raises `RecipeError` if the command cannot be started.
    """
    program, *arguments = config.command
    parameters = StdioServerParameters(
        command=program, args=arguments, env=dict(secrets), cwd=config.cwd, encoding_error_handler="replace"
    )
    async with AsyncExitStack() as stack:
        writing, reader = output.collect()
        # What the server wrote last is still in the pipe when it has ended; a child of it may hold the pipe open.
        stack.callback(reader.join, 0.2)
        with os.fdopen(writing, "w") as stderr:
            try:
                streams = await stack.enter_async_context(stdio_client(parameters, stderr))
            except (OSError, ValueError) as failure:
                raise RecipeError(
                    f"MCP server {program!r} cannot be started: {failure}",
                    code="command-not-found",
                    fix="install it, or give the program's absolute path as the first word of `command`",
                ) from failure
        yield streams


@asynccontextmanager
async def open_address(config: McpConfig, secrets: Mapping[str, str]) -> AsyncGenerator[TransportStreams]:
    """Open the SDK's streamable HTTP transport; nothing is sent yet."""
    headers = {"accept-encoding": "identity"}  # so that the limit holds for what is read
    for header, variable in config.headers_env.items():
        # A bare key for `Authorization` gets the scheme that precedes it.
        bare = header.lower() == "authorization" and " " not in secrets[variable]
        headers[header] = f"Bearer {secrets[variable]}" if bare else secrets[variable]
    async with (
        _Client(config, headers) as client,
        streamable_http_client(config.url, http_client=client, max_sse_event_size=client.limit) as streams,
    ):
        yield streams


class _Client(httpx2.AsyncClient):
    """A client that turns what fails below the protocol into a JSON-RPC error, and reads at most `limit` bytes.

    Without it, one request that fails would end the SDK's session, and with it every call in progress; the SDK's errors
    also lack the HTTP status.
    """

    def __init__(self, config: McpConfig, headers: dict[str, str]) -> None:
        # Calls have their own limit; this one only ends a stream that the server forgot.
        read_timeout_s = max(config.timeout_s, config.connect_timeout_s) + 5
        super().__init__(
            headers=headers,
            timeout=httpx2.Timeout(read_timeout_s, connect=config.connect_timeout_s),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        )
        self.limit = int(config.max_reply_mb * (1 << 20))

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """`httpx2.AsyncClient.send`, with the body already read, except of a redirect or a stream of events."""
        body = bytearray()
        try:
            response = await super().send(request, **options)
            status, headers = response.status_code, response.headers
            events = status < 400 and headers.get("content-type", "").lower().startswith("text/event-stream")
            if headers.get("content-encoding", "identity") != "identity":
                await response.aclose()
                return _error(request, INTERNAL_ERROR, "a compressed body, although none was accepted")
            if response.is_redirect or events:
                return response
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > self.limit:
                    await response.aclose()
                    return _error(request, TOO_LONG, "its reply is longer than max_reply_mb")
        except httpx2.TransportError as failure:
            return _error(request, CONNECTION_CLOSED, f"{type(failure).__name__}: {failure}")
        # Many servers answer 400 with this error where the specification demands 404.
        lost = status == 404 or (status == 400 and str(CONNECTION_CLOSED).encode() in body)
        if lost and _SESSION in request.headers:
            return _error(request, SESSION_LOST, "it does not know the session any more")
        if status >= 400 and b'"jsonrpc"' not in body:
            return _error(request, INTERNAL_ERROR, f"HTTP {status}")
        kept = {name: headers[name] for name in ("content-type", _SESSION) if name in headers}
        return httpx2.Response(status, headers=kept, content=bytes(body), request=request)


def _error(request: httpx2.Request, code: int, text: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": text}}
    return httpx2.Response(502, json=error, request=request)
