"""A session with one MCP server, in its own thread and event loop.

Tools are created without an event loop and used from one loop after another, while a session belongs to the loop in
which it was opened. So each server has a thread: calls reach it from any loop, and cancelling a call there cancels it
here. The call after a broken connection opens a new one.

Only this thread uses the SDK. `stop` ends it and the server; it also runs when the interpreter ends.

A server may ask back during a call: for its roots, and, where the call came with an `Ask`, for a model (`sampling.py`).
A request that arrives by itself (2025-11-25 and older) names no call, so such a call has the session to itself.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

import mcp_types as types
from mcp import Client, ClientSession, MCPError
from mcp.client import ClientRequestContext
from pydantic import JsonValue, TypeAdapter, ValidationError

from midstream.core.data import problems_of
from midstream.core.errors import ToolServerError
from midstream.core.tool import ToolResult
from midstream.core.version import __version__
from midstream_mcp.tools import MAX_ERROR, McpConfig, Refused, clean, hider
from midstream_mcp.transports import SESSION_LOST, TOO_LONG, ServerOutput, open_address, open_process

PROBE_S = 5.0  # a server that answers within it is alive, and only the call was slow
PAUSE_S = 1.0  # before connecting again
STOP_S = 10.0  # for a server and its thread to end
MOST_ROUNDS = 10  # of input that one call may require (2026-07-28)
ROUND_PAUSE_S = 0.25  # before a call is repeated that requires none

# From any thread: a server's request for a model, and the reply to come.
Ask = Callable[[types.CreateMessageRequestParams], Future[types.CreateMessageResult | types.ErrorData]]

_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
NO_CALL, TOO_MANY = "no call of this tool is under way", "too many requests for a model in one call of a tool"
# In the errors with which the SDK, or midstream, refuses what a server asks; a server may pass them on as its own.
_REFUSALS = ("Sampling not supported", "Elicitation not supported", "List roots not supported", NO_CALL, TOO_MANY)
# Errors of a server that does not know the older handshake.
_NO_HANDSHAKE = (types.METHOD_NOT_FOUND, types.UNSUPPORTED_PROTOCOL_VERSION)


@dataclass
class _Connection:
    """A connected client, the server's tools, and the task that holds the connection open until `closing`."""

    client: Client
    tools: list[types.Tool]
    closing: asyncio.Event
    holder: asyncio.Task[None]
    session_lost: bool = False

    async def close(self) -> None:
        """Close the connection, and end a server that was started here."""
        self.closing.set()
        await asyncio.wait([self.holder], timeout=STOP_S)


