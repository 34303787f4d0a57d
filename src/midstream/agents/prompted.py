"""The four modules of AgentFlow and its analyst, each an engine with a prompt.

Every prompt is laid out for sharing: instructions, lessons and tools (the system message), then the query, then the
append-only memory, then the shortest possible tail. Nothing that changes from turn to turn comes before memory, so turn
t + 1 repeats all of turn t up to the end of its memory, and all rollouts of a task share a prefix from the start.

A reply that cannot be used is data. The planner's costs the turn at once; executor, verifier and generator are asked a
second time, with what was wrong. JSON that is still broken is repaired if it is complete, and the call marked as
repaired. All calls are returned, unusable ones too.

Foreign text cannot start a chat turn: tools and results are escaped JSON, memory has its own rendering, and in the
query, in lessons and in a reply that is shown to its model again, chat-template tokens are broken by an escape.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from pydantic import JsonValue

from midstream.agents.formats import parse_action, parse_answer, parse_command, parse_verdict
from midstream.agents.rendering import PromptTemplate, render_analysis, render_memory, render_tools
from midstream.components.component import ComponentConfig
from midstream.core.agent import ModuleContext
from midstream.core.data import Settings
from midstream.core.engine import Request
from midstream.core.errors import InfrastructureError, RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.text import find_program, neutral, render_lessons, spoken, to_json
from midstream.core.tool import Tool
from midstream.core.trajectory import Action, Call, Command, Memory, MemoryRecord, Message, Sampling, Verdict
from midstream.sandbox import code_runner
from midstream.sandbox.code_runner import function_name

Value = TypeVar("Value")

_MAX_ASKS = 2
VERDICT_SCHEMA: Mapping[str, JsonValue] = {
    "type": "object",
    "properties": {
        "analysis": {"type": "string"},
        "result_valid": {"type": "boolean"},
        "memory_sufficient": {"type": "boolean"},
    },
    "required": ["analysis", "result_valid", "memory_sufficient"],
    "additionalProperties": False,
}


class ModuleConfig(Settings):
    """Settings of every prompted module.

    Attributes:
        sampling: see `sampling`
        opening: what every reply begins with; an engine that continues text gets it, other servers do not
        prompt_file: replaces the module's prompt in `src/midstream/agents/prompts/`
    """

    sampling: Sampling = Sampling(temperature=0.0, max_tokens=2048)
    opening: str = ""
    prompt_file: Path | None = None


class PromptedModule:
    """A prompt, and requests to an engine until the reply can be used: the base of all prompted modules."""

    role: ClassVar[str]
    layout: ClassVar[tuple[str, ...]]

    def __init__(self, config: ModuleConfig, *, prompt: str = "") -> None:
        self.config = config
        self._template = PromptTemplate(prompt or self.role, self.layout, config.prompt_file)
        self.shows_lessons = self._template.shows_lessons
        # Said before a run whose recipe names a prompt file of its own.
        self.lost_sharing = self._template.lost_sharing() if config.prompt_file is not None else ""

    def _values(self, question: str, memory: Memory) -> dict[str, str]:
        """The prompt's values for planner, verifier and generator; the executor sees neither query nor memory."""
        return {
            "query": neutral(question),
            "analysis": render_analysis(memory.analysis),
            "memory": render_memory(memory),
        }

    async def _ask(
        self,
        values: Mapping[str, str],
        context: ModuleContext,
        parse: Callable[[str], Awaitable[tuple[Value, str | None]]],
        *,
        asks: int = _MAX_ASKS,
        repair: Callable[[str], Awaitable[tuple[Value, str | None]]] | None = None,
        json_schema: Mapping[str, JsonValue] | None = None,
    ) -> tuple[Value, tuple[Call, ...]]:
        """Ask up to `asks` times; `parse` returns a value and its problem (None: no problem).

        The module's lessons are added to `values`. `repair` is tried on the last reply if that could not be parsed and
        was not cut off.
        """
        messages: tuple[Message, ...] = self._template.messages({**values, "lessons": render_lessons(context.lessons)})
        calls: tuple[Call, ...] = ()
        # Other engines would answer a message of the assistant's as if it were whole.
        continues = getattr(context.engine, "codec", None) is not None
        opening = self.config.opening if continues else ""
        begun = (Message(role="assistant", content=opening),) if opening else ()
        sampling = self.config.sampling
        if begun:
            # A schema would describe the whole reply, and this one has begun.
            json_schema = None
        elif self.config.opening:
            # Servers leave out the stop string, which closes the form.
            sampling = sampling.model_copy(update={"stop": ()})
        while True:
            request = Request(
                role=self.role,
                messages=(*messages, *begun),
                continues=bool(begun),
                sampling=sampling,
                keep_stop=bool(begun),
                seed=derive_seed(context.seed, len(calls)),
                json_schema=json_schema,
            )
            try:
                call = await context.sample(request)
                calls = (*calls, call)
                reply = opening + call.completion
                value, problem = await parse(reply)
            except InfrastructureError as failure:
                failure.calls = (*calls, *failure.calls)
                raise
            last = len(calls) >= asks
            if problem is not None and last and repair is not None and call.finish_reason != "length":
                repaired, problem = await repair(reply)
                if problem is None:
                    value, calls = repaired, (*calls[:-1], call.model_copy(update={"repaired": True}))
            context.emit("call", calls[-1])
            if problem is None or last:
                return value, calls
            # The next request shows the unusable reply without its thoughts, and what was wrong with it.
            said = neutral(spoken(reply).strip()) or "(no text)"
            advice = f"This reply cannot be used: {problem}. Reply again in the form asked for, and with nothing else."
            correction = Message(role="user", content=neutral(advice))
            messages = (*messages, Message(role="assistant", content=said), correction)


