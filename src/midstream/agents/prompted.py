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

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from pydantic import JsonValue

from midstream.agents.formats import parse_action, parse_answer, parse_command, parse_verdict
from midstream.agents.rendering import PromptTemplate, render_analysis, render_memory, render_tools
from midstream.components.component import ComponentConfig
from midstream.core.agent import ModuleContext
from midstream.core.data import Settings, object_schema
from midstream.core.engine import Request
from midstream.core.errors import InfrastructureError, RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.text import find_program, neutral, render_lessons, spoken, to_json
from midstream.core.tool import Tool
from midstream.core.trajectory import Action, Call, Command, Memory, MemoryRecord, Message, Sampling, Verdict
from midstream.sandbox import code_runner
from midstream.sandbox.code_runner import function_name

Value = TypeVar("Value")
# parse(reply, repair) -> a value, and what is wrong with the reply (None: nothing); `repair` accepts broken JSON.
Parse = Callable[[str, bool], tuple[Value, str | None]]

VERDICT_SCHEMA = object_schema(
    analysis={"type": "string"}, result_valid={"type": "boolean"}, memory_sufficient={"type": "boolean"}
)


class ModuleConfig(Settings):
    """Settings of every prompted module.

    Attributes:
        sampling: see `sampling`
        prompt_file: replaces the module's prompt in `src/midstream/agents/prompts/`
    """

    sampling: Sampling = Sampling(temperature=0.0, max_tokens=2048)
    prompt_file: Path | None = None


class PromptedModule:
    """A prompt, and requests to an engine until the reply can be used: the base of all prompted modules."""

    role: ClassVar[str]
    layout: ClassVar[tuple[str, ...]]
    # The prompt file's name, by default the role's, and the package that has it.
    prompt: str = ""
    package: str = "midstream.agents"
    # What every reply begins with; an engine that continues text gets it, other servers do not.
    opening: ClassVar[str] = ""

    def __init__(self, config: ModuleConfig) -> None:
        self.config = config
        self._template = PromptTemplate(self.prompt or self.role, self.layout, config.prompt_file, package=self.package)
        self.shows_lessons = self._template.shows_lessons

    @property
    def instructions(self) -> str:
        """The system part of its prompt file, with places."""
        return self._template.instructions

    def prompt_form(
        self, tools: Sequence[Tool], context: ModuleContext, place: Callable[[str], str]
    ) -> tuple[Message, ...]:
        """The prompt with `place("query")` and the like where something changes from turn to turn."""
        values = {name: place(name) for name in self.layout} | {"tools": self.render_tools(tools)}
        return self._messages(values, context)

    def _messages(self, values: Mapping[str, str], context: ModuleContext) -> tuple[Message, ...]:
        """The prompt with these values and the module's learned texts."""
        lessons = render_lessons(context.lessons, context.examples)
        return self._template.with_instructions(context.instructions).messages({**values, "lessons": lessons})

    def render_tools(self, tools: Sequence[Tool]) -> str:
        """The tools as the prompt has them."""
        return render_tools(tools)

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
        parse: Parse[Value],
        *,
        asks: int = 2,
        json_schema: Mapping[str, JsonValue] | None = None,
    ) -> tuple[Value, tuple[Call, ...]]:
        """Ask up to `asks` times, until `parse` has no problem with the reply.

        The last reply may be repaired if it was not cut off.
        """
        messages = self._messages(values, context)
        calls: tuple[Call, ...] = ()
        # Other engines would answer a message of the assistant's as if it were whole.
        continues = getattr(context.engine, "codec", None) is not None
        opening = self.opening if continues else ""
        begun = (Message(role="assistant", content=opening),) if opening else ()
        sampling = self.config.sampling
        if begun:
            # A schema would describe the whole reply, and this one has begun.
            json_schema = None
        elif self.opening:
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
                value, problem = parse(reply, False)
            except InfrastructureError as failure:
                failure.calls = (*calls, *failure.calls)
                raise
            last = len(calls) >= asks
            if problem is not None and last and call.finish_reason != "length":
                repaired, problem = parse(reply, True)
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
        values = self._values(question, memory) | {"tools": self.render_tools(tools)}
        return await self._ask(values, context, lambda reply, _: (parse_action(reply, tools), None), asks=1)


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
    code_prompt = "executor_code"
    config: ExecutorConfig

    def __init__(self, config: ExecutorConfig) -> None:
        if config.mode == "code" and config.structured_output:
            raise RecipeError(
                'agent.executor.structured_output = true with mode = "code"',
                code="setting-conflict",
                fix='set structured_output = false, or mode = "arguments"',
            )
        self.prompt = self.code_prompt if config.mode == "code" else "executor"
        super().__init__(config)

    async def command(
        self, action: Action, tools: Sequence[Tool], context: ModuleContext
    ) -> tuple[Command, tuple[Call, ...]]:
        """Write the tool call for an action; one that is still invalid after a second ask is a command with `error`."""
        tool = next((tool for tool in tools if tool.name == action.tool), None)
        if tool is None:
            return Command(tool=action.tool, error=f"no tool is called {action.tool!r}"), ()
        in_code = self.config.mode == "code"

        def parse(reply: str, repair: bool) -> tuple[Command, str | None]:
            command = parse_program(reply, tool.name) if in_code else parse_command(reply, tool, repair=repair)
            return command, command.error

        values = self.code_values(action, tools) if in_code else action_values(action, tools)
        schema = tool.parameters if self.config.structured_output else None
        return await self._ask(values, context, parse, json_schema=schema)

    def code_values(self, action: Action, tools: Sequence[Tool]) -> dict[str, str]:
        """The prompt's values in mode "code"."""
        wanted = {"function": function_name(action.tool), "sub_goal": action.sub_goal, "context": action.context}
        return {"tools": self.render_tools(tools), "action": to_json(wanted)}

    def render_tools(self, tools: Sequence[Tool]) -> str:
        """The tools, in mode "code" as functions."""
        if self.config.mode != "code":
            return render_tools(tools)
        functions = [
            {"function": function_name(each.name), "description": each.description, "parameters": each.parameters}
            for each in tools
        ]
        return "\n".join(map(to_json, functions))


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


