"""Connections to MCP servers, processes or addresses, with limits on what a server may send.

A server is another program, and may be broken or hostile. The SDK's stdio transport buffers a line of any length and
logs lines that are not messages; its HTTP transport limits the events of a stream, but neither a JSON body nor the
decompressed size; and it starts a task for every notification and request of a server. So a `Link` stands between the
SDK and the server: it bounds a reply's size, drops what was not requested (progress, logs, changed lists) and ends the
session if that is a flood, and answers a call with an error at once if its reply cannot be read, instead of letting it
time out.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from midstream.core.errors import RecipeError

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.shared._stream_protocols import ReadStream, WriteStream

    from midstream.tools.mcp.tools import McpConfig

TOO_LONG = -32413  # our own error code: a reply that was not read because of its size
OPEN_REQUESTS = 16  # requests of the server (sampling and the like) that may wait for their refusal at a time
GRACE_S = 2.0  # for a server to end by itself after its input is closed
TERM_S = 1.0  # and then after SIGTERM
LAST_OUTPUT_S = 0.1  # for output that is still in the pipe when a server ends
STDERR_BYTES = 4096
STDERR_PAUSE_S = 0.001  # after each piece: a server that writes without an end waits, and not this thread
FLOOD_BYTES = 16 << 20  # that no request asked for, since the last one, end the session
LEAST_BYTES = 256  # that a line, piece or message counts as: its cost is not its length
ENDLESS_BYTES = 1 << 29  # of one line
STDERR_SHOWN = 600  # characters of it in an error
NOISE_SHOWN = 300  # and of a line that is not a message

_EDGE = 512  # bytes kept of both ends of a line that is too long
_ID = rb'"id"\s*:\s*(\d{1,18})'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID_FIRST = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*,")
_ID_LAST = re.compile(_ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*\Z")
CLOSE_S = 2.0  # for the request that closes the session
_SESSION = "mcp-session-id"
_JSON = {"content-type": "application/json"}
_LEAST_PIECE = 64  # bytes that a piece of a reply counts as
_ERROR_BYTES = 65536  # of the body of a refusal


class Link:
    """A transport for the SDK, opened once; knows when it ended, and why. A reply over `max_reply_mb` is not read.

    `hide` replaces the keys that the server was given, in everything that it sends: descriptions, schemas, results,
    errors, its own name, what it writes to standard error.
    """

    def __init__(self, max_reply_mb: float, hide: Callable[[str], str]) -> None:
        self.ended = asyncio.Event()  # the server is gone or unusable, or is no longer needed
        self.session_lost = False  # the server does not know the session any more, and did not act on the request
        self.flooded = False
        self._pending: set[int | str] = set()  # our requests without a reply
        self._unasked = 0  # bytes that answer none of them
        self._limit, self._fault, self._hide = int(max_reply_mb * (1 << 20)), "", hide
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
        if isinstance(item.message, JSONRPCResponse | JSONRPCError) and item.message.id in self._pending:
            self._pending.discard(item.message.id)
        elif not self.fits(0):
            return
        if isinstance(item.message, JSONRPCNotification):
            return
        if isinstance(item.message, JSONRPCRequest):
            # The SDK refuses requests of the server; it gets a few of them at a time.
            if self._open_requests >= OPEN_REQUESTS:
                return
            self._open_requests += 1
        elif isinstance(item.message, JSONRPCResponse):
            item.message.result = self._hidden(item.message.result)
        else:
            item.message.error.message = self._hide(item.message.error.message)
        assert self._inbox is not None
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the session has ended
            await self._inbox.send(item)

    def _hidden(self, value: Any) -> Any:
        """A JSON value with the keys hidden in each of its strings."""
        if isinstance(value, str):
            return self._hide(value)
        if isinstance(value, list):
            return [self._hidden(item) for item in value]
        return (
            {self._hide(name): self._hidden(item) for name, item in value.items()} if isinstance(value, dict) else value
        )

    def fits(self, size: int) -> bool:
        """Count what no request asked for; a flood of it ends the session."""
        self._unasked += max(size, LEAST_BYTES)
        if self._unasked > FLOOD_BYTES:
            self.flooded = True
            self.end(f"it sent more than {FLOOD_BYTES >> 20} MB that no request asked for")
        return not self.flooded

    def _sent(self, message: JSONRPCMessage) -> None:
        """Note that a message went to the server: an answer makes room for another of its requests."""
        if isinstance(message, JSONRPCRequest):
            self._unasked = 0
            self._pending.add(message.id)
        elif not isinstance(message, JSONRPCNotification):
            self._open_requests -= 1

    def _too_long(self, identifier: int | str | None) -> JSONRPCError:
        return error_reply(identifier, TOO_LONG, f"a reply of more than {self._limit / (1 << 20):g} MB")


def error_reply(identifier: int | str | None, code: int, text: str) -> JSONRPCError:
    """The error for the call of that id."""
    return JSONRPCError(jsonrpc="2.0", id=identifier, error=ErrorData(code=code, message=text))


# --- a process --------------------------------------------------------------------------------------------------------


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
    """A link to a server as a process that we start and that speaks over its standard input and output.

    The process leads its own process group and gets only `environment`. It is ended in the order that the protocol
    prescribes: its input is closed, then SIGTERM, then SIGKILL, each after a short grace and for the whole group, so
    that children which hold its pipes end, too. The last bytes of its standard error are kept for errors.
    """

    def __init__(self, config: McpConfig, environment: dict[str, str], hide: Callable[[str], str]) -> None:
        super().__init__(config.max_reply_mb, hide)
        self._command, self._cwd, self._environment = config.command, config.cwd, environment
        self._stderr, self._noise, self._signaled = b"", b"", False
        self._transport: asyncio.SubprocessTransport | None = None

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[None]:
        """Start the process, or raise `RecipeError`; on exit, end it in at most `GRACE_S` and twice `TERM_S`."""

        async def keep_stderr(stderr: asyncio.StreamReader) -> None:
            while piece := await stderr.read(1 << 18):
                self._stderr = (self._stderr + piece)[-STDERR_BYTES:]
                await asyncio.sleep(STDERR_PAUSE_S)

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
        # Hidden before it is cut: half a key would not be recognized.
        stderr, noise = (self._hide(piece.decode("utf-8", "replace")).strip() for piece in (self._stderr, self._noise))
        stderr, noise = stderr[-STDERR_SHOWN:], noise[:NOISE_SHOWN]
        parts = (self._fault, ending, stderr and f"its standard error ends: {stderr}", noise and f"no message: {noise}")
        return "; ".join(part for part in parts if part)

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        """Deliver the server's messages until its output ends."""
        async for line, whole in lines_of(stdout, self._limit):
            messages = messages_of(line) if whole else [self._too_long(found) for found in call_of(line)]
            if not messages and line.strip():
                self._noise = line
            answered = {message.id for message in messages if isinstance(message, JSONRPCResponse | JSONRPCError)}
            if not answered & self._pending and not self.fits(len(line)):
                return
            for message in messages:
                await self._deliver(SessionMessage(message))
            if self.ended.is_set():
                return
        self.end("it closed its output, or wrote a line without an end")


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Whether an event happens within so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def weight(piece: bytes) -> int:
    """The size of a piece of JSON; a list or object counts for more, since its two bytes take a hundred in memory."""
    return len(piece) + 64 * (piece.count(b"[") + piece.count(b"{"))


