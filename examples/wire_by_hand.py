"""AgentFlow wired by hand, without a recipe: four modules, two tools, one engine, one question.

    python examples/wire_by_hand.py
    python examples/wire_by_hand.py --base-url http://localhost:11434/v1 --model qwen2.5:7b

The first line needs neither model nor network: a scripted engine says what a model might. The second asks a real one.
`recipe/build.py` does the same wiring from a recipe.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from midstream.agents import prompted
from midstream.agents.agentflow import AgentFlowLoop, LoopConfig
from midstream.core.engine import Engine, Request
from midstream.core.task import Task
from midstream.engines.openai import engine as openai_compatible
from midstream.report.draw import show
from midstream.report.trajectory import trajectory_blocks
from midstream.rewards.exact_match import ExactMatch
from midstream.rollout import Environment, rollout
from midstream.tools.local_search import Document, LocalSearch, LocalSearchConfig
from midstream.tools.python import PythonTool
from midstream_worlds.scripted_engine import ScriptedEngine

DOCUMENTS = (
    Document(id="1", text="The Eiffel Tower in Paris is 330 metres high."),
    Document(id="2", text="The Elizabeth Tower in London, which houses Big Ben, is 96 metres high."),
)
TASK = Task(id="towers", question="How many metres higher is the Eiffel Tower than Big Ben's tower?", answer="234")


def plan(sub_goal: str, tool: str, context: str) -> str:
    """A planner's reply."""
    return f"Justification: it is missing.\nContext: {context}\nSub-Goal: {sub_goal}\nTool Name: {tool}"


def judge(sufficient: bool) -> str:
    """A verifier's reply."""
    return json.dumps({"analysis": "checked", "result_valid": True, "memory_sufficient": sufficient})


def scripted() -> ScriptedEngine:
    """A model that knows its lines: one list of replies a module, in the order in which they are asked for."""
    replies = {
        "planner": iter([
            plan("find the height of the Eiffel Tower", "local_search", "Eiffel Tower"),
            plan("find the height of the Elizabeth Tower", "local_search", "Big Ben"),
            plan("subtract the heights", "python", "Eiffel Tower 330, Elizabeth Tower 96, both in metres"),
        ]),
        "executor": iter(['{"query": "Eiffel Tower"}', '{"query": "Big Ben"}', '{"code": "330 - 96"}']),
        "verifier": iter([judge(False), judge(False), judge(True)]),
        "generator": iter(["<answer>234</answer>"]),
    }  # fmt: skip

    def reply(request: Request) -> str:
        return next(replies[request.role])

    return ScriptedEngine(reply)


async def main(engine: Engine) -> None:
    """Wire, run, show."""
    agent = AgentFlowLoop(
        planner=prompted.PromptedPlanner(prompted.PlannerConfig()),
        executor=prompted.PromptedExecutor(prompted.ExecutorConfig()),
        verifier=prompted.PromptedVerifier(prompted.VerifierConfig()),
        generator=prompted.PromptedGenerator(prompted.GeneratorConfig()),
        config=LoopConfig(max_turns=5),
    )
    environment = Environment(
        agent=agent,
        tools=[LocalSearch.from_documents(DOCUMENTS, LocalSearchConfig(match="any")), PythonTool()],
        engines=dict.fromkeys(("planner", "executor", "verifier", "generator"), engine),
        reward=ExactMatch(),
    )
    try:
        [group] = await rollout(environment, [TASK], seed=0)
    finally:
        await environment.close()
    [trajectory] = group.trajectories
    show(trajectory_blocks(trajectory))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="AgentFlow wired by hand")
    parser.add_argument("--base-url", help="an OpenAI-compatible server")
    parser.add_argument("--model", help="the server's name of the model")
    options = parser.parse_args()
    if options.base_url and options.model:
        config = openai_compatible.OpenAIConfig(model=options.model, base_url=options.base_url)
        asyncio.run(main(openai_compatible.OpenAICompatibleEngine(config, "model")))
    else:
        asyncio.run(main(scripted()))
