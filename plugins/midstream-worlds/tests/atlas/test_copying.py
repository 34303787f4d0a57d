"""The metric of copying: the exact name of a place of the question in the first call."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.core.trajectory import Command, Trajectory, Turn
from midstream_worlds.atlas.copying import AtlasCopyingConfig
from midstream_worlds.atlas.tasks import Atlas, AtlasConfig
from support.errors import coded

WORLD = Atlas(AtlasConfig(regions=1))
[TASK] = WORLD.fixed("test", seed=3, families=["sum"], per_family=1)
FIRST, SECOND = WORLD.asked[TASK.question].places
REWARD = AtlasCopyingConfig().build(SimpleNamespace(source=WORLD))


def score(*commands: Command) -> float:
    turns = tuple(Turn(index=place, command=command) for place, command in enumerate(commands))
    trajectory = Trajectory(id="r", task_id=TASK.id, question=TASK.question, turns=turns, status="ok")
    return asyncio.run(REWARD.score(TASK, trajectory)).value


def search(query: str) -> Command:
    return Command(tool="local_search", arguments={"query": query})


@pytest.mark.parametrize(
    ("commands", "value"),
    [
        ([search(f"{FIRST} height")], 1.0),
        ([search(f"{SECOND} height")], 1.0),
        ([search(f"{FIRST[:-1]} height")], 0.0),
        ([search(f"{FIRST}s height")], 0.0),
        ([search("height"), search(FIRST)], 0.0),
        ([Command(tool="python", arguments={"code": FIRST})], 0.0),
        ([], 0.0),
    ],
)
def test_the_first_call_counts(commands, value):
    assert score(*commands) == value


def test_a_question_without_a_place_and_another_world_are_refused():
    [sum_of_numbers] = WORLD.fixed("test", seed=3, families=["arith"], per_family=1)
    foreign = Task(id="f", question="How high is Mount Everest?", answer="8849")
    for task in (sum_of_numbers, foreign):
        with pytest.raises(RecipeError, check=coded("foreign-task", repr(task.question))):
            REWARD.check(task)
    REWARD.check(TASK)
    with pytest.raises(RecipeError, check=coded("world-missing", "atlas_copying")):
        AtlasCopyingConfig().build(SimpleNamespace(source=None))
