"""The planner that AgentFlow's authors released, asked in the form in which it was trained, and its executor.

Source: github.com/lupantech/AgentFlow, commit b940064 (MIT License). Its prompt (models/planner.py) is one user
message: query, query analysis, names of tools, their metadata and all earlier steps, then instructions.
`prompts/released.md` keeps its sections, their order and the form of the reply; the sentences are midstream's, but for
that of the system message. Tools and steps are printed Python values there, and so they are here:

    ['Python_Code_Generator_Tool']
    {'Python_Code_Generator_Tool': {'tool_name': ..., 'tool_description': ..., 'input_types': {'query': 'str - ...'}}}
    {'Action Step 1': {'tool_name': ..., 'sub_goal': ..., 'command': 'execution = tool.execute(...)', 'result': ...}}

The model knows tools by the names of its training: a tool's table gives it such a name with `alias`. Its executor's
commands are Python around `execution = tool.execute(...)`, and what `execution` holds at the end is the result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import JsonValue

from midstream.agents.formats import parse_action
from midstream.agents.prompted import ExecutorConfig, PlannerConfig, PromptedExecutor, PromptedPlanner, action_values
from midstream.core.agent import ModuleContext
from midstream.core.text import neutral
from midstream.core.tool import Tool
from midstream.core.trajectory import Action, Call, Command, Memory, MemoryRecord, Sampling

# Ends a program: its result is what it prints.
_SHOW = "\nprint(execution)"
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict"}


class ReleasedPlanner(PromptedPlanner):
    """`core.agent.Planner` on an engine that serves the released weights."""

    layout = ("query", "names", "tools", "memory")
    prompt, package = "released", "midstream_web"

    async def plan(
        self, question: str, tools: Sequence[Tool], memory: Memory, context: ModuleContext
    ) -> tuple[Action, tuple[Call, ...]]:
        """Decide the next sub-goal, tool and context."""
        values = self.prompt_values(question, tools, memory)
        return await self._ask(values, context, lambda reply, _: (parse_action(reply, tools), None), asks=1)

    def prompt_values(self, question: str, tools: Sequence[Tool], memory: Memory) -> dict[str, str]:
        """The prompt's values: Python values as text, as the planner was trained on them."""
        return {
            "query": neutral(question),
            "names": neutral(repr([tool.name for tool in tools])),
            "analysis": f" {neutral(memory.analysis)}" if memory.analysis else "",
            "tools": neutral(repr({tool.name: _metadata(tool) for tool in tools})),
            "memory": neutral(repr({f"Action Step {record.turn}": _step(record) for record in memory.records})),
        }


class ReleasedPlannerConfig(PlannerConfig):
    """AgentFlow's released planner, with its own prompt.

    It is sampled as its repository's client for vLLM samples it, whatever its scripts say."""

    component = ReleasedPlanner

    sampling: Sampling = Sampling(temperature=0.7, top_p=0.99, max_tokens=2048)


class ReleasedExecutor(PromptedExecutor):
    """`core.agent.Executor` whose commands are written as the released planner reads them in its memory."""

    code_prompt = "executor_released"

    def __init__(self, config: ExecutorConfig) -> None:
        # With arguments in place of code, the prompt is midstream's own.
        self.package = "midstream_web" if config.mode == "code" else PromptedExecutor.package
        super().__init__(config)

    def code_values(self, action: Action, tools: Sequence[Tool]) -> dict[str, str]:
        """The prompt's values: those of a call, because the planner was trained on tools and not on functions."""
        return action_values(action, tools)

    async def command(
        self, action: Action, tools: Sequence[Tool], context: ModuleContext
    ) -> tuple[Command, tuple[Call, ...]]:
        """Write a command, whose result is what `execution` holds at its end."""
        command, calls = await super().command(action, tools, context)
        return command.model_copy(update={"code": command.code + _SHOW}) if command.code else command, calls


class ReleasedExecutorConfig(ExecutorConfig):
    """A chat model that writes commands of the form `execution = tool.execute(query="...")`."""

    component = ReleasedExecutor

    mode: Literal["arguments", "code"] = "code"


def _metadata(tool: Tool) -> dict[str, object]:
    """A tool as the planner was shown one."""
    parameters: Mapping[str, Mapping[str, JsonValue]] = tool.parameters.get("properties", {})
    inputs = {
        name: f"{_TYPES.get(str(schema.get('type')), 'any')} - {schema.get('description', '')}"
        for name, schema in parameters.items()
    }
    return {"tool_name": tool.name, "tool_description": tool.description, "input_types": inputs}


def _step(record: MemoryRecord) -> dict[str, str]:
    """A turn as the planner was shown one; a command is a call in Python."""
    command = record.command
    written = "No command was made."
    if command is not None:
        values = {
            name: json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
            for name, value in command.arguments.items()
        }
        called = f"execution = tool.execute({', '.join(f'{name}={text}' for name, text in values.items())})"
        written = command.code.removesuffix(_SHOW) if command.code else called
    return {
        "tool_name": record.action.tool,
        "sub_goal": record.action.sub_goal,
        "command": written,
        "result": record.error or record.result,
    }
