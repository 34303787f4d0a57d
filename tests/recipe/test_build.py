"""Wiring: every component of a recipe is checked before anything starts, and made once."""

from __future__ import annotations

import asyncio

import pytest
import torch

from midstream.components.kinds import registered
from midstream.core.errors import RecipeError, UnsupportedError, UsageError
from midstream.core.trajectory import Sampling
from midstream.engines.local.engine import TransformersLocal
from midstream.evaluation.settings import SetConfig
from midstream.recipe.build import Build
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import parts_of
from midstream.training.losses import PolicyLoss
from midstream.training.protocols import Row
from support.errors import coded


def recipe(ten_steps, *overrides):
    return load_recipe(str(ten_steps), overrides)


@pytest.mark.parametrize(
    ("override", "named", "known"),
    [
        ("tasks.type=gazeteer", "tasks.type = 'gazeteer'", "tasks"),
        ("reward.type=f2", "reward.type = 'f2'", "reward"),
        ("tools.browser={}", "tools.browser.type = 'browser'", "tool"),
        ("engines.policy.type=vllm", "engines.policy.type = 'vllm'", "engine"),
        ("agent.planner.type=clever", "agent.planner.type = 'clever'", "planner"),
        ("agent.executor.type=clever", "agent.executor.type = 'clever'", "executor"),
        ("agent.verifier.type=clever", "agent.verifier.type = 'clever'", "verifier"),
        ("agent.generator.type=clever", "agent.generator.type = 'clever'", "generator"),
    ],
)
def test_an_unknown_component_is_named_with_the_known_ones(ten_steps, override, named, known):
    with pytest.raises(RecipeError, check=coded("unknown-type", named, fix=", ".join(registered(known)))):
        recipe(ten_steps, override)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("tools.local_search.top=3", "tools.local_search.top = 3"),
        ("engines.policy.layers=0", "engines.policy.layers = 0"),
        ("engines.policy.heads=3", "hidden_size 32 must be a multiple of twice the 3 heads"),
        ("tasks.difficulty=hard", "tasks.difficulty = 'hard'"),
        ("agent.planner.temperature=1", "agent.planner.temperature = 1"),
        ("reward.strict=true", "reward.strict = True"),
    ],
)
def test_a_components_own_settings_are_checked(ten_steps, override, named):
    with pytest.raises(RecipeError, check=coded("recipe-invalid", named)):
        resolve(recipe(ten_steps, override))


@pytest.mark.parametrize(
    ("override", "code", "value"),
    [
        ("agent.planner.engine=polcy", "unknown-engine", "agent.planner.engine = 'polcy'"),
        ("agent.verifier.engine=policy", "engine-not-used", "agent.verifier.engine = 'policy'"),
        ("training.weights=other", "unknown-engine", "training.weights = 'other'"),
        ("agent.verifier={type='prompted'}", "unknown-engine", "agent.verifier.engine = None"),
        ("tools.base_generator={}", "unknown-engine", "tools.base_generator.engine = None"),
        ("tools.guess.engine=policy", "engine-not-used", "tools.guess.engine = 'policy'"),
        ("agent.verifier={type='prompted',engine='policy'}", "setting-conflict", "agent.verifier.engine = 'policy'"),
    ],
)
def test_engines_must_exist_and_be_used(ten_steps, override, code, value):
    with pytest.raises(RecipeError, check=coded(code, value)):
        resolve(recipe(ten_steps, override))


def test_a_default_that_hangs_on_a_wrong_key_is_no_second_problem(ten_steps):
    with pytest.raises(RecipeError, check=coded("recipe-invalid", "base_url = 'nowhere'")) as caught:
        resolve(recipe(ten_steps, "engines.other={type='openai_compatible',model='m',base_url='nowhere'}"))
    assert ";" not in caught.value.what


def test_a_resolved_recipe_holds_every_default(ten_steps):
    resolved = resolve(recipe(ten_steps))
    assert resolved["engines"]["policy"]["heads"] == 4
    assert resolved["agent"]["planner"]["sampling"]["top_p"] == 1.0
    assert resolved["tools"]["local_search"]["max_characters"] == 2000
    assert resolved["training"]["loss"]["kl_kind"] == "k3"
    assert resolve(recipe(ten_steps)) == resolved