class PromptedPlanner(PromptedModule):
    """`core.agent.Planner` on an engine. A malformed reply is an action with `error`, without a second ask."""

    role, layout = "planner", ("tools", "query", "memory")

    async def plan(
        self, question: str, tools: Sequence[Tool], memory: Memory, context: ModuleContext
    ) -> tuple[Action, tuple[Call, ...]]:
        """Decide the next sub-goal, tool and context."""

        async def parse(reply: str) -> tuple[Action, None]:
            return parse_action(reply, tools), None

        return await self._ask(self._prompt_values(question, tools, memory), context, parse, asks=1)

    def _prompt_values(self, question: str, tools: Sequence[Tool], memory: Memory) -> dict[str, str]:
        """The prompt's values."""
        return self._values(question, memory) | {"tools": render_tools(tools)}


class PlannerConfig(ModuleConfig, ComponentConfig):
    """A chat model that plans the next action.

    It is the trained module, so it explores: temperature 0.5 and 2,048 tokens, as in the paper's runs."""

    asks = "always"
    component = PromptedPlanner

    sampling: Sampling = Sampling(temperature=0.5, max_tokens=2048)


class PromptedExecutor(PromptedModule):
    """`core.agent.Executor` on an engine: it sees the action, the tools and its lessons, never query or memory.

    A command is JSON arguments, validated against the tool's schema. With `mode = "code"` it is a short program around
    the action's tool, so that calls can be chained, branched on and post-processed within one turn (arXiv 2510.05592,
    section 3.1: a command may be code); `sandbox.code_runner` runs it, and its prompt has the tools as functions:

        ```python
        heights = [float(local_search(query=f"{name} height").split()[-1]) for name in ("Amberbank", "Coldmere")]
        print(sum(heights))
        ```

    Raises `RecipeError` if `structured_output` is on in mode "code", or the prompt file is not valid.
    """

    role, layout = "executor", ("tools", "action")

    def __init__(self, config: ExecutorConfig, *, code_prompt: str = "executor_code") -> None:
        self.mode, self._structured = config.mode, config.structured_output
        if self.mode == "code" and self._structured:
            raise RecipeError(
                'agent.executor.structured_output = true with mode = "code"',
                code="setting-conflict",
                fix='set structured_output = false, or mode = "arguments"',
            )
        super().__init__(config, prompt=code_prompt if self.mode == "code" else "executor")

    async def command(
        self, action: Action, tools: Sequence[Tool], context: ModuleContext
    ) -> tuple[Command, tuple[Call, ...]]:
        """Write the tool call for an action; one that is still invalid after a second ask is a command with `error`."""
        tool = next((tool for tool in tools if tool.name == action.tool), None)
        if tool is None:
            return Command(tool=action.tool, error=f"no tool is called {action.tool!r}"), ()
        if self.mode == "code":

            async def parse_code(reply: str) -> tuple[Command, str | None]:
                command = parse_program(reply, tool.name)
                return command, command.error

            return await self._ask(self._functions(action, tools), context, parse_code)

        wanted = {"tool": tool.name, "sub_goal": action.sub_goal, "context": action.context}
        values = {"tools": render_tools(tools), "action": to_json(wanted)}

        async def parse(reply: str, repair: bool = False) -> tuple[Command, str | None]:
            command = parse_command(reply, tool, repair=repair)
            return command, command.error

        schema = tool.parameters if self._structured else None
        return await self._ask(values, context, parse, repair=partial(parse, repair=True), json_schema=schema)

    def _functions(self, action: Action, tools: Sequence[Tool]) -> dict[str, str]:
        """The prompt's values in mode "code"."""
        functions = [
            {"function": function_name(each.name), "description": each.description, "parameters": each.parameters}
            for each in tools
        ]
        wanted = {"function": function_name(action.tool), "sub_goal": action.sub_goal, "context": action.context}
        return {"tools": "\n".join(map(to_json, functions)), "action": to_json(wanted)}


