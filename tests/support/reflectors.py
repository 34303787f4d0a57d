"""What the tests of the reflector share: an agent with set answers, scripted roles, the algorithm over both."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from midstream.core.agent import RunContext
from midstream.core.engine import Engine, Request
from midstream.core.errors import EngineError
from midstream.core.task import Task
from midstream.core.trajectory import Action, Observation, Trajectory, Turn
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import LessonSet
from midstream.lessons.operations import Rules
from midstream.lessons.proposer import Proposal
from midstream.lessons.settings import LessonsConfig
from midstream.lessons.update import LessonLearner
from midstream.rollout import Environment, RolloutConfig
from midstream_worlds.scripted_engine import ScriptedEngine
from support.rollouts import StubReward

FAILS = object()
NOTHING = '{"operations": []}'


@dataclass
class SetAnswers:
    """Gives the answers of a list in the order of the rollouts; `FAILS` is an endpoint that failed."""

    answers: Sequence[object]
    name: str = "set answers"
    runs: list[str] = field(default_factory=list)

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        self.runs.append(task.question)
        answer = self.answers[context.order]
        if answer is FAILS:
            raise EngineError("the endpoint failed")
        turn = Turn(
            index=1,
            action=Action(sub_goal=f"work on it for the {context.order}th time", tool="search"),
            observation=Observation(status="ok", text="something was found"),
        )
        said = None if answer is None else str(answer)
        return Trajectory(id="", task_id="", question=task.question, turns=(turn,), answer=said, stop_reason="verified")

    async def close(self) -> None:
        pass


def settings(**more: Any) -> LessonsConfig:
    """Settings with one engine for all roles."""
    return LessonsConfig.model_validate({"group_size": 2, "reflector": {"engine": "m"}, **more})


def operations(*changes: Mapping[str, Any]) -> str:
    """A critic's or merger's reply."""
    return json.dumps({"operations": list(changes)})


def section(prompt: str, heading: str) -> str:
    """What stands under a heading of a prompt's user message."""
    found = re.search(rf"^# {heading}\n\n(.*?)(?=^# |\Z)", prompt, re.DOTALL | re.MULTILINE)
    assert found, prompt
    return found[1].strip()


def asked(request: Request) -> str:
    """The user message of a request."""
    return request.messages[1].content


def role_engine(
    contrast: Callable[[Request], str] | str = NOTHING, merge: Callable[[Request], str] | str | None = None
) -> ScriptedEngine:
    """All three roles; without `merge` the merger repeats what was proposed."""

    def repeat(request: Request) -> str:
        proposals = [json.loads(line) for line in section(asked(request), "Proposals").splitlines()]
        return operations(*({**one, "from": [one["proposal"]]} for one in proposals))

    def reply(request: Request) -> str:
        if request.role == "summariser":
            return json.dumps({"summary": f"summary of {section(asked(request), 'Rollout')}"})
        made = (merge or repeat) if request.role == "merger" else contrast
        return made if isinstance(made, str) else made(request)

    return ScriptedEngine(reply)


def algorithm(
    answers: Sequence[object],
    engine: Engine | Mapping[str, Engine],
    config: LessonsConfig,
    ledger: Ledger | None = None,
) -> LessonLearner:
    """Training-Free GRPO with the agent that gives these answers, exact match as its reward."""
    environment = Environment(
        agent=SetAnswers(answers), tools=(), engines={}, reward=StubReward(), config=RolloutConfig(max_attempts=1)
    )
    engines = engine if isinstance(engine, Mapping) else dict.fromkeys(("summariser", "critic", "merger"), engine)
    return LessonLearner(
        config=config,
        tasks=[],
        validation=[],
        environment=environment,
        engines=engines,
        ledger=ledger or Ledger(),
        seed=1,
    )


def propose(made: LessonLearner, tasks: Sequence[Task], lesson_set: LessonSet | None = None, step: int = 1) -> Proposal:
    return asyncio.run(
        asyncio.wait_for(
            made.propose(step, tasks, lesson_set or LessonSet(), Rules(modules=made.config.modules)), timeout=30
        )
    )
