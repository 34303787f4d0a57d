"""An agent that does what its texts say, for tests of proposers: it solves a task whose family the texts name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from midstream.core.agent import RunContext
from midstream.core.engine import Engine, Request
from midstream.core.errors import EngineError
from midstream.core.task import Task
from midstream.core.trajectory import Action, Call, Observation, Score, Trajectory, Turn
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import LessonSet, with_bases
from midstream.lessons.operations import Rules
from midstream.lessons.proposer import Proposal, Proposer
from midstream.lessons.settings import ROLES, LessonsConfig
from midstream.lessons.update import LessonLearner
from midstream.rollout import Environment, RolloutConfig
from midstream_worlds.scripted_engine import ScriptedEngine

PLACE = "planner.prompt"
BASE = "Plan with {{tools}}.\n\n{{lessons}}Be brief."
FAMILIES = ("alpha", "beta")
TASKS = [
    Task(id=f"t{number}", question=f"What is {FAMILIES[number % 2]} item {number} ?", answer=f"GOLD{number}")
    for number in range(6)
]
BLOCK = re.compile(r"^=== text ===\n(.*?)\n=== end ===$", re.MULTILINE | re.DOTALL)


@dataclass
class Reader:
    """Counts its runs; those whose number is in `fails` fail."""

    fails: frozenset[int] = frozenset()
    name: str = "reader"
    runs: list[Mapping[str, str]] = field(default_factory=list)

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        self.runs.append(context.lessons)
        if len(self.runs) in self.fails:
            raise EngineError("the endpoint failed")
        right = family_of(task.question) in " ".join(context.lessons.values())
        call = Call(role="planner", completion=f"<think>hm</think>I look {task.id} up.")
        turn = Turn(
            index=1,
            action=Action(sub_goal="look it up", tool="search"),
            observation=Observation(status="ok", text=f"note on {task.id}"),
            calls=(call,),
        )
        answer = "right" if right else "?"
        return Trajectory(
            id="", task_id="", question=task.question, turns=(turn,), answer=answer, stop_reason="verified"
        )

    async def close(self) -> None: ...


def family_of(question: str) -> str:
    """What a question is about."""
    return question.split()[2]


class Remarks:
    """1 for the answer "right", and a remark that names the word which the texts lack."""

    name, judged = "remarks", False

    def check(self, task: Task) -> None: ...

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        right = trajectory.answer == "right"
        return Score(value=float(right), feedback="" if right else f"nothing says {family_of(task.question)}")

    async def close(self) -> None: ...


def block(text: str) -> str:
    """A reply with a text in the form asked for."""
    return f"=== text ===\n{text}\n=== end ==="


def adding(request: Request) -> str:
    """A model that adds the words which the remarks name to the text of the prompt, and joins two texts."""
    prompt = request.messages[0].content
    texts = BLOCK.findall(prompt)
    if prompt.startswith("# Criticize"):
        return "The text names no " + " and no ".join(sorted(set(re.findall(r"nothing says (\w+)", prompt))))
    if prompt.startswith("# Shorten"):
        return block(texts[0].replace("Be brief.", "Brief."))
    if prompt.startswith("# Join"):
        return block(texts[0] + "".join(f" {word}." for word in ("alpha", "beta") if word in texts[1]))
    words = re.findall(r"(?:nothing says|names no|and no) (\w+)", prompt)
    return block(f"{texts[0]} Remember {words[0] if words else 'nothing'}.")


def lesson_set(**texts: str) -> LessonSet:
    """The texts of a recipe, by place with "_" for the point; by default the planner's instructions."""
    return with_bases(LessonSet(), {name.replace("_", "."): text for name, text in texts.items()} or {PLACE: BASE})


def learner(
    proposer: Proposer | Mapping[str, Proposer],
    engine: Engine | Callable[[Request], str] = adding,
    *,
    agent: Any = None,
    ledger: Ledger | None = None,
    reward: Any = None,
    **settings: Any,
) -> LessonLearner:
    """The algorithm with one proposer."""
    config = LessonsConfig.model_validate(
        {"group_size": 2, "modules": [PLACE], "reflector": {"engine": "m"}, "search_rollouts": 48, **settings}
    )
    asked = engine if isinstance(engine, Engine) else ScriptedEngine(engine)
    environment = Environment(
        agent=agent or Reader(),
        tools=(),
        engines={},
        reward=reward or Remarks(),
        config=RolloutConfig(max_attempts=1, concurrency=4),
    )
    return LessonLearner(
        config=config,
        tasks=TASKS,
        validation=[],
        environment=environment,
        engines=dict.fromkeys(ROLES, asked),
        proposers=proposer if isinstance(proposer, Mapping) else {"tested": proposer},
        ledger=ledger or Ledger(),
        seed=1,
    )


def propose(
    made: LessonLearner, before: LessonSet | None = None, tasks: Sequence[Task] = TASKS, **rules: Any
) -> Proposal:
    """What the first update would test."""
    asked = Rules(modules=made.config.modules, max_tokens=500, repeats=False, **rules)
    return asyncio.run(asyncio.wait_for(made.propose(1, tasks, before or lesson_set(), asked), timeout=30))
