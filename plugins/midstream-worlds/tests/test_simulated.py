"""A function in place of a model, in process and behind a server alike."""

from __future__ import annotations

import asyncio

import pytest

from midstream.core.engine import Engine, Request
from midstream.core.errors import RecipeError
from midstream.core.trajectory import Message, without_clocks
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.rollout import rollout
from midstream_worlds.simulated import SimulatedConfig, SimulatedEngine
from support.errors import coded
from support.served_workshop import RECIPE, served_workshop


def asked(text, seed):
    return Request(role="planner", messages=(Message(role="user", content=text),), seed=seed)


def sample(request, **settings):
    engine = SimulatedEngine(lambda messages, seed: f"{seed}: {messages[-1].content}", SimulatedConfig(**settings), "e")
    assert isinstance(engine, Engine)
    return asyncio.run(engine.sample(request))


def test_usage_and_cost_and_a_seed_that_a_server_could_name():
    prices = {"price_prompt_usd": 2.0, "price_completion_usd": 8.0}
    call = sample(asked("x" * 10, 2**40 + 1), plays="agent", **prices)
    assert (call.completion, call.usage.prompt_tokens, call.usage.completion_tokens) == ("1: xxxxxxxxxx", 3, 4)
    assert call.usage.cost_usd == pytest.approx((3 * 2 + 4 * 8) / 1e6)
    assert call.failures == ()


def test_a_prompt_without_messages_is_refused():
    with pytest.raises(RecipeError) as caught:
        sample(Request(role="planner", prompt="Question Who ?"), plays="agent")
    assert caught.value.code == "engine-chat-only"


def test_rollouts_through_a_faulty_server_are_those_of_the_engine_in_process():
    def rewards(*overrides):
        async def run():
            build = Build(load_recipe(RECIPE, overrides))
            try:
                tasks = build.source.fixed("test", seed=1, count=40)
                groups = await rollout(build.environment(), tasks, group_size=2, seed=5)
            finally:
                await build.close()
            return [without_clocks(one) for group in groups for one in group.trajectories]

        return asyncio.run(run())

    with served_workshop({}, 0.3) as served:
        far = rewards(f"engines.agent={served['engines.agent']}")
    near = rewards()
    assert {one.status for one in far} == {"ok"}
    assert sum(one.request_failures for one in far) > 20
    assert [(one.answer, one.reward) for one in near] == [(one.answer, one.reward) for one in far]


@pytest.mark.parametrize(
    ("override", "code", "value"),
    [
        ('tasks={type="game24"}', "setting-conflict", "tasks.type = 'game24'"),
        ('tasks={type="gazetteer"}', "setting-conflict", "plays = 'agent' with tasks.type = 'gazetteer'"),
        ('engines.agent.plays="nobody"', "recipe-invalid", "engines.agent.plays = 'nobody'"),
        ("engines.agent.skill=1.5", "recipe-invalid", "engines.agent.skill = 1.5"),
    ],
)
def test_what_no_simulated_engine_can_do_is_refused_before_anything_is_made(override, code, value):
    with pytest.raises(RecipeError, check=coded(code, value)):
        Build(load_recipe(RECIPE, [override]))
