"""A function in place of a model, asked in process and over HTTP alike."""

from __future__ import annotations

import asyncio
import threading

import pytest

from midstream.core.errors import RecipeError
from midstream.core.protocols import Engine, Request
from midstream.core.trajectory import Message, without_clocks
from midstream.engines.loopback import Faults
from midstream.engines.simulated import Config, ServedEngine, SimulatedEngine, make
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.rollout import rollout

RECIPE = "training-free-simulated"
FAULTY = Faults(rate_limit=0.06, server_error=0.06, reset=0.06, cut=0.06, bad_json=0.06)


def echo(messages, seed):
    return f"{seed}: {messages[-1].content}"


def asked(text, seed):
    return Request(role="planner", messages=(Message(role="user", content=text),), seed=seed)


def sampled(config, requests):
    """The calls of an engine of these settings, which is closed afterwards."""

    async def run():
        engine = make(echo, config, "e")
        assert isinstance(engine, Engine)
        try:
            return await asyncio.gather(*(engine.sample(one) for one in requests))
        finally:
            await engine.close()

    return asyncio.run(run())


def test_both_ways_give_the_same_replies_usage_and_cost():
    requests = [asked("x" * 10 * i, 2**40 + i) for i in range(1, 30)]  # seeds beyond what HTTP can name
    prices = {"price_prompt_usd": 2.0, "price_completion_usd": 8.0}
    near = sampled(Config(plays="agent", **prices), requests)
    far = sampled(Config(plays="agent", http=True, faults=FAULTY, **prices), requests)
    assert [(one.completion, one.usage) for one in near] == [(one.completion, one.usage) for one in far]
    assert (near[0].completion, near[0].usage.prompt_tokens, near[0].usage.completion_tokens) == ("1: xxxxxxxxxx", 3, 4)
    assert near[0].usage.cost_usd == pytest.approx((3 * 2 + 4 * 8) / 1e6)
    assert [one.failures for one in near] == [()] * 29
    assert any(one.failures for one in far)


def test_a_prompt_without_messages_is_refused_with_advice():
    with pytest.raises(RecipeError, match="asked for the rest of a text by the planner"):
        sampled(Config(plays="agent"), [Request(role="planner", prompt="Question Who ?")])


def test_the_server_ends_with_its_engine():
    sampled(Config(plays="agent", http=True), [asked("a", 1)])
    assert "loopback" not in {thread.name for thread in threading.enumerate()}


def test_a_recipe_says_whom_an_engine_plays_and_how_it_is_asked():
    with Build(load_recipe(RECIPE)) as build:
        assert isinstance(build.engine("agent"), SimulatedEngine)
        assert isinstance(build.engine("reflector"), ServedEngine)
    assert "loopback" not in {thread.name for thread in threading.enumerate()}


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

    faults = [
        f"engines.agent.faults.{kind}=0.06" for kind in ("rate_limit", "server_error", "reset", "cut", "bad_json")
    ]
    near, far = rewards(), rewards("engines.agent.http=true", *faults)
    assert {one.status for one in far} == {"ok"}
    assert sum(one.request_failures for one in far) > 20
    assert [(one.answer, one.reward) for one in near] == [(one.answer, one.reward) for one in far]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('tasks={type="game24"}', "with tasks.type = 'game24'"),
        ('tasks={type="gazetteer"}', "plays = 'agent' with tasks.type = 'gazetteer'"),
        ('engines.agent.plays="nobody"', "nobody"),
        ("engines.reflector.faults.reset=1.5", "reset"),
    ],
)
def test_what_no_simulated_engine_can_do_is_refused_before_anything_is_made(override, message):
    with pytest.raises(RecipeError, match=message):
        Build(load_recipe(RECIPE, [override]))
