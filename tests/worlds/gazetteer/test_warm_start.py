"""The gate of the warm start: how often a planner copies a name that it was never trained on."""

from __future__ import annotations

import asyncio

import pytest

from midstream.core.errors import RecipeError, TrainingError
from midstream.core.task import Task
from midstream.core.trajectory import Action, Trajectory, Turn
from midstream.rollout import Environment
from midstream.worlds.gazetteer.warm_start import copy_rate, require_copy_rate, require_names
from support.rollouts import StubReward


class Planned:
    """An agent whose only turn looks something up: what, is said by the question."""

    name = "planned"

    def __init__(self, actions):
        self.actions = actions

    async def run(self, task, tools, engines, *, seed, **rest):
        tool, context = self.actions[task.question]
        action = Action(sub_goal="find", tool=tool, context=context)
        return Trajectory(id=task.id, task_id=task.id, question=task.question, turns=(Turn(index=1, action=action),))


def test_the_copy_rate_counts_first_look_ups_that_name_a_place_of_the_question():
    actions = {
        "How high is Amberbank ?": ("local_search", "Amberbank height"),
        "How large is Amberbank ?": ("local_search", "Oakfell area"),
        "How long is Amberbank ?": ("local_search", "length"),
        "What is Amberbank plus 1 ?": ("python", "1 + 1"),
        "What is 1 plus 1 ?": ("local_search", "Amberbank height"),
    }
    tasks = [Task(id=f"t{i}", question=question, answer="1") for i, question in enumerate(actions)]
    environment = Environment(agent=Planned(actions), tools=[], engines={}, reward=StubReward())
    rate = asyncio.run(copy_rate(environment, tasks, {"Amberbank", "Oakfell"}, 1))
    assert rate == pytest.approx(1 / 3)


def test_the_gate_refuses_a_planner_that_does_not_copy():
    require_copy_rate(0.7, 0.7)
    with pytest.raises(TrainingError) as caught:
        require_copy_rate(0.69, 0.7)
    assert caught.value.code == "warm-start-failed"
    assert "0.69" in caught.value.what


def test_validation_tasks_without_a_name_are_refused_unless_any_rate_will_do():
    tasks = [Task(id="t", question="What is 1 plus 1 ?", answer="2")]
    require_names(tasks, {"Amberbank"}, 0.0)
    with pytest.raises(RecipeError) as caught:
        require_names(tasks, {"Amberbank"}, 0.5)
    assert caught.value.code == "setting-conflict"
