"""The recipes of interleaved agents: papers' numbers stand, what does not fit is refused."""

from __future__ import annotations

import tomllib

import pytest

from midstream.cli.main import main
from midstream.core.errors import RecipeError, UsageError
from midstream.recipe import check as recipe_check
from midstream.recipe import schema as config
from midstream.recipe.build import Build
from midstream.recipe.sessions import parts_of
from support.errors import coded

RECIPES = ["artist-math-7b", "artist-function-calling-7b", "search-r1-7b", "torl-7b", "retool-7b"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_dry_run_asks_nobody_and_is_toml(name, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    pytest.importorskip("bfcl_eval") if "function" in name else None
    assert main(["train", name, "--dry-run"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["name"] == name
    assert not list(tmp_path.iterdir())


def test_mathematics_as_in_the_paper():
    recipe = recipe_check.resolve(config.load_recipe("artist-math-7b"))
    training, agent = recipe["training"], recipe["agent"]
    assert (training["group_size"], training["tasks_per_step"], training["steps"]) == (6, 8, 100)
    assert training["learning_rate"] == 1e-6
    assert (agent["template"], agent["max_tokens"], agent["policy"]["sampling"]["temperature"]) == (
        "artist-math",
        8000,
        1.0,
    )
    assert recipe["reward"] == {"type": "artist_math", "answer": "math", "gated": False}
    sets = {one["name"]: one["tasks"]["name"] for one in recipe["evaluation"]["sets"]}
    assert sets == {"math500": "math500", "amc": "amc-artist", "aime": "aime-artist", "olympiad": "olympiadbench"}
    assert {one["reward"]["type"] for one in recipe["evaluation"]["sets"]} == {"per_task"}


def test_function_calling_as_in_the_paper():
    pytest.importorskip("bfcl_eval")
    recipe = recipe_check.resolve(config.load_recipe("artist-function-calling-7b"))
    sampling = recipe["agent"]["policy"]["sampling"]
    assert (sampling["temperature"], sampling["max_tokens"], recipe["agent"]["max_tokens"]) == (0.9, 2048, 16384)
    assert (recipe["training"]["group_size"], recipe["training"]["tasks_per_step"]) == (8, 4)
    assert recipe["reward"] == {"type": "function_calling", "gated": False}


def test_torl_is_rewarded_for_the_answer_alone():
    recipe = recipe_check.resolve(config.load_recipe("torl-7b"))
    assert recipe["reward"]["type"] == "math"
    assert recipe["agent"]["template"] == "torl"
    assert recipe["training"]["loss"]["kl_coefficient"] == 0


# -- what does not fit -------------------------------------------------------------------------------------------------

TINY = "flow-grpo-tiny"
WRONG = {
    "a reward of a stream without one": (TINY, ["reward.type=artist_math"], "reward-does-not-fit"),
    "an unknown template": ("artist-tiny", ["agent.template=artst"], "unknown-template"),
    "a tool that is missing": ("artist-math-7b", ["tools.python=false"], "unknown-tool"),
    "a mark that leads nowhere": ("search-r1-7b", ["agent.tools={search='google'}"], "unknown-tool"),
    "dialogues for AgentFlow": (TINY, ["tasks={type='desks'}"], "dialogues-not-supported"),
    "a template that no program writes": ("artist-tiny", ["agent.template=torl"], ""),
    "a program's transcripts of another world": (
        "artist-math-7b",
        ["agent.template=tiny", "training.algorithm=supervised"],
        "setting-conflict",
    ),
    "a program that is trained": ("artist-tiny", ["agent.policy={type='clumsy'}"], "not-trainable"),
    "a dialogue's reward for questions": ("artist-tiny", ["reward.type=function_calling"], "reward-does-not-fit"),
    "a rule for dialogues": ("function-calling-simulated", ["reward.type=exact_match"], "reward-does-not-fit"),
    "a tiny policy's chat": ("artist-tiny", ["agent.template=native"], "setting-conflict"),
    "an unknown kind of agent": (TINY, ["agent.type=hierarchical"], "unknown-type"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_before_anything_is_built(case):
    name, overrides, code = WRONG[case]
    with pytest.raises(UsageError) as refused:
        parts_of(Build(config.load_recipe(name, overrides)))
    assert not code or refused.value.code == code


def test_settings_of_the_other_kind_of_agent_are_named():
    with pytest.raises(RecipeError, check=coded("recipe-invalid", "agent.memory_update = 'every_turn'")) as refused:
        config.load_recipe("artist-tiny", ["agent.memory_update=every_turn"])
    known = "max_turns, max_tokens, stray_calls, tools, answer_s, type, template, policy, lessons"
    assert f"known keys here: {known}" in str(refused.value)
