"""The four modules of AgentFlow as an engine with a prompt.

Every prompt is laid out for sharing: instructions, lessons and tools (the system message), then the query, then the
append-only memory, then the shortest possible tail. Nothing that changes from turn to turn comes before memory, so turn
t + 1 repeats all of turn t up to the end of its memory, and all rollouts of a task share it from the start.

A reply that cannot be used is data. The planner's costs the turn at once; executor, verifier and generator are asked a
second time with what was wrong. JSON that is broken even then is repaired if it is whole, and the call marked so. All
calls are returned, unusable ones too.

What others wrote cannot start a chat turn: tools and results are escaped JSON, memory has its own rendering, and in the
query, in lessons and in a reply that is shown to its model again, chat-template tokens are broken by an escape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from midstream.agents.formats import parse_action, parse_answer, parse_command, parse_verdict
from midstream.agents.rendering import MemoryStyle, render_memory, toon_library
from midstream.agents.template import PromptTemplate
from midstream.core.component import ComponentConfig, Context
from midstream.core.data import Frozen
from midstream.core.errors import InfrastructureError, RecipeError
from midstream.core.memory import Memory
from midstream.core.prompt_text import neutral, to_json
from midstream.core.protocols import ModuleContext, Request, Tool
from midstream.core.replies import spoken
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Action, Call, Command, Message, Observation, Sampling, Verdict
from midstream.sandbox import code_runner

if TYPE_CHECKING:
    from midstream.agents.code import CodeExecutor

Value = TypeVar("Value")

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


class ModuleConfig(Frozen):
    """What every prompted module can be told. `prompt_file` replaces the prompt that ships with midstream."""

    sampling: Sampling = Sampling(temperature=0.0, max_tokens=2048)
    prompt_file: Path | None = None


class Config(ModuleConfig):
    """For modules that see the memory: planner, verifier, generator."""

    memory_style: MemoryStyle = "json"


class PlannerConfig(Config, ComponentConfig):
    """The planner is the trained module: it explores. Temperature 0.5 and 2,048 tokens are the paper's (training)."""

    asks = "always"

    sampling: Sampling = Sampling(temperature=0.5, max_tokens=2048)

    def build(self, context: Context) -> PromptedPlanner:
        """Build it."""
        return PromptedPlanner(self)


class VerifierConfig(Config, ComponentConfig):
    """The verifier replies in JSON: `structured_output` has the engine's server enforce the schema."""

    asks = "always"

    structured_output: bool = False

    def build(self, context: Context) -> PromptedVerifier:
        """Build it."""
        return PromptedVerifier(self)


class GeneratorConfig(Config, ComponentConfig):
    """Settings of the generator."""

    asks = "always"

    def build(self, context: Context) -> PromptedGenerator:
        """Build it."""
        return PromptedGenerator(self)


class ExecutorConfig(ModuleConfig, ComponentConfig):
    """`mode = "code"` has the model write a short program around the tool instead of the arguments of one call.

    `program` limits what such a program may use up; `structured_output` has the engine's server enforce the tool's
    schema on arguments.
    """

    asks = "always"

    structured_output: bool = False
    mode: Literal["arguments", "code"] = "arguments"
    program: code_runner.Config = code_runner.Config()

    def build(self, context: Context) -> CodeExecutor | PromptedExecutor:
        """Build it."""
        from midstream.agents.code import CodeExecutor  # which reads this module

        return CodeExecutor(self) if self.mode == "code" else PromptedExecutor(self)


class PromptedModule:
    """What the four modules share: a prompt, and asking an engine until the reply can be used."""

    role: ClassVar[str]
    layout: ClassVar[tuple[str, ...]]
    prompt: ClassVar[str] = ""  # the file that ships with midstream, where it is not named after the role

    def __init__(self, config: ModuleConfig) -> None:
        self.config = config
        self._template = PromptTemplate(self.prompt or self.role, self.layout, config.prompt_file)
        self.shows_lessons = self._template.shows_lessons

    async def _ask(
        self,
        values: Mapping[str, str],
        context: ModuleContext,
        parse: Callable[[str], tuple[Value, str | None]],
        *,
        asks: int = _MAX_ASKS,
        fix: Callable[[str], tuple[Value, str | None]] | None = None,
        json_schema: Mapping[str, Any] | None = None,
    ) -> tuple[Value, tuple[Call, ...]]:
        """Ask up to `asks` times; `parse` gives a value and what is wrong with it (None: nothing).

        The module's lessons are put in beside `values`. `fix` is tried on the last reply if that could not be parsed,
        and was not cut off.
        """
        if context.engine is None:
            raise RecipeError(f"the {self.role} has no engine", fix=f"name one for the {self.role} in the recipe")
        messages: tuple[Message, ...] = self._template.messages({**values, "lessons": render_lessons(context.lessons)})
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
                emit=context.emit,
            )
            try:
                call = await context.engine.sample(request)
                calls = (*calls, call)
                value, problem = parse(call.completion)
            except InfrastructureError as failure:
                failure.calls = (*calls, *failure.calls)
                raise
            last = len(calls) >= asks
            if problem is not None and last and fix is not None and call.finish_reason != "length":
                mended, problem = fix(call.completion)
                if problem is None:
                    value, calls = mended, (*calls[:-1], call.model_copy(update={"repaired": True}))
            context.emit("call", calls[-1])
            if problem is None or last:
                return value, calls
            messages = (*messages, *_correction(call.completion, problem))


