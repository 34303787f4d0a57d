"""Each task is scored by the reward that its benchmark names, with default settings, and never by a model."""

from __future__ import annotations

import asyncio

import pytest

from midstream.core.component import rules
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.rewards.per_task import PerTask
from support.rollouts import StubReward


def task(reward: str, answer: str = "1/2") -> Task:
    return Task(id="t", question="?", answer=answer, reward=reward)


def trajectory(answer: str) -> Trajectory:
    return Trajectory(id="t#0", task_id="t", answer=answer)


@pytest.fixture(scope="module")
def build():
    with Build(load_recipe("agentflow-prompted", ("reward.type=per_task",))) as built:
        yield built


@pytest.mark.parametrize(
    ("named", "answer", "score"),
    [
        ("", "0.5", Score(value=0.0, parts={"exact_match": 0.0})),
        ("exact_match", "1/2", Score(value=1.0, parts={"exact_match": 1.0})),
        ("math", "$\\frac{1}{2}$", Score(value=1.0, parts={"math": 1.0})),
        ("math", "$\\frac{1}{3}$", Score(value=0.0, parts={"math": 0.0})),
    ],
)
def test_a_task_is_scored_by_the_reward_it_names(build, named, answer, score):
    reward = build.reward({"type": "per_task"})
    assert not reward.judged
    assert asyncio.run(reward.score(task(named), trajectory(answer))) == score


@pytest.mark.parametrize("named", ["judge", "composite", "per_task", "mathe"])
def test_no_other_can_be_named(build, named):
    with pytest.raises(RecipeError, match=rf"'t' names the reward '{named}'[\s\S]*name one of: {', '.join(rules())}"):
        asyncio.run(build.reward({"type": "per_task"}).score(task(named), trajectory("1/2")))


@pytest.mark.parametrize("named", ["numeric", "multiple_choice", "game24", "nope"])
@pytest.mark.parametrize(
    "reward",
    [
        {"type": "per_task"},
        {"type": "judge", "engine": "model"},
        {"type": "composite", "parts": {"one": {"type": "exact_match"}, "two": {"type": "per_task"}}},
    ],
    ids=lambda table: table["type"],
)
def test_a_task_that_its_reward_cannot_score_is_refused_before_any_work(build, reward, named):
    reward = build.reward(reward)
    reward.check(task("exact_match"))
    reward.check(task("math"))
    with pytest.raises(RecipeError, match="task 't'"):
        reward.check(task(named, "half"))


def test_each_is_made_once_and_when_it_is_needed():
    made: list[str] = []

    def make(name: str) -> StubReward:
        made.append(name)
        return StubReward()

    async def run() -> None:
        reward = PerTask(make, ("a", "b"))
        assert made == []
        for named in ("a", "b", "a"):
            await reward.score(task(named), trajectory("1/2"))
        await reward.close()

    asyncio.run(run())
    assert made == ["a", "b"]
