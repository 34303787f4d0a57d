"""Rollouts that run ahead of training: the same batches whatever the timing, and after whatever ends the process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from midstream.cli.main import main
from midstream.components.kinds import register
from midstream.runs import RunDirectory
from midstream.training.flow_grpo import FlowGRPO
from support.errors import coded, printed
from support.lesson_sessions import killed_after, killed_at, trajectories
from support.llm_server import LLMServer
from support.served_model import CalculatesConfig, ServedModel, save_model, write_recipe
from support.tiny_runs import TRAINING, settings

OWN = """
def graded(trajectory) -> float:
    return (sum(trajectory.calls[0].completion_ids) % 7) / 6
"""
STEPS = 6


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """The settings of a small run in which rewards differ."""
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(OWN, encoding="utf-8")
    table = {
        **TRAINING,
        "warm_start.min_copy_rate": 0,
        "training.steps": STEPS,
        "training.checkpoint_every": 2,
        "training.validate_every": 4,
        "training.group_size": 4,
        "training.tasks_per_step": 2,
        "training.family_sampling": "failure",
        "training.learning_rate": 3e-3,
        "training.warmup_steps": 1,
        "agent.max_turns": 2,
        "reward": f'{{type="{path}:graded"}}',
    }
    return settings(table)


def train(root, words, *more):
    return main(["train", "flow-grpo-tiny", "--out", str(root), "--quiet", "--seed", "3", *words, *options(*more)])


def options(*changes):
    return [word for change in changes for word in ("--set", change)]


def ahead(steps, **more):
    return [f"training.asynchrony.{key}={value}" for key, value in {"staleness": steps, **more}.items()]


def found(root):
    """What a run has found out, but for clocks."""
    files = ("metrics.jsonl", "evaluations.jsonl", "policy/model.safetensors")
    read = {name: (root / name).read_bytes() for name in files}
    return read | trajectories(root)


def differing(one, other):
    return [name for name in one if one[name] != other[name]]


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory):
    """A run two steps ahead that nobody interrupts: what it found, and its writes."""
    root = tmp_path_factory.mktemp("ahead") / "run"
    with pytest.MonkeyPatch.context() as patch, killed_after(patch, root, 10**9) as written:
        assert train(root, words, *ahead(2)) == 0
    return root, found(root), written


def test_each_batch_is_sampled_by_the_version_of_its_place(whole):
    root, _, _ = whole
    metrics = RunDirectory.open(root).metrics.read()
    assert [one.policy_version for one in metrics] == [0, 0, 0, 1, 2, 3]
    for one in metrics:
        calls = [call for each in RunDirectory.open(root).trajectories.read(one.step) for call in each.calls]
        assert {call.policy_version for call in calls if call.completion_ids} == {one.policy_version}
    assert metrics[0].logprob_gap < 1e-5 < metrics[4].logprob_gap, "older weights gave other log-probabilities"
    assert metrics[0].sampler_kl is None or metrics[0].sampler_kl < 1e-6
    assert (metrics[4].sampler_kl or 0) > 1e-7
    assert 0.5 < (metrics[4].sample_share or 0) < 1
    assert all(one.grad_norm > 0 for one in metrics)


@pytest.mark.slow
def test_a_repeated_run_has_the_same_bits(whole, words, tmp_path):
    assert train(tmp_path / "run", words, *ahead(2)) == 0
    assert differing(whole[1], found(tmp_path / "run")) == []


@pytest.fixture(scope="module")
def without_staleness(words, tmp_path_factory):
    root = tmp_path_factory.mktemp("zero") / "run"
    assert train(root, words, *ahead(0)) == 0
    return found(root)


def test_without_staleness_a_run_has_the_bits_of_one_without_the_table(without_staleness, words, tmp_path):
    assert train(tmp_path / "plain", words) == 0
    assert differing(found(tmp_path / "plain"), without_staleness) == []


def begin_or_resume(root, words):
    if (root / "run.json").exists():
        assert main(["resume", str(root), "--quiet"]) == 0
    else:
        assert train(root, words, *ahead(2)) == 0


def place(written, name, number):
    """The place (from 1) of the `number`-th write of a file."""
    return [at for at, path in enumerate(written, start=1) if path.startswith(name)][number - 1]


@pytest.fixture(scope="module")
def resumed(whole, words, tmp_path_factory):
    """A run that was killed while the rollouts of three steps were under way, and resumed."""
    root = tmp_path_factory.mktemp("killed") / "run"
    assert killed_at(root, place(whole[2], "adapters/batch-000003", 1), lambda: begin_or_resume(root, words))
    begin_or_resume(root, words)
    return found(root)


def test_a_killed_run_ends_as_if_it_had_not_been(whole, resumed):
    assert differing(whole[1], resumed) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        ("adapters/batch-000001", 1),
        ("adapters/batch-000006", 1),
        ("metrics.jsonl", 3),
        ("adapters/weights-000003", 1),
        ("timings.jsonl", 5),
    ],
    ids=lambda moment: f"{moment[0]} {moment[1]}",
)
def test_a_killed_run_ends_like_one_that_was_not(moment, whole, words, tmp_path):
    root = tmp_path / "run"
    assert killed_at(root, place(whole[2], *moment), lambda: begin_or_resume(root, words))
    begin_or_resume(root, words)
    assert differing(whole[1], found(root)) == []


@pytest.mark.slow
def test_killed_with_kill_9_it_ends_the_same(whole, words, tmp_path):
    root = tmp_path / "run"
    command = [sys.executable, "-m", "midstream", "train", "flow-grpo-tiny", "--out", str(root), "--quiet"]
    process = subprocess.Popen([*command, "--seed", "3", *words, *options(*ahead(2))], stdout=subprocess.DEVNULL)
    while not (root / "metrics.jsonl").exists() or len((root / "metrics.jsonl").read_bytes().splitlines()) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    begin_or_resume(root, words)
    assert differing(whole[1], found(root)) == []


@pytest.mark.slow
def test_where_the_newest_checkpoint_was_deleted_steps_repeat(whole, words, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(whole[0], root)
    shutil.rmtree(root / "checkpoints" / f"step-{STEPS:06}")
    RunDirectory.open(root).set_status("interrupted", "killed")
    begin_or_resume(root, words)
    assert differing(whole[1], found(root)) == []


# -- behind a server ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(the run directory, the server) of a run one step ahead."""
    register("reward", "calculates", CalculatesConfig)
    root = tmp_path_factory.mktemp("ahead-http")
    model = save_model(root / "model")
    reply = ServedModel(model)
    with LLMServer(reply) as server:
        reply.adapters = server.adapters
        recipe = write_recipe(root, server.base_url, model)
        small = ["training.tasks_per_step=2", "evaluation.at=none", "seed=3", "agent.max_turns=1"]
        command = ["train", str(recipe), "--out", str(root / "run"), "--quiet", *options(*small, *ahead(1))]
        assert main(command) == 0
        yield RunDirectory.open(root / "run"), server


