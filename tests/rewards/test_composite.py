"""Several rewards as one: their weighted mean, named parts, and what a recipe may not say."""

from __future__ import annotations

import asyncio
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.components.component import Component
from midstream.components.kinds import rules
from midstream.components.tables import parse_component
from midstream.core.errors import RecipeError, RewardError
from midstream.core.task import Task
from midstream.core.trajectory import Call, Score, Trajectory
from midstream.recipe.build import Build
from midstream.recipe.check import resolve
from midstream.recipe.files import to_toml
from midstream.recipe.schema import load_recipe
from midstream.rewards.composite import Composite, PerTask
from support.errors import coded
from support.rollouts import StubReward

TASK = Task(id="t", question="?", answer="Paris")


def stub(value: float, **more: Any) -> StubReward:
    return StubReward(judge=lambda task, trajectory: value, **more)


def score(reward: Any, answer: str | None = "Paris") -> Score:
    return asyncio.run(reward.score(TASK, Trajectory(id="t#0", task_id="t", answer=answer)))


class Reporting(StubReward):
    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        return Score(value=0.5, parts={"rule": 1.0}, calls=(Call(role="judge"),))


def test_the_mean_is_weighted_and_every_part_is_named():
    reward = Composite({"exact": (3, stub(1.0)), "style": (1.0, Reporting(name="judge (m)", judged=True))})
    assert score(reward) == Score(
        value=0.875, parts={"exact": 1.0, "style": 0.5, "style.rule": 1.0}, calls=(Call(role="judge"),)
    )
    assert reward.name == "composite (0.75 stub + 0.25 judge (m))"
    assert reward.judged
    assert not Composite({"exact": (3, stub(1.0))}).judged


@given(
    st.lists(
        st.tuples(st.floats(1e-6, 1e6), st.floats(0, 1)), min_size=1, max_size=6
    )
)  # fmt: skip
def test_the_value_lies_between_the_least_and_the_greatest_part(parts):
    value = score(Composite({str(i): (weight, stub(value)) for i, (weight, value) in enumerate(parts)})).value
    values = [value for _, value in parts]
    assert min(values) - 1e-12 <= value <= min(1.0, max(values) + 1e-12)


def test_a_part_that_fails_fails_the_whole():
    def fail(task: Task, trajectory: Trajectory) -> float:
        raise RewardError("the judge failed")

    with pytest.raises(RewardError):
        score(Composite({"a": (1.0, stub(1.0)), "b": (1.0, StubReward(judge=fail))}))


# --- in a recipe ------------------------------------------------------------------------------------------------------


EXACT = parse_component("reward", {"type": "exact_match"}, "reward")


def recipe(parts: str) -> Any:
    return load_recipe("agentflow-prompted", (f'reward={{type="composite", parts={parts}}}',))


def test_a_recipe_builds_nested_composites():
    inner = '{type="composite", parts={same={type="exact_match"}, own={type="per_task"}}}'
    chosen = recipe(f'{{exact={{weight=0.5, type="exact_match"}}, both={inner}}}')
    with Build(chosen) as build:
        found = score(build.reward(chosen.reward))
        assert build.reward(EXACT) is build.reward(EXACT)
    assert found.value == 1.0
    assert set(found.parts) == {"exact", "both", "both.same", "both.own", "both.own.exact_match"}


def test_the_resolved_recipe_says_every_default_and_means_the_same():
    chosen = recipe('{a={type="judge", engine="model"}, b={weight=3, type="exact_match"}}')
    resolved = resolve(chosen)
    assert resolved["reward"]["parts"]["a"] == {
        "weight": 1.0, "type": "judge", "engine": "model", "temperature": 0.0, "max_tokens": 2048, "votes": 1,
        "rubric": "", "structured_output": False, "rule": "per_task",
    }  # fmt: skip
    assert tomllib.loads(to_toml(resolved))["reward"] == resolved["reward"]


