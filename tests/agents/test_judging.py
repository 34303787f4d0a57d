"""A verifier behind a real server, which answers from its prompt alone, needs the sub-goal and the command."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from operator import add, mul, sub
from typing import Any

from pydantic import JsonValue

from midstream.agents import prompted
from midstream.agents.agentflow import AgentFlowLoop, LoopConfig
from midstream.core.agent import RunContext
from midstream.core.task import Task
from midstream.core.tool import Tool, ToolResult
from midstream.core.trajectory import Trajectory
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from support.llm_server import Body, LLMServer, prompt_of

OPERATIONS = {"add": ("+", add), "subtract": ("-", sub), "multiply": ("*", mul)}
NUMBERS = [(23, 34), (40, 17), (12, 8), (90, 31), (7, 66), (15, 15), (28, 3), (51, 20), (64, 9), (33, 44)]
Case = tuple[str, str, str, bool]  # question, sub-goal, code, whether the result is one


def cases() -> list[Case]:
    """Ten pairs of turns with one query and one result, such as 57: the first is right, the second is not."""
    made: list[Case] = []
    for place, (one, other) in enumerate(NUMBERS):
        question, goal, code = f"What are {one} and {other} together?", f"add {one} and {other}", f"{one} + {other}"
        made.append((question, goal, code, True))
        if place % 2:  # the right number, by a command that does something else
            made.append((f"{question} ", goal, f"{one + other - 1} + 1", False))
        else:  # a right command for another sub-goal than the turn has
            made.append((f"{question} ", f"multiply {one} and {other}", code, False))
    return made


class Calculator(Tool):
    """Calculates; its result is a bare number."""

    name, description, timeout_s, output_tokens = "calculator", "Calculates.", 1.0, 100
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string"}},
        "required": ["code"],
    }

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        left, sign, right = str(arguments["code"]).split()
        [work] = [work for mark, work in OPERATIONS.values() if mark == sign]
        return ToolResult(text=str(work(int(left), int(right))))


def reply(body: Body) -> str:
    """Planner and executor read their lines from the case; the verifier reads its prompt and nothing else."""
    text = prompt_of(body)
    role = text.partition("\n")[0].lstrip("# ").lower()
    if role == "verifier":
        return json.dumps({"analysis": "", "result_valid": judged(text), "memory_sufficient": False})
    if role == "planner":
        _, goal, code, _ = next(case for case in cases() if f"# Query\n\n{case[0]}\n" in text)
        return f"Justification: j\nContext: {code}\nSub-Goal: {goal}\nTool Name: calculator"
    if role == "executor":
        return json.dumps({"code": json.loads(text.splitlines()[-3])["context"]})
    return "<answer>x</answer>"


def judged(prompt: str) -> bool:
    """Whether the last record's command does what its sub-goal says, and its result is that command's."""
    newest = json.loads(prompt[prompt.rindex('\n{"turn":') :].splitlines()[1])
    verb, one, other = re.fullmatch(r"(\w+) (\d+) and (\d+)", newest["action"]["sub_goal"]).groups()  # type: ignore[union-attr]
    sign, work = OPERATIONS[verb]
    wanted = work(int(one), int(other))
    return newest["command"]["arguments"]["code"] == f"{one} {sign} {other}" and newest["result"] == str(wanted)


async def run(base_url: str) -> list[Trajectory]:
    engine = OpenAICompatibleEngine(OpenAIConfig(model="m", base_url=base_url, max_attempts=1), "server")
    flow = AgentFlowLoop(
        planner=prompted.PromptedPlanner(prompted.PlannerConfig()),
        executor=prompted.PromptedExecutor(prompted.ExecutorConfig()),
        verifier=prompted.PromptedVerifier(prompted.VerifierConfig()),
        generator=prompted.PromptedGenerator(prompted.GeneratorConfig()),
        config=LoopConfig(max_turns=1),
    )
    engines: dict[str, Any] = dict.fromkeys(("planner", "executor", "verifier", "generator"), engine)
    tasks = [Task(id=str(number), question=question, answer="") for number, (question, *_) in enumerate(cases())]
    context = RunContext(tools=[Calculator()], engines=engines, seed=1)
    found = [await flow.run(task, context) for task in tasks]
    await engine.close()
    return found


def test_a_verifier_that_reads_its_prompt_alone_judges_bare_results(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with LLMServer(reply) as server:
        trajectories = asyncio.run(run(server.base_url))
    assert not [trajectory.error for trajectory in trajectories if trajectory.error]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    verdicts = [turn.verdict.result_valid for turn in turns if turn.verdict]
    assert verdicts == [valid for *_, valid in cases()] == [True, False] * 10
    results = [turn.observation.text for turn in turns if turn.observation]
    assert results[::2] == results[1::2], "the result alone does not separate them"
    assert results[0] == "57"
