"""An agent of another program: a function that takes `session`, or a command. It asks midstream's models over HTTP.

    async def solve(task, session):
        client = openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key)
        reply = await client.chat.completions.create(
            model=session.model, messages=[{"role": "user", "content": task.question}])
        return reply.choices[0].message.content

A command finds the same in its environment: OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL, ANTHROPIC_BASE_URL and
ANTHROPIC_API_KEY, MIDSTREAM_TASK (a JSON file: id, question, metadata) and MIDSTREAM_ANSWER (the file to write).
A function that is not `async` is a command too: it has a process, which can be ended.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue
from pydantic_core import to_jsonable_python

from midstream.agents.running import Record, RecordedAgent
from midstream.agents.session import Outcome, Session, SessionSettings, agent_failed
from midstream.core.component import Context
from midstream.core.errors import InfrastructureError, MidstreamError, RecipeError
from midstream.core.json_schema import schema_error_async
from midstream.core.own_settings import OwnFunction, own_values
from midstream.core.protocols import RunContext, Tool
from midstream.core.task import Task
from midstream.core.tool_calls import call_tool
from midstream.core.trajectory import Score
from midstream.gateway.server import Gateway
from midstream.gateway.settings import ServeConfig

GIVEN = ("task", "session", "question", "tools")
_MARK = "MIDSTREAM_SESSION"  # in the environment of a command and of all that it starts
_KEPT_LINES, _LONGEST_LINE = 20, 500  # of what a command prints: for its error
_LONGEST_ANSWER = 1 << 20  # characters
_END_S = 2.0  # between SIGTERM and SIGKILL; for a cancelled function to end


class CommandSettings(SessionSettings):
    """A program as an agent.

    Attributes:
        command: the program and its arguments; it runs in the working directory of the run, or in `cwd`
        cwd: a directory
    """

    command: tuple[str, ...] = Field(min_length=1)
    cwd: Path | None = None

    def build(self, context: Context) -> CommandAgent:
        """The agent."""
        return CommandAgent(Path(self.command[0]).name, self, gateway_of(context), self.command)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a function's client finds its session: for OpenAI's clients as they are, for Anthropic's without "/v1"."""

    base_url: str
    api_key: str
    model: str
    anthropic_base_url: str


class SessionAgent(RecordedAgent):
    """An agent that asks through the gateway; a subclass implements `drive`."""

    shows_lessons = True

    def __init__(self, name: str, settings: SessionSettings, gateway: Gateway) -> None:
        self.name, self.settings, self.gateway = name, settings, gateway

    async def work(self, record: Record, task: Task, context: RunContext) -> None:
        """Have the program answer one task, and record what it asked."""
        session = Session(self.gateway, context, self.settings)
        outcome = Outcome()
        try:
            async with self.gateway.serving(session) as key:
                url = self.gateway.url(key)
                address = Address(f"{url}/v1", key, session.names[0], url)
                outcome = await self._attended(session, self.drive(task, session, address))
        finally:
            await session.end(record)
        if session.limit is None and outcome.answer is None and not session.calls and outcome.reward is None:
            raise agent_failed(f"agent {self.name!r} ended without an answer, and asked no model", "return the answer")
        record.answer, record.final = outcome.answer, outcome.answer or ""
        if outcome.reward is not None:
            record.reward = Score(outcome.reward, feedback=outcome.feedback)
        if outcome.answer is not None:
            record.stop_reason = "answered"
        else:
            record.stop_reason = session.limit or "ended"

    async def drive(self, task: Task, session: Session, address: Address) -> Outcome:
        """Run the program."""
        raise NotImplementedError

    async def _attended(self, session: Session, work: Any) -> Outcome:
        """The outcome of the program's `work`; it is ended if something fails, and if it idles or takes too long."""
        running: asyncio.Task[Outcome] = asyncio.ensure_future(work)
        deadline_s = session.context.deadline_s or float("inf")
        try:
            while True:
                idle_s = time.monotonic() - session.active_s if session.idle else 0.0
                left_s = min(self.settings.idle_s - idle_s, deadline_s - time.monotonic())
                await asyncio.wait({running, session.failure}, timeout=max(left_s, 0.01), return_when="FIRST_COMPLETED")
                if session.failure.done():
                    raise session.failure.result()
                if running.done():
                    break
                if time.monotonic() >= deadline_s:
                    raise agent_failed(
                        f"agent {self.name!r} was still running at its deadline", "raise rollout.deadline_s"
                    )
                if session.idle and time.monotonic() - session.active_s >= self.settings.idle_s:
                    words = f"agent {self.name!r} asked nothing for {self.settings.idle_s:g} s"
                    raise agent_failed(words, "raise agent.idle_s, or find out what it waits for")
            try:
                return running.result()
            except MidstreamError:
                if session.limit is None:
                    raise
                return Outcome()  # it ended because of the limit, which is the policy's doing
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running}, timeout=2 * _END_S)