class Server:
    """One MCP server: `name` is the recipe's table, for errors, and `secrets` the variables that the server gets.

    With `samples` it may ask for a model during a call with an `Ask`, and has one such call at a time.
    """

    def __init__(self, name: str, config: McpConfig, secrets: Mapping[str, str], *, samples: bool = False) -> None:
        self._name, self._config, self._secrets, self._samples = name, config, secrets, samples
        self._ask: Ask | None = None
        self.hide = hider(secrets.values())
        # Of a whole call: connecting again, the call, the request that checks the server, and ending it.
        self.longest_call_s = PAUSE_S + 2 * config.connect_timeout_s + 2 * config.timeout_s + PROBE_S + 2 * STOP_S
        self._output = ServerOutput()
        self._connecting: asyncio.Task[_Connection] | None = None
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"mcp {name}", daemon=True)

    # --- from any thread ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the thread; the first call connects."""
        for name in ("mcp.client", "client"):  # the SDK's: they would print what a server sends
            logger = logging.getLogger(name)
            logger.propagate = False
            if not logger.handlers:  # without any, warnings are printed all the same
                logger.addHandler(logging.NullHandler())
        self._thread.start()
        atexit.register(self.stop)

    def start(self) -> list[types.Tool]:
        """Connect and return the server's tools.

        Raises:
            RecipeError: its command cannot be started.
            ToolServerError: it does not answer as the protocol prescribes.
        """
        self.begin()
        try:
            return asyncio.run_coroutine_threadsafe(self._connected(), self._loop).result().tools
        except BaseException:
            self.stop()
            raise

    async def call(self, tool: str, arguments: Mapping[str, JsonValue], ask: Ask | None = None) -> ToolResult:
        """Call a tool of the server, from any event loop, with its result as text. `stop` cancels the call.

        Raises:
            Refused: it refuses the arguments, requires input that it does not get, takes too long, or its reply is too
                long.
            ToolServerError: it is gone, hangs, or answers with something that is not a result.
        """
        if self._stopping.is_set():
            raise closed(self._name)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._call(tool, arguments, ask), self._loop))

    def end(self) -> None:
        """Begin to end the session, the server and the thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stopping.set)

    def stop(self) -> None:
        """End the session, the server and the thread; calling it again does nothing."""
        atexit.unregister(self.stop)
        if self._thread.is_alive():
            self.end()
            self._thread.join(STOP_S)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        async def serve() -> None:
            await self._stopping.wait()
            if self._connecting is not None and self._connecting.done() and not self._connecting.exception():
                await self._connecting.result().close()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(serve())
        atexit.unregister(self.stop)

    async def _connected(self) -> _Connection:
        """The connection, opened again if it broke; concurrent callers wait for the same attempt."""
        task = self._connecting
        if task is None or (task.done() and (task.exception() or task.result().closing.is_set())):
            task = self._connecting = asyncio.create_task(self._connect(0.0 if task is None else PAUSE_S))
        return await asyncio.shield(task)

    async def _connect(self, pause_s: float) -> _Connection:
        await asyncio.sleep(pause_s)
        try:
            try:
                return await self._open("legacy")
            except MCPError as failure:
                if failure.code not in _NO_HANDSHAKE:
                    raise
                return await self._open("auto")
        except (MCPError, ValidationError, RuntimeError, OSError) as failure:
            why = str(failure)
            if isinstance(failure, TimeoutError):
                why = f"it was not ready within {self._config.connect_timeout_s:g} s"
            elif isinstance(failure, ValidationError):
                why = f"it does not speak MCP: {problems_of(failure)[0]}"
            raise self._error("mcp-server-unusable", f"cannot be used: {why}") from failure

    async def _open(self, mode: str) -> _Connection:
        ready: asyncio.Future[_Connection] = self._loop.create_future()
        holder = asyncio.create_task(self._hold(mode, ready))
        await asyncio.wait((ready, holder), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            failure = holder.exception()
            while isinstance(failure, ExceptionGroup):  # of the SDK's task groups
                failure = failure.exceptions[0]
            assert failure is not None
            raise failure
        return ready.result()

    async def _hold(self, mode: str, ready: asyncio.Future[_Connection]) -> None:
        """Open a connection, set it on `ready`, and hold it until it ends; the SDK requires one task for that."""
        config, closing, holder = self._config, asyncio.Event(), asyncio.current_task()
        assert holder is not None
        client = Client(
            open_process(config, self._secrets, self._output)
            if config.command
            else open_address(config, self._secrets),
            mode=mode,
            cache=None,
            client_info=types.Implementation(name="midstream", version=__version__),
            # Without a callback the capability is not declared, and a request is refused.
            sampling_callback=self._on_sampling if self._samples else None,
            list_roots_callback=self._on_list_roots if config.roots else None,
            message_handler=self._output.on_message,
        )
        try:
            async with asyncio.timeout(config.connect_timeout_s) as limit, client:
                tools = await _tools_of(client)
                limit.reschedule(None)
                ready.set_result(_Connection(client, tools, closing, holder))
                await closing.wait()
        except Exception:
            if not ready.done():
                raise
            # Calls in progress get the SDK's error, and the next one connects again.
        finally:
            closing.set()

    async def _on_sampling(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        if self._ask is None:
            return types.ErrorData(code=types.INVALID_REQUEST, message=NO_CALL)
        return await asyncio.wrap_future(self._ask(params))

    async def _on_list_roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        paths = [path.absolute() for path in self._config.roots]
        roots = [{"uri": path.as_uri(), "name": path.name} for path in paths]
        return types.ListRootsResult.model_validate({"roots": roots})

    async def _call(
        self, tool: str, arguments: Mapping[str, JsonValue], ask: Ask | None, *, repeated: bool = False
    ) -> ToolResult:
        connection = await self._connected()
        self._ask = ask
        try:
            async with asyncio.timeout(self._config.timeout_s):
                result = await _result_of(connection.client.session, tool, arguments)
        except TimeoutError as failure:
            self._ask = None
            silence = f"no result within {self._config.timeout_s:g} s"
            alive = await _answers(connection.client)
            if ask is not None or not alive:  # it may ask later, and would be taken for the next call
                await connection.close()
            if alive:
                raise Refused(silence) from failure
            raise self._error("mcp-server-failed", f"hangs: {silence}") from failure
        except ValidationError as failure:
            why = f"returned an invalid result: {problems_of(failure)[0]}"
            raise self._error("mcp-server-failed", why) from failure
        except MCPError as failure:
            connection.session_lost |= failure.code == SESSION_LOST
            if connection.session_lost and not repeated:  # also of a call that another one's `close` has ended
                await connection.close()
                return await self._call(tool, arguments, ask, repeated=True)
            raise await self._failure(connection, failure) from failure
        finally:
            self._ask = None
        return ToolResult(text=self.hide(_text_of(result)), ok=not result.is_error)

    async def _failure(self, connection: _Connection, failure: MCPError) -> Exception:
        """The exception for a call that the server, or the SDK, answered with an error."""
        text = clean(self.hide(failure.message), MAX_ERROR // 2)
        if failure.code == types.INVALID_PARAMS or any(words in text for words in _REFUSALS):
            return Refused(text)
        # The second is the SDK's text for a reply that comes as an event.
        if failure.code == TOO_LONG or text.startswith("SSE stream failed: Server-sent event exceeded"):
            return Refused(f"a reply of more than {self._config.max_reply_mb:g} MB is not read: ask for less")
        if failure.code == types.CONNECTION_CLOSED and not await _answers(connection.client):
            await connection.close()  # its standard error is complete only after it has ended
            return self._error("mcp-server-failed", f"ended during a call: {text}")
        return self._error("mcp-server-failed", f"failed a call (error {failure.code}): {text}")

    def _error(self, code: str, what: str) -> ToolServerError:
        # Hidden before it is cut: half a key would not be recognized.
        stderr, noise = (self.hide(text) for text in self._output.texts())
        cause = "it is down or broken, lacks something that it needs, or is no MCP server"
        if "HTTP 401" in what or "HTTP 403" in what:
            cause = "the key that headers_env sends is missing, wrong, or lacks permission"
        elif stderr or noise:
            cause = f"its standard error ends: {stderr[-MAX_ERROR // 2 :]}" if stderr else f"it wrote: {noise}"
        return ToolServerError(
            f"MCP server {self._name!r} {clean(self.hide(what), MAX_ERROR)}",
            code=code,
            cause=clean(cause, MAX_ERROR),
            fix=f"start it by hand as [tools.{self._name}] describes it, and look at its output",
        )


def closed(name: str) -> ToolServerError:
    """The error of a call after the end."""
    return ToolServerError(
        f"MCP server {name!r} is closed",
        code="mcp-server-closed",
        fix="close tools after the last rollout has ended",
    )


async def _result_of(session: ClientSession, tool: str, arguments: Mapping[str, JsonValue]) -> types.CallToolResult:
    """The result of a call, which is repeated with the input that the server requires of it (2026-07-28).

    Raises `Refused` for input that is not available here.
    """
    responses: types.InputResponses = {}
    state: str | None = None
    for _ in range(MOST_ROUNDS):
        params = types.CallToolRequestParams(
            name=tool, arguments=dict(arguments), input_responses=responses or None, request_state=state
        )
        # Not `call_tool`, which would validate the result against the server's output schema: only its text is used.
        result = await session.send_request(types.CallToolRequest(params=params), _RESULT)
        if isinstance(result, types.CallToolResult):
            return result
        responses, state = {}, result.request_state
        for key, request in (result.input_requests or {}).items():
            reply = await session.dispatch_input_request(ClientRequestContext(session=session, request_id=key), request)
            if isinstance(reply, types.ErrorData):
                raise Refused(f"it requires input that is not available here: {reply.message}")
            responses[key] = reply
        if not responses:
            await asyncio.sleep(ROUND_PAUSE_S)
    raise Refused(f"it required input more than {MOST_ROUNDS} times")


async def _answers(client: Client) -> bool:
    """Whether a server answers any request, so that only one call is slow or failed."""
    try:
        async with asyncio.timeout(PROBE_S):
            await client.session.send_request(types.ListToolsRequest(), types.ListToolsResult)
    except ValidationError:
        pass  # an answer, although an invalid one
    except TimeoutError:
        return False
    except MCPError as failure:
        return failure.code != types.CONNECTION_CLOSED
    return True


async def _tools_of(client: Client) -> list[types.Tool]:
    """All tools of a server, page by page; a list without an end reaches the time limit."""
    page = await client.list_tools()
    tools = page.tools
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


def _text_of(result: types.CallToolResult) -> str:
    """A result as text: its texts, other content by kind and size, or else its structured content as JSON."""
    parts: list[str] = []
    for block in result.content:
        match block:
            case types.TextContent():
                parts.append(block.text)
            case types.ImageContent() | types.AudioContent():
                parts.append(f"[{block.type}: {block.mime_type}, {_size(len(block.data) * 3 // 4)}]")
            case types.ResourceLink():
                size = "" if block.size is None else f", {_size(block.size)}"
                parts.append(f"[resource: {block.uri}, {block.mime_type or 'unknown type'}{size}]")
            case types.EmbeddedResource(resource=content):
                named = f"resource: {content.uri}, {content.mime_type or 'unknown type'}"
                if isinstance(content, types.TextResourceContents):
                    parts.append(f"[{named}]\n{content.text}")
                else:
                    parts.append(f"[{named}, {_size(len(content.blob) * 3 // 4)}]")
    if result.structured_content is not None and not any(block.type == "text" for block in result.content):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    silent = "the tool failed without a message" if result.is_error else "(no output)"
    return "\n".join(part for part in parts if part) or silent


def _size(count: int) -> str:
    return f"{count} bytes" if count < 1000 else f"{count / 1000:.0f} kB"