@pytest.mark.parametrize(
    ("parts", "code", "value"),
    [
        ("{}", "parts-invalid", "reward.parts"),
        ('{a={weight=0, type="exact_match"}}', "recipe-invalid", "reward.parts.a.weight = 0"),
        ('{a={weight=1e308, type="exact_match"}}', "recipe-invalid", "weight = 1e+308"),
        ('{rule={type="judge", engine="model"}}', "recipe-invalid", "reward.parts = {'rule':"),
        ('{"a.b"={type="exact_match"}}', "parts-invalid", "'a.b'"),
        ('{a={weight=-1.0, type="exact_match"}}', "recipe-invalid", "weight = -1.0"),
        ('{a={weight="1", type="exact_match"}}', "recipe-invalid", "weight = '1'"),
        ('{a={weight=inf, type="exact_match"}}', "recipe-invalid", "weight = inf"),
        ('{a={weight=nan, type="exact_match"}}', "recipe-invalid", "weight = nan"),
        ('{a={weight=true, type="exact_match"}}', "recipe-invalid", "weight = True"),
        ("{a={weight=1}}", "unknown-type", "reward.parts.a"),
        ('{a={type="exact"}}', "unknown-type", "reward.parts.a.type = 'exact'"),
        ('{a={type="exact_match", engine="model"}}', "engine-not-used", "reward.parts.a.engine = 'model'"),
        ('{a={type="math", precison=3}}', "recipe-invalid", "reward.parts.a.precison = 3"),
        ('{a={type="judge", engine="x"}}', "unknown-engine", "reward.parts.a.engine = 'x'"),
        ('{a={type="composite", parts={b={type="judge"}}}}', "unknown-engine", "reward.parts.a.parts.b.engine = None"),
        ('{a="exact_match"}', "parts-invalid", "reward.parts = {'a'"),
    ],
)
def test_what_cannot_be_made_is_named(parts, code, value):
    with pytest.raises(RecipeError, check=coded(code, value)):
        resolve(recipe(parts))


# --- the reward that each task names ---------------------------------------------------------------------------------


def task(reward: str, answer: str = "1/2") -> Task:
    return Task(id="t", question="?", answer=answer, reward=reward)


def trajectory(answer: str) -> Trajectory:
    return Trajectory(id="t#0", task_id="t", answer=answer)


def component(table: dict[str, Any]) -> Component:
    return parse_component("reward", table, "reward")


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
    reward = build.reward(component({"type": "per_task"}))
    assert not reward.judged
    assert asyncio.run(reward.score(task(named), trajectory(answer))) == score


@pytest.mark.parametrize(
    ("gold", "answer", "scored"),
    [("62", "45 + 17 = 62", "numeric"), ("1,000.0", "1000", "numeric"), ("Paris", "paris.", "exact_match")],
)
def test_the_gold_answer_decides_for_a_task_that_names_no_reward(build, gold, answer, scored):
    reward = build.reward(component({"type": "per_task"}))
    assert asyncio.run(reward.score(task("", gold), trajectory(answer))) == Score(value=1.0, parts={scored: 1.0})


def test_another_reward_may_score_the_tasks_that_name_none(build):
    made = {"type": "per_task", "parts": {"otherwise": {"type": "judge", "engine": "model"}}}
    reward = build.reward(component(made))
    assert [used.judged for used in reward.used([task("math"), task("numeric")])] == [False, False]
    assert [used.judged for used in reward.used([task("")])] == [True]
    with pytest.raises(RecipeError, check=coded("setting-conflict", "judge", "math")):
        reward.used([task("math"), task("")])
    with pytest.raises(RecipeError, check=coded("recipe-invalid", "'else'")):
        component({"type": "per_task", "parts": {"else": {"type": "f1"}}})


@pytest.mark.parametrize("named", ["judge", "composite", "per_task", "mathe"])
def test_no_other_can_be_named(build, named):
    with pytest.raises(RecipeError, check=coded("unknown-type", "'t'", repr(named))) as caught:
        asyncio.run(build.reward(component({"type": "per_task"})).score(task(named), trajectory("1/2")))
    assert f"name one of: {', '.join(rules())}" in caught.value.fix


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
    reward = build.reward(component(reward))
    reward.check(task("exact_match"))
    reward.check(task("math"))
    with pytest.raises(RecipeError, check=coded("unknown-type" if named == "nope" else "task-unfit", "'t'")):
        reward.check(task(named, "Paris"))


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