def _correction(completion: str, problem: str) -> tuple[Message, Message]:
    """The unusable reply without its thoughts, and what was wrong with it."""
    said = neutral(spoken(completion).strip()) or "(no text)"
    advice = f"This reply cannot be used: {problem}. Reply again in the form asked for, and with nothing else."
    return Message(role="assistant", content=said), Message(role="user", content=neutral(advice))


def render_lessons(lessons: str) -> str:
    """The part of a prompt that holds lessons; without any the prompt is what it is without this part."""
    text = neutral(lessons.strip())
    return f"# Lessons from earlier tasks\n\n{text}\n\n" if text else ""


class _Remembering(PromptedModule):
    """What planner, verifier and generator share: they see the query and the memory."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._style: MemoryStyle = config.memory_style
        if self._style == "toon":
            toon_library()  # a missing one is told now, not in the first turn

    def _values(self, question: str, memory: Memory) -> dict[str, str]:
        return {"query": neutral(question), "memory": render_memory(memory, self._style)}


def render_tools(tools: Sequence[Tool]) -> str:
    """One line of JSON a tool: name, description, parameters. Escaped like memory: a tool may come from anywhere."""
    fields = ("name", "description", "parameters")
    return "\n".join(to_json({field: getattr(tool, field) for field in fields}) for tool in tools)


class PromptedPlanner(_Remembering):
    """`core.protocols.Planner` on an engine. A malformed reply is an action with `error`, without a second ask."""

    role, layout = "planner", ("tools", "query", "memory")

    async def plan(
        self, question: str, tools: Sequence[Tool], memory: Memory, context: ModuleContext
    ) -> tuple[Action, tuple[Call, ...]]:
        """Decide the next sub-goal, tool and context."""
        values = self._values(question, memory) | {"tools": render_tools(tools)}
        return await self._ask(values, context, lambda reply: (parse_action(reply, tools), None), asks=1)


class PromptedExecutor(PromptedModule):
    """`core.protocols.Executor` on an engine: JSON arguments, validated against the tool's schema.

    It sees the action, the tools and lessons of its own, never the query or the memory.
    """

    role, layout = "executor", ("tools", "action")

    def __init__(self, config: ExecutorConfig) -> None:
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

        def parse(reply: str, repair: bool = False) -> tuple[Command, str | None]:
            command = parse_command(reply, tool, repair=repair)
            return command, command.error

        schema = tool.parameters if self._structured else None
        return await self._ask(values, context, parse, fix=partial(parse, repair=True), json_schema=schema)


class PromptedVerifier(_Remembering):
    """`core.protocols.Verifier` on an engine. A reply that stays unreadable is "not valid, not sufficient"."""

    role, layout = "verifier", ("query", "memory", "observation")

    def __init__(self, config: VerifierConfig) -> None:
        super().__init__(config)
        self._structured = config.structured_output

    async def verify(
        self, question: str, observation: Observation, memory: Memory, context: ModuleContext
    ) -> tuple[Verdict, tuple[Call, ...]]:
        """Judge the newest observation and whether memory and it suffice to answer."""
        values = self._values(question, memory)
        # Without its duration: a prompt that holds a measured time can never be repeated exactly.
        values["observation"] = to_json({"status": observation.status, "text": observation.text})
        schema = VERDICT_SCHEMA if self._structured else None
        fix = partial(_readable_verdict, repair=True)
        return await self._ask(values, context, _readable_verdict, fix=fix, json_schema=schema)


def _readable_verdict(reply: str, repair: bool = False) -> tuple[Verdict, str | None]:
    verdict = parse_verdict(reply, repair=repair)
    if verdict is not None:
        return verdict, None
    problem = "it holds no JSON object with result_valid and memory_sufficient as true or false"
    unreadable = f"unparseable verdict: {reply[:500]}".encode("utf-8", "replace").decode()
    return Verdict(result_valid=False, memory_sufficient=False, analysis=unreadable), problem


class PromptedGenerator(_Remembering):
    """`core.protocols.Generator` on an engine. A reply without any answer, twice, is None."""

    role, layout = "generator", ("query", "memory")

    async def generate(
        self, question: str, memory: Memory, context: ModuleContext
    ) -> tuple[str | None, tuple[Call, ...]]:
        """Write the final answer."""
        values = self._values(question, memory)
        return await self._ask(values, context, _readable_answer)


def _readable_answer(reply: str) -> tuple[str | None, str | None]:
    answer = parse_answer(reply) or None
    return answer, None if answer else "it holds no answer"
