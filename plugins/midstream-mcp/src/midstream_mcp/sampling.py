"""Requests of a server for a model (`sampling/createMessage`), answered by the engine that the tool's table names.

They are answered in the event loop and context of the run whose call is under way, so that its budget counts them and
an engine in this process batches them with those of the other trajectories. A failed engine fails the call.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import mcp_types as types
from pydantic import JsonValue

from midstream.core.engine import ORDER, Engine, Request
from midstream.core.errors import EngineError, InfrastructureError, PromptTooLongError, RefusedError, ToolServerError
from midstream.core.seeds import derive_seed
from midstream.core.text import spoken
from midstream.core.tool import ToolResult
from midstream.core.trajectory import Call, Message, Sampling
from midstream_mcp.session import NO_CALL, TOO_MANY, Server, closed
from midstream_mcp.tools import Refused

MOST_REQUESTS = 16  # of one call
Reply = types.CreateMessageResult | types.ErrorData


class Sessions:
    """The sessions with a server that may ask for a model, one for each call under way: its requests name no call.

    `name` is the recipe's table, `first` a session that is open, and `new` makes another. It has what a tool uses of a
    `Server`.
    """

    def __init__(self, name: str, first: Server, new: Callable[[], Server], engine: Engine, max_tokens: int) -> None:
        self._name, self._new, self._engine, self._max_tokens = name, new, engine, max_tokens
        self._hide, self._open, self._idle, self._closed = first.hide, {first}, [first], False
        self.longest_call_s = first.longest_call_s

    async def call(self, tool: str, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Call a tool and answer what the server asks; the result, or what is raised, has the engine's calls.

        Raises:
            Refused: as a `Server`.
            ToolServerError: as a `Server`, and if the engine fails.
            InfrastructureError: the budget is spent, or the engine refuses every request.
        """
        asked = ModelRequests(self._engine, f"{self._name}.{tool}", arguments, self._max_tokens, self._hide)
        try:
            # An engine that fails ends the group, and so the call.
            async with asyncio.TaskGroup() as group:
                answering = group.create_task(asked.answer())
                result = await self._call(tool, arguments, asked)
                answering.cancel()
        except ExceptionGroup as failures:
            failure = failures.exceptions[0]
            if isinstance(failure, InfrastructureError | Refused):
                failure.calls = (*asked.calls, *failure.calls)
            raise failure from failure.__cause__
        return ToolResult(text=result.text, ok=result.ok, calls=tuple(asked.calls))

    async def _call(self, tool: str, arguments: Mapping[str, JsonValue], asked: ModelRequests) -> ToolResult:
        if self._closed:
            raise closed(self._name)
        if self._idle:
            server = self._idle.pop()
        else:
            server = self._new()
            server.begin()
            self._open.add(server)
        try:
            return await server.call(tool, arguments, asked.ask)
        except asyncio.CancelledError:
            # The server may still work on this call, and ask.
            self._open.discard(server)
            server.end()
            raise
        finally:
            if server in self._open:
                self._idle.append(server)

    def stop(self) -> None:
        """End every session; calling it again does nothing."""
        self._closed, servers = True, tuple(self._open)
        for server in servers:
            server.end()
        for server in servers:
            server.stop()


