"""verl's `main_ppo` on CPU: midstream's rollouts, rows and loss in it, and what arrives in the run directory.

    .venv-verl/bin/python -m pytest plugins/midstream-verl/tests/test_verl.py   (make test-verl installs and does it)

verl, Ray, FSDP2 on gloo and TransferQueue are real; the token servers and verl's CPU platform are those of
`verl_cpu.py`. The updates are compared with those of midstream's own learner on the recorded trajectories.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from midstream import api
from midstream.recipe.overrides import changed_recipe
from midstream.runs import RunDirectory
from support.pages import documents_of
from support.ragged import FAILS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("verl", "ray", "transfer_queue")), reason="needs verl: make test-verl"
    ),
]
TESTS = Path(__file__).parent
SUPPORT = TESTS.parents[2] / "tests" / "support"
TIMEOUT_S, ENDING_S = 900.0, 120.0
SETTINGS = (
    "learner.context=1024", "training.steps=2", "training.tasks_per_step=2",
    "training.decay_steps=0", "training.warmup_steps=1", "training.checkpoint_every=1", "learner.threads=1",
)  # fmt: skip
RAGGED = f"""
name = "ragged"
tasks = {{ type = "atlas" }}
agent = {{ type = "{SUPPORT}/ragged.py:Ragged", engine = "policy" }}
engines.policy = {{ type = "tiny_text", weights = "atlas" }}
tools.local_search = {{ top_k = 1 }}
reward = {{ type = "{SUPPORT}/ragged.py:letters" }}
evaluation = {{ at = "none" }}
[training]
group_size = 8
minibatches = 1
loss = {{ kl_coefficient = 0.05 }}
"""


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """The variables and verl's settings of a run without a GPU; Ray's files are in a directory of the test's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TESTS))
        for name, value in {
            "VERL_USE_EXTERNAL_MODULES": "verl_cpu", "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "disabled", "WANDB_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        import verl_cpu  # before VERL_PLATFORM, so that verl is not imported here

        del sys.modules["verl_cpu"]  # verl imports it itself, with the platform

        patch.setenv("VERL_PLATFORM", "cpu")
        # Ray's sockets have paths of at most 107 characters.
        directory = tmp_path_factory.mktemp("r")
        table = {**verl_cpu.OVERRIDES, "ray_kwargs.ray_init._temp_dir": str(directory)}
        yield "learner.verl={" + ", ".join(f'"{key}" = {json.dumps(value)}' for key, value in table.items()) + "}"


def no_process_is_left(run: RunDirectory) -> bool:
    """Whether all processes of the run's verl and Ray end, within the time that Ray takes to notice."""
    named, deadline = f"MIDSTREAM_RUN={run.root.absolute()}".encode(), time.time() + ENDING_S
    while time.time() < deadline:
        left = 0
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # ended meanwhile, or of another user
                left += named in environ.read_bytes()
        if not left:
            return True
        time.sleep(1)
    return False


@pytest.fixture(scope="module")
def trained(on_cpu, tmp_path_factory):
    """`text-tiny` for two steps on two ranks, with evaluations before and after."""
    overrides = [
        *SETTINGS, on_cpu, "learner.gpus_per_node=2", "training.group_size=4", "training.minibatches=2",
        "evaluation.temperatures=[0.0]", "evaluation.validation.per_family=1",
        'evaluation.sets=[{name = "test", split = "test", families = ["lookup"], per_family = 2, seed = 1}]',
    ]  # fmt: skip
    root = tmp_path_factory.mktemp("runs") / "trained"
    return api.train(changed_recipe("text-tiny", learner="verl", overrides=overrides), out=root).directory


@pytest.fixture(scope="module")
def ragged(on_cpu, tmp_path_factory):
    """Ragged sessions, some of which fail; interrupted after the first step's checkpoint, then resumed."""
    directory = tmp_path_factory.mktemp("ragged")
    recipe, root = directory / "ragged.toml", directory / "run"
    recipe.write_text(RAGGED)
    changes = (*SETTINGS, on_cpu, "learner.gpus_per_node=1")
    words = ["--learner", "verl", *(word for setting in changes for word in ("--set", setting))]
    process = subprocess.Popen(
        [sys.executable, "-m", "midstream", "train", str(recipe), "--out", str(root), "--quiet", *words],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    tracker, deadline = root / "verl" / "checkpoints" / "latest_checkpointed_iteration.txt", time.time() + TIMEOUT_S
    while not tracker.exists():
        assert process.poll() is None, (root / "verl" / "verl.log").read_text()[-3000:]
        assert time.time() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.wait(TIMEOUT_S)
    run = RunDirectory.open(root)
    assert run.status().state == "interrupted"
    assert no_process_is_left(run)
    return api.resume(run).directory


def test_rewards_trajectories_and_report_arrive_in_the_run_directory(trained):
    assert trained.status().state == "finished"
    metrics, timings = trained.metrics.read(), trained.timings.read()
    assert [(step.step, step.policy_version, step.trajectories) for step in metrics] == [(1, 0, 8), (2, 1, 8)]
    assert [timing.step for timing in timings] == [1, 2]
    for step in metrics:
        trajectories = list(trained.trajectories.open(step.step))
        assert len(trajectories) == 8
        assert all(call.policy_version == step.step - 1 for one in trajectories for call in one.calls)
        rewards = [one.reward.value for one in trajectories]
        assert math.isclose(step.reward_mean, sum(rewards) / len(rewards))
    assert any(turn.observation for one in trained.trajectories.open(1) for turn in one.turns)  # of real tools
    found = [(result.set_name, result.policy, result.step) for result in trained.evaluations.read()]
    assert found == [
        ("test", "before training", 0), ("validation", "before training", 0),
        ("test", "trained", 2), ("validation", "trained", 2),
    ]  # fmt: skip
    assert f"run/{trained.root.name}" in documents_of(trained.report_path)
    assert no_process_is_left(trained)


@pytest.mark.parametrize("name", ["trained", "ragged"])
def test_the_updates_are_those_of_midstreams_own_learner(name, request):
    from midstream.engines.local.pretrained import load_model
    from replayed import replayed

    run = request.getfixturevalue(name)
    expected, norms = replayed(run)
    for step, own in zip(run.metrics.read(), norms, strict=True):
        # AdamW's first steps are as large for a gradient of rounding errors alone as for any other: weights drift.
        assert math.isclose(step.grad_norm, sum(own) / len(own), rel_tol=1e-4 if step.step == 1 else 1e-2)
        assert step.logprob_gap < 1e-5
    start, end = (
        load_model(str(directory), "float32", "cpu")[0].state_dict()
        for directory in (run.root / "verl" / "model", run.policy_dir)
    )
    apart = torch.cat([(weight - expected[key]).abs().flatten() for key, weight in end.items()])
    moved = torch.cat([(weight - start[key]).abs().flatten() for key, weight in end.items()])
    assert moved.mean() > 0
    assert apart.mean() < 0.01 * moved.mean()  # with fresh moments of AdamW at step 2 it would be a large part


@pytest.mark.filterwarnings("ignore")  # verl's import warns of each back end that is missing
def test_the_rows_and_the_gradient_are_midstreams_own(on_cpu, tmp_path):
    """Without Ray: ragged sessions as verl stores and shuffles them, in micro-batches, one with a row of padding."""
    from midstream.recipe.build import Build
    from midstream.rollout import rollout
    from midstream.training.losses import PolicyLoss
    from midstream.training.rows import build_rows
    from midstream_verl.rows import outputs_of
    from verl_rows import gradient_of, stored

    (tmp_path / "ragged.toml").write_text(RAGGED)
    recipe = changed_recipe(str(tmp_path / "ragged.toml"), overrides=["learner.threads=1"])
    with Build(recipe) as build:
        tasks = build.source.sample("train", 2, 0)
        groups = asyncio.run(rollout(build.environment(), tasks, group_size=8, seed=1))
        learner, loss = build.policy.learner, PolicyLoss(kl_coefficient=0.05)
        learner.model.double()
        learner.reference.double()
        with torch.no_grad():  # another policy than the one that sampled, and than the reference
            for parameter in learner.parameters:
                parameter += 0.01 * torch.randn_like(parameter)
        sessions = [one for group in groups for one in group.trajectories]
        rows = build_rows([group.trajectories for group in groups], recipe.training, role=recipe.role).rows
        stats = learner.forward_backward(rows, loss)
        expected = {name: parameter.grad.clone() for name, parameter in learner.model.named_parameters()}
        rewards = {one.id: one.reward.value for one in sessions if one.reward is not None}
        outputs = outputs_of([rows], rewards)
        with learner.reference_policy() as reference:
            value, gradients = gradient_of(outputs, learner.model, reference, loss)
    assert any(one.status == "error" for one in sessions)
    assert len({len(one.turns) for one in sessions if one.status == "ok"}) > 1
    for output, row, fields in zip(outputs, rows, stored(outputs), strict=True):
        assert fields["prompts"].tolist() == list(row.prompt_ids)
        assert fields["responses"].tolist() == list(row.completion_ids)
        assert fields["midstream_factors"].tolist() == [row.advantage, row.weight, row.kl_weight, 0]
        assert torch.allclose(fields["rollout_log_probs"], torch.tensor(row.old_logprobs), atol=1e-6)
        assert fields["rm_scores"].sum().item() == pytest.approx(output.reward, abs=1e-6)
    for one in sessions:  # its reward, on its last row
        own = [output.reward for output in outputs if output.row.trajectory_id == one.id]
        assert own == ([0.0] * (len(one.turns) - 1) + [rewards[one.id]] if one.status == "ok" else [])
    assert stats.kl_sum > 0
    assert math.isclose(value, stats.loss, abs_tol=1e-6)
    for name, gradient in gradients.items():
        assert (gradient - expected[name]).abs().max() < 1e-6, name


def test_ragged_sessions_have_midstreams_rows_and_a_failing_one_leaves_its_group_alone(ragged):
    from replayed import batches_of

    for step in ragged.metrics.read():
        trajectories = list(ragged.trajectories.open(step.step))
        failed = [one for one in trajectories if one.status == "error"]
        assert {one.seed % FAILS for one in failed} == {0}
        assert 0 < len(failed) < len(trajectories) / 2
        assert (step.trajectories_error, step.groups, step.groups_broken) == (len(failed), 2, 0)
        rows = [row for batch in batches_of(ragged, step.step) for row in batch.rows]
        assert step.rows == len(rows) == sum(len(one.turns) for one in trajectories if one.status == "ok")
        assert len({len(one.turns) for one in trajectories if one.status == "ok"}) > 1


def test_an_interrupted_run_continues_from_verls_checkpoint(ragged):
    assert ragged.status().state == "finished"
    assert [step.step for step in ragged.metrics.read()] == [1, 2]
    assert "Resuming from" in (ragged.root / "verl" / "verl.log").read_text()


def test_the_trained_weights_are_evaluated_and_answer(trained, tmp_path):
    run = api.evaluate(
        trained, out=tmp_path / "eval", count=2, overrides=['evaluation.sets=[{name = "test", split = "test"}]']
    ).directory
    assert run.status().state == "finished"
