"""The desks for a tiny model: plans that are held out, and a vocabulary that loses nothing that the agent writes."""

from __future__ import annotations

import asyncio

import pytest

from midstream.core.errors import RecipeError, TrainingError
from midstream.recipe.build import Build
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import parts_of
from midstream.rollout import rollout
from midstream_worlds.desks.tasks import Desks, DesksConfig
from midstream_worlds.tiny_model import UNKNOWN
from support.errors import coded

RECIPE = "function-calling-tiny"


def plan_of(task):
    """The functions of a task's plan, in the order in which they are called."""
    return tuple(call["name"] for turn in task.metadata["turns"] for call in turn["calls"])


@pytest.mark.matrix(1)
@pytest.mark.parametrize("difficulty", ["easy", "standard"])
def test_no_plan_is_in_two_splits(difficulty):
    def plans(apart):
        world = Desks(DesksConfig(difficulty=difficulty, desks=("vehicle",), families=("base",), apart=apart))
        return {split: {plan_of(task) for task in world.sample(split, 80, 1)} for split in world.splits}

    apart = plans("plans")
    assert all(len(found) > 5 for found in apart.values())
    assert not apart["train"] & apart["test"]
    assert not apart["train"] & apart["validation"]
    assert not apart["validation"] & apart["test"]
    if difficulty == "easy":  # apart by their dialogues, they share plans
        shared = plans("dialogues")
        assert shared["train"] & shared["test"]


@pytest.fixture(scope="module")
def build():
    return Build(load_recipe(RECIPE, ["tasks.desks=['vehicle','files']", "tasks.difficulty=standard"]))


@pytest.mark.slow
def test_what_user_and_teacher_write_round_trips(build):
    """Well-formed and malformed calls, on every function."""
    tokenizer = build.engine("policy").tokenizer
    environment = build.environment(planner=parts_of(build).teacher)
    groups = asyncio.run(rollout(environment, build.source.sample("train", 60, 5), seed=1))
    turns = [turn for group in groups for turn in group.trajectories[0].turns]
    used = {turn.action.tool for turn in turns if turn.action}
    assert {name for name in used if not name.endswith("_now")} >= {"fill_tank", "find_text"}
    written = [call.completion for turn in turns for call in turn.calls]
    assert any(turn.action and turn.action.error for turn in turns)
    for text in [*written, *(turn.user for turn in turns if turn.user)]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.convert_tokens_to_ids(UNKNOWN) not in ids, text
        assert tokenizer.decode(ids) == text


@pytest.mark.slow
def test_a_chat_is_marks_and_what_is_said_without_the_system_prompt(build):
    tokenizer = build.engine("policy").tokenizer
    chat = [
        {"role": "system", "content": "You serve a user."},
        {"role": "user", "content": "Stop the motor."},
        {"role": "assistant", "content": "All of that is done."},
        {"role": "user", "content": "Release the brake."},
    ]
    shown = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert shown == "<user>Stop the motor.<assistant>All of that is done.<eos><user>Release the brake.<assistant>"
    ids = tokenizer.encode('[{"name": "fill_tank", "arguments": {"liters": 12}}]', add_special_tokens=False)
    assert len(ids) == 7


@pytest.mark.slow
def test_the_gate_counts_calls_that_a_desk_carried_out(build):
    """An untrained model writes none; the teacher's calls are carried out about as often as they are right."""
    tasks = build.source.fixed("validation", seed=1, per_family=5)
    teacher = build.environment(planner=parts_of(build).teacher)
    rate, _ = asyncio.run(build.source.warm_rate(teacher, tasks, 1))
    assert 0.5 < rate < 1
    with pytest.raises(TrainingError) as caught:
        asyncio.run(build.source.check_warm_start(teacher, tasks, 0.99, 1))
    assert coded(caught.value, "warm-start-failed", 0.99)


def test_desks_have_no_facts_to_search():
    with pytest.raises(RecipeError) as caught:
        resolve(load_recipe("function-calling-simulated", ["tools={local_search={}}"]))
    assert caught.value.code == "world-missing"