def gateway_of(context: Context | None) -> Gateway:
    """The gateway of a build; without one, as where a recipe is checked, one that is never started."""
    return Gateway(ServeConfig()) if context is None else context.gateway


class FunctionSessionAgent(SessionAgent):
    """An `async` function as an agent."""

    def __init__(self, function: OwnFunction, settings: SessionSettings, gateway: Gateway) -> None:
        super().__init__(function.name, settings, gateway)
        self._function = function

    async def drive(self, task: Task, session: Session, address: Address) -> Outcome:
        """Call the function."""
        try:
            tools = {tool.name: partial(_result, tool) for tool in session.context.tools}
            values = {"task": task, "session": address, "question": task.question, "tools": tools}
            answer = await self._function.called(self.settings, values)
        except InfrastructureError as failure:  # tried again, unlike that of other components
            raise agent_failed(failure.what, failure.fix, failure.cause) from failure
        if isinstance(answer, Outcome):
            return answer
        if not isinstance(answer, str | None):
            raise self._function.wrong(answer, "return the answer as text, an Outcome, or None")
        return Outcome(answer=answer)


async def _result(tool: Tool, **arguments: JsonValue) -> str:
    """What a tool of the recipe answers; arguments that it does not take are an answer too."""
    problem = await schema_error_async(arguments, tool.parameters)
    return problem or (await call_tool(tool, arguments)).text