def test_parts_are_made_once(make_build):
    build = make_build()
    assert build.engine("policy") is build.engine("policy")
    assert build.source is build.source
    assert build.environment().tools is build.environment().tools
    assert build.environment().engines["planner"] is build.engine("policy")
    assert parts_of(build).learner is parts_of(build).learner
    assert build.policy.learner.model is build.engine("policy").model


def test_the_untrained_planner_follows_the_warm_starts_seed(make_build):
    def weights(*overrides):
        return make_build(*overrides).engine("policy").model.state_dict()["model.embed_tokens.weight"]

    assert torch.equal(weights(), weights())
    assert not torch.equal(weights(), weights("seed=9"))
    assert torch.equal(weights("warm_start.seed=5"), weights("warm_start.seed=5", "seed=9"))


def test_an_environment_can_differ_in_planner_temperature_and_turns(make_build):
    build = make_build()
    assert build.environment().agent.planner.sampling == Sampling(temperature=1.0, max_tokens=20)
    assert build.environment(temperature=0.0).agent.planner.sampling == Sampling(temperature=0.0, max_tokens=20)
    assert build.environment(chosen=SetConfig(name="x", max_turns=9)).agent.config.max_turns == 9
    planner = object()
    assert build.environment(planner=planner).agent.planner is planner
    assert build.environment(planner=planner).engines == {}


PROGRAMS = "agent.executor={type='prompted',engine='server',mode='code',program={max_tool_calls=2}}"
WRITER = "engines.server={type='openai_compatible',model='m',base_url='http://127.0.0.1:9/v1'}"


def test_an_executor_that_writes_programs_gets_a_runner(ten_steps):
    build = Build(recipe(ten_steps, WRITER, PROGRAMS))
    assert build.environment().agent.executor.config.mode == "code"

    async def go():
        observation, _ = await build.code_runner.run("while True: local_search(query='a')", build.tools[0])
        assert (observation.status, len(observation.tool_calls)) == ("error", 1)  # "a" is nowhere: ToolError
        observation, _ = await build.code_runner.run("for _ in 'abc': local_search('height')", build.tools[0])
        assert "more than 2 calls of local_search" in observation.text
        await build.code_runner.close()

    asyncio.run(go())


def test_every_trajectory_can_say_which_sandbox_held_its_code(ten_steps, make_build):
    build = make_build()
    assert build.environment().sandbox == build.sandbox.tier
    assert build.sandbox_line.startswith(f"{build.sandbox.tier}: ")
    without = recipe(ten_steps, "tools.python=false")
    assert Build(without).environment(planner=object()).sandbox == ""


def test_nothing_is_trained_without_a_sandbox(ten_steps):
    with pytest.raises(UnsupportedError, check=coded("sandbox-required", "'ten-steps'")):
        parts_of(Build(recipe(ten_steps), unsafe=True))


def test_an_in_process_engine_inside_a_tool_is_refused(make_build):
    with pytest.raises(RecipeError, check=coded("engine-in-process", "'policy'", fix="reference")):
        make_build("tools.base_generator={engine='policy'}")


def test_publishing_marks_the_version_of_shared_weights(make_build):
    build = make_build()
    asyncio.run(build.policy.publish(7))
    engine = build.engine("policy")
    assert isinstance(engine, TransformersLocal)
    assert engine.policy_version == 7


def test_other_engines_weights_stay_as_they_are(make_build):
    """A step on the planner's weights leaves a second model of the recipe alone."""
    build = make_build("engines.other={type='tiny',hidden_size=32,layers=1,max_positions=128}")
    other = build.engine("other").model.state_dict()
    before = {name: tensor.clone() for name, tensor in other.items()}
    parts = parts_of(build)
    row = Row(
        prompt_ids=(5, 6, 7), completion_ids=(8, 9), old_logprobs=(-1.0, -1.0), advantage=1.0, weight=1.0, kl_weight=1.0
    )
    planner = {name: tensor.clone() for name, tensor in parts.learner.model.state_dict().items()}
    parts.learner.forward_backward([row], PolicyLoss())
    parts.learner.optimizer_step(1e-2)
    assert all(torch.equal(tensor, build.engine("other").model.state_dict()[name]) for name, tensor in before.items())
    assert any(not torch.equal(tensor, parts.learner.model.state_dict()[name]) for name, tensor in planner.items())


