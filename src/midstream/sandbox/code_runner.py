"""Runs an executor's program: a short piece of Python that may call one tool as often as it needs, branch and compute.

The program runs in a forked child of a `PythonPool`'s worker and reaches its tool only through a channel to this
process (`inside/zygote.py` describes the messages). The channel is a new socket for every program and is closed with
it, so no program can forge another's messages. This side checks the arguments, calls the tool and records every call. A
program that exceeds a limit or violates the channel's format is ended together with its worker.

The pool's tier confines the program. Containers and arithmetic have no such channel and are refused.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import keyword
import re
import socket
import time
from collections.abc import Awaitable
from typing import TypeVar

from pydantic import Field

from midstream.components.component import Sandbox
from midstream.core.data import JsonObject, unfit
from midstream.core.errors import InfrastructureError, UnsupportedError
from midstream.core.json_schema import schema_error
from midstream.core.tool import Tool, ToolResult
from midstream.core.tool_calls import call_tool
from midstream.core.trajectory import Call, Observation, ToolCall
from midstream.sandbox.inside.running import CALL_LIMIT, WALL_FACTOR
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits, Library
from midstream.sandbox.worker import PythonResult, Worker, receive

T = TypeVar("T")

NOTHING = "(the program printed nothing)"


class CodeRunnerConfig(CodeLimits):
    """Settings of the programs that an executor writes.

    Attributes:
        workers: programs at once; one that waits for its tool counts
        libraries: imported before any program arrives; others take their time
        max_tool_calls: the most calls of the tool; one more ends the program
    """

    workers: int = Field(default=16, ge=1, le=1000)
    # 16 workers with all of sympy would take a second and 70 MB each.
    libraries: tuple[Library, ...] = ()
    max_tool_calls: int = Field(default=16, ge=1)


class _Ended(Exception):
    """The host ended a program; the text says why, for the agent to read."""


def function_name(tool: str) -> str:
    """The name under which a program calls a tool: an identifier that shadows no built-in name."""
    name = re.sub(r"\W", "_", tool, flags=re.ASCII)
    name = f"_{name}" if not name or name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) or hasattr(builtins, name) or name == "ToolError" else name


class ProgramRunner:
    """Runs a command's code where it can reach one tool and nothing else.

    It has a separate `PythonPool`, so that programs may call the `python` tool.

    Raises `UnsupportedError` if the sandbox's tier has no channel for programs.
    """

    def __init__(self, config: CodeRunnerConfig, sandbox: Sandbox) -> None:
        if sandbox.tier in ("remote", "arithmetic"):
            raise UnsupportedError(
                f'agent.executor.mode = "code" does not work on sandbox tier {sandbox.tier}',
                code="setting-conflict",
                fix='set mode = "arguments", or a sandbox.tier of "strong" or "standard"',
            )
        self._config = config
        self._pool = PythonPool(
            config,
            sandbox,
            # The workers may all be waiting for tools, which have time limits of their own.
            queue_s=None,
            table="agent.executor.program",
        )

    async def run(self, code: str, tool: Tool) -> tuple[Observation, tuple[Call, ...]]:
        """Run a program that calls `tool` as a function of its name (`function_name`), or as `tool.execute`.

        Returns its output as an observation (an error if the code raised or ran too long), and the calls that the tool
        made to an engine. Raises `InfrastructureError` if the tool (its requests so far are in `calls`) or the sandbox
        failed.
        """
        started, clock = time.time(), time.monotonic()
        conversation = _Conversation(tool, self._config)
        program = {
            "code": code,
            "name": function_name(tool.name),
            "parameters": [*tool.parameters.get("properties", {})],
        }
        body = json.dumps(program).encode()
        try:
            result = await self._pool.on_worker(lambda worker: conversation.hold(worker, body))
            status, text = "ok" if result.usable else "error", result.text or NOTHING
        except _Ended as ended:
            status, text = "error", str(ended)
        except InfrastructureError as failure:
            failure.calls = (*conversation.calls, *failure.calls)
            raise
        observation = Observation(
            status=status,
            text=text,
            started_at=started,
            duration_s=time.monotonic() - clock,
            tool_calls=tuple(conversation.made),
            marks=tuple(conversation.marks),
        )
        return observation, tuple(conversation.calls)

    async def close(self) -> None:
        """End the processes; programs under way raise `SandboxError`."""
        await self._pool.close()


class _Conversation:
    """The host's side of one program's channel; `made` are its tool calls, `marks` and `calls` theirs."""

    def __init__(self, tool: Tool, config: CodeRunnerConfig) -> None:
        self._tool, self._config = tool, config
        self._wall_s = self._left_s = WALL_FACTOR * config.timeout_s
        self._over = False
        self.made: list[ToolCall] = []
        self.calls: list[Call] = []
        self.marks: list[str] = []

    async def hold(self, worker: Worker, program: bytes) -> PythonResult:
        """Run the program and answer its calls, one at a time, until it closes the channel or is gone."""
        async with worker.start(program) as channel:
            while (body := await self._within(_read_call(channel))) is not None:
                reply = json.dumps(await self._reply(body)).encode()
                message = len(reply).to_bytes(4, "big") + reply
                try:
                    await self._within(asyncio.get_running_loop().sock_sendall(channel, message))
                except ConnectionError:
                    break
            return await self._within(worker.result())

    async def _within(self, waiting: Awaitable[T]) -> T:
        """Wait for the program; the time counts towards its limit."""
        clock = time.monotonic()
        limit = asyncio.timeout(max(0.0, self._left_s))
        try:
            async with limit:
                return await waiting
        except TimeoutError as error:
            text = f"TimeoutError: not finished after {self._wall_s:g} s, the time of {self._tool.name} not counted"
            raise _Ended(text) from error
        finally:
            self._left_s -= time.monotonic() - clock

    async def _reply(self, body: bytes) -> JsonObject:
        """Answer one call. The first call over the limit is answered with the end, a second one ends the program."""
        arguments = _read_arguments(body)
        too_many = f"more than {self._config.max_tool_calls} calls of {self._tool.name}"
        if self._over:
            raise _Ended(too_many)
        self._over = len(self.made) >= self._config.max_tool_calls
        if self._over:
            return {"ok": False, "text": too_many, "end": True}
        started, clock = time.time(), time.monotonic()
        misfit = unfit(arguments)
        if misfit:
            arguments = {}
        if problem := misfit or schema_error(arguments, self._tool.parameters):
            result = ToolResult(text=f"invalid arguments for {self._tool.name}: {problem}", ok=False)
        else:
            result = await call_tool(self._tool, arguments)
        self.calls += result.calls
        self.marks += result.marks
        call = ToolCall(
            tool=self._tool.name,
            arguments=arguments,
            status="ok" if result.ok else "error",
            text=result.text,
            started_at=started,
            duration_s=time.monotonic() - clock,
        )
        self.made.append(call)
        return {"ok": result.ok, "text": result.text, "end": False}


async def _read_call(channel: socket.socket) -> bytes | None:
    """The program's next call, or None once it has closed the channel or is gone, even in the middle of a call."""
    header = await receive(channel, 4)
    if header is None:
        return None
    size = int.from_bytes(header, "big")
    if size > CALL_LIMIT:
        raise _Ended(f"the program sent its tool {size} bytes, more than {CALL_LIMIT}")
    return await receive(channel, size)


def _read_arguments(body: bytes) -> JsonObject:
    """A call's arguments; anything but a JSON object was not written by the tool's function, and ends the program."""
    try:
        arguments = json.loads(body)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise _Ended(f"the program wrote {body[:80]!r} to its tool, which is no JSON object")
    return arguments
