"""What `--dry-run` prints: bounds that a real run does not exceed, and one case calculated by hand."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.components.tables import parse_component
from midstream.core.errors import UsageError
from midstream.recipe import check as recipe_check
from midstream.recipe import estimate
from midstream.recipe import schema as config
from midstream.recipe.build import Build
from midstream.recipe.estimate import Batch, requests_of
from midstream.recipe.files import read_table
from midstream.recipe.memory import GIB, promised_bytes
from midstream.recipe.schema import parse_recipe
from midstream.runs import RunDirectory
from support.errors import coded
from support.hf_models import save_chat_model
from support.llm_server import LLMServer

OWN = {"type": "file", "path": "own.jsonl"}


def set_of(settings):
    """An evaluation set of these settings, as in a recipe."""
    table = read_table("gazetteer-prompted") | {"evaluation": {"sets": [{"name": "x", **settings}]}}
    return parse_recipe(table).evaluation.sets[0]


RECIPE = """
extends = "gazetteer-prompted"
name = "counted"

[agent]
max_turns = 4

[agent.planner]
engine = "policy"
sampling = { temperature = 0.7, max_tokens = 100 }

[agent.executor]
sampling = { max_tokens = 200 }

[engines.model]
model = "m"

[engines.policy]
type = "openai_compatible"
model = "p"

[engines.other]
type = "openai_compatible"
model = "n"

[tools.base_generator]
engine = "other"
max_tokens = 300

[training]
steps = 6
tasks_per_step = 2
group_size = 3
minibatches = 2
validate_every = 4

[evaluation]
temperatures = [0.7, 0.0]
trials = 5
validation = { name = "validation", split = "validation", per_family = 1 }
sets = [
  { name = "own", count = 10, max_turns = 7 },
  { name = "bamboogle", tasks = { type = "benchmark", name = "bamboogle" } },
]
"""


@pytest.fixture
def planned(tmp_path):
    """A function that loads `RECIPE` with some settings changed."""

    def load(*overrides, text=RECIPE):
        path = tmp_path / "counted.toml"
        path.write_text(text, encoding="utf-8")
        recipe = config.load_recipe(str(path), overrides)
        recipe_check.resolve(recipe)
        return recipe

    return load


def of_build(function):
    """A function of a build as one of its recipe."""

    def called(recipe, *values, **options):
        with Build(recipe) as build:
            return function(build, *values, **options)

    return called


batches_of, describe, set_size = map(of_build, (estimate.batches_of, estimate.describe, estimate.set_size))


def counted(lines):
    """Requests of everything that asks, from the line that names it."""
    found = (re.fullmatch(r" *([\d,]+)  of (\S+): \S+ \(.*\)", line) for line in lines)
    return {match[2]: int(match[1].replace(",", "")) for match in found if match}


def test_one_case_calculated_by_hand(planned):
    """36 of training; 10 and 125 tasks, by 5 trials, 2 temperatures, before and after; 7 tasks in 3 validations."""
    recipe = planned()
    batches = batches_of(recipe, training=True)
    assert [(batch.count, batch.turns) for batch in batches] == [(36, 4), (200, 7), (2500, 4), (21, 4)]
    turns = 36 * 4 + 200 * 7 + 2500 * 4 + 21 * 4
    lines = describe(recipe, training=True)
    asked = {"planner": turns, "executor": turns * 2, "verifier": turns * 2, "generator": 2757 * 2, "tools": turns}
    assert counted(lines) == asked
    assert "Optimizer steps: 12" in lines


def test_groups_that_are_rolled_out_in_place_of_others_are_counted(planned):
    recipe = planned("training.resample_uniform=3")
    training = batches_of(recipe, training=True)[0]
    assert training.count == 36 * 4
    assert "training.resample_uniform" in training.what


def test_an_evaluation_alone_is_made_once(planned):
    recipe = planned()
    batches = batches_of(recipe, training=False)
    assert [batch.count for batch in batches] == [100, 1250]
    assert not any(line.startswith("Optimizer") for line in describe(recipe, training=False))


def test_no_step_is_no_second_evaluation(planned):
    recipe = planned("training.steps=0")
    assert [batch.count for batch in batches_of(recipe, training=True)] == [0, 100, 1250, 7]


def test_a_program_may_call_its_tool_more_than_once(planned):
    calls = counted(describe(planned(), training=False))["tools"]
    settings = ["agent.executor.mode=code", "agent.executor.program.max_tool_calls=5"]
    assert counted(describe(planned(*settings), training=False))["tools"] == 5 * calls


def test_judges_are_asked_where_they_decide(planned):
    """Training and validation: the benchmark's set, and a set with a rule of its own, are not judged."""
    judge = "reward={type='judge',engine='other',votes=3,temperature=0.5,max_tokens=50}"
    recipe = planned(judge, "evaluation.sets=[{name='own',count=10,reward={type='exact_match'}}]")
    assert counted(describe(recipe, training=True))["judge"] == (36 + 21) * 6
    nested = {"type": "composite", "parts": {"a": recipe.reward.table(), "b": {"type": "math"}}}
    batch = Batch("", 1, 1, parse_component("reward", nested, "reward"), None)
    assert requests_of(recipe, batch)["judge", "other"] == 6