class ModelRequests:
    """What a server asks of the engine during one call of a tool: answered one after another, kept in `calls`.

    `role` names the tool in records; its dot keeps it apart from the roles that are trained. `hide` replaces keys.
    """

    def __init__(
        self, engine: Engine, role: str, arguments: Mapping[str, JsonValue], max_tokens: int, hide: Callable[[str], str]
    ) -> None:
        self._engine, self._role, self._max_tokens, self._hide = engine, role, max_tokens, hide
        self._arguments = json.dumps(arguments, sort_keys=True)
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[tuple[types.CreateMessageRequestParams, Future[Reply]]] = asyncio.Queue()
        self._equal = Counter[str]()
        self.calls: list[Call] = []

    def ask(self, params: types.CreateMessageRequestParams) -> Future[Reply]:
        """Ask from the server's thread."""
        reply: Future[Reply] = Future()
        self._loop.call_soon_threadsafe(self._waiting.put_nowait, (params, reply))
        return reply

    async def answer(self) -> None:
        """Answer requests until this is cancelled; those that are open then are refused.

        Raises:
            ToolServerError: the engine failed; its `calls` have the failed request.
            InfrastructureError: the budget is spent, or the engine refuses every request.
        """
        ended = types.ErrorData(code=types.INVALID_REQUEST, message=NO_CALL)
        reply: Future[Reply] = Future()
        try:
            while True:
                params, reply = await self._waiting.get()
                # False if the server has withdrawn its request.
                if reply.set_running_or_notify_cancel():
                    reply.set_result(await self._reply(params))
        finally:
            # A task of the server may outlive the call and wait.
            if reply.running():
                reply.set_result(ended)
            while not self._waiting.empty():
                _, reply = self._waiting.get_nowait()
                if reply.set_running_or_notify_cancel():
                    reply.set_result(ended)

    async def _reply(self, params: types.CreateMessageRequestParams) -> Reply:
        if self._equal.total() == MOST_REQUESTS:
            return types.ErrorData(code=types.INVALID_REQUEST, message=f"{TOO_MANY}: {MOST_REQUESTS} are allowed")
        if problem := _unsupported(params):
            return types.ErrorData(code=types.INVALID_PARAMS, message=problem)
        messages = [Message(role=message.role, content=self._hide(_text(message))) for message in params.messages]
        if params.system_prompt:
            messages.insert(0, Message(role="system", content=self._hide(params.system_prompt)))
        sampling = Sampling(
            temperature=params.temperature or 0.0,
            max_tokens=min(params.max_tokens, self._max_tokens),
            stop=tuple(filter(None, params.stop_sequences or ())),
        )
        asked = json.dumps([[message.model_dump() for message in messages], sampling.model_dump()], sort_keys=True)
        # Equal requests of one call have several answers, as sampling promises.
        seed = derive_seed(self._role, self._arguments, asked, self._equal[asked])
        self._equal[asked] += 1
        request = Request(role=self._role, messages=tuple(messages), sampling=sampling, seed=seed, order=ORDER.get())
        try:
            call = await self._engine.sample(request)
        except PromptTooLongError as error:
            self.calls += error.calls
            return types.ErrorData(code=types.INVALID_PARAMS, message=f"the request is too long: {error.what}")
        except RefusedError:
            # The engine refuses every request, so it stops the run and not this call alone.
            raise
        except EngineError as error:
            raise error.of(ToolServerError, f"the model of tool {self._role} failed", code=error.code) from error
        self.calls.append(call)
        return types.CreateMessageResult(
            role="assistant",
            content=types.TextContent(type="text", text=spoken(call.completion).strip()),
            model=str(call.sent.get("model") or call.engine),
            stop_reason="maxTokens" if call.finish_reason == "length" else "endTurn",
        )


def _unsupported(params: types.CreateMessageRequestParams) -> str:
    """The reason why a request is refused, or ""."""
    if params.tools or params.tool_choice:
        return "tools are not supported: the capability sampling.tools is not declared"
    if params.include_context not in (None, "none"):
        return f"includeContext {params.include_context!r} is not supported: the capability is not declared"
    if params.max_tokens < 1:
        return f"maxTokens is {params.max_tokens}, not at least 1"
    if (params.temperature or 0.0) < 0:
        return f"temperature is {params.temperature:g}, not at least 0"
    kinds = {block.type for message in params.messages for block in message.content_as_list}
    if not params.messages or kinds - {"text"}:
        return f"only messages of text are supported, not {', '.join(sorted(kinds - {'text'})) or 'an empty list'}"
    return ""


def _text(message: types.SamplingMessage) -> str:
    return "\n".join(block.text for block in message.content_as_list if isinstance(block, types.TextContent))