class CommandAgent(SessionAgent):
    """A program as an agent, in a process group of its own."""

    def __init__(self, name: str, settings: SessionSettings, gateway: Gateway, command: Sequence[str]) -> None:
        super().__init__(name, settings, gateway)
        self._command = command

    async def drive(self, task: Task, session: Session, address: Address) -> Outcome:
        """Start the program, wait for its end, and read its answer. Nothing that it started is left running."""
        with tempfile.TemporaryDirectory(prefix="midstream-session-") as directory:
            asked, answer = Path(directory, "task.json"), Path(directory, "answer")
            shown = {"id": task.id, "question": task.question, "metadata": task.metadata}
            asked.write_text(json.dumps(shown), encoding="utf-8")
            environment = os.environ | {
                "OPENAI_BASE_URL": address.base_url,
                "OPENAI_API_KEY": address.api_key,
                "OPENAI_MODEL": address.model,
                "ANTHROPIC_BASE_URL": address.anthropic_base_url,
                "ANTHROPIC_API_KEY": address.api_key,
                "ANTHROPIC_MODEL": address.model,
                "MIDSTREAM_TASK": str(asked),
                "MIDSTREAM_ANSWER": str(answer),
                _MARK: address.api_key,
            }
            status, lines = await self._run(environment, address.api_key)
            if status:
                how = f"exited with {status}" if status > 0 else f"was ended by signal {-status}"
                raise agent_failed(f"agent {self.name!r} {how}", "correct it", "\n".join(lines))
            if not answer.is_file():
                return Outcome()
            with answer.open(encoding="utf-8", errors="replace") as file:
                text = file.read(_LONGEST_ANSWER)
            return self.outcome(text)

    def outcome(self, text: str) -> Outcome:
        """The outcome in the file that the program wrote: its text, without white space around it."""
        return Outcome(answer=text.strip())

    async def _run(self, environment: Mapping[str, str], mark: str) -> tuple[int, list[str]]:
        """The program's exit status, and the last lines that it printed."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env=environment,
                cwd=getattr(self.settings, "cwd", None),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as failure:
            raise RecipeError(
                f"agent.command = {list(self._command)} cannot be started: {failure.strerror or failure}",
                code="command-not-found",
                fix="name a program that is installed here, by its path",
            ) from failure
        assert process.stdout is not None
        tail = asyncio.ensure_future(_tail(process.stdout))
        try:
            status = await process.wait()
            # What it printed last; a child that it left behind may hold the pipe open.
            await asyncio.wait({tail}, timeout=0.5)
        finally:
            await _end_all(process, mark)
            tail.cancel()
            with suppress(asyncio.CancelledError):
                await tail
        return status, list(tail.result() if not tail.cancelled() else ())


async def _tail(stream: asyncio.StreamReader) -> Sequence[str]:
    """The last lines of a stream that may have no end, in little memory."""
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    rest = b""
    while chunk := await stream.read(1 << 16):
        *whole, rest = (rest + chunk).split(b"\n")
        rest = rest[-_LONGEST_LINE:]
        lines.extend(line[-_LONGEST_LINE:].decode("utf-8", "replace") for line in whole[-_KEPT_LINES:])
    return [*lines, rest.decode("utf-8", "replace")] if rest else list(lines)


async def _end_all(process: asyncio.subprocess.Process, mark: str) -> None:
    """End the program's process group, and what left the group but has the session's mark in its environment."""
    ends = (signal.SIGTERM, signal.SIGKILL)
    for number, how in enumerate(ends):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, how)
        for pid in _marked(mark):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, how)
        until = time.monotonic() + _END_S
        while number == 0 and time.monotonic() < until and (process.returncode is None or _marked(mark)):
            await asyncio.sleep(0.02)
        if process.returncode is not None and not _marked(mark):
            return
    await process.wait()


def _marked(mark: str) -> list[int]:
    """The processes whose environment holds the mark; none where there is no /proc."""
    wanted, found = f"{_MARK}={mark}".encode(), []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # of another user, or ended
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                found.append(int(directory.name))
    return found


class ProcessAgent(CommandAgent):
    """A function that is not `async`, in a process of its own for each run."""

    def __init__(self, function: OwnFunction, settings: SessionSettings, gateway: Gateway) -> None:
        program = (sys.executable, "-m", "midstream.agents.run_function")
        given = json.dumps(to_jsonable_python(own_values(settings)))
        super().__init__(function.name, settings, gateway, (*program, function.reference, given))

    def outcome(self, text: str) -> Outcome:
        """The outcome as `run_function` writes it."""
        return Outcome.model_validate_json(text)


def session_agent(function: OwnFunction) -> type[SessionSettings]:
    """The settings of a function that takes `session`. Raises `RecipeError` for one that a process cannot import."""
    is_async = inspect.iscoroutinefunction(function.function)
    if not is_async and function.reference.startswith("python:"):
        raise RecipeError(
            f"{function.reference} takes `session`, is not async, and no file holds it",
            code="component-invalid",
            cause="it would run in a process of its own, which imports it",
            fix="write `async def`, or define it in a file",
        )
    made = FunctionSessionAgent if is_async else ProcessAgent

    def build(config: SessionSettings, context: Context | None) -> SessionAgent:
        return made(function, config, gateway_of(context))

    return function.settings(SessionSettings, build=build, asks="always")
