"""The recipe of four prompted modules on one small model in open text: a step of it, end to end."""

from __future__ import annotations

import asyncio

import pytest

from midstream.cli.main import main
from midstream.core.errors import MidstreamError
from midstream.recipe.build import Build
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import parts_of
from midstream.runs import RunDirectory
from midstream.training.supervised import collect
from support.errors import raises

FEW_STEPS = """
extends = "text-flow-grpo"
name = "few-steps"

[tasks]
type = "atlas"
families = ["arith", "lookup"]
regions = 1
countries = 20

[agent]
max_turns = 1
planner.sampling.max_tokens = 8
verifier.sampling.max_tokens = 8
generator.sampling.max_tokens = 8

[engines.policy]
weights = "copying"
hidden_size = 64
layers = 2

[learner]
threads = 1

[sandbox]
tier = "arithmetic"

[warm_start]
transcripts = 8
steps = 3
batch_size = 8
copying = 0.0
min_copy_rate = 0.0

[training]
steps = 1
tasks_per_step = 2
group_size = 2

[evaluation]
at = "none"
sets = []
validation = { per_family = 1 }
"""


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "few-steps.toml"
    file.write_text(FEW_STEPS, encoding="utf-8")
    return file


@pytest.mark.slow
def test_the_planner_is_trained_and_the_others_ask_the_reference_policy(recipe, tmp_path):
    assert main(["train", str(recipe), "--quiet", "--out", str(tmp_path / "run")]) == 0
    run = RunDirectory(tmp_path / "run")
    (metrics,) = run.metrics.read()
    assert metrics.unique_tokens < metrics.total_tokens
    calls = [call for trajectory in run.trajectories.read(1) for call in trajectory.calls]
    assert {(call.role, call.engine) for call in calls} >= {("planner", "policy"), ("verifier", "modules")}
    assert {call.engine for call in calls if call.role != "planner"} == {"modules"}


def test_the_warm_start_learns_the_replies_of_all_modules_that_ask_the_model(recipe):
    build = Build(load_recipe(str(recipe)))
    parts = parts_of(build)
    environment = parts.make_environment(planner=parts.teacher)
    settings = parts.warm_start, 0, lambda text: None

    def learned(**more):
        rows = asyncio.run(collect(environment, parts.source, parts.student, *settings, **more))
        return [parts.student.codec.decode(row.completion_ids) for row in rows]

    ways = {"planner": "Justification: ", "executor": '{"', "verifier": '{"analysis', "generator": "<answer>"}
    said = learned(roles=environment.engines)
    assert all(any(text.startswith(way) for text in said) for way in ways.values())
    assert all(text.startswith(ways["planner"]) for text in learned())


def test_prompt_files_are_relative_to_the_recipe(recipe, tmp_path):
    assert load_recipe("text-flow-grpo").agent.planner.config.prompt_file.is_absolute()
    (tmp_path / "own.md").write_text("{{tools}}\n<!-- user -->\n{{query}}\n{{memory}}", encoding="utf-8")
    recipe.write_text(
        'extends = "text-flow-grpo"\nname = "own"\n[agent.planner]\nprompt_file = "own.md"\n', encoding="utf-8"
    )
    assert load_recipe(str(recipe)).agent.planner.config.prompt_file == tmp_path / "own.md"


@pytest.mark.parametrize("engine", ["modules", "remote"])
def test_a_reference_policy_is_that_of_another_engine_in_process(recipe, engine):
    remote = '[engines.remote]\ntype = "openai_compatible"\nmodel = "m"\n'
    recipe.write_text(f'{FEW_STEPS}{remote}[engines.modules]\nengine = "{engine}"\n', encoding="utf-8")
    with raises("setting-conflict", "engines.modules"):
        resolve(load_recipe(str(recipe)))


def test_prompt_tokens_are_not_learned_where_prefixes_are_shared(recipe):
    with pytest.raises(MidstreamError, match="prompt_weight"):
        load_recipe(str(recipe), ["warm_start.prompt_weight=0.1"])
