"""A session with one MCP server, in its own thread and event loop.

Tools are created without an event loop and used from one loop after another, while a session belongs to the loop in
which it was opened. So each server has a thread: calls reach it from any loop, and cancelling a call there cancels it
here. The call after a broken connection opens a new one, after a pause that grows while calls fail.

Only this thread uses the SDK. `stop` ends it and the server; it also runs when the interpreter ends.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import mcp_types as types
from mcp import Client, MCPError
from pydantic import JsonValue, TypeAdapter, ValidationError

from midstream.core.errors import MidstreamError, ToolServerError
from midstream.core.version import __version__
from midstream.tools.mcp.link import TOO_LONG, Link

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

PROBE_S = 5.0  # a server that answers within it is alive, and only the call was slow
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # before connecting again, by the number of failures in a row
ERROR_CHARACTERS = 300  # of a server's error message
STOP_S = 8.0  # for a thread to end
MAX_PAGES, MAX_LISTED = 1000, 20_000  # of a server's list of tools

_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
# Errors of a server that does not know the older handshake.
_NO_HANDSHAKE = (types.METHOD_NOT_FOUND, types.UNSUPPORTED_PROTOCOL_VERSION)
_DENIED_CAUSE = "the key that headers_env sends is missing, wrong, or lacks permission"


class Refused(Exception):
    """The server refused a call for a reason that the caller can fix; the text gives it."""


class _Connection:
    """A connected client, its link, and the task that holds both open."""

    def __init__(self, client: Client, link: Link, listed: list[types.Tool]) -> None:
        self.client, self.link, self.listed = client, link, listed
        self.task: asyncio.Task[None] | None = None


class Server:
    """One MCP server.

    Args:
        name: the recipe's table, for errors.
        make_link: creates a new link to it.
        connect_timeout_s: for connecting and listing the tools.
        timeout_s: for one call.
        clean: removes keys and control characters from text of the server.
    """

    def __init__(
        self,
        name: str,
        make_link: Callable[[], Link],
        *,
        connect_timeout_s: float,
        timeout_s: float,
        clean: Callable[[str], str],
    ) -> None:
        self._name, self._make_link, self._clean = name, make_link, clean
        self._fix = f"start it by hand as [tools.{name}] describes it, and look at its output"
        self._connect_timeout_s, self._timeout_s = connect_timeout_s, timeout_s
        self._connection: _Connection | None = None
        self._attempt: asyncio.Task[_Connection] | None = None
        self._link: Link | None = None
        self._failures = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name=f"mcp {name}", daemon=True)
        self._stopping = asyncio.Event()

    # --- from any thread ----------------------------------------------------------------------------------------------

    def start(self) -> list[types.Tool]:
        """Connect and return the server's tools.

        Raises:
            RecipeError: its command cannot be started.
            ToolServerError: it does not answer as the protocol prescribes.
        """
        for logger in ("mcp", "client"):  # the SDK's: they would print what a server sends
            logging.getLogger(logger).addHandler(logging.NullHandler())
        self._thread.start()
        self._started.wait()
        atexit.register(self.stop)
        assert self._loop is not None
        with ExitStack() as undo:
            undo.callback(self.stop)
            connected = asyncio.run_coroutine_threadsafe(self._connected(), self._loop)
            try:
                listed = connected.result(2 * (self._connect_timeout_s + STOP_S)).listed
            except TimeoutError as failure:  # the thread itself hangs
                raise self._unusable("connecting to it never ends") from failure
            undo.pop_all()
        return listed

    async def call(self, tool: str, arguments: Mapping[str, JsonValue]) -> types.CallToolResult:
        """Call a tool of the server, from any event loop.

        Raises:
            Refused: it refuses the arguments, requests input, takes too long, or its reply is too long.
            ToolServerError: it is gone, hangs, or answers with something that is not a result.
        """
        if self._stopping.is_set() or self._loop is None:
            raise self._closed()
        future = asyncio.run_coroutine_threadsafe(self._call(tool, arguments), self._loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError as failure:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._closed() from failure  # by `stop`, during this call

    def stop(self) -> None:
        """End the session, the server and the thread; calling it again does nothing."""
        atexit.unregister(self.stop)
        if not self._thread.is_alive() or self._loop is None:
            return
        with suppress(RuntimeError):  # the loop has just ended
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_S)
        if self._thread.is_alive() and self._link is not None:
            self._link.kill()

    def _closed(self) -> ToolServerError:
        return ToolServerError(
            f"MCP server {self._name!r} is closed",
            code="mcp-server-closed",
            fix="close tools after the last rollout has ended",
        )

    # --- in the thread ------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._stopping.wait()
        await self._leave()

    async def _leave(self) -> None:
        """Close the connection, if there is one, and wait for its end."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.task is not None:
            connection.link.end()
            await asyncio.wait([connection.task])

    async def _connected(self) -> _Connection:
        """The connection, opened again if it broke; concurrent callers wait for the same attempt."""
        if self._connection is not None and not self._connection.link.ended.is_set():
            return self._connection
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._connect())

            def finished(attempt: asyncio.Task[_Connection]) -> None:
                self._attempt = None
                if not attempt.cancelled():
                    attempt.exception()  # retrieved, also if no caller waits any more

            self._attempt.add_done_callback(finished)
        return await asyncio.shield(self._attempt)

    async def _connect(self) -> _Connection:
        await self._leave()
        await asyncio.sleep(PAUSES_S[min(self._failures, len(PAUSES_S) - 1)])
        self._failures += 1  # until a call succeeds
        try:
            try:
                self._connection = await self._open("legacy")
            except MCPError as failure:
                if failure.code not in _NO_HANDSHAKE:
                    raise
                self._connection = await self._open("auto")
        except MCPError as failure:
            raise self._unusable(f"it answers: {failure.message}") from failure
        return self._connection

    async def _open(self, mode: str) -> _Connection:
        ready: asyncio.Future[_Connection] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._hold(mode, ready))
        await asyncio.wait((ready, task), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            task.result()  # raises: our own error, or the end of the thread
        connection = ready.result()
        connection.task = task
        return connection

    async def _hold(self, mode: str, ready: asyncio.Future[_Connection]) -> None:
        """Open a connection, set it on `ready`, and hold it until it ends; the SDK requires one task for that."""
        link = self._link = self._make_link()
        client_info = types.Implementation(name="midstream", version=__version__)
        try:
            async with asyncio.timeout(self._connect_timeout_s) as limit:
                async with Client(_untimed_exit(link, limit), mode=mode, cache=None, client_info=client_info) as client:
                    listed = await _tools_of(client)
                    limit.reschedule(None)
                    ready.set_result(_Connection(client, link, listed))
                    await link.ended.wait()
        except (MidstreamError, MCPError, ValidationError, RuntimeError, OSError, ExceptionGroup) as failure:
            if not ready.done():
                ready.set_exception(self._connect_error(failure, link))
        finally:
            link.end()

    def _connect_error(self, failure: Exception, link: Link) -> Exception:
        """The error for callers that wait for a connection; an error reply of the server is passed on."""
        while isinstance(failure, ExceptionGroup):  # of the SDK's task groups
            failure = failure.exceptions[0]
        if isinstance(failure, MidstreamError):
            return failure
        if isinstance(failure, TimeoutError):
            return self._unusable(f"it was not ready within {self._connect_timeout_s:g} s", link)
        if isinstance(failure, MCPError):
            return self._unusable(failure.message, link) if failure.code == types.CONNECTION_CLOSED else failure
        why = _first_error(failure) if isinstance(failure, ValidationError) else str(failure)
        return self._unusable(f"it does not speak MCP: {why}", link)

    def _unusable(self, what: str, link: Link | None = None) -> ToolServerError:
        known = link.diagnostics() if link is not None else ""
        return ToolServerError(
            f"MCP server {self._name!r} cannot be used: {self._clean(what + (f' ({known})' if known else ''))}",
            code="mcp-server-unusable",
            cause=_DENIED_CAUSE if _denied(what) else "it is not an MCP server, lacks something it needs, or is down",
            fix=self._fix,
        )

    async def _call(self, tool: str, arguments: Mapping[str, JsonValue]) -> types.CallToolResult:
        connection = await self._connected()
        try:
            return await self._ask(connection, tool, arguments)
        except MCPError as failure:
            if not connection.link.session_lost:
                if connection.link.ended.is_set() and connection.task is not None:
                    # The exit code and the last output are known only after the process has ended.
                    await asyncio.wait([connection.task], timeout=STOP_S)
                raise self._failed(connection, failure) from failure
        connection.link.end()  # the server does not know our session, so it did nothing: repeat with a new one
        connection = await self._connected()
        try:
            return await self._ask(connection, tool, arguments)
        except MCPError as failure:
            raise self._failed(connection, failure) from failure

    async def _ask(
        self, connection: _Connection, tool: str, arguments: Mapping[str, JsonValue]
    ) -> types.CallToolResult:
        """One request; raises the SDK's `MCPError` if the server, or the SDK, answers with an error."""
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=dict(arguments)))
        try:
            async with asyncio.timeout(self._timeout_s):
                # Not `call_tool`, which would validate the result against the server's output schema: only its text
                # is used.
                result = await connection.client.session.send_request(request, _RESULT)
        except TimeoutError as failure:
            if await self._answers(connection):
                raise Refused(f"no result within {self._timeout_s:g} s") from failure
            connection.link.end("it hangs")
            raise self._broke(connection, f"hangs: no result within {self._timeout_s:g} s") from failure
        except ValidationError as failure:
            raise self._broke(connection, f"returned an invalid result: {_first_error(failure)}") from failure
        self._failures = 0
        if isinstance(result, types.InputRequiredResult):
            raise Refused("it requests input from a person or a model, which is not available here")
        return result

    async def _answers(self, connection: _Connection) -> bool:
        """Whether the server answers any request."""
        try:
            async with asyncio.timeout(PROBE_S):
                await connection.client.session.send_request(types.ListToolsRequest(), types.ListToolsResult)
        except MCPError as failure:
            return failure.code != types.CONNECTION_CLOSED
        except TimeoutError:
            return False
        except ValidationError:
            pass  # an answer, although an invalid one
        return True

    def _failed(self, connection: _Connection, failure: MCPError) -> Exception:
        """The error for an error reply to a call: the caller's fault (`Refused`), or the server's."""
        text = self._clean(failure.message[:ERROR_CHARACTERS])
        if failure.code == types.INVALID_PARAMS:
            return Refused(text)
        if failure.code == TOO_LONG:
            return Refused(f"{text} is not read: ask for less")
        if connection.link.ended.is_set():
            return self._broke(connection, "ended during a call")
        return self._broke(connection, f"failed a call (error {failure.code}): {text}")

    def _broke(self, connection: _Connection, what: str) -> ToolServerError:
        known = self._clean(connection.link.diagnostics())
        return ToolServerError(
            f"MCP server {self._name!r} {self._clean(what)}",
            code="mcp-server-failed",
            cause=_DENIED_CAUSE if _denied(what) else known or "a problem of the server, or of something it needs",
            fix=self._fix,
        )


@asynccontextmanager
async def _untimed_exit(link: Link, limit: asyncio.Timeout) -> AsyncGenerator[TransportStreams]:
    """An open link; `limit` does not apply to closing it, which has its own limits."""
    async with link.open() as streams:
        try:
            yield streams
        finally:
            if not limit.expired():
                limit.reschedule(None)


def _first_error(failure: ValidationError) -> str:
    """The place of the first invalid value, and the reason."""
    error = failure.errors(include_url=False)[0]
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}"


def _denied(what: str) -> bool:
    return "HTTP 401" in what or "HTTP 403" in what


async def _tools_of(client: Client) -> list[types.Tool]:
    """All tools of a server, page by page; raises `RuntimeError` if the list has no end."""
    tools: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if not page.next_cursor:
            return tools
        if len(tools) > MAX_LISTED or page.next_cursor == cursor:
            break
        cursor = page.next_cursor
    raise RuntimeError(f"its list of tools has no end ({len(tools)} so far)")
