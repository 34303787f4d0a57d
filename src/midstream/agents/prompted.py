"""The four modules of AgentFlow as an engine with a prompt.

Every prompt is laid out for sharing: instructions, lessons and tools (the system message), then the query, then the
append-only memory, then the shortest possible tail. Nothing that changes from turn to turn comes before memory, so turn
t + 1 repeats all of turn t up to the end of its memory, and all rollouts of a task share it from the start.

A reply that cannot be used is data. The planner's costs the turn at once; executor, verifier and generator are asked a
second time with what was wrong. All calls are returned, unusable ones too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from midstream.agents.formats import parse_action, parse_answer, parse_command, parse_verdict
from midstream.agents.rendering import MemoryStyle, render_memory, to_json
from midstream.core.data import Frozen
from midstream.core.errors import InfrastructureError, RecipeError
from midstream.core.memory import Memory
from midstream.core.protocols import ModuleContext, Request, Tool
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Action, Call, Command, Message, Observation, Sampling, Verdict

Value = TypeVar("Value")

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_USER_PART = "<!-- user -->\n"
_MAX_ASKS = 2
VERDICT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "analysis": {"type": "string"},
        "result_valid": {"type": "boolean"},
        "memory_sufficient": {"type": "boolean"},
    },
    "required": ["analysis", "result_valid", "memory_sufficient"],
    "additionalProperties": False,
}


class Config(Frozen):
    """What every prompted module can be told. `prompt_file` replaces the prompt that ships with midstream."""

    sampling: Sampling = Sampling(temperature=0.0, max_tokens=2048)
    memory_style: MemoryStyle = "json"
    prompt_file: Path | None = None


class PlannerConfig(Config):
    """The planner is the trained module: it explores. Temperature 0.5 and 2,048 tokens are the paper's (training)."""

    sampling: Sampling = Sampling(temperature=0.5, max_tokens=2048)


class StructuredConfig(Config):
    """For modules that reply in JSON: `structured_output` has the engine's server enforce the schema."""

    structured_output: bool = False


class ExecutorConfig(StructuredConfig):
    """`mode = "code"` has the model write a short program around the tool instead of the arguments of one call."""

    mode: Literal["arguments", "code"] = "arguments"


class PromptTemplate:
    """A prompt file: a system part, a line `<!-- user -->`, a user part, with `{{name}}` where values go.

    Args:
        role: names the file that ships with midstream.
        layout: the values the prompt must hold, once each and in this order; `lessons` may stand before the query.
        override: a file of the user's own.
    """

    def __init__(self, role: str, layout: tuple[str, ...], override: Path | None = None) -> None:
        shipped = resources.files("midstream.agents") / "prompts" / f"{role}.md"
        try:
            text = (override or shipped).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as failure:
            raise RecipeError(
                f"the {role}'s prompt file {override} cannot be read", cause=str(failure), mend="correct prompt_file"
            ) from failure
        names = _PLACEHOLDER.findall(text)
        in_place = names.count("lessons") == 0 or (names[0] == "lessons" and names.count("lessons") == 1)
        if text.count(_USER_PART) != 1 or not in_place or tuple(n for n in names if n != "lessons") != layout:
            raise RecipeError(
                f"the {role}'s prompt file {override} holds {names or 'no placeholder'}",
                cause="prompts of successive turns are only shared if what changes comes last",
                mend=f"use {', '.join('{{' + name + '}}' for name in layout)} once each in this order, lessons (if at "
                f"all) first, and one line {_USER_PART.strip()} where the user message starts",
            )
        self._system, self._user = text.split(_USER_PART)

    def messages(self, values: Mapping[str, str]) -> tuple[Message, Message]:
        """The system and the user message. Values are put in as they are: a placeholder inside one stays text."""
        fill = {"lessons": "", **values}
        system, user = (_PLACEHOLDER.sub(lambda m: fill[m[1]], part) for part in (self._system, self._user))
        return Message(role="system", content=system.strip()), Message(role="user", content=user.rstrip("\n"))


class _Prompted:
    """What the four modules share: a prompt, and asking an engine until the reply can be used."""

    role: ClassVar[str]
    layout: ClassVar[tuple[str, ...]]

    def __init__(self, config: Config) -> None:
        self.config = config
        self._template = PromptTemplate(self.role, self.layout, config.prompt_file)

    async def _ask(
        self,
        values: Mapping[str, str],
        context: ModuleContext,
        parse: Callable[[str], tuple[Value, str | None]],
        *,
        asks: int = _MAX_ASKS,
        json_schema: Mapping[str, Any] | None = None,
    ) -> tuple[Value, tuple[Call, ...]]:
        """Ask up to `asks` times; `parse` gives a value and what is wrong with it (None: nothing)."""
        if context.engine is None:
            raise RecipeError(f"the {self.role} has no engine", mend=f"name one for the {self.role} in the recipe")
        messages: tuple[Message, ...] = self._template.messages(values)
        calls: tuple[Call, ...] = ()
        while True:
            request = Request(
                role=self.role,
                messages=messages,
                sampling=self.config.sampling,
                seed=derive_seed(context.seed, len(calls)),
                order=context.order,
                json_schema=json_schema,
                deadline_s=context.deadline_s,
                tell=context.tell,
            )
            try:
                call = await context.engine.sample(request)
            except InfrastructureError as failure:
                failure.calls = (*calls, *failure.calls)
                raise
            context.tell("call", call)
            calls = (*calls, call)
            value, problem = parse(call.completion)
            if problem is None or len(calls) >= asks:
                return value, calls
            messages = (*messages, *_correction(call.completion, problem))

    def _memory(self, memory: Memory) -> str:
        return render_memory(memory, self.config.memory_style)