async def lines_of(stream: asyncio.StreamReader, limit: int) -> AsyncIterator[tuple[bytes, bool]]:
    """(line, whether it is whole) of every line. Of one with more than `limit` bytes only both ends are kept.

    A line of more than `ENDLESS_BYTES` is taken for the end of the stream.
    """
    kept, size = bytearray(), 0
    while True:
        try:
            piece, complete = await stream.readuntil(b"\n"), True
        except asyncio.LimitOverrunError as overrun:  # a part of a line that fills the stream's buffer
            piece, complete = await stream.readexactly(overrun.consumed), False
        except asyncio.IncompleteReadError:
            return
        kept += piece
        size += weight(piece)
        if size > ENDLESS_BYTES:
            return
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
            what = f"a reply that is not JSON-RPC: {text.decode('utf-8', 'replace')}"
            messages += [error_reply(identifier, PARSE_ERROR, what) for identifier in call_of(text)]
    return messages


def call_of(line: bytes) -> list[int]:
    """The id of the call that a line answers, if it is at one of the line's ends."""
    match = _ID_FIRST.match(line) or _ID_LAST.search(line, max(0, len(line) - _EDGE))
    return [int(match[1])] if match else []


# --- an address -------------------------------------------------------------------------------------------------------


class _BodyError(httpx2.StreamError):
    """A body that is too long or broke off. The SDK turns it into an error of the call."""


class _Bounded(httpx2.AsyncByteStream):
    """A body that is abandoned once `fits`, called with the size of each piece, is False."""

    def __init__(self, stream: httpx2.AsyncByteStream, fits: Callable[[int], bool]) -> None:
        self._stream, self._fits = stream, fits

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async with aclosing(cast(AsyncGenerator[bytes], self._stream.__aiter__())) as pieces:
                async for piece in pieces:
                    if not self._fits(weight(piece)):
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
        posted, closes = request.method == "POST", request.method == "DELETE"
        if closes:  # the session; its body is not read
            options["stream"] = True
        try:
            async with asyncio.timeout(CLOSE_S if closes else self.timeout.read):  # interim responses may have no end
                response = await super().send(request, **options)
        except (httpx2.TransportError, TimeoutError) as failure:
            if not posted:
                raise
            return _refusal(request, 502, f"{type(failure).__name__}: {failure}")
        if closes:
            await response.aclose()
            return httpx2.Response(response.status_code, request=request)
        compressed = response.headers.get("content-encoding", "identity") != "identity"
        if posted and (compressed or response.status_code >= 400):
            return await self._refused(request, response, "a compressed body" if compressed else "")
        left = self._limit

        def fits(size: int) -> bool:
            nonlocal left
            left -= max(size, _LEAST_PIECE)
            if left < 0:
                self._link.too_long(request)
            return left >= 0

        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream, fits if posted else self._link.fits)
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
    """A link to a server at an address: the SDK's streamable HTTP with a client that enforces limits.

    A request that fails below the protocol (no connection, HTTP 500, a body that breaks off) becomes a JSON-RPC error
    for that one call. Without this the SDK would end the session, and with it every call in progress.
    """

    def __init__(self, config: McpConfig, headers: Mapping[str, str], hide: Callable[[str], str]) -> None:
        super().__init__(config.max_reply_mb, hide)
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
                elif isinstance(message, JSONRPCError) and message.error.code == PARSE_ERROR:
                    # The SDK quotes pieces of the reply, perhaps of a key.
                    message.error.message = message.error.message.partition(":")[0]
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
