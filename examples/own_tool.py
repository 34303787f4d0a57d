"""A tool of your own: a typed function with a docstring, handed to an agent. docs/tools.md has the rest.

    python examples/own_tool.py

Without any Python around it: midstream call examples/own_tool.py:convert_length value=5 unit=mi to=km
"""

from __future__ import annotations

import asyncio

from midstream import tool
from midstream.agents.agentflow import AgentFlowLoop, LoopConfig
from midstream.agents.prompted import (
    ExecutorConfig,
    PlannerConfig,
    PromptedExecutor,
    PromptedPlanner,
    PromptedVerifier,
    VerifierConfig,
)
from midstream.core.agent import RunContext
from midstream.core.engine import Engine, Request
from midstream.core.task import Task
from midstream_worlds.planning.programs import VerifiedResultGenerator
from midstream_worlds.scripted_engine import ScriptedEngine

METRES = {"m": 1.0, "km": 1000.0, "ft": 0.3048, "mi": 1609.344}


@tool(timeout_s=5, output_tokens=200)
def convert_length(value: float, unit: str, to: str) -> str:
    """Converts a length from one unit to another (m, km, ft, mi).

    Args:
        unit: the unit of `value`
        to: the unit wanted
    """
    # A ValueError is what the model got wrong: it can read the text. Any other exception is a broken tool.
    unknown = [name for name in (unit, to) if name not in METRES]
    if unknown:
        raise ValueError(f"unknown unit {unknown[0]!r}; known: {', '.join(METRES)}")
    return f"{value * METRES[unit] / METRES[to]:.6g}"


REPLIES = {
    "planner": "Context: 8848 m, wanted in feet\nSub-Goal: convert\nTool Name: convert_length",
    "executor": '{"value": 8848, "unit": "m", "to": "ft"}',
    "verifier": '{"analysis": "converted", "result_valid": true, "memory_sufficient": true}',
}


def reply(request: Request) -> str:
    """What a model might say; name a real engine instead and the rest stays as it is."""
    return REPLIES[request.role]


async def main() -> None:
    """Call the function, then as a tool, then let an agent use it."""
    print(convert_length(5, "mi", to="km"))
    print(await convert_length.call({"value": 5, "unit": "mi", "to": "km"}))
    print(await convert_length.call({"value": 5, "unit": "leagues", "to": "km"}))

    agent = AgentFlowLoop(
        planner=PromptedPlanner(PlannerConfig()),
        executor=PromptedExecutor(ExecutorConfig()),
        verifier=PromptedVerifier(VerifierConfig()),
        generator=VerifiedResultGenerator(),  # a module may be a program: this one answers with the last result
        config=LoopConfig(max_turns=3),
    )
    engines: dict[str, Engine] = dict.fromkeys(REPLIES, ScriptedEngine(reply))
    task = Task(id="everest", question="How high is Mount Everest (8848 m) in feet?", answer="")
    trajectory = await agent.run(task, RunContext(tools=[convert_length], engines=engines))
    turn = trajectory.turns[0]
    print(f"command {turn.command and turn.command.arguments}, answer {trajectory.answer}")


if __name__ == "__main__":
    asyncio.run(main())
