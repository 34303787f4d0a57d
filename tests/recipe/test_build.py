"""Wiring: every component of a recipe is checked before anything starts, and made once."""

from __future__ import annotations

import asyncio

import pytest
import torch

from midstream.core.component import registered
from midstream.core.errors import RecipeError, UnsupportedError, UsageError
from midstream.core.protocols import Row
from midstream.core.trajectory import Sampling
from midstream.engines.local.engine import TransformersLocal
from midstream.evaluation import SetConfig
from midstream.recipe.build import Build
from midstream.recipe.check import check
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import parts_of
from midstream.training.losses import PolicyLoss


def recipe(ten_steps, *overrides):
    return load_recipe(str(ten_steps), overrides)


@pytest.mark.parametrize(
    ("override", "named", "known"),
    [
        ("tasks.type=gazeteer", r"tasks\.type = 'gazeteer'", "tasks"),
        ("reward.type=f2", r"reward\.type = 'f2'", "reward"),
        ("tools.browser={}", r"tools\.browser\.type = 'browser'", "tool"),
        ("engines.policy.type=vllm", r"engines\.policy\.type = 'vllm'", "engine"),
        ("agent.planner.type=clever", r"agent\.planner\.type = 'clever'", "planner"),
        ("agent.executor.type=clever", r"agent\.executor\.type = 'clever'", "executor"),
        ("agent.verifier.type=clever", r"agent\.verifier\.type = 'clever'", "verifier"),
        ("agent.generator.type=clever", r"agent\.generator\.type = 'clever'", "generator"),
    ],
)
def test_an_unknown_component_is_named_with_the_known_ones(ten_steps, override, named, known):
    with pytest.raises(RecipeError, match=rf"{named} does not exist[\s\S]*{', '.join(registered(known))}") as caught:
        recipe(ten_steps, override)
    assert caught.value.code == "unknown-type"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("tools.local_search.top=3", r"tools\.local_search\.top = 3"),
        ("engines.policy.layers=0", r"engines\.policy\.layers = 0"),
        ("engines.policy.heads=3", r"hidden_size 32 must be a multiple of twice the 3 heads"),
        ("tasks.difficulty=hard", r"tasks\.difficulty = 'hard'"),
        ("agent.planner.temperature=1", r"agent\.planner\.temperature = 1"),
        ("reward.strict=true", r"reward\.strict = True"),
    ],
)
def test_a_components_own_settings_are_checked(ten_steps, override, named):
    with pytest.raises(RecipeError, match=rf"the recipe is invalid: [\s\S]*{named}"):
        check(recipe(ten_steps, override))


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("agent.planner.engine=polcy", r"agent\.planner\.engine = 'polcy' does not exist[\s\S]*policy"),
        ("agent.verifier.engine=policy", r"agent\.verifier\.engine = 'policy' would never be used"),
        ("training.weights=other", r"training\.weights = 'other' does not exist"),
        ("agent.verifier={type='prompted'}", r"agent\.verifier\.engine = None does not exist"),
        ("tools.base_generator={}", r"tools\.base_generator\.engine = None does not exist"),
        ("tools.guess.engine=policy", r"tools\.guess\.engine = 'policy' would never be used"),
        ("agent.verifier={type='prompted',engine='policy'}", "would be trained together with the planner"),
    ],
)
def test_engines_must_exist_and_be_used(ten_steps, override, named):
    with pytest.raises(RecipeError, match=named):
        check(recipe(ten_steps, override))


def test_a_default_that_hangs_on_a_wrong_key_is_no_second_problem(ten_steps):
    with pytest.raises(RecipeError, match=r"base_url = 'nowhere'") as caught:
        check(recipe(ten_steps, "engines.other={type='openai_compatible',model='m',base_url='nowhere'}"))
    assert ";" not in caught.value.what


def test_a_resolved_recipe_holds_every_default(ten_steps):
    resolved = check(recipe(ten_steps))
    assert resolved["engines"]["policy"]["heads"] == 4
    assert resolved["agent"]["planner"]["sampling"]["top_p"] == 1.0
    assert resolved["tools"]["local_search"]["max_characters"] == 2000
    assert resolved["training"]["loss"]["kl_kind"] == "k3"
    assert check(recipe(ten_steps)) == resolved


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
    assert build.environment().agent.executor.mode == "code"

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
    with pytest.raises(UnsupportedError, match="ten-steps") as caught:
        parts_of(Build(recipe(ten_steps), unsafe=True))
    assert caught.value.code == "sandbox-required"


