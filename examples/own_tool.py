"""A tool of your own: any class with a name, a description, a JSON schema and `call`. No base class, no registration.

    python examples/own_tool.py

To name it in recipes as `[tools.convert_length]`, give it a line in `TOOLS` of `build.py` (see CONTRIBUTING.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from midstream.agents.agentflow import AgentFlow, Config
from midstream.agents.programs import VerifiedResultGenerator
from midstream.agents.prompted import (
    ExecutorConfig,
    PlannerConfig,
    PromptedExecutor,
    PromptedPlanner,
    PromptedVerifier,
    StructuredConfig,
)
from midstream.core.protocols import Engine, Request, ToolResult
from midstream.core.task import Task
from midstream.engines.scripted import ScriptedEngine

METRES = {"m": 1.0, "km": 1000.0, "ft": 0.3048, "mi": 1609.344}


class ConvertLength:
    """Converts lengths between units.

    What a model gets wrong is an answer with `ok=False`, which it can read and mend. A tool whose back end fails
    raises `ToolServerError` instead: that is nobody's wrong move, and never counts as one.
    """

    name = "convert_length"
    description = f"Converts a length from one unit to another ({', '.join(METRES)})."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "value": {"type": "number"},
            "unit": {"type": "string", "description": "the unit of `value`"},
            "to": {"type": "string", "description": "the unit wanted"},
        },
        "required": ["value", "unit", "to"],
        "additionalProperties": False,
    }
    timeout_s = 5.0

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The converted length; the executor has already checked the arguments against `parameters`."""
        value, unit, to = arguments["value"], str(arguments["unit"]), str(arguments["to"])
        unknown = [name for name in (unit, to) if name not in METRES]
        if unknown:
            return ToolResult(text=f"unknown unit {unknown[0]!r}; known: {', '.join(METRES)}", ok=False)
        assert isinstance(value, int | float)
        return ToolResult(text=f"{value * METRES[unit] / METRES[to]:.6g}")

    async def close(self) -> None:
        """Nothing to release."""


REPLIES = {
    "planner": "Context: 8848 m, wanted in feet\nSub-Goal: convert\nTool Name: convert_length",
    "executor": '{"value": 8848, "unit": "m", "to": "ft"}',
    "verifier": '{"analysis": "converted", "result_valid": true, "memory_sufficient": true}',
}


def reply(request: Request) -> str:
    """What a model might say; name a real engine instead and the rest stays as it is."""
    return REPLIES[request.role]


async def main() -> None:
    """Call the tool directly, then let an agent use it."""
    tool = ConvertLength()
    print(await tool.call({"value": 5, "unit": "mi", "to": "km"}))
    print(await tool.call({"value": 5, "unit": "leagues", "to": "km"}))

    agent = AgentFlow(
        planner=PromptedPlanner(PlannerConfig()),
        executor=PromptedExecutor(ExecutorConfig()),
        verifier=PromptedVerifier(StructuredConfig()),
        generator=VerifiedResultGenerator(),  # a module may be a program: this one answers with the last result
        config=Config(max_turns=3),
    )
    engines: dict[str, Engine] = dict.fromkeys(REPLIES, ScriptedEngine(reply))
    task = Task(id="everest", question="How high is Mount Everest (8848 m) in feet?", answer="")
    trajectory = await agent.run(task, [tool], engines, seed=0)
    turn = trajectory.turns[0]
    print(f"command {turn.command and turn.command.arguments}, answer {trajectory.answer}")


if __name__ == "__main__":
    asyncio.run(main())
