"""Recipes whose tasks are an environment's, evaluated whole: its scorer, its own loop, its episodes."""

import re
from pathlib import Path

import pytest

from midstream import api
from midstream.components import kinds
from midstream.core.errors import InfrastructureError, RecipeError
from midstream.recipe.check import resolve
from midstream.recipe.schema import parse_recipe
from toys import TOYS


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    """For these tests alone: what is registered is listed."""
    for name, config in TOYS.items():
        monkeypatch.setitem(kinds._REGISTRY["tasks"], name, config)


def double(messages) -> str:
    """The right answer to "4 + 4?"; 4 where it is asked for a number up to 4."""
    text = [message["content"] for message in messages if message["role"] == "user"][-1]
    number = int("".join(character for character in text.split("+")[-1] if character.isdecimal()) or 0)
    return str(2 * number if "+" in text else number)


def recipe(**changes):
    table = {
        "name": "toy",
        "agent": {"type": "direct", "policy": {"type": "model", "engine": "model"}},
        "engines": {"model": {"type": "test_environment_recipes:double"}},
        "tools": {},
        "reward": {"type": "environment"},
        "tasks": {"type": "toy"},
        "rollout": {"max_attempts": 3},
        "evaluation": {"temperatures": [1.0], "sets": [{"name": "train", "split": "train"}]},
    }
    return parse_recipe(table | changes)


LOOP = {"type": "environment", "engine": "model"}
CHAT = {"type": "interleaved", "template": "native", "policy": {"type": "model", "engine": "model"}}


def success(tmp_path, **changes):
    run = api.evaluate(recipe(**changes), out=tmp_path / "run")
    [result] = run.evaluations
    return [*run.trajectories()], result


@pytest.mark.parametrize("agent", [{}, {"agent": LOOP, "tasks": {"type": "toy_loop"}}], ids=["scorer", "own loop"])
def test_questions_are_answered_and_scored(tmp_path, agent):
    trajectories, result = success(tmp_path, **agent)
    assert (result.success, result.errors) == (1.0, 0)
    assert all(trajectory.reward.parts == {"length": len(trajectory.answer)} for trajectory in trajectories)
    assert all(len(trajectory.calls) == 1 for trajectory in trajectories)


def test_episodes_are_played(tmp_path):
    trajectories, result = success(tmp_path, agent=CHAT, tasks={"type": "toy_episodes"})
    assert (result.success, result.errors) == (1.0, 0)
    assert trajectories[0].outcome == {"reward": 1.0, "steps": 1, "range": [0.0, 1.0]}


@pytest.mark.parametrize("agent", [{}, {"agent": LOOP}], ids=["scorer", "own loop"])
def test_with_faults_in_three_of_ten_runs_none_is_lost_or_scored_by_default(tmp_path, agent):
    """One raises, one ends its process and what else runs there, one hangs; the next attempt is sound."""
    own = "toy_loop" if agent else "toy"
    tasks = {"type": own, "wrong": "faulty", "file": str(tmp_path / "mark"), "call_s": 2.0, "processes": 4, "count": 20}
    _, result = success(tmp_path, tasks=tasks, rollout={"max_attempts": 9, "concurrency": 8}, **agent)
    assert (result.success, result.errors) == (1.0, 0)
    assert len(list(tmp_path.glob("mark-*"))) > 2


def test_where_every_attempt_fails_a_run_is_an_error(tmp_path):
    with pytest.raises(InfrastructureError, match="a bug in the scorer"):
        success(tmp_path, tasks={"type": "toy_loop", "wrong": "raises"}, agent=LOOP)


@pytest.mark.parametrize(
    ("tasks", "agent", "code"),
    [("toy", LOOP, "setting-conflict"), ("toy_loop", None, "reward-does-not-fit"), ("toy_episodes", LOOP, None)],
)
def test_an_agent_that_does_not_fit_the_environment_is_refused(tasks, agent, code):
    with pytest.raises(RecipeError) as caught:
        resolve(recipe(tasks={"type": tasks}, **({"agent": agent} if agent else {})))
    assert code is None or caught.value.code == code


@pytest.mark.parametrize(
    "library", ["gymnasium", "harbor", "inspect", "openenv", "reasoning-gym", "textarena", "verifiers"]
)
def test_a_user_writes_three_lines(library):
    page = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    [block] = [block for block in blocks if f'extends = "{library}"' in block]
    assert len(block.splitlines()) == 3
