"""`midstream train flow-grpo-lora` on a Hugging Face chat model: real rollouts, real updates, the sampler keeps up."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

from midstream.cli.main import main
from midstream.components.kinds import register
from midstream.engines.local.pretrained import load_model
from midstream.recipe.files import shipped_recipes
from midstream.runs import RunDirectory
from midstream.training.learner import LocalLearner
from midstream.training.settings import LearnerConfig, LoraConfig
from support.errors import coded, printed
from support.served_model import CalculatesConfig, save_model

STEPS, TEMPERATURE, LORA = 3, 0.8, LoraConfig(rank=4, alpha=8)
SMALL_LORA = f"learner.lora={{rank={LORA.rank},alpha={LORA.alpha}}}"
SMALLER = [
    "tasks.families=['arith']",
    "tasks.countries=40",
    "reward.type=calculates",
    f"agent.planner.sampling={{temperature={TEMPERATURE},max_tokens=4}}",
    f"training.steps={STEPS}",
    "training.tasks_per_step=3",
    "training.group_size=4",
    "training.learning_rate=1e-2",
    "training.warmup_steps=1",
    "training.checkpoint_every=1",
    "training.validate_every=3",
    "evaluation.validation={name='validation',split='validation',per_family=2}",
    "evaluation.sets=[{name='test',per_family=2}]",
]


def changed(model, *more):
    return [word for one in (f"engines.policy.model={model}", *SMALLER, *more) for word in ("--set", one)]


def train(root, model, *more, recipe="flow-grpo-lora"):
    return main(["train", str(recipe), "--out", str(root), "--quiet", "--json", *changed(model, *more)])


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("hf") / "model")


@pytest.fixture(scope="module", autouse=True)
def _calculates():
    register("reward", "calculates", CalculatesConfig)


@pytest.fixture
def checkpoints(monkeypatch, tmp_path):
    return keep_checkpoints(monkeypatch, tmp_path / "kept")


def keep_checkpoints(patch, root):
    """A list that every checkpoint's copy is added to: a run deletes all but its newest."""
    kept = []
    save = LocalLearner.save

    def spy(self, directory):
        save(self, directory)
        kept.append(shutil.copytree(directory, root / str(len(kept))))

    patch.setattr(LocalLearner, "save", spy)
    return kept


@pytest.fixture(scope="module")
def run_and_checkpoints(model_directory, tmp_path_factory):
    root = tmp_path_factory.mktemp("hf-run")
    with pytest.MonkeyPatch.context() as patch:
        kept = keep_checkpoints(patch, root / "kept")
        assert train(root / "run", model_directory, SMALL_LORA) == 0
    return RunDirectory.open(root / "run"), kept


@pytest.fixture(scope="module")
def trained(run_and_checkpoints):
    return run_and_checkpoints[0]


def state_of(checkpoint):
    """The trained weights in a checkpoint."""
    return torch.load(checkpoint / "learner.pt", weights_only=True)["model"]


def newest_state(run):
    return state_of(max(run.checkpoints.root.glob("step-*")))


def planner_calls(run, step):
    trajectories = run.trajectories.read(step)
    assert {one.status for one in trajectories} == {"ok"}
    return [call for one in trajectories for call in one.calls if call.role == "planner"]


@torch.no_grad()
def fresh_logprobs(model, call):
    """Of a call's completion, by one plain forward pass."""
    logits = model(torch.tensor([call.prompt_ids + call.completion_ids])).logits[0, len(call.prompt_ids) - 1 : -1]
    picked = (logits / TEMPERATURE).log_softmax(-1).gather(1, torch.tensor(call.completion_ids)[:, None])
    return picked[:, 0].tolist()


def test_every_step_changes_the_adapter_and_nothing_else(run_and_checkpoints):
    states = [state_of(one) for one in run_and_checkpoints[1]]
    assert len(states) == STEPS + 1
    assert all("lora_" in name for name in states[0])
    for before, after in itertools.pairwise(states):
        assert any(not torch.equal(before[name], after[name]) for name in before)


def test_losses_are_finite_and_something_is_learnt_from(trained):
    metrics = trained.metrics.read()
    assert [one.step for one in metrics] == [1, 2, 3]
    assert all(math.isfinite(one.loss) and math.isfinite(one.kl) for one in metrics)
    assert all(one.grad_norm > 0 for one in metrics)
    assert metrics[0].groups_uniform < metrics[0].groups
    assert metrics[-1].kl > metrics[0].kl


def test_the_policy_version_is_the_number_of_updates_behind_it(trained):
    for metrics in trained.metrics.read():
        assert metrics.policy_version == metrics.step - 1
        assert {call.policy_version for call in planner_calls(trained, metrics.step)} == {metrics.policy_version}