def action_values(action: Action, tools: Sequence[Tool]) -> dict[str, str]:
    """An executor's prompt values: the tools, and the action without its justification."""
    wanted = {"tool": action.tool, "sub_goal": action.sub_goal, "context": action.context}
    return {"tools": render_tools(tools), "action": to_json(wanted)}


def parse_program(text: str, tool: str) -> Command:
    """The executor's program (`core.text.find_program`); without one, a command with `error`, never an exception."""
    code, problem = find_program(spoken(text))
    return Command(tool=tool, code=code, error=None if code is not None else f"no program for {tool}: {problem}")


class PromptedVerifier(PromptedModule):
    """`core.agent.Verifier` on an engine. A reply that stays unreadable is "not valid, not sufficient"."""

    role, layout = "verifier", ("tools", "query", "memory")
    config: VerifierConfig

    async def verify(
        self, question: str, tools: Sequence[Tool], memory: Memory, newest: MemoryRecord, context: ModuleContext
    ) -> tuple[Verdict, tuple[Call, ...]]:
        """Judge the newest turn's result and whether memory and it suffice to answer.

        The newest turn is the last record of the memory in the prompt. The next turn's prompt repeats that record and
        adds the verdict, so the two share everything before it.
        """
        values = self._values(question, memory.append(newest)) | {"tools": render_tools(tools)}

        def parse(reply: str, repair: bool) -> tuple[Verdict, str | None]:
            verdict = parse_verdict(reply, repair=repair)
            if verdict is not None:
                return verdict, None
            problem = "it holds no JSON object with result_valid and memory_sufficient as true or false"
            unreadable = f"unparseable verdict: {reply[:500]}".encode("utf-8", "replace").decode()
            return Verdict(result_valid=False, memory_sufficient=False, analysis=unreadable), problem

        schema = VERDICT_SCHEMA if self.config.structured_output else None
        return await self._ask(values, context, parse, json_schema=schema)


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
        return await self._ask(self._values(question, memory), context, answer_in)


def answer_in(reply: str, _: bool = False) -> tuple[str | None, str | None]:
    """The generator's answer, or what is wrong with its reply."""
    answer = parse_answer(reply) or None
    return answer, None if answer else "it holds no answer"


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

        def parse(reply: str, _: bool) -> tuple[str, str | None]:
            analysis = spoken(reply).strip()
            return analysis, None if analysis else "it holds no text"

        return await self._ask(values, context, parse)


class AnalystConfig(ModuleConfig, ComponentConfig):
    """A chat model that analyzes the query before the first turn, as in AgentFlow's repository.

    There a fixed model writes it, not the planner in training; its call is recorded and never trained.
    """

    asks = "always"
    component = PromptedAnalyst
