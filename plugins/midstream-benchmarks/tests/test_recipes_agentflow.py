"""The recipes that reproduce AgentFlow, and the small ones' wiring trains end to end."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch

from midstream.cli.main import main
from midstream.core.trajectory import Trajectory
from midstream.recipe import check as recipe_check
from midstream.recipe import files
from midstream.recipe import schema as config
from midstream.recipe.build import Build
from midstream.runs import RunDirectory
from support.llm_server import Body, LLMServer, prompt_of
from support.served_model import ServedModel, save_model

RECIPES = ["agentflow-7b", "agentflow-7b-released", "agentflow-7b-80gb", "agentflow-1.5b-24gb"]
ON_ONE_CARD = RECIPES[2:]
TEN = {"bamboogle", "2wiki", "hotpotqa", "musique", "gaia", "aime24", "amc23", "gameof24", "gpqa", "medqa"}


def file_of(name):
    return files.shipped_recipes()[name].read_text(encoding="utf-8")


def number(pattern, text):
    found = re.search(pattern, text)
    assert found, pattern
    return float(found[1].replace(",", ""))


@pytest.fixture
def resolved():
    return lambda name: recipe_check.resolve(config.load_recipe(name))


# -- what they say -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_dry_run_asks_nobody_and_is_toml(name, capsys, monkeypatch, tmp_path):
    for key in ("OPENAI_API_KEY", "SERPER_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))  # no data set lies there
    assert main(["train", name, "--dry-run"]) == 0
    shown = tomllib.loads(capsys.readouterr().out)
    assert shown["name"] == name
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", RECIPES)
def test_the_planner_alone_is_trained_and_judged_by_gpt_4o(name, resolved):
    recipe = resolved(name)
    planner, weights = recipe["agent"]["planner"]["engine"], recipe["training"].get("weights")
    assert (planner, weights) == ("policy", "weights" if name in ON_ONE_CARD else None)
    frozen = [recipe["agent"][module]["engine"] for module in ("executor", "verifier", "generator")]
    frozen += [table["engine"] for table in recipe["tools"].values() if "engine" in table]
    assert not {planner, weights} & set(frozen)
    assert recipe["engines"][recipe["reward"]["engine"]]["model"] == "gpt-4o"
    assert all(table["temperature"] == 0 for table in recipe["tools"].values() if "engine" in table)


@pytest.mark.parametrize("name", RECIPES)
def test_the_ten_benchmarks_are_scored_by_rule(name, resolved):
    evaluation = resolved(name)["evaluation"]
    assert {one["name"] for one in evaluation["sets"]} == TEN
    made_here = {"gameof24": "game24"}
    for one in evaluation["sets"]:
        assert one["tasks"].get("name", one["tasks"]["type"]) == made_here.get(one["name"], one["name"])
    assert {one["reward"]["type"] for one in evaluation["sets"]} == {"per_task"}
    assert {one["max_turns"] for one in evaluation["sets"]} == {10}
    assert (evaluation["temperatures"], evaluation["trials"]) == ([0.7], 3)
    assert evaluation["validation"]["tasks"]["name"] == "aime24"


def test_the_papers_values(resolved):
    recipe = resolved("agentflow-7b")
    training = recipe["training"]
    assert [training[key] for key in ("tasks_per_step", "group_size", "learning_rate")] == [32, 8, 1e-6]
    assert training["loss"]["kl_coefficient"] == 0.001
    assert training["loss"]["aggregation"] == "trajectory-turn-token"
    assert recipe["agent"]["max_turns"] == 3
    assert [recipe["agent"]["planner"]["sampling"][key] for key in ("temperature", "max_tokens")] == [0.5, 2048]
    assert len(recipe["tools"]) == 5
    assert {recipe["engines"][name]["model"] for name in ("policy", "model")} == {"Qwen/Qwen2.5-7B-Instruct"}
    assert "lora" not in recipe["learner"]


def test_what_the_released_configuration_changes(resolved):
    recipe = resolved("agentflow-7b-released")
    loss = recipe["training"]["loss"]
    assert (loss["clip_low"], loss["clip_high"], recipe["training"]["advantage_over"]) == (0.2, 0.3, "turns")
    assert recipe["agent"]["planner"]["sampling"]["temperature"] == 0.7
    assert recipe["training"]["tasks_per_step"] / recipe["training"]["minibatches"] == 8
    assert set(recipe["tools"]) == {"base_generator", "python", "web_search", "wikipedia"}
    assert recipe["engines"][recipe["agent"]["verifier"]["engine"]]["model"] == "gpt-4o-mini"


@pytest.mark.parametrize("name", ON_ONE_CARD)
def test_the_servers_command_fits_recipe_and_card(name, resolved, capsys):
    recipe = resolved(name)
    lines = [line.lstrip("# ").rstrip("\\ ") for line in file_of(name).splitlines() if line.startswith("#   ")]
    words = shlex.split(" ".join(lines).split("midstream train")[0])
    assert words[3] == recipe["engines"]["policy"]["model"] == recipe["engines"]["weights"]["model"]
    assert words[words.index("--dtype") + 1] == recipe["engines"]["weights"]["dtype"]
    assert int(words[words.index("--max-lora-rank") + 1]) >= recipe["learner"]["lora"]["rank"]
    share = float(words[words.index("--gpu-memory-utilization") + 1])
    main(["train", name, "--dry-run"])
    out = capsys.readouterr().out
    assert "WARNING" not in out
    assert share <= number(r"--gpu-memory-utilization ([\d.]+) at most", out)


def test_what_the_page_shows_is_what_is_printed(capsys):
    page = (Path(__file__).parents[3] / "docs" / "scale.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    main(["train", "agentflow-1.5b-24gb", "--dry-run"])
    assert shown in capsys.readouterr().out


def test_a_smaller_card_is_warned_of(capsys):
    assert main(["train", "agentflow-7b-80gb", "--dry-run", "--set", "name=mine-24gb"]) == 0
    assert "WARNING: that does not fit a card of 24 GB" in capsys.readouterr().out


# -- the wiring of agentflow-1.5b-24gb, small ------------------------------------------------------------------------

SMALL = """
extends = "agentflow-1.5b-24gb"
name = "small"

