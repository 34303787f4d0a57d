"""The simulated agent at the desks, through the real loop, template and rollout."""

from __future__ import annotations

import asyncio
import random
from functools import cache

import pytest

from midstream.agents.interleaved import InterleavedLoop, StreamConfig
from midstream.agents.stream_policy import ModelPolicy, PolicyConfig
from midstream.core.errors import RecipeError
from midstream.core.stream_template import load_template
from midstream.core.trajectory import Message, without_clocks
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.rollout import Environment, RolloutConfig, rollout
from midstream_worlds.desks.agent import agent_reply
from midstream_worlds.desks.dialogue import Plan
from midstream_worlds.desks.tasks import CATEGORIES, Desks, DesksConfig
from midstream_worlds.dialogue_reward import DialogueSuccess
from midstream_worlds.simulated import SimulatedConfig, SimulatedEngine
from support.errors import coded

TEMPLATE = load_template("artist-function-calling")


@cache
def source(difficulty="standard"):
    return Desks(DesksConfig(difficulty=difficulty))


def environment(skill, world, concurrency=64):
    engine = SimulatedEngine(agent_reply(TEMPLATE, skill), SimulatedConfig(plays="agent", skill=skill), "agent")
    policy = ModelPolicy(PolicyConfig())
    return Environment(
        agent=InterleavedLoop(policy=policy, template=TEMPLATE, config=StreamConfig(max_tokens=100_000)),
        tools=(),
        engines={"policy": engine},
        reward=DialogueSuccess(),
        config=RolloutConfig(concurrency=concurrency),
        dialogues=world,
    )


def play(skill, tasks, world, group_size=1, concurrency=64):
    groups = asyncio.run(rollout(environment(skill, world, concurrency), tasks, group_size=group_size, seed=1))
    done = [one for group in groups for one in group.trajectories]
    assert {one.status for one in done} == {"ok"}, [one.error for one in done if one.error][:1]
    return done


@pytest.mark.matrix(1)
@pytest.mark.parametrize("difficulty", ["easy", "standard", "hard"])
def test_an_agent_that_never_errs_solves_everything(difficulty):
    world = source(difficulty)
    tasks = world.fixed("test", seed=3, per_family=6)
    done = play(1.0, tasks, world)
    assert [one.reward.value for one in done] == [1.0] * 30
    for task, one in zip(tasks, done, strict=True):
        plan = Plan.model_validate(task.metadata)
        said = [turn.user for turn in one.turns if turn.user]
        assert said == [turn.user for turn in plan.turns]
        made = [(turn.command.tool, turn.command.arguments) for turn in one.turns if turn.command]
        assert made == [(call.name, call.arguments) for turn in plan.turns for call in turn.calls]


@pytest.mark.slow
def test_one_that_always_errs_solves_nothing():
    done = play(0.0, source().fixed("test", seed=3, per_family=6), source())
    assert [one.reward.value for one in done] == [0.0] * 30


@pytest.mark.slow
def test_the_better_agent_is_right_more_often_and_every_mistake_is_made():
    tasks = source().fixed("test", seed=5, per_family=12)
    better, worse = play(0.95, tasks, source()), play(0.6, tasks, source())
    rates = [sum(one.reward.value for one in done) / 60 for done in (better, worse)]
    assert rates[0] > rates[1] + 0.2 > 0.25
    turns = [turn for one in worse for turn in one.turns]
    seen = {turn.action.error or "" for turn in turns if turn.action} | {
        turn.observation.text for turn in turns if turn.observation and turn.observation.status == "error"
    }
    assert any("_now" in text for text in seen)  # unknown_function
    assert any("JSON" in text for text in seen)  # bad_json
    calls = [one.reward.parts["calls"] for one in worse]
    assert min(calls) < max(calls) == 1.0  # wrong_argument, missing_call


@pytest.mark.slow
def test_the_same_seed_plays_the_same_whatever_the_concurrency():
    tasks = source().fixed("test", seed=6, per_family=2)
    runs = [[without_clocks(one) for one in play(0.7, tasks, source(), 2, size)] for size in (1, 64)]
    assert runs[0] == runs[1]
    assert runs[0][0].turns != runs[0][1].turns or runs[0][2].turns != runs[0][3].turns


@pytest.mark.slow
def test_eight_rollouts_at_once_and_in_any_order_earn_what_each_earns_alone():
    [task] = source("hard").fixed("test", seed=8, families=("composite",), count=1)
    copies = [task.model_copy(update={"id": f"copy-{i}"}) for i in range(8)]
    alone = {copy.id: play(0.85, [copy], source("hard"))[0].outcome for copy in copies}
    assert len({outcome["success"] for outcome in alone.values()}) == 2
    for shuffle in range(3):
        order = random.Random(shuffle).sample(copies, 8)
        together = play(0.85, order, source("hard"))
        assert {one.task_id: one.outcome for one in together} == alone


def test_what_it_says_depends_on_the_chat_and_the_seed_alone():
    reply = agent_reply(TEMPLATE, 0.5)
    chat = [
        Message(role="system", content='{"name": "fill_tank"}'),
        Message(role="user", content="Fill up 12 liters of fuel."),
    ]
    said = [reply(chat, seed) for seed in range(40)]
    assert said == [agent_reply(TEMPLATE, 0.5)(chat, seed) for seed in range(40)]
    assert len(set(said)) > 3
    assert '[{"name": "fill_tank", "arguments": {"liters": 12}}]' in " ".join(said)


def test_a_function_that_it_was_not_offered_it_asks_for():
    chat = [Message(role="system", content="no functions"), Message(role="user", content="Stop the motor.")]
    assert "I do not have the function stop_motor" in agent_reply(TEMPLATE, 1.0)(chat, 0)
    assert '"stop_motor"' in agent_reply(TEMPLATE, 0.0)(chat, 0) or "_now" in agent_reply(TEMPLATE, 0.0)(chat, 0)


def test_other_templates_and_empty_chats_are_refused():
    with pytest.raises(RecipeError, check=coded("template-mismatch", "'search-r1'")):
        agent_reply(load_template("search-r1"), 1.0)
    with pytest.raises(RecipeError, check=coded("foreign-prompt")):
        agent_reply(TEMPLATE, 1.0)([Message(role="system", content="x")], 0)


def test_the_recipe_plays_every_category():
    recipe = load_recipe("function-calling-simulated")
    with Build(recipe) as build:
        chosen = recipe.evaluation.sets[0].model_copy(update={"per_family": 2})
        tasks = build.set_tasks(chosen)
        groups = asyncio.run(rollout(build.environment(chosen=chosen), tasks, seed=0))
    assert [group.task.family for group in groups] == [family for family in CATEGORIES for _ in range(2)]
    assert all(one.status == "ok" and one.outcome["turns"] for group in groups for one in group.trajectories)


def test_a_skill_in_another_world_is_refused():
    recipe = load_recipe("lessons-simulated", ["engines.agent.skill=0.5"])
    with pytest.raises(RecipeError, check=coded("setting-conflict", "engines.agent.skill = 0.5")):
        Build(recipe)
