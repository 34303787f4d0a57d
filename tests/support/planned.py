"""Policies that play a plan of calls through the real agent and the real rollout."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from midstream.agents.interleaved import InterleavedLoop, StreamConfig
from midstream.agents.stream_policy import ModelPolicy, PolicyConfig
from midstream.core.engine import Request
from midstream.core.source import Dialogues
from midstream.core.stream_template import load_template
from midstream.core.task import Task
from midstream.core.trajectory import Call, Trajectory
from midstream.rollout import Environment
from midstream_worlds.dialogue_reward import DialogueSuccess
from midstream_worlds.functions import Invocation
from midstream_worlds.scripted_engine import ScriptedEngine
from support.rollouts import flat, pause, run

Plan = Sequence[Sequence[Invocation]]  # the calls of every user turn


class PlanEngine(ScriptedEngine):
    """Says the next reply of the plan at its place in the rollout, each after a random wait."""

    def __init__(self, plans: Sequence[Sequence[str]]) -> None:
        super().__init__(lambda request: plans[request.order][spoken(request)])

    async def sample(self, request: Request) -> Call:
        await pause()
        return await super().sample(request)


def spoken(request: Request) -> int:
    """How often the policy has spoken before."""
    return sum(message.role == "assistant" for message in request.messages)


def replies(plan: Plan) -> list[str]:
    """A plan in ARTIST's form for function calling: the calls of a turn, if it has any, then a word to the user."""
    said = []
    for turn in plan:
        calls = [{"name": one.name, "arguments": one.arguments} for one in turn]
        if calls:
            said.append(f"<reasoning>now</reasoning><tool>{json.dumps(calls)}</tool>")
        said.append("<reasoning>that is all</reasoning>Done.")
    return said


def without_last(plan: Plan) -> list[list[Invocation]]:
    """The plan without its last call."""
    turns = [list(turn) for turn in plan]
    next(turn for turn in reversed(turns) if turn).pop()
    return turns


def shuffled(plans: Sequence[Plan]) -> list[Plan]:
    """The plans in another order each time the test runs."""
    return random.SystemRandom().sample(plans, len(plans))


def played(source: Dialogues, task: Task, texts: Sequence[Sequence[str]]) -> list[Trajectory]:
    """A group of rollouts of one task at once, each saying its own replies."""
    agent = InterleavedLoop(
        policy=ModelPolicy(PolicyConfig()),
        template=load_template("artist-function-calling"),
        config=StreamConfig(max_tokens=10**6),
    )
    environment = Environment(
        agent=agent, tools=(), engines={"policy": PlanEngine(texts)}, reward=DialogueSuccess(), dialogues=source
    )
    return flat(run(environment, [task], group_size=len(texts)))


def isolated(source: Dialogues, task: Task, text: Sequence[str]) -> Trajectory:
    """One rollout alone."""
    return played(source, task, [text])[0]