[tasks.parts.search-r1]
type = "file"
path = "{search}"
splits = {{ train = 1.0 }}

[tasks.parts.deepmath-103k]
type = "file"
path = "{sums}"
splits = {{ train = 1.0 }}

[agent.planner]
sampling = {{ temperature = 0.8, max_tokens = 4 }}

[engines]
policy = {{ model = "m", base_url = "{url}" }}
model = {{ model = "m", base_url = "{url}" }}
judge = {{ base_url = "{url}", api_key_env = "" }}
weights = {{ model = "{model}", dtype = "float32", device = "cpu" }}

[tools]
web_search = {{ base_url = "{url}", api_key_env = "" }}
wikipedia = {{ base_url = "{url}" }}
python = {{ libraries = [], workers = 2 }}

[learner]
lora = {{ rank = 4, alpha = 8 }}

[training]
steps = 2
tasks_per_step = 4
group_size = 4
learning_rate = 3e-2
checkpoint_every = 1
validate_every = 2

[evaluation]
trials = 2
validation = {{ name = "validation", tasks = {{ type = "file", path = "{test}" }}, split = "test" }}
sets = [{{ name = "own", tasks = {{ type = "file", path = "{test}" }} }}]
"""


class Played:
    """The server of `SMALL`: a real planner, scripted modules, and a judge that calls "2" alone correct."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def __call__(self, body: Body) -> str | Body:
        if isinstance(body.get("prompt"), list):
            return self._model(body)
        text = prompt_of(body)
        role = text.partition("\n")[0].lstrip("# ").lower()
        if role == "python coder":
            return "```python\nprint(1 + 1)\n```"
        if role == "executor":
            return json.dumps({"query": "1 + 1"})
        if role == "judge":
            correct = text.rstrip().splitlines()[-3] == 'Answer to judge: "2"'
            return json.dumps({"analysis": "compared", "correct": correct})
        if role == "generator":
            return "<answer>2</answer>" if '"result":"2"' in text else "<answer>unknown</answer>"
        return self._model(body)


