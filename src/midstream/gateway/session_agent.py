"""An agent of another program: a function that takes `session`, or a command. It asks midstream's models over HTTP.

    async def solve(task, session):
        client = openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key)
        reply = await client.chat.completions.create(
            model=session.model, messages=[{"role": "user", "content": task.question}])
        return reply.choices[0].message.content

A command finds the same in its environment: OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL, ANTHROPIC_BASE_URL and
ANTHROPIC_API_KEY, MIDSTREAM_TASK (a JSON file: id, question, metadata) and MIDSTREAM_ANSWER (the file to write).
A function that is not `async` has a thread, which nothing can end: what it still asks after its run's end is refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import Field, JsonValue

from midstream.components.agent_record import LONGEST_TEXT, Outcome, RecordedAgent, RunRecord
from midstream.components.component import Context, Kind
from midstream.components.own_settings import OwnFunction, described
from midstream.core import supervise
from midstream.core.agent import RunContext
from midstream.core.errors import InfrastructureError, MidstreamError, RecipeError, UsageError
from midstream.core.json_schema import schema_error
from midstream.core.task import Task
from midstream.core.threads import in_event_loop
from midstream.core.tool import Tool
from midstream.core.tool_calls import call_tool
from midstream.core.trajectory import Score
from midstream.gateway.http import LOOPBACK
from midstream.gateway.server import ADMIN_KEY, Gateway
from midstream.gateway.session import AgentSession, agent_failed
from midstream.gateway.settings import ServeConfig, SessionSettings

GIVEN = ("task", "session", "question", "tools")
# Of what a command prints, for its error.
_KEPT_LINES, _KEPT_BYTES = 20, 10_000
# Between SIGTERM and SIGKILL; for a cancelled function to end.
_END_S = 2.0


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
        return CommandAgent(Path(self.command[0]).name, self, gateway_of(context))


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
    # Its runs begin when a caller comes.
    waits = False

    def __init__(self, name: str, settings: SessionSettings, gateway: Gateway) -> None:
        self.name, self.settings, self.gateway = name, settings, gateway

    async def work(self, record: RunRecord, task: Task, context: RunContext) -> None:
        """Have the program answer one task, and record what it asked."""
        session = AgentSession(self.gateway, context, self.settings)
        session.waits = self.waits
        outcome, key = Outcome(), "no key yet"
        try:
            async with self.gateway.serving(session) as key:
                url = self.gateway.url(key)
                address = Address(f"{url}/v1", key, session.names[0], url)
                outcome = await self._watch(session, self.drive(task, session, address))
        except MidstreamError as failure:
            # A client's error may hold the session's key, or halves of characters, which no file holds.
            for name in ("what", "cause", "fix"):
                text = getattr(failure, name).replace(key, "KEY")
                setattr(failure, name, text.encode("utf-8", "backslashreplace").decode())
            raise failure from None
        finally:
            await session.end(record)
        if session.refused is not None:
            # The server took none of its last requests: what it made of that is no answer.
            raise session.refused
        if (
            session.limit is None
            and outcome.answer is None
            and not (session.calls or session.forwarded)
            and outcome.reward is None
        ):
            raise agent_failed(f"agent {self.name!r} ended without an answer, and asked no model", "return the answer")
        record.answer, record.final, record.reward = outcome.answer, outcome.answer or "", session.reward
        if outcome.reward is not None:
            record.reward = Score(outcome.reward, feedback=outcome.feedback)
        record.stop_reason = "answered" if outcome.answer is not None else session.limit or "ended"

    async def drive(self, task: Task, session: AgentSession, address: Address) -> Outcome:
        """Run the program."""
        raise NotImplementedError

    async def _watch(self, session: AgentSession, work: Coroutine[object, None, Outcome]) -> Outcome:
        """The outcome of the program's `work`; it is ended if something fails, and if it idles or takes too long."""
        running: asyncio.Task[Outcome] = asyncio.ensure_future(work)
        try:
            while not running.done():
                now_s = time.monotonic()
                deadline_s = float("inf") if session.waits else session.context.deadline_s or float("inf")
                idle_until_s = (session.active_s if session.idle else now_s) + self.settings.idle_s
                if now_s >= deadline_s:
                    words = f"agent {self.name!r} was still running at its deadline"
                    raise agent_failed(words, "raise rollout.deadline_s")
                if now_s >= idle_until_s:
                    words = f"agent {self.name!r} asked nothing for {self.settings.idle_s:g} s"
                    raise agent_failed(words, "raise agent.idle_s, or find out what it waits for")
                # A caller may come at any time, and the deadline counts from then.
                left_s = 1.0 if session.waits else min(deadline_s, idle_until_s) - now_s
                await asyncio.wait({running, session.failure}, timeout=left_s, return_when="FIRST_COMPLETED")
                if session.failure.done():
                    raise session.failure.result()
            try:
                return running.result()
            except UsageError:
                raise
            # What a user's function raises can be anything.
            except BaseException as failure:
                if session.limit is not None and isinstance(failure, MidstreamError | asyncio.CancelledError):
                    # It ended because of the limit, which is the policy's doing.
                    return Outcome()
                if isinstance(failure, Exception | KeyboardInterrupt):
                    raise
                raise agent_failed(f"agent {self.name!r} raised {described(failure)}", "correct it") from failure
        finally:
            if not running.done():
                running.cancel()
                # Nobody will look at its error.
                running.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.wait({running}, timeout=3 * _END_S)