def _correction(completion: str, problem: str) -> tuple[Message, Message]:
    """The unusable reply, and what was wrong with it."""
    advice = f"This reply cannot be used: {problem}. Reply again in the form asked for, and with nothing else."
    return Message(role="assistant", content=completion or "(no text)"), Message(role="user", content=advice)


def _lessons(context: ModuleContext) -> str:
    return f"# Lessons from earlier tasks\n\n{context.lessons.strip()}\n\n" if context.lessons.strip() else ""


def render_tools(tools: Sequence[Tool]) -> str:
    """One line of JSON a tool: name, description, parameters. Escaped like memory: a tool may come from anywhere."""
    fields = ("name", "description", "parameters")
    return "\n".join(to_json({field: getattr(tool, field) for field in fields}) for tool in tools)


class PromptedPlanner(_Prompted):
    """`core.protocols.Planner` on an engine. A malformed reply is an action with `error`, without a second ask."""

    role, layout = "planner", ("tools", "query", "memory")

    def __init__(self, config: PlannerConfig) -> None:
        super().__init__(config)

    async def plan(
        self, question: str, tools: Sequence[Tool], memory: Memory, context: ModuleContext
    ) -> tuple[Action, tuple[Call, ...]]:
        """Decide the next sub-goal, tool and context."""
        values = {"query": question, "memory": self._memory(memory)}
        values |= {"lessons": _lessons(context), "tools": render_tools(tools)}
        return await self._ask(values, context, lambda reply: (parse_action(reply, tools), None), asks=1)


class PromptedExecutor(_Prompted):
    """`core.protocols.Executor` on an engine: JSON arguments, validated against the tool's schema.

    It sees the action and the tools, never the query, the memory or lessons.
    """

    role, layout = "executor", ("tools", "action")

    def __init__(self, config: StructuredConfig) -> None:
        super().__init__(config)
        self._structured = config.structured_output

    async def command(
        self, action: Action, tools: Sequence[Tool], context: ModuleContext
    ) -> tuple[Command, tuple[Call, ...]]:
        """Write the tool call for an action; arguments still invalid after a second ask are a command with `error`."""
        tool = next((tool for tool in tools if tool.name == action.tool), None)
        if tool is None:
            return Command(tool=action.tool, error=f"no tool is called {action.tool!r}"), ()
        wanted = {"tool": action.tool, "sub_goal": action.sub_goal, "context": action.context}
        values = {"tools": render_tools(tools), "action": to_json(wanted)}

        def parse(reply: str) -> tuple[Command, str | None]:
            command = parse_command(reply, tool)
            return command, command.error

        schema = tool.parameters if self._structured else None
        return await self._ask(values, context, parse, json_schema=schema)


class PromptedVerifier(_Prompted):
    """`core.protocols.Verifier` on an engine. A reply that stays unreadable is "not valid, not sufficient"."""

    role, layout = "verifier", ("query", "memory", "observation")

    def __init__(self, config: StructuredConfig) -> None:
        super().__init__(config)
        self._structured = config.structured_output

    async def verify(
        self, question: str, observation: Observation, memory: Memory, context: ModuleContext
    ) -> tuple[Verdict, tuple[Call, ...]]:
        """Judge the newest observation and whether memory and it suffice to answer."""
        values = {"query": question, "memory": self._memory(memory), "lessons": _lessons(context)}
        # Without its duration: a prompt that holds a measured time can never be repeated exactly.
        values["observation"] = to_json({"status": observation.status, "text": observation.text})
        schema = VERDICT_SCHEMA if self._structured else None
        return await self._ask(values, context, _readable_verdict, json_schema=schema)


def _readable_verdict(reply: str) -> tuple[Verdict, str | None]:
    verdict = parse_verdict(reply)
    if verdict is not None:
        return verdict, None
    problem = "it holds no JSON object with result_valid and memory_sufficient as true or false"
    unreadable = f"unparseable verdict: {reply[:500]}".encode("utf-8", "replace").decode()
    return Verdict(result_valid=False, memory_sufficient=False, analysis=unreadable), problem


class PromptedGenerator(_Prompted):
    """`core.protocols.Generator` on an engine. A reply without any answer, twice, is None."""

    role, layout = "generator", ("query", "memory")

    def __init__(self, config: Config) -> None:
        super().__init__(config)

    async def generate(
        self, question: str, memory: Memory, context: ModuleContext
    ) -> tuple[str | None, tuple[Call, ...]]:
        """Write the final answer."""
        values = {"query": question, "memory": self._memory(memory), "lessons": _lessons(context)}
        return await self._ask(values, context, _readable_answer)


def _readable_answer(reply: str) -> tuple[str | None, str | None]:
    answer = parse_answer(reply) or None
    return answer, None if answer else "it holds no answer"
