"""What users of other implementations lose: each defect that is known of released code, as a test of ours.

shallow config copies                          here, below
stale metrics on a second evaluation           here, below
timeouts that are not passed on                here, below
a lesson set without a bound                      here, below
shuffles that do nothing                       test_update.py: every task comes once an epoch in an order of its own
failed rollouts that vanish                    test_lessons.py: failed rollouts are named and are no reward
equal questions merged                         test_lessons.py: equal questions stay two tasks
replies that cannot be parsed and are lost     test_lessons.py: a merger that fails loses no proposal
other prompts in deployment than in learning   ../test_lessons_parity.py
"""

from __future__ import annotations

import asyncio
import copy
import time
from dataclasses import dataclass
from pathlib import Path

from midstream.core.agent import RunContext
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.evaluation.run import SetEvaluation
from midstream.evaluation.settings import SetConfig
from midstream.lessons.commit import History
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import Lesson, LessonSet, tokens
from midstream.lessons.runner import Match, Runner
from midstream.recipe.build import Build
from midstream.recipe.files import merge, read_table
from midstream.recipe.schema import load_recipe
from midstream.rollout import Environment, RolloutConfig
from midstream.runs import RunDirectory
from midstream.runs.budget import Budget, BudgetConfig
from support.evaluations import evaluate
from support.lesson_sessions import learn
from support.rollouts import TASKS, StubReward


def test_a_variant_of_a_recipe_leaves_the_recipe_as_it_was():
    table = read_table("lessons-simulated")
    before = copy.deepcopy(table)
    merge(table, {"lessons": {"gate": {"enabled": False}}, "engines": {"reflector": {"price_prompt_usd": 1.0}}})
    assert table == before
    recipe = load_recipe("lessons-simulated")
    untouched = copy.deepcopy(recipe)
    with Build(recipe, budget=Budget(BudgetConfig())) as build:
        warm = build.environment(temperature=0.0)
        build.environment(chosen=recipe.evaluation.sets[0].model_copy(update={"max_turns": 1}))
        assert recipe == untouched
        assert warm.agent is not build.environment().agent


@dataclass
class Recites:
    """Answers with the lesson that is in its prompt."""

    name: str = "recites"

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        return Trajectory(id="", task_id="", question=task.question, answer=context.lessons.get("planner", "-"))

    async def close(self) -> None:
        pass


def test_a_second_evaluation_counts_its_own_runs_alone():
    chosen = SetConfig(name="test")

    def success(answer: str) -> tuple[float, int]:
        environment = Environment(
            agent=Recites(), tools=(), engines={}, reward=StubReward(), lessons={"planner": answer}
        )
        work = SetEvaluation(environment=environment, tasks=TASKS, policy="p", chosen=chosen, temperature=0.0, seed=1)
        result, trajectories = asyncio.run(evaluate(work))
        assert len(trajectories) == len(TASKS)
        return result.success, result.tasks

    assert success("0") == (1 / 6, 6)
    assert success("nothing") == (0.0, 6)
    assert success("5") == (1 / 6, 6)


class Hangs(Recites):
    """Waits for ever unless it has lessons."""

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        if not context.lessons:
            assert context.deadline_s is not None
            await asyncio.sleep(max(0.0, context.deadline_s - time.monotonic()))
            raise TimeoutError("the deadline that was passed on")
        return await super().run(task, context)


def test_a_runs_deadline_reaches_every_rollout_of_the_gate():
    settings = RolloutConfig(deadline_s=0.05, max_attempts=1)
    environment = Environment(agent=Hangs(), tools=(), engines={}, reward=StubReward(), config=settings)
    lesson_set = LessonSet(lessons=(Lesson(id="L1", text="0"),), next_number=2)
    ledger = Ledger()
    match = Match(task=TASKS[0], first=LessonSet(), other=lesson_set)
    [pair] = asyncio.run(asyncio.wait_for(Runner(environment, ledger, 1).pairs("gate-1-whole-0", [match]), 30))
    assert pair is None  # never a reward of 0
    late = [one for one in ledger.gathered("gate-1-") if one.error]
    assert [one.task_id for one in late] == [f"{TASKS[0].id}~first"]


def test_a_lesson_set_never_grows_beyond_its_bound(tmp_path: Path):
    changes = {"lessons.gate.enabled": False, "lessons.limits.max_tokens": 40, "lessons.epochs": 3}
    learn(tmp_path, changes)
    versions = History(RunDirectory(tmp_path).lessons_dir).all()
    sizes = [sum(tokens(f"- {lesson.text}") for lesson in version.lesson_set.rendered) for version in versions]
    assert 0 < max(sizes) <= 40
