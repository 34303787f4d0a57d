"""The teacher of the atlas as AgentFlow's four modules: a program that replies to their prompts in a model's place.

    planner    Justification: I need the height of Port Ruvia.     executor   {"query": "Port Ruvia height"}
               Context: Port Ruvia height                          verifier   {"analysis": "More is needed.", ...}
               Sub-Goal: search                                    generator  <answer>327</answer>
               Tool Name: local_search

The plan is that of `teacher.py`, and the planner alone errs: in clumsy transcripts its decisions are random with
probability `clumsy`. The executor copies, the verifier stops where the plan has no step left, the generator answers.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from midstream.core.component import Context, EngineConfig
from midstream.core.protocols import Engine, Request
from midstream.core.trajectory import Call
from midstream.worlds.atlas.questions import UNKNOWN
from midstream.worlds.atlas.tasks import Atlas
from midstream.worlds.atlas.teacher import ARGUMENTS, AtlasTeacherConfig, Plan, Step, foreign

SUB_GOALS = {"local_search": "search", "python": "calculate"}


class AtlasModules(Engine):
    """Reads question, memory or action from a module's prompt, whatever its other words are."""

    token_exact = False

    def __init__(self, config: AtlasModulesConfig, world: Atlas, name: str) -> None:
        self.config, self.world, self.name = config, world, name

    async def sample(self, request: Request) -> Call:
        """Reply in the format of the module that asks. Raises `RecipeError` for a question that is not the atlas's."""
        prompt = next(message.content for message in request.messages if message.role == "user")
        lines = prompt.splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{")]
        if request.role == "executor":
            text = _json({ARGUMENTS[records[0]["tool"]]: records[0].get("context", "")})
        else:
            text = self._planned(request, lines, records)
        return Call(
            role=request.role, engine=self.name, messages=request.messages, completion=text, finish_reason="stop"
        )

    def _planned(self, request: Request, lines: list[str], records: list[dict[str, Any]]) -> str:
        """The reply of a module that sees the question and the memory."""
        question = next((line for line in lines if line in self.world.asked), None)
        if question is None:
            raise foreign(" ".join(lines))
        plan = Plan(
            self.world,
            question,
            tools=[record["action"].get("tool", "") for record in records],
            results=[record.get("result") or record.get("error", "") for record in records],
        )
        step = plan.next_step(Random(request.seed))
        if request.role == "verifier":
            analysis = "More is needed." if step.tool else "All is known."
            valid = "error" not in records[-1]
            return _json({"analysis": analysis, "result_valid": valid, "memory_sufficient": not step.tool})
        if request.role == "generator":
            answer = (plan.values or [UNKNOWN])[-1] if step.tool else step.text  # the plan was cut short
            return f"<answer>{answer}</answer>"
        if not step.tool:  # the verifier did not see that all is known
            action = records[-1]["action"]
            step = Step("I check the result.", action["tool"], action["context"])
        clumsy = plan.next_step(Random(request.seed), self.config.clumsiness(question, request.order))
        step = clumsy if clumsy.tool else step  # whether to answer is the verifier's decision
        return (
            f"Justification: {step.thought}\nContext: {step.text}\nSub-Goal: {SUB_GOALS[step.tool]}\n"
            f"Tool Name: {step.tool}"
        )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


class AtlasModulesConfig(AtlasTeacherConfig, EngineConfig):
    """Settings of the teacher of the atlas as AgentFlow's four modules: those of its stream."""

    teaches = "prompted"

    def build(self, context: Context) -> AtlasModules:
        """Build it."""
        assert isinstance(context.source, Atlas)  # the recipe's check has seen to it
        return AtlasModules(self, context.source, context.name)