class ExecutorConfig(ModuleConfig, ComponentConfig):
    """A chat model that writes the call of the planned action; it never sees the query.

    `mode = "code"` has the model write a short program around the tool instead of the arguments of one call.

    Attributes:
        structured_output: the server enforces the JSON schema; needs its support; not with `mode = "code"`
        mode: `arguments` (one call of the tool) or `code`
        program: limits of programs with `mode = "code"`; see `agent.executor.program`
    """

    asks = "always"
    component = PromptedExecutor

    structured_output: bool = False
    mode: Literal["arguments", "code"] = "arguments"
    program: code_runner.CodeRunnerConfig = code_runner.CodeRunnerConfig()


def parse_program(text: str, tool: str) -> Command:
    """The executor's program (`core.text.find_program`); without one, a command with `error`, never an exception."""
    code, problem = find_program(spoken(text))
    return Command(tool=tool, code=code, error=None if code is not None else f"no program for {tool}: {problem}")


class PromptedVerifier(PromptedModule):
    """`core.agent.Verifier` on an engine. A reply that stays unreadable is "not valid, not sufficient"."""

    role, layout = "verifier", ("tools", "query", "memory")

    def __init__(self, config: VerifierConfig) -> None:
        super().__init__(config)
        self._structured = config.structured_output

    async def verify(
        self, question: str, tools: Sequence[Tool], memory: Memory, newest: MemoryRecord, context: ModuleContext
    ) -> tuple[Verdict, tuple[Call, ...]]:
        """Judge the newest turn's result and whether memory and it suffice to answer.

        The newest turn is the last record of the memory in the prompt. The next turn's prompt repeats that record and
        adds the verdict, so the two share everything before it.
        """
        values = self._values(question, memory.append(newest)) | {"tools": render_tools(tools)}

        async def parse(reply: str, repair: bool = False) -> tuple[Verdict, str | None]:
            verdict = parse_verdict(reply, repair=repair)
            if verdict is not None:
                return verdict, None
            problem = "it holds no JSON object with result_valid and memory_sufficient as true or false"
            unreadable = f"unparseable verdict: {reply[:500]}".encode("utf-8", "replace").decode()
            return Verdict(result_valid=False, memory_sufficient=False, analysis=unreadable), problem

        schema = VERDICT_SCHEMA if self._structured else None
        return await self._ask(values, context, parse, repair=partial(parse, repair=True), json_schema=schema)


class VerifierConfig(ModuleConfig, ComponentConfig):
    """A chat model that decides whether the memory answers the query; it replies in JSON.

    Attributes:
        structured_output: the server enforces the JSON schema; needs its support
    """

    asks = "always"
    component = PromptedVerifier

    structured_output: bool = False


class PromptedGenerator(PromptedModule):
    """`core.agent.Generator` on an engine. Two replies without any answer give None."""

    role, layout = "generator", ("query", "memory")

    async def generate(
        self, question: str, memory: Memory, context: ModuleContext
    ) -> tuple[str | None, tuple[Call, ...]]:
        """Write the final answer."""

        async def parse(reply: str) -> tuple[str | None, str | None]:
            answer = parse_answer(reply) or None
            return answer, None if answer else "it holds no answer"

        return await self._ask(self._values(question, memory), context, parse)


class GeneratorConfig(ModuleConfig, ComponentConfig):
    """A chat model that writes the answer."""

    asks = "always"
    component = PromptedGenerator


class PromptedAnalyst(PromptedModule):
    """`core.agent.Analyst` on an engine. Two empty replies give no analysis."""

    role, layout = "analyst", ("tools", "query")

    async def analyze(
        self, question: str, tools: Sequence[Tool], context: ModuleContext
    ) -> tuple[str, tuple[Call, ...]]:
        """Say what the query asks for and which tools help."""
        values = {"query": neutral(question), "tools": render_tools(tools)}

        async def parse(reply: str) -> tuple[str, str | None]:
            analysis = spoken(reply).strip()
            return analysis, None if analysis else "it holds no text"

        return await self._ask(values, context, parse)


class AnalystConfig(ModuleConfig, ComponentConfig):
    """A chat model that analyzes the query before the first turn, as in AgentFlow's repository.

    There a fixed model writes it, not the planner in training; its call is recorded and never trained.
    """

    asks = "always"
    component = PromptedAnalyst