def test_the_imitated_planner_is_asked_for_the_transcripts(planned):
    supervised = ["training.algorithm=supervised", "training.supervised.transcripts=50", "evaluation.sets=[]"]
    teacher = "training.supervised.planner={type='prompted',engine='other',sampling={max_tokens=9}}"
    lines = describe(planned(*supervised, teacher), training=True)
    assert any("84  of planner: policy (p)" in line for line in lines), "7 tasks, 3 validations"
    assert any("50  of 4 turns: transcripts" in line for line in lines)
    assert any("200  of planner: other (n)" in line for line in lines)


@pytest.mark.parametrize(
    ("chosen", "size"),
    [
        ({"count": 12}, 12),
        ({"per_family": 2, "families": ("arith", "hop")}, 4),
        ({"tasks": {"type": "benchmark", "name": "aime24"}}, 30),
        ({"tasks": {"type": "benchmark", "name": "2wiki"}, "count": 100}, 100),
        ({"tasks": {"type": "benchmark", "name": "2wiki"}, "per_family": 3}, None),
        ({"tasks": {"type": "game24"}, "count": 7}, 7),
        ({"tasks": OWN}, 5),
        ({"tasks": OWN, "per_family": 2}, 4),
        ({"tasks": OWN, "per_family": 2, "families": ("a",)}, 2),
        ({"tasks": {"type": "mixture", "parts": {"own": OWN, "world": {"type": "gazetteer"}}}, "per_family": 3}, 6),
        ({"tasks": {"type": "mixture", "parts": {"own": OWN, "hub": {"type": "benchmark", "name": "aime24"}}}}, None),
    ],
)
def test_sizes_are_counted_except_of_data_on_the_hub(planned, chosen, size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = [{"question": f"Is it {i} ?", "answer": "yes", "family": "ab"[i % 2]} for i in range(5)]
    Path("own.jsonl").write_text("\n".join(map(json.dumps, own)))
    recipe = planned()
    assert set_size(recipe, set_of(chosen)) == size


@pytest.mark.parametrize("tasks", [OWN, {"type": "benchmark", "name": "2wiki", "file": "own.jsonl"}])
def test_a_missing_file_is_an_error(planned, tasks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = planned()
    with pytest.raises(UsageError, check=coded("file-not-found", "own.jsonl")):
        set_size(recipe, set_of({"tasks": tasks}))


def test_an_unknown_size_is_said_and_not_counted(planned):
    hub = "{type='mixture',parts={hub={type='benchmark',name='aime24'}}}"
    lines = describe(planned(f"evaluation.sets=[{{name='x',tasks={hub}}}]"), training=False)
    assert any(line.split()[0] == "?" for line in lines)
    assert "planner" not in counted(lines)


# -- against real runs -------------------------------------------------------------------------------------------------


def test_a_run_samples_exactly_the_estimated_trajectories(finished_run):
    run = RunDirectory.open(finished_run)
    recipe = config.parse_recipe(tomllib.loads(run.recipe()))
    batches = batches_of(recipe, training=True)
    sampled = sum(len(run.trajectories.read(step)) for step in range(1, 11))
    [training] = [batch for batch in batches if batch.what.startswith("training")]
    assert training.count == sampled
    evaluated = sum(result.tasks * result.trials for result in run.evaluations.read())
    apart = ("training", "warm", "copy gate")
    assert sum(batch.count or 0 for batch in batches if not batch.what.startswith(apart)) == evaluated
    assert {batch.what: batch.count for batch in batches}["copy gate, 6 tasks x 4"] == 24


def test_an_evaluation_asks_no_more_than_estimated(planned, tmp_path, capsys):
    """A planner whose replies never can be used takes every turn, the others every second request."""
    with LLMServer(lambda body: "nonsense") as server:
        settings = [f"engines.{engine}.base_url={server.base_url}" for engine in ("model", "policy", "other")]
        settings += ["evaluation.temperatures=[0.7]", "evaluation.trials=1"]
        settings += ["evaluation.sets=[{name='own',count=3}]"]
        words = [word for setting in settings for word in ("--set", setting)]
        recipe = planned(*settings)
        said = counted(describe(recipe, training=False))
        command = ["eval", str(tmp_path / "counted.toml"), "--quiet", "--json", "--out", str(tmp_path / "evaluated")]
        assert main([*command, *words]) == 0
        capsys.readouterr()
        roles = [body["messages"][0]["content"].partition("\n")[0].lstrip("# ").lower() for body in server.bodies]
    asked = {role: roles.count(role) for role in set(roles)}
    assert asked["planner"] == said["planner"] == 12
    assert all(asked[role] <= said[role] for role in asked)
    assert asked["verifier"] == said["verifier"]


@pytest.mark.slow
def test_a_dialogue_goes_beyond_one_user_turn(tmp_path, capsys):
    settings = ["agent.max_turns=3", "evaluation.sets=[{name='test',split='test',per_family=2,seed=99}]"]
    recipe = config.load_recipe("function-calling-simulated", settings)
    [batch] = batches_of(recipe, training=False)
    lines = describe(recipe, training=False)
    calls = counted(lines)["policy"]
    assert (batch.count, batch.dialogue, calls) == (10, True, 40)
    assert any("3 turns after each message of a user: test" in line for line in lines)
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["eval", recipe.name, "--quiet", "--json", "--out", str(tmp_path / "run"), *words]) == 0
    capsys.readouterr()
    run = RunDirectory.open(tmp_path / "run")
    made = run.trajectories.read("test-T0.9")
    assert sum(len(trajectory.calls) for trajectory in made) > calls


# -- what is printed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["train"], ["eval"]])
def test_it_is_printed_below_the_recipe_as_toml(command, capsys):
    assert main([*command, "flow-grpo-lora", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert tomllib.loads(out)["name"] == "flow-grpo-lora"
    assert "# Memory of engine policy (Qwen/Qwen2.5-0.5B-Instruct) on cpu" in out
    assert ("LoRA adapter" in out) == (command == ["train"])


def test_other_commands_print_the_recipe_alone(capsys):
    assert main(["solve", "What is 1 plus 1 ?", "--dry-run"]) == 0
    assert "Trajectories" not in capsys.readouterr().out


def test_a_streams_memory_is_that_of_all_its_tokens(capsys):
    assert main(["train", "search-r1-7b", "--dry-run"]) == 0
    assert "64 rows of 5,096 tokens" in capsys.readouterr().out, "not those of one reply, 500"


def test_the_memory_of_a_local_model_is_estimated(tmp_path, capsys):
    directory = save_chat_model(tmp_path / "model", "llama")
    assert main(["train", "flow-grpo-lora", "--dry-run", "--set", f"engines.policy.model={directory}"]) == 0
    assert "GB  at the peak" in capsys.readouterr().out


def test_the_memory_of_an_unknown_model_is_unknown(capsys):
    assert main(["train", "flow-grpo-lora", "--dry-run", "--set", "engines.policy.model=gpt2"]) == 0
    assert "Memory of engine policy (gpt2): unknown" in capsys.readouterr().out
    assert main(["train", "flow-grpo-lora", "--dry-run", "--set", "learner.lora.target=q_proj"]) == 0
    assert "unknown, because learner.lora.target is not all-linear" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("agentflow-1.5b-24gb", 24), ("mine-80GB-v2", 80), ("flow-grpo-lora", None), ("7b", None), ("24gbit", None)],
)
def test_a_recipes_name_promises_a_card(name, gigabytes):
    assert promised_bytes(name) == (gigabytes and gigabytes * GIB)
