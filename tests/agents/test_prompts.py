"""tests/agents/prompts.md has every prompt as a model gets it; `MIDSTREAM_WRITE_SCREENS=1` writes it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from midstream.agents import prompted
from midstream.agents.agentflow import AgentFlowLoop, LoopConfig
from midstream.core.agent import RunContext
from midstream.core.engine import Request
from midstream.core.task import Task
from midstream.core.tool import Tool, ToolResult
from midstream_worlds.scripted_engine import ScriptedEngine

PAGE = Path(__file__).parent / "prompts.md"
HEAD = """# One run, prompt by prompt

The prompts of turn 2, and the analyst's and the generator's. In turn 1 a search returned both numbers.
`test_prompts.py` writes this page.
"""
QUESTION = "How many seats do the Orpheum and the Lyric have together?"
SEATS = "The Orpheum has 23 seats. The Lyric has 34 seats."


class Fixed(Tool):
    """A tool with one text argument that always returns the same."""

    timeout_s, output_tokens = 1.0, 100

    def __init__(self, name: str, description: str, argument: str, result: str) -> None:
        self.name, self.description, self.result = name, description, result
        self.parameters: Mapping[str, Any] = {
            "type": "object",
            "properties": {argument: {"type": "string"}},
            "required": [argument],
        }

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        return ToolResult(text=self.result)


TOOLS = [
    Fixed("search", "Searches an encyclopedia.", "query", SEATS),
    Fixed("python", "Runs Python code and returns what it prints.", "code", "57"),
]
REPLIES = [
    "The query asks for one number: the sum of the seats of two theaters. Find both with search, add with python.",
    "Justification: both numbers are missing\nContext: the theaters Orpheum and Lyric\n"
    "Sub-Goal: find the seats of both theaters\nTool Name: search",
    '{"query": "Orpheum Lyric seats"}',
    '{"analysis": "Both numbers are known, the sum is not.", "result_valid": true, "memory_sufficient": false}',
    "Justification: the sum is missing\nContext: 23 seats and 34 seats\nSub-Goal: add 23 and 34\nTool Name: python",
    '{"code": "print(23 + 34)"}',
    '{"analysis": "57 is the sum of both.", "result_valid": true, "memory_sufficient": true}',
    "<answer>57</answer>",
]


def requests() -> list[Request]:
    """The requests of one run: analyst, two turns, generator."""
    engine = ScriptedEngine(REPLIES)
    flow = AgentFlowLoop(
        planner=prompted.PromptedPlanner(prompted.PlannerConfig()),
        executor=prompted.PromptedExecutor(prompted.ExecutorConfig()),
        verifier=prompted.PromptedVerifier(prompted.VerifierConfig()),
        generator=prompted.PromptedGenerator(prompted.GeneratorConfig()),
        analyst=prompted.PromptedAnalyst(prompted.AnalystConfig()),
        config=LoopConfig(),
    )
    engines: dict[str, Any] = dict.fromkeys(("planner", "executor", "verifier", "generator", "analyst"), engine)
    context = RunContext(tools=TOOLS, engines=engines, seed=1)
    trajectory = asyncio.run(flow.run(Task(id="t", question=QUESTION, answer=""), context))
    assert (trajectory.answer, trajectory.stop_reason, trajectory.error) == ("57", "verified", None)
    return engine.requests


def generated() -> str:
    """The prompts of the analyst, the second turn and the generator."""
    asked = requests()
    parts = []
    for request, reply in [(asked[place], REPLIES[place]) for place in (0, 4, 5, 6, 7)]:
        text = "\n\n".join(f"[{message.role}]\n{message.content}" for message in request.messages)
        parts.append(f"### {request.role.capitalize()}\n\n````text\n{text}\n\n[assistant]\n{reply}\n````\n")
    return "\n" + "\n".join(parts)


def test_the_prompts_are_as_they_were():
    written = f"{HEAD}{generated()}"
    if os.environ.get("MIDSTREAM_WRITE_SCREENS"):
        PAGE.write_text(written, encoding="utf-8")
        return
    assert PAGE.read_text(encoding="utf-8") == written