@pytest.mark.slow
def test_the_engine_samples_from_the_checkpointed_adapter(run_and_checkpoints, model_directory):
    """What step n + 1 recorded is what a new model with the adapter of checkpoint n says, and only with that one."""
    run, kept = run_and_checkpoints
    for step in range(1, STEPS + 1):
        model, _ = load_model(str(model_directory), "float32", "cpu")
        learner = LocalLearner(model, LearnerConfig(lora=LORA))
        learner.load(kept[step - 1])
        calls = planner_calls(run, step)
        for call in calls:
            assert call.logprobs == pytest.approx(fresh_logprobs(learner.model, call), abs=1e-4)
        if step > 1:
            learner.load(kept[step - 2])
            stale = [fresh_logprobs(learner.model, call) for call in calls]
            assert any(call.logprobs != pytest.approx(old, abs=1e-2) for call, old in zip(calls, stale, strict=True))


def test_the_exported_adapter_is_the_last_checkpoint(trained, model_directory):
    exported = load_file(trained.policy_dir / "adapter_model.safetensors")
    state = newest_state(trained)
    assert {name.replace(".default", ""): tensor.tolist() for name, tensor in state.items()} == {
        name: tensor.tolist() for name, tensor in exported.items()
    }
    assert json.loads((trained.policy_dir / "adapter_config.json").read_text())["r"] == LORA.rank


def test_eval_samples_from_the_adapter_as_the_run_did(trained, model_directory, tmp_path, capsys):
    """`eval RUN` loads the checkpoint; `eval RECIPE` with it as the model merges the exported one."""
    [recorded] = [one for one in trained.evaluations.read() if one.set_name == "test" and one.step == STEPS]
    capsys.readouterr()
    assert main(["eval", str(trained.root), "--json", "--quiet", "--out", str(tmp_path / "run")]) == 0
    [of_run] = json.loads(capsys.readouterr().out)["evaluations"]
    adapter = f"engines.policy.model={trained.policy_dir}"
    recipe = "flow-grpo-lora"  # its learner is not asked: nothing is trained
    options = ("--json", "--quiet", "--out", str(tmp_path / "adapter"))
    assert main(["eval", recipe, *options, *changed(model_directory, adapter, SMALL_LORA)]) == 0
    [of_adapter] = json.loads(capsys.readouterr().out)["evaluations"]
    same = json.loads(recorded.model_dump_json(exclude={"policy", "seed", "step"}))
    assert {name: of_run[name] for name in same} == {name: of_adapter[name] for name in same} == same


# -- an adapter to begin with -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_adapter_is_trained_further(trained, model_directory, tmp_path, checkpoints):
    """It starts at the adapter's weights, and the reference policy is the model without it."""
    adapter = f"engines.policy.model={trained.policy_dir}"
    assert train(tmp_path / "run", model_directory, adapter, SMALL_LORA, "training.steps=1") == 0
    before, (first, last) = newest_state(trained), map(state_of, checkpoints)
    assert first.keys() == before.keys()
    assert all(torch.equal(first[name], before[name]) for name in before)
    assert any(not torch.equal(first[name], last[name]) for name in first)
    assert RunDirectory.open(tmp_path / "run").metrics.read()[0].kl > 0.01


@pytest.mark.slow
def test_all_weights_are_trained_from_a_merged_adapter(trained, model_directory, tmp_path):
    """Without `learner.lora` the reference policy is the model with the adapter."""
    shipped = shipped_recipes()["flow-grpo-lora"].read_text().splitlines()
    recipe = tmp_path / "all-weights.toml"
    recipe.write_text("\n".join(line for line in shipped if not line.startswith("lora = ")))
    more = [f"engines.policy.model={trained.policy_dir}", "training.steps=1"]
    assert train(tmp_path / "run", model_directory, *more, recipe=recipe) == 0
    run = RunDirectory.open(tmp_path / "run")
    assert run.metrics.read()[0].kl == pytest.approx(0.0, abs=1e-9)
    assert (run.policy_dir / "model.safetensors").is_file()
    assert not (run.policy_dir / "adapter_config.json").exists()
    assert {call.policy_version for call in planner_calls(run, 1)} == {0}
    model, _ = load_model(str(trained.policy_dir), "float32", "cpu")
    for call in planner_calls(run, 1):
        assert call.logprobs == pytest.approx(fresh_logprobs(model, call), abs=1e-4)


def test_an_adapter_of_another_shape_is_refused(trained, model_directory, tmp_path, capsys):
    adapter = f"engines.policy.model={trained.policy_dir}"
    assert train(tmp_path / "run", model_directory, adapter, "learner.lora={rank=8,alpha=8}") == 2
    fix = "learner.lora = { rank = 4, alpha = 8 }"
    assert coded("setting-conflict", "rank 8 and alpha 8", "4 and 8", fix=fix)(printed(capsys.readouterr().err))
    assert not (tmp_path / "run").exists()


def test_the_model_card_says_recipe_reward_and_how_to_serve_it(trained):
    card = (trained.policy_dir / "README.md").read_text()
    assert "recipe `flow-grpo-lora`" in card
    assert "Reward: `calculates`" in card
    assert re.search(r"\| test \| \S+ \| before training \|", card)
    assert f"--enable-lora --lora-modules flow-grpo-lora={trained.policy_dir.resolve()}" in card