def gateway_of(context: Context | None) -> Gateway:
    """The gateway of a build; without one, as where a recipe is checked, one that is never started."""
    gateway = Gateway(ServeConfig()) if context is None else context.build.gateway
    assert isinstance(gateway, Gateway)
    return gateway


class FunctionSessionAgent(SessionAgent):
    """A function as an agent."""

    def __init__(self, function: OwnFunction, settings: SessionSettings, gateway: Gateway) -> None:
        super().__init__(function.name, settings, gateway)
        self._function = function

    async def drive(self, task: Task, session: AgentSession, address: Address) -> Outcome:
        """Call the function."""
        try:
            tools = {tool.name: partial(_call_tool, session.loop, tool) for tool in session.context.tools}
            values = {"task": task, "session": address, "question": task.question, "tools": tools}
            answer = await self._function.called(self.settings, values)
        except InfrastructureError as failure:
            # It is tried again, unlike that of other components.
            raise agent_failed(failure.what, failure.fix, failure.cause) from failure
        if isinstance(answer, Outcome):
            return answer
        if not isinstance(answer, str | None):
            raise self._function.wrong(answer, "return the answer as text, an Outcome, or None")
        return Outcome(answer=answer)


def _call_tool(loop: asyncio.AbstractEventLoop, tool: Tool, **arguments: JsonValue) -> str | Awaitable[str]:
    """What a tool of the recipe answers: to be awaited in the event loop, waited for in a thread."""

    async def answered() -> str:
        # Arguments that the tool does not take are an answer too.
        return schema_error(arguments, tool.parameters) or (await call_tool(tool, arguments)).text

    return answered() if in_event_loop() else asyncio.run_coroutine_threadsafe(answered(), loop).result()


class CommandAgent(SessionAgent):
    """A program as an agent, which ends with all that it started: it has a supervisor (`core/supervise.py`)."""

    settings: CommandSettings

    async def drive(self, task: Task, session: AgentSession, address: Address) -> Outcome:
        """Start the program, wait for its end, and read its answer. Nothing that it started is left running."""
        self._check_command()
        with tempfile.TemporaryDirectory(prefix="midstream-session-", ignore_cleanup_errors=True) as directory:
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
            }
            environment.pop(ADMIN_KEY, None)
            # The gateway is on this machine, where no proxy finds it.
            for name in ("NO_PROXY", "no_proxy"):
                environment[name] = ",".join(filter(None, (environment.get(name), *LOOPBACK)))
            status, printed = await self._run(environment)
            if status:
                how = f"exited with {status}" if status <= 128 else f"was ended by signal {status - 128}"
                raise agent_failed(f"agent {self.name!r} {how}", "correct it", printed)
            if not answer.is_file():
                return Outcome()
            with answer.open(encoding="utf-8", errors="replace") as file:
                return Outcome(answer=file.read(LONGEST_TEXT).strip())

    def _check_command(self) -> None:
        """Raise `RecipeError` for a program or directory that is not there: no run could start it."""
        command, cwd = self.settings.command, self.settings.cwd
        if cwd is not None and not cwd.is_dir():
            what, fix = f"agent.cwd: there is no directory {str(cwd)!r}", "correct the path"
            raise RecipeError(what, code="file-not-found", fix=fix)
        if shutil.which(command[0] if os.sep not in command[0] else Path(cwd or "", command[0])) is None:
            raise RecipeError(
                f"agent.command = {list(command)} cannot be started: no such program, or it is not executable",
                code="command-not-found",
                fix="name a program that is installed here, by its path",
            )

    async def _run(self, environment: Mapping[str, str]) -> tuple[int, str]:
        """The program's exit status, 128 and a signal that ended it, and the last lines that it printed."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-IS", supervise.__file__, "--within", str(_END_S), *self.settings.command),
            env=environment,
            cwd=self.settings.cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C is for the run, which then ends the program.
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        output, kept = process.stdout, bytearray()

        async def keep_the_end() -> None:
            # Output may have no end, so little of it is kept.
            while chunk := await output.read(1 << 16):
                kept.extend(chunk)
                del kept[:-_KEPT_BYTES]

        tail = asyncio.ensure_future(keep_the_end())
        try:
            status = await process.wait()
            await asyncio.wait({tail}, timeout=_END_S)
        finally:
            # By this the supervisor ends the program, whatever becomes of this task.
            process.stdin.close()
            try:
                async with asyncio.timeout(2.5 * _END_S):
                    await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                tail.cancel()
        return status, "\n".join(kept.decode("utf-8", "replace").splitlines()[-_KEPT_LINES:])


def own_session_agent(kind: Kind, reference: str, value: object) -> type[SessionSettings]:
    """The settings of a function that takes `session`. One that is not `async` runs in a thread of its own."""
    function = OwnFunction(kind, reference, value, GIVEN, "a function that takes `session`")

    def build(config: SessionSettings, context: Context | None) -> SessionAgent:
        return FunctionSessionAgent(function, config, gateway_of(context))

    return function.settings(SessionSettings, build=build, asks="always")