def test_a_request_names_the_adapter_of_its_batch(served):
    run, server = served
    assert [one.policy_version for one in run.metrics.read()] == [0, 0, 1, 2]
    for step, version in enumerate((0, 0, 1, 2), start=1):
        calls = [call for each in run.trajectories.read(step) for call in each.calls if call.role == "planner"]
        assert {call.policy_version for call in calls} == {version}
        [name] = {call.sent["model"] for call in calls}
        assert f"version-{version}-" in name
    assert len(server.adapters) == 2, "older ones are unloaded"
    assert {path.split("version-")[1][0] for path in server.adapters.values()} == {"3", "4"}


def test_a_resumed_run_asks_for_the_same_adapters(served):
    run, _ = served
    metrics = run.metrics.read()
    before = trajectories(run.root)
    shutil.rmtree(run.checkpoints.path(4))
    run.set_status("interrupted", "killed")
    names = {path.name for path in (run.checkpoints.path(2) / "versions").iterdir()}
    assert {name.split("-")[1] for name in names} == {"1"}
    assert main(["resume", str(run.root), "--quiet"]) == 0
    assert run.metrics.read() == metrics
    assert trajectories(run.root) == before


# -- what ends a run ---------------------------------------------------------------------------------------------------


def http_run(tmp_path, reply, *changes):
    """The exit code of a run one step ahead of three, and its directory."""
    register("reward", "calculates", CalculatesConfig)
    model = save_model(tmp_path / "model")
    own = reply(model)
    with LLMServer(own) as server:
        own.adapters = server.adapters
        recipe = write_recipe(tmp_path, server.base_url, model)
        small = ["training.steps=3", "training.tasks_per_step=2", "evaluation.at=none", "seed=3", "agent.max_turns=1"]
        command = ["train", str(recipe), "--out", str(tmp_path / "run"), "--quiet"]
        code = main([*command, *options(*small, *ahead(1), *changes)])
        yield code, RunDirectory.open(tmp_path / "run")
        yield main(["resume", str(tmp_path / "run"), "--quiet"]), RunDirectory.open(tmp_path / "run")


@pytest.mark.slow
def test_ctrl_c_during_an_update_ends_the_run_after_it(tmp_path, monkeypatch):
    whole, updates = FlowGRPO.update, []

    def update(self, batches, step):
        updates.append(step)
        if updates == [1, 2]:
            # The next batch is done by then, so that nothing else would wait.
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        return whole(self, batches, step)

    monkeypatch.setattr(FlowGRPO, "update", update)
    runs = http_run(tmp_path, ServedModel, "training.checkpoint_every=9")
    code, run = next(runs)
    assert (code, updates, run.status().state) == (130, [1, 2], "interrupted")
    assert run.checkpoints.steps()[-1] == 2
    code, run = next(runs)
    assert (code, updates[2:], run.status().state) == (0, [3], "finished")
    runs.close()


@pytest.mark.slow
def test_rollouts_that_failed_run_again_once_their_cause_is_gone(tmp_path):
    class Broken(ServedModel):
        broken = True

        def __call__(self, body):
            return "" if self.broken else super().__call__(body)

    served = []

    def reply(model):
        served.append(Broken(model))
        return served[0]

    runs = http_run(tmp_path, reply, "engines.server.max_attempts=1", "rollout.max_attempts=1")
    code, _ = next(runs)
    assert code == 1
    served[0].broken = False
    code, run = next(runs)
    assert (code, len(run.metrics.read())) == (0, 3)
    runs.close()


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        ["training.algorithm=supervised"],
        ["training.loss.clip_high=50"],
        ["training.asynchrony.staleness=-1"],
    ],
)
def test_what_cannot_run_ahead_is_refused(changes, words, tmp_path, capsys):
    assert train(tmp_path / "run", words, *ahead(1), *changes) == 2
    code = "recipe-invalid" if "staleness" in changes[0] else "setting-conflict"
    assert coded(code)(printed(capsys.readouterr().err))
