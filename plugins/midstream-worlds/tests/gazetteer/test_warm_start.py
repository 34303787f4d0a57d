"""The gate of the warm start: how often a planner copies a name that it was never trained on."""

from __future__ import annotations

import asyncio

import pytest

from midstream.core.errors import RecipeError, TrainingError
from midstream.core.task import Task
from midstream.core.trajectory import Action, Trajectory, Turn
from midstream.rollout import Environment
from midstream_worlds.gazetteer.tasks import Gazetteer, GazetteerConfig
from support.rollouts import StubReward

WORLD = Gazetteer(GazetteerConfig())
AMBER, OAK = WORLD.names()[:2]


class Planned:
    """An agent whose only turn looks something up: what, is said by the question."""

    name = "planned"

    def __init__(self, actions):
        self.actions = actions

    async def run(self, task, context):
        tool, context = self.actions[task.question]
        action = Action(sub_goal="find", tool=tool, context=context)
        return Trajectory(id=task.id, task_id=task.id, question=task.question, turns=(Turn(index=1, action=action),))


def test_the_gate_counts_first_look_ups_that_name_a_place_of_the_question():
    actions = {
        f"How high is {AMBER} ?": ("local_search", f"{AMBER} height"),
        f"How large is {AMBER} ?": ("local_search", f"{OAK} area"),
        f"How long is {AMBER} ?": ("local_search", "length"),
        f"What is {AMBER} plus 1 ?": ("python", "1 + 1"),
        "What is 1 plus 1 ?": ("local_search", f"{AMBER} height"),
    }
    tasks = [Task(id=f"t{i}", question=question, answer="1") for i, question in enumerate(actions)]
    environment = Environment(agent=Planned(actions), tools=[], engines={}, reward=StubReward())
    rate, _ = asyncio.run(WORLD.warm_rate(environment, tasks, 1))
    assert rate == pytest.approx(1 / 3)
    assert asyncio.run(WORLD.check_warm_start(environment, tasks, 0.33, 1)) == "copy rate of validation names 0.33"
    with pytest.raises(TrainingError) as caught:
        asyncio.run(WORLD.check_warm_start(environment, tasks, 0.34, 1))
    assert caught.value.code == "warm-start-failed"
    assert "0.33" in caught.value.what


def test_validation_tasks_without_a_name_are_refused_unless_any_rate_will_do():
    tasks = [Task(id="t", question="What is 1 plus 1 ?", answer="2")]
    WORLD.check_validation(tasks, 0.0)
    with pytest.raises(RecipeError) as caught:
        WORLD.check_validation(tasks, 0.5)
    assert caught.value.code == "setting-conflict"
