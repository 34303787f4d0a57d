"""An agent of your own: a function that asks a model and calls tools, or a class with `run` (`core.agent.Agent`).

    async def checked(question, tools, model):
        first = await model(f"Answer in one word. {question}")
        found = await tools["local_search"](query=first)
        return await model(f"{question}\\nA first answer was {first}. A search says: {found}\\nAnswer in one word.")

A function's run is recorded like any other: each tool call ends a turn, with the requests before it; the requests after
the last one are its closing calls. So limits, events, costs and token ids are the same, and its model can be trained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import wraps
from typing import Any

from pydantic import JsonValue

from midstream.components.agent_record import (
    ROLE,
    AgentSettings,
    Draft,
    Outcome,
    RecordedAgent,
    RunRecord,
    observe,
    until,
)
from midstream.components.component import ComponentConfig, Kind
from midstream.components.own_settings import OwnFunction, class_or_object, parameters_of
from midstream.core.agent import Agent, RunContext
from midstream.core.engine import LockstepEngine, Request
from midstream.core.errors import PromptTooLongError
from midstream.core.json_schema import schema_error
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.text import to_json
from midstream.core.texts import EXAMPLES, Text
from midstream.core.threads import in_event_loop
from midstream.core.tool import Tool
from midstream.core.trajectory import Action, Call, Command, Message, Observation, Sampling, Score

GIVEN = ("question", "task", "tools", "model", "models", "lessons")
# Stands for a request until it is answered.
_PENDING = Call(role="")
Chat = str | Text | Sequence[Mapping[str, str | Text] | Message]


class FunctionAgentSettings(AgentSettings):
    """Settings of a function as an agent.

    Attributes:
        sampling: see `sampling`; `max_tokens` is the limit of one reply
    """

    sampling: Sampling = Sampling(temperature=1.0, max_tokens=2048)


class ModelReply(str):
    """The text of a model's reply; `call` is its record, with token counts and finish reason."""

    call: Call


class ToolText(str):
    """The text of a tool's answer; `ok` is false if it gave none, or the arguments were invalid."""

    ok: bool


class _FunctionRun:
    """One run under way: its record, and one draft for each turn, in the order in which they began."""

    def __init__(self, context: RunContext, settings: FunctionAgentSettings) -> None:
        self.context, self.settings = context, settings
        self.loop = asyncio.get_running_loop()
        self.drafts: list[Draft] = []
        # Requests so far, each of which has its own seed.
        self.asked = 0

    def draft(self) -> Draft:
        """The turn that takes the next request or tool call."""
        if not self.drafts or self.drafts[-1].action is not None:
            self.drafts.append(Draft(index=len(self.drafts) + 1))
        return self.drafts[-1]

    def written(self, record: RunRecord, *, broken: bool) -> None:
        """Write the turns into the record; the newest stays under way if it broke, and is the closing calls if not."""
        for draft in self.drafts:
            draft.calls = [call for call in draft.calls if call is not _PENDING]
        last = self.drafts.pop() if self.drafts and (broken or self.drafts[-1].action is None) else None
        record.turns += [draft.turn() for draft in self.drafts]
        if broken:
            record.draft = last
        elif last is not None:
            record.closing_calls = tuple(last.calls)


def _anywhere(method: Callable[..., Coroutine[object, None, Any]]) -> Callable[..., Any]:
    """A method that is awaited in an event loop, and waited for in the thread of a function that is not `async`."""

    @wraps(method)
    def call(self: Any, *positional: object, **named: object) -> Any:
        work = method(self, *positional, **named)
        return work if in_event_loop() else asyncio.run_coroutine_threadsafe(work, self._run.loop).result()

    return call


class Model:
    """A model, as an agent of your own asks it."""

    def __init__(self, run: _FunctionRun, role: str) -> None:
        self._run, self._role = run, role
        engine = run.context.engines.get(role)
        # An engine in this process answers one request of a trajectory at a time.
        one_by_one = isinstance(engine, LockstepEngine)
        self._place: AbstractAsyncContextManager[object] = asyncio.Lock() if one_by_one else nullcontext()

    @_anywhere
    async def __call__(
        self,
        messages: Chat,
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        json_schema: Mapping[str, JsonValue] | None = None,
    ) -> ModelReply:
        """Ask the model and return its reply.

        Args:
            messages: a user's message, or a chat as dictionaries with `role` and `content`.
            temperature: by default that of the agent's settings; so is `max_tokens`.
            max_tokens: the limit of the reply.
            stop: texts that end the reply.
            json_schema: the schema of a reply in JSON, for servers that can hold to one.
        """
        run, draft = self._run, self._run.draft()
        module = run.context.begin(self._role, draft.index)
        changed = {"temperature": temperature, "max_tokens": max_tokens, "stop": tuple(stop) or None}
        given = {key: value for key, value in changed.items() if value is not None}
        chat = [{"role": "user", "content": messages}] if isinstance(messages, str | Text) else messages
        # A text that is learned may stand where text does.
        chat = [
            {key: str(value) if isinstance(value, Text) else value for key, value in each.items()}
            if isinstance(each, Mapping)
            else each
            for each in chat
        ]
        request = Request(
            role=self._role,
            messages=tuple(map(Message.model_validate, chat)),
            sampling=Sampling.model_validate(run.settings.sampling.model_dump() | given),
            seed=derive_seed(module.seed, run.asked),
            json_schema=json_schema,
        )
        run.asked += 1
        place = len(draft.calls)
        draft.add_calls([_PENDING])
        async with self._place:
            call = draft.calls[place] = await module.sample(request)
        module.emit("call", call)
        reply = ModelReply(call.completion)
        reply.call = call
        return reply