def test_an_in_process_engine_inside_a_tool_is_refused(make_build):
    build = make_build("tools.base_generator={engine='policy'}")
    with pytest.raises(RecipeError, match=r"tool engine 'policy' samples in process[\s\S]*openai_compatible"):
        _ = build.tools


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
    "no training table": (RecipeError, ["training=none"], "trains nothing"),
    "a program": (UnsupportedError, ["agent.planner={type='clumsy'}"], "cannot be trained[\\s\\S]*it is a program"),
    "greedy": (RecipeError, ["agent.planner.sampling.temperature=0.0"], "trained[\\s\\S]*temperature above 0"),
    "nucleus": (RecipeError, ["agent.planner.sampling.top_p=0.9"], "cannot be trained on[\\s\\S]*top_p = 1"),
    "no token ids": (UnsupportedError, [SERVER + "}"], "'policy' does not record[\\s\\S]*token_ids = true"),
    "no weights": (UnsupportedError, [SERVER + ",token_ids=true}"], "holds no weights[\\s\\S]*training.weights"),
    "no adapter": (
        RecipeError,
        [SERVER + ",token_ids=true}", "engines.mine={type='tiny'}", "training.weights=mine"],
        "cannot reach[\\s\\S]*learner.lora",
    ),
    "a template without effect": (
        RecipeError,
        [
            SERVER + ",token_ids=true,extra_body={chat_template_kwargs={enable_thinking=false}}}",
            "engines.mine={type='tiny'}", "training.weights=mine", "learner.lora={rank=2}",
        ],
        "chat_template_kwargs would have no effect",
    ),
    "two models in process": (
        RecipeError,
        ["engines.mine={type='tiny'}", "training.weights=mine", "learner.lora={rank=2}"],
        "cannot reach[\\s\\S]*openai_compatible",
    ),
    "16-bit weights": (
        RecipeError,
        ["engines.policy={type='transformers_local',model='m',dtype='bfloat16'}"],
        "dtype = 'bfloat16'[\\s\\S]*float32[\\s\\S]*learner.lora",
    ),
    "the clumsy policy's prompts": (
        RecipeError,
        ["agent.planner={type='prompted',engine='policy'}"],
        "warm_start would teach agent.planner, of type 'prompted'",
    ),
    "another planner's prompts": (
        RecipeError,
        ["training.algorithm=supervised", "training.supervised.planner={type='prompted',engine='policy'}"],
        "training.supervised.planner would teach agent.planner, of type 'compact'",
    ),
    "a set's file is not there": (
        UsageError,
        ["evaluation.sets=[{name='own',tasks={type='file',path='nowhere.jsonl'}}]"],
        "nowhere.jsonl",
    ),
    "a copy gate without a name": (
        RecipeError,
        ["warm_start.min_copy_rate=0.5", "evaluation.validation={name='v',per_family=2,families=['arith']}"],
        "no question of evaluation.validation",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_trained_is_refused_before_anything_starts(ten_steps, case):
    kind, overrides, text = CASES[case]
    chosen = recipe(ten_steps, *[override for override in overrides if override != "training=none"])
    if "training=none" in overrides:
        chosen = chosen.model_copy(update={"training": None})
    with pytest.raises(kind, match=text):
        parts_of(Build(chosen))


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("training.tasks_per_step=4", r"4 tasks of [\s\S]*there are 3[\s\S]*training.tasks_per_step"),
        ("tasks={type='benchmark',name='aime24'}", "no split 'train' in benchmark aime24"),
        ("evaluation.sets=[{name='own',count=9,tasks={type='file',path='FILE'}}]", "no split 'test'|9 tasks of"),
    ],
)
def test_what_a_source_cannot_give_is_found_before_a_model_is_loaded(tmp_path, override, text):
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
    with Build(chosen) as build, pytest.raises(RecipeError, match=text):
        parts_of(build)


def test_a_set_that_cannot_be_drawn_is_found_before_anything_starts(ten_steps):
    with pytest.raises(RecipeError, match=r"only \d+ different 'lookup'"):
        check(recipe(ten_steps, 'evaluation.sets=[{name="test", per_family=300, families=["lookup"]}]'))
