"""`midstream train RECIPE --learner tinker`: a run on a Tinker server, killed and resumed from the named state."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("tinker", reason="the extra tinker is not installed: pip install -e '.[train,dev]'")

from midstream.cli.main import main
from midstream.components.kinds import register
from midstream.recipe.inputs import run_recipe
from midstream.runs import RunDirectory
from midstream_tinker.learner import STATE, TinkerLearner
from support.errors import printed
from support.served_model import CalculatesConfig, save_model
from test_hf_lora import SMALLER
from tinker_server import TinkerServer

AT_ONE = "agent.planner.sampling={temperature=1.0,max_tokens=4}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    register("reward", "calculates", CalculatesConfig)
    return save_model(tmp_path_factory.mktemp("tinker") / "model")


def words(model, server, *more):
    settings = [
        *SMALLER, AT_ONE, f"engines.policy.model={model}", f"engines.policy.base_url={server.url}",
        "learner.lora.rank=4", "training.tasks_per_step=2", "training.group_size=3", "training.minibatches=2",
        "evaluation.at=none", *more,
    ]  # fmt: skip
    return ["train", "flow-grpo-lora", "--learner", "tinker", *(word for one in settings for word in ("--set", one))]


def train(root, model, server, *more):
    return main([*words(model, server, *more), "--out", str(root), "--quiet", "--json"])


def seen(root):
    """What a run has learned from and how it went, without the names of states and the measured times."""
    run = RunDirectory.open(root)
    calls = [
        [(call.completion_ids, call.policy_version) for each in run.trajectories.read(step) for call in each.calls]
        for step in (1, 2, 3)
    ]
    return calls, [(each.step, each.reward_mean, each.loss, each.kl) for each in run.metrics.read()]


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    root = tmp_path_factory.mktemp("tinker") / "run"
    with TinkerServer(model) as server:
        assert train(root, model, server) == 0
    return root


@pytest.mark.slow
def test_a_run_learns_and_names_its_states(whole, model):
    run = RunDirectory.open(whole)
    metrics = run.metrics.read()
    assert [each.step for each in metrics] == [1, 2, 3]
    assert all(each.grad_norm > 0 and each.logprob_gap < 1e-4 for each in metrics)
    assert metrics[-1].kl > 0
    assert {each.total_tokens > each.unique_tokens > 0 for each in metrics} == {True}
    [newest, *_] = sorted(run.checkpoints.root.glob("step-*"), reverse=True)
    record = json.loads((newest / STATE).read_text())
    assert record["state"].startswith("tinker://")
    assert (record["model"], record["rank"]) == (str(model), 4)
    assert json.loads((run.policy_dir / STATE).read_text())["weights"].startswith("tinker://")
    recipe = run_recipe(run)
    assert (recipe.engines["policy"].type, recipe.learner.type) == ("tinker", "tinker")


@pytest.mark.slow
def test_a_killed_run_resumes_from_the_named_state_on_a_server_that_restarted(whole, model, tmp_path, monkeypatch):
    states = {}
    with TinkerServer(model, states=states) as server, monkeypatch.context() as patch:
        patch.setattr(TinkerLearner, "optimizer_step", killed_at(2))
        with pytest.raises(SystemExit):
            train(tmp_path / "run", model, server)
    with TinkerServer(model, states=states, port=int(server.url.rpartition(":")[2])):
        assert main(["resume", str(tmp_path / "run"), "--quiet", "--json"]) == 0
    (calls, metrics), (expected_calls, expected) = seen(tmp_path / "run"), seen(whole)
    assert calls == expected_calls
    for found, wanted in zip(metrics, expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-6)


def killed_at(number):
    """An `optimizer_step` that ends the process's work like a signal, before its call of that `number`."""
    step, calls = TinkerLearner.optimizer_step, []

    def spy(self, learning_rate):
        calls.append(learning_rate)
        if len(calls) == number * 2:  # a step has two mini-batches
            raise SystemExit(137)
        return step(self, learning_rate)

    return spy


@pytest.mark.slow
def test_a_run_without_its_state_says_so(whole, model, tmp_path, capsys):
    states = {}
    with TinkerServer(model, states=states) as server:
        assert train(tmp_path / "run", model, server, "training.steps=1") == 0
        states.clear()
        assert main(["eval", str(tmp_path / "run"), "--quiet"]) == 1
    assert "error[state-gone]" in capsys.readouterr().err


def test_a_dry_run_needs_no_server(model, capsys):
    class Nowhere:
        url = "http://127.0.0.1:9"

    assert main([*words(model, Nowhere), "--dry-run"]) == 0
    assert 'type = "tinker"' in capsys.readouterr().out


@pytest.mark.slow
def test_several_processes_are_refused(model, tmp_path, capfd):
    class Nowhere:
        url = "http://127.0.0.1:9"

    ours = ["--set", "reward.type=exact_match"]  # the other processes know no reward of this test
    assert main([*words(model, Nowhere), *ours, "--out", str(tmp_path / "run"), "--nproc", "2", "--quiet"]) == 2
    assert "error[option-without-effect]" in capfd.readouterr().err


def test_what_a_server_cannot_train_is_refused(model, capsys):
    def refusal(recipe, *more):
        assert main(["train", recipe, "--learner", "tinker", "--dry-run", *more]) == 2
        return capsys.readouterr().err

    assert "error[temperature-unsupported]" in refusal("agentflow-7b")
    assert "error[not-trainable]" in refusal("flow-grpo-tiny")
    assert "the server decides offload" in refusal("flow-grpo-lora", "--set", "learner.offload=true", "--set", AT_ONE)
    one_type = ["--set", "engines.policy.type=tinker", "--set", f"engines.policy.model={model}", "--set", AT_ONE]
    assert main(["train", "flow-grpo-lora", "--dry-run", *one_type]) == 2
    assert "error[setting-conflict]: learner.type = 'local'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "words_of_error"),
    [
        ("training.loss.entropy_coefficient=0.01", "entropy_coefficient = 0.01 with a Tinker server"),
        ("learner.lora.per_role=true", "the server decides lora.per_role"),
    ],
)
def test_what_a_server_cannot_compute_is_refused(setting, words_of_error, model, tmp_path, capsys):
    with TinkerServer(model) as server:
        assert train(tmp_path / "run", model, server, setting) == 2
    assert words_of_error in printed(capsys.readouterr().err).what