class CallableTool:
    """A tool, as an agent of your own calls it: `await tools["python"](code="print(1)")` returns its text."""

    def __init__(self, run: _FunctionRun, tool: Tool) -> None:
        self._run, self._tool = run, tool
        self.name, self.description, self.parameters = tool.name, tool.description, tool.parameters

    @_anywhere
    async def __call__(self, **arguments: JsonValue) -> ToolText:
        """Call the tool within its limits; arguments that it does not take are an answer that is not ok."""
        run = self._run
        draft = run.draft()
        emit = run.context.emitter(ROLE, draft.index)
        draft.action = Action(tool=self.name, context=to_json(arguments))
        draft.add("action", emit)
        problem = schema_error(arguments, self.parameters)
        draft.command = Command(tool=self.name, arguments=arguments, error=problem)
        draft.add("command", emit)
        if problem is None:
            draft.observation, calls = await observe(self._tool, arguments)
            draft.add_calls(calls)
        else:
            draft.observation = Observation(status="error", text=problem)
        draft.add("observation", emit)
        text = ToolText(draft.observation.text)
        text.ok = draft.observation.status == "ok"
        return text


class FunctionAgent(RecordedAgent):
    """A function as an agent; it holds nothing of a task, so any number of runs may share it at once."""

    def __init__(self, function: OwnFunction, settings: FunctionAgentSettings) -> None:
        self.name, self._function, self._settings = function.name, function, settings
        self.shows_lessons = "lessons" in function.takes

    async def work(self, record: RunRecord, task: Task, context: RunContext) -> None:
        """Call the function for one task; where a prompt no longer fits the model, it ends without an answer."""
        run = _FunctionRun(context, self._settings)
        values = {
            "question": task.question,
            "task": task,
            "tools": {tool.name: CallableTool(run, tool) for tool in context.tools},
            "model": Model(run, ROLE),
            "models": {role: Model(run, role) for role in context.engines},
            "lessons": "\n\n".join(filter(None, map(context.lessons.get, (ROLE, ROLE + EXAMPLES)))),
        }
        broken = True
        try:
            async with until(context.deadline_s):
                answer = await self._function.called(self._settings, values)
            if isinstance(answer, Outcome):
                if answer.reward is not None:
                    record.reward = Score(answer.reward, feedback=answer.feedback)
                answer = answer.answer
            if not isinstance(answer, str | None):
                raise self._function.wrong(answer, "return the answer as text, an Outcome, or None")
            # A `ModelReply` is more than text.
            record.answer = None if answer is None else str(answer)
            record.stop_reason = "answered" if record.answer is not None else "ended"
            broken = False
        except PromptTooLongError as failure:
            if not any(call is not _PENDING for draft in run.drafts for call in draft.calls):
                # Nothing is sampled yet: the recipe or the task alone is too long.
                raise
            record.stop_reason, broken = "context_limit", False
            run.draft().add_calls(failure.calls)
        finally:
            run.written(record, broken=broken)
        record.final = record.answer or ""
        context.emitter(ROLE, len(record.turns) + 1)("answer", record.answer)


def own_agent(kind: Kind, reference: str, value: Any) -> type[ComponentConfig]:
    """The settings of an agent of your own: a function, or a class or object with `run`."""
    if made := class_or_object(kind, AgentSettings, reference, value, Agent, "run"):
        made.role = getattr(value, "role", ROLE)  # type: ignore[attr-defined]
        made.dialogues = getattr(value, "dialogues", False)  # type: ignore[attr-defined]
        return made
    if "session" in parameters_of(reference, value):
        # The gateway is loaded for agents of other programs only.
        from midstream.gateway.session_agent import own_session_agent

        return own_session_agent(kind, reference, value)
    function = OwnFunction(kind, reference, value, GIVEN, f"a function that takes some of {', '.join(GIVEN)}")
    asks = "always" if "model" in function.takes else "optional" if "models" in function.takes else "never"
    return function.settings(FunctionAgentSettings, build=lambda config, _: FunctionAgent(function, config), asks=asks)
