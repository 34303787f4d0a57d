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
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import mcp_types as types
from mcp import Client, MCPError
from pydantic import JsonValue, TypeAdapter, ValidationError

from midstream.core.data import problems_of
from midstream.core.errors import MidstreamError, ToolServerError
from midstream.core.version import __version__
from midstream.tools.mcp.tools import McpConfig, Refused
from midstream.tools.mcp.transports import TOO_LONG, Link

PROBE_S = 5.0  # a server that answers within it is alive, and only the call was slow
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # before connecting again, by the number of failures in a row
ERROR_CHARACTERS = 300  # of a server's error message
STOP_S = 8.0  # for a thread to end
MAX_LISTED = 20_000  # tools of a server; an endless list of empty pages reaches the time limit

_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
# Errors of a server that does not know the older handshake.
_NO_HANDSHAKE = (types.METHOD_NOT_FOUND, types.UNSUPPORTED_PROTOCOL_VERSION)


@dataclass(frozen=True)
class _Connection:
    """A connected client, its link, the server's tools, and the task that holds the connection open."""

    client: Client
    link: Link
    listed: list[types.Tool]
    task: asyncio.Task[None]


class Server:
    """One MCP server.

    `name` is the recipe's table, for errors; `make_link` creates a new link to the server; `clean` removes keys and
    control characters from its text.
    """

    def __init__(
        self, name: str, config: McpConfig, make_link: Callable[[], Link], clean: Callable[[str], str]
    ) -> None:
        self._name, self._make_link, self._clean = name, make_link, clean
        self._connect_timeout_s, self._timeout_s = config.connect_timeout_s, config.timeout_s
        # Of a whole call: connecting again, the call, the request that checks the server, and ending it.
        self.longest_call_s = max(PAUSES_S) + 2 * config.connect_timeout_s + 2 * config.timeout_s + PROBE_S + 2 * STOP_S
        self._connection: _Connection | None = None
        self._attempt: asyncio.Task[_Connection] | None = None
        self._link: Link | None = None
        self._failures = 0
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()

        async def serve() -> None:
            await self._stopping.wait()
            await self._leave()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(serve())

        self._thread = threading.Thread(target=run, name=f"mcp {name}", daemon=True)

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
        atexit.register(self.stop)
        connected = asyncio.run_coroutine_threadsafe(self._connected(), self._loop)
        try:
            return connected.result(2 * (self._connect_timeout_s + STOP_S)).listed
        except BaseException as failure:
            self.stop()
            if isinstance(failure, TimeoutError):  # the thread itself hangs
                raise self._unusable("connecting to it never ends") from failure
            raise

    async def call(self, tool: str, arguments: Mapping[str, JsonValue]) -> types.CallToolResult:
        """Call a tool of the server, from any event loop.

        Raises:
            Refused: it refuses the arguments, requests input, takes too long, or its reply is too long.
            ToolServerError: it is gone, hangs, or answers with something that is not a result.
        """
        closed = ToolServerError(
            f"MCP server {self._name!r} is closed",
            code="mcp-server-closed",
            fix="close tools after the last rollout has ended",
        )
        if self._stopping.is_set():
            raise closed
        future = asyncio.run_coroutine_threadsafe(self._call(tool, arguments), self._loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError as failure:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise closed from failure  # by `stop`, during this call

    def stop(self) -> None:
        """End the session, the server and the thread; calling it again does nothing."""
        atexit.unregister(self.stop)
        if not self._thread.is_alive():
            return
        with suppress(RuntimeError):  # the loop has just ended
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_S)
        if self._thread.is_alive() and self._link is not None:
            self._link.kill()

    # --- in the thread ------------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Close the connection, if there is one, and wait for its end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.link.end()
            await asyncio.wait([connection.task])

    async def _connected(self) -> _Connection:
        """The connection, opened again if it broke; concurrent callers wait for the same attempt."""
        connection = self._connection
        if connection is not None and not connection.link.ended.is_set():
            return connection
        if connection is not None and connection.link.flooded:  # between calls: an error once, then a new connection
            await self._leave()
            raise self._broke(connection, "ended")
        if self._attempt is None:

            async def connect() -> _Connection:
                await self._leave()
                await asyncio.sleep(PAUSES_S[min(self._failures, len(PAUSES_S) - 1)])
                self._failures += 1  # until a call succeeds
                self._connection = await self._open("legacy")
                return self._connection

            def finished(attempt: asyncio.Task[_Connection]) -> None:
                self._attempt = None
                if not attempt.cancelled():
                    attempt.exception()  # retrieved, also if no caller waits any more

            self._attempt = asyncio.create_task(connect())
            self._attempt.add_done_callback(finished)
        return await asyncio.shield(self._attempt)

    async def _open(self, mode: str) -> _Connection:
        ready: asyncio.Future[_Connection] = self._loop.create_future()
        task = asyncio.create_task(self._hold(mode, ready))
        await asyncio.wait((ready, task), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            task.result()  # raises: the thread ends
        try:
            return ready.result()
        except MCPError as failure:
            if mode == "legacy" and failure.code in _NO_HANDSHAKE:
                return await self._open("auto")
            raise self._unusable(f"it answers: {failure.message}") from failure

    async def _hold(self, mode: str, ready: asyncio.Future[_Connection]) -> None:
        """Open a connection, set it on `ready`, and hold it until it ends; the SDK requires one task for that."""
        link = self._link = self._make_link()
        client_info = types.Implementation(name="midstream", version=__version__)
        task = asyncio.current_task()
        assert task is not None
        try:
            # The time limit is inside the link's context, because closing the link has its own limits.
            async with (
                link.open() as streams,
                asyncio.timeout(self._connect_timeout_s) as limit,
                Client(nullcontext(streams), mode=mode, cache=None, client_info=client_info) as client,
            ):
                listed = await _tools_of(client)
                limit.reschedule(None)
                ready.set_result(_Connection(client, link, listed, task))
                await link.ended.wait()
        except (MidstreamError, MCPError, ValidationError, RuntimeError, OSError, ExceptionGroup) as failure:
            if ready.done():
                return
            cause: Exception = failure
            while isinstance(cause, ExceptionGroup):  # of the SDK's task groups
                cause = cause.exceptions[0]
            if isinstance(cause, TimeoutError):
                cause = self._unusable(f"it was not ready within {self._connect_timeout_s:g} s", link)
            elif isinstance(cause, MCPError) and cause.code == types.CONNECTION_CLOSED:
                cause = self._unusable(cause.message, link)
            elif not isinstance(cause, MCPError | MidstreamError):
                why = problems_of(cause)[0] if isinstance(cause, ValidationError) else str(cause)
                cause = self._unusable(f"it does not speak MCP: {why}", link)
            ready.set_exception(cause)
        finally:
            link.end()

    async def _call(
        self, tool: str, arguments: Mapping[str, JsonValue], *, repeated: bool = False
    ) -> types.CallToolResult:
        connection = await self._connected()
        try:
            return await self._ask(connection, tool, arguments)
        except MCPError as failure:
            if connection.link.session_lost and not repeated:
                connection.link.end()  # the server does not know our session, so it did nothing: repeat with a new one
                return await self._call(tool, arguments, repeated=True)
            if connection.link.ended.is_set():
                # The exit code and the last output are known only after the process has ended.
                await asyncio.wait([connection.task], timeout=STOP_S)
            text = self._clean(failure.message[:ERROR_CHARACTERS])
            if failure.code == types.INVALID_PARAMS:
                raise Refused(text) from failure
            if failure.code == TOO_LONG:
                raise Refused(f"{text} is not read: ask for less") from failure
            if connection.link.ended.is_set():
                raise self._broke(connection, "ended during a call") from failure
            raise self._broke(connection, f"failed a call (error {failure.code}): {text}") from failure

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
            # A server that answers any request is alive, and only this call is slow.
            try:
                async with asyncio.timeout(PROBE_S):
                    await connection.client.session.send_request(types.ListToolsRequest(), types.ListToolsResult)
            except ValidationError:
                pass  # an answer, although an invalid one
            except (MCPError, TimeoutError) as silence:
                if not isinstance(silence, MCPError) or silence.code == types.CONNECTION_CLOSED:
                    connection.link.end("it hangs")
                    raise self._broke(connection, f"hangs: no result within {self._timeout_s:g} s") from failure
            raise Refused(f"no result within {self._timeout_s:g} s") from failure
        except ValidationError as failure:
            raise self._broke(connection, f"returned an invalid result: {problems_of(failure)[0]}") from failure
        self._failures = 0
        if isinstance(result, types.InputRequiredResult):
            raise Refused("it requests input from a person or a model, which is not available here")
        return result

    def _unusable(self, what: str, link: Link | None = None) -> ToolServerError:
        known = link.diagnostics() if link is not None else ""
        what = f"cannot be used: {what} ({known})" if known else f"cannot be used: {what}"
        return self._error("mcp-server-unusable", what, "it is not an MCP server, lacks something it needs, or is down")

    def _broke(self, connection: _Connection, what: str) -> ToolServerError:
        connection.link.flooded = False  # reported
        known = self._clean(connection.link.diagnostics())
        return self._error("mcp-server-failed", what, known or "a problem of the server, or of something it needs")

    def _error(self, code: str, what: str, cause: str) -> ToolServerError:
        if "HTTP 401" in what or "HTTP 403" in what:
            cause = "the key that headers_env sends is missing, wrong, or lacks permission"
        return ToolServerError(
            f"MCP server {self._name!r} {self._clean(what)}",
            code=code,
            cause=cause,
            fix=f"start it by hand as [tools.{self._name}] describes it, and look at its output",
        )


async def _tools_of(client: Client) -> list[types.Tool]:
    """All tools of a server, page by page; raises `RuntimeError` if the list has no end."""
    tools: list[types.Tool] = []
    cursor: str | None = None
    while len(tools) <= MAX_LISTED:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            return tools
    raise RuntimeError(f"its list of tools has no end ({len(tools)} so far)")