def questions(path, count, start=0, **named):
    rows = [{"question": f"What is {i} minus {i - 2} ?", "answer": "2", **named} for i in range(start, start + count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("small")
    directory = save_model(root / "model")
    model = ServedModel(directory)
    with LLMServer(Played(model)) as server:
        model.adapters = server.adapters
        path = root / "small.toml"
        files = {
            "search": questions(root / "search.jsonl", 6),
            "sums": questions(root / "sums.jsonl", 6, start=100),
            "test": questions(root / "test.jsonl", 3, start=200, reward="numeric"),
        }
        path.write_text(SMALL.format(url=server.base_url, model=directory, **files), encoding="utf-8")
        assert main(["train", str(path), "--out", str(root / "run"), "--quiet"]) == 0
        yield RunDirectory.open(root / "run"), server


def trajectories_of(run, steps=(1, 2)) -> list[Trajectory]:
    return [one for step in steps for one in run.trajectories.read(step)]


@pytest.mark.slow
def test_it_trains_on_both_parts_of_the_mixture(trained):
    run, _ = trained
    metrics = run.metrics.read()
    assert [one.step for one in metrics] == [1, 2]
    trajectories = trajectories_of(run)
    assert {one.status for one in trajectories} == {"ok"}
    assert {one.family for one in trajectories} == {"search-r1", "deepmath-103k"}
    assert metrics[0].groups_uniform < metrics[0].groups
    assert metrics[0].grad_norm > 0
    assert metrics[1].kl > 0, "the second step's samples come from the updated adapter"
    assert {
        call.policy_version for one in run.trajectories.read(2) for call in one.calls if call.role == "planner"
    } == {1}


@pytest.mark.slow
def test_the_judge_decides_and_the_rule_is_reported_too(trained):
    run, _ = trained
    for one in trajectories_of(run):
        assert one.reward is not None
        assert one.reward.value == (one.answer == "2")
        assert one.reward.parts["rule"] == one.reward.value


@pytest.mark.slow
def test_there_is_a_checkpoint_of_the_adapter_alone(trained):
    run, _ = trained
    state = torch.load(run.checkpoints.root / "step-000002" / "learner.pt", weights_only=True)
    assert all("lora_" in name for name in state["model"])
    assert (run.policy_dir / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_questions_that_name_a_rule_are_evaluated_by_it_before_and_after(trained):
    run, _ = trained
    own = [one for one in run.evaluations.read() if one.set_name == "own"]
    assert [(one.step, one.judged, one.tasks, one.trials) for one in own] == [(0, False, 3, 2), (2, False, 3, 2)]
    assert {one.set_name for one in run.evaluations.read()} == {"own", "validation"}


@pytest.mark.slow
def test_the_frozen_modules_ask_the_base_model(trained):
    _, server = trained
    planned = {body["model"] for body in server.bodies if isinstance(body.get("prompt"), list)}
    others = {body["model"] for body in server.bodies if "messages" in body}
    assert all(name.startswith("midstream-version-") for name in planned)
    assert others == {"m", "gpt-4o"}


@pytest.mark.parametrize("name", ["agentflow-paper", "agentflow-7b"])
def test_every_tool_of_the_papers_recipes_ends_after_the_papers_500_seconds(name, monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "unused")
    with Build(config.load_recipe(name)) as build:
        assert {tool.name: tool.timeout_s for tool in build.tools} == dict.fromkeys(
            ("base_generator", "python", "web_search", "wikipedia", "web_page"), 500
        )