# -- what cannot be trained -------------------------------------------------------------------------------------------

SERVER = "engines.policy={type='openai_compatible',model='m',base_url='http://127.0.0.1:9/v1'"
CASES = {
    "no training table": ("not-trainable", ["training=none"], "'ten-steps'", ""),
    "a program": ("not-trainable", ["agent.planner={type='clumsy'}"], "agent.planner of type 'clumsy'", ""),
    "greedy": ("not-trainable", ["agent.planner.sampling.temperature=0.0"], "temperature=0.0", "temperature above 0"),
    "nucleus": ("not-trainable", ["agent.planner.sampling.top_p=0.9"], "top_p=0.9", "top_p = 1"),
    "no token ids": ("not-trainable", [SERVER + "}"], "'policy'", "token_ids = true"),
    "no weights": ("not-trainable", [SERVER + ",token_ids=true}"], "'policy'", "training.weights"),
    "no adapter": (
        "not-trainable",
        [SERVER + ",token_ids=true}", "engines.mine={type='tiny'}", "training.weights=mine"],
        "training.weights = 'mine'", "learner.lora",
    ),
    "two models in process": (
        "not-trainable",
        ["engines.mine={type='tiny'}", "training.weights=mine", "learner.lora={rank=2}"],
        "training.weights = 'mine'", "openai_compatible",
    ),
    "the clumsy policy's prompts": (
        "setting-conflict",
        ["agent.planner={type='prompted',engine='policy'}"],
        "agent.planner, of type 'prompted'", "",
    ),
    "another planner's prompts": (
        "setting-conflict",
        ["training.algorithm=supervised", "training.supervised.planner={type='prompted',engine='policy'}"],
        "agent.planner, of type 'action_lines'", "",
    ),
    "a set's file is not there": (
        "file-not-found",
        ["evaluation.sets=[{name='own',tasks={type='file',path='nowhere.jsonl'}}]"],
        "nowhere.jsonl", "",
    ),
    "a copy gate without a name": (
        "setting-conflict",
        ["warm_start.min_copy_rate=0.5", "evaluation.validation={name='v',per_family=2,families=['arith']}"],
        "evaluation.validation", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_trained_is_refused_before_anything_starts(ten_steps, case):
    code, overrides, value, fix = CASES[case]
    chosen = recipe(ten_steps, *[override for override in overrides if override != "training=none"])
    if "training=none" in overrides:
        chosen = chosen.model_copy(update={"training": None})
    with pytest.raises(UsageError, check=coded(code, value, fix=fix)):
        parts_of(Build(chosen))


@pytest.mark.parametrize(
    ("override", "code", "value", "fix"),
    [
        ("training.tasks_per_step=4", "too-few-tasks", "there are 3", "training.tasks_per_step"),
        ("tasks={type='benchmark',name='aime24'}", "unknown-split", "'train'", "split"),
        ("evaluation.sets=[{name='own',count=9,tasks={type='file',path='FILE'}}]", "too-few-tasks", "9 tasks", ""),
    ],
)
def test_what_a_source_cannot_give_is_found_before_a_model_is_loaded(tmp_path, override, code, value, fix):
    path = tmp_path / "own.jsonl"
    path.write_text("".join(f'{{"question": "Is it {i} ?", "answer": "{i}"}}\n' for i in range(3)))
    tasks = f"{{type='file',path='{path}',splits={{train=1.0}}}}"
    own = [
        f"tasks={tasks}",
        "training.tasks_per_step=2",
        f"evaluation.validation={{name='v',split='train',tasks={tasks}}}",
    ]
    override = override.replace("FILE", str(path))
    chosen = load_recipe("agentflow-1.5b-24gb", [*own, "evaluation.sets=[]", "reward={type='exact_match'}", override])
    with Build(chosen) as build, pytest.raises(RecipeError, check=coded(code, value, fix=fix)):
        parts_of(build)


def test_a_set_that_cannot_be_drawn_is_found_before_anything_starts(ten_steps):
    chosen = recipe(ten_steps, 'evaluation.sets=[{name="test", per_family=300, families=["lookup"]}]')
    with Build(chosen) as build, pytest.raises(RecipeError, check=coded("too-few-tasks", "'lookup'")):
        parts_of(build)
