"""The worlds can be solved: a program that always decides soundly is right, within its recipe's turns and tokens."""

from __future__ import annotations

import asyncio

import pytest

from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.rollout import rollout
from midstream_worlds.gazetteer.tasks import DIFFICULTIES, TOTALS
from midstream_worlds.graphs.tasks import DEPTHS, STANDARD
from midstream_worlds.planning.scripted import ScriptedConfig, ScriptedPlanner, ScriptedPolicy

SHORT = {"lookup": 1, "arith": 1, "hop": 2, "scale": 2, "sum": 3, "diff": 3, "compare": 3}
PLACES = {**SHORT, **{family: 2 * places - 1 for family, places in TOTALS.items()}}
GRAPHS = {"measure": 1, "degree": 1, "core": 2, "scale": 2, "sum": 3, "diff": 3, "compare": 3, "reworded": 1, **DEPTHS}
BOTH = {
    f"{world}.{family}": turns
    for world, families in (("gazetteer", PLACES), ("graphs", {**GRAPHS, "distance": 2}))
    for family, turns in families.items()
    if family in (*SHORT, *STANDARD)
}
TURNS = {"flow-grpo-deep": PLACES, "flow-grpo-graphs": {**GRAPHS, "distance": 2}, "flow-grpo-both": BOTH}


def solved(build, environment, tasks):
    """The trajectories of some tasks, all with the right answer."""

    async def go():
        try:
            return await rollout(environment, tasks, seed=0)
        finally:
            await build.close()

    found = [one for group in asyncio.run(go()) for one in group.trajectories]
    for one in found:
        assert one.reward, one.error
        assert one.reward.value == 1.0, f"{one.question} {one.answer} instead of {one.gold}"
    return found


def test_every_family_is_asked():
    assert set(PLACES) == {*DIFFICULTIES["deep"], *TOTALS}
    assert set(TURNS["flow-grpo-graphs"]) == {*STANDARD, *DEPTHS, "reworded"}


@pytest.mark.matrix(1)
@pytest.mark.parametrize("name", TURNS)
def test_a_sound_plan_solves_every_task_in_the_turns_its_family_says(name):
    pytest.importorskip("torch", reason="the training extra is not installed")
    recipe = load_recipe(name)
    build = Build(recipe)
    environment = build.environment(chosen=recipe.evaluation.sets[-1])
    environment.agent.planner = ScriptedPlanner(ScriptedConfig(sense=1, malformed=0))
    tasks = build.source.fixed("test", per_family=8, seed=1, families=tuple(TURNS[name]))
    tokenizer = build.policy.engine().tokenizer
    sampling = recipe.modules["planner"].config.sampling

    for one in solved(build, environment, tasks):
        assert one.stop_reason == "verified"
        turns = TURNS[name][one.family]
        assert len(one.turns) == turns or (one.family.endswith("distance") and len(one.turns) == 1)
        for call in one.calls:
            prompt, said = (tokenizer.encode(text) for text in (call.prompt, call.completion))
            assert tokenizer.unk_token_id not in (*prompt, *said), call
            assert len(said) < sampling.max_tokens
            assert len(prompt) + sampling.max_tokens <= build.policy.engine().model.config.max_position_embeddings


@pytest.mark.matrix(1)
@pytest.mark.parametrize("name", ["artist-tiny", "artist-graphs"])
def test_a_sound_stream_solves_every_task(name):
    pytest.importorskip("torch", reason="the training extra is not installed")
    recipe = load_recipe(name)
    build = Build(recipe)
    chosen = recipe.evaluation.sets[0]
    environment = build.environment(chosen=chosen)
    environment.agent.policy = ScriptedPolicy(ScriptedConfig(sense=1, malformed=0))
    tasks = build.source.fixed("test", per_family=8, seed=1, families=chosen.families)
    tokenizer = build.policy.engine().tokenizer

    for one in solved(build, environment, tasks):
        assert one.stop_reason == "answered"
        assert all(tokenizer.unk_token_id not in tokenizer.encode(call.completion) for call in one.calls)
