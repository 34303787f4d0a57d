"""A training run as a whole: what it leaves behind, and that it ends the same however often it was interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
from functools import partial
from itertools import count

import pytest
import torch
from safetensors.torch import load_file

from midstream.cli.main import main
from midstream.evaluation import session
from midstream.prefix_tree.support import Choice
from midstream.report.run import run_page
from midstream.runs import RunDirectory
from midstream.runs.budget import read_spent
from midstream.runs.info import collect_info
from midstream.runs.journal import Records
from midstream.runs.segments import Segments
from midstream.training import flow_grpo, learner
from midstream.training.flow_grpo import FlowGRPO
from midstream.training.learner import LocalLearner
from midstream.training.session import WARN_BELOW, TrainingSession, load_policy
from support.errors import raises
from support.killed_training import differences
from support.pages import found
from support.tiny_runs import TRAINING, settings


def train(recipe, root, *options):
    return main(["train", str(recipe), "--out", str(root), "--quiet", *options])


def interrupt(monkeypatch, owner, name, call, file=None):
    """The `call`-th call of a method (about a `file`, if named) is a Ctrl-C; later ones work again."""
    inner, calls = getattr(owner, name), []

    def once(*arguments, **named):
        if file is not None and arguments[0].path.name != file:
            return inner(*arguments, **named)
        calls.append(name)
        if len(calls) == call:
            raise KeyboardInterrupt
        return inner(*arguments, **named)

    monkeypatch.setattr(owner, name, once)


def test_a_run_leaves_everything_behind(finished_run):
    run = RunDirectory.open(finished_run)
    assert run.status().state == "finished"
    assert [one.step for one in run.metrics.read()] == list(range(1, 11))
    timings = run.timings.read()
    assert [timing.step for timing in timings] == list(range(1, 11))
    assert all(timing.duration_s > timing.rollout_s > 0 and timing.tokens_per_s > 0 for timing in timings)
    assert run.trajectories.steps() == list(range(1, 11))
    assert [(one.policy, one.set_name, one.sampling, one.step) for one in run.evaluations.read()] == [
        ("warm start", "test", "T=1", 0),
        ("warm start", "test", "greedy", 0),
        ("warm start", "validation", "greedy", 0),
        ("trained", "validation", "greedy", 5),
        ("trained", "validation", "greedy", 10),
        ("trained", "test", "T=1", 10),
        ("trained", "test", "greedy", 10),
    ]
    assert "<html" in run.report_path.read_text(encoding="utf-8")
    assert (run.policy_dir / "model.safetensors").is_file()
    assert (run.policy_dir / "tokenizer.json").is_file()
    assert sorted(path.name for path in run.checkpoints.root.iterdir()) == ["step-000008", "step-000010"]
    for step in (1, 10):
        [metrics] = [one for one in run.metrics.read() if one.step == step]
        assert metrics.trajectories == len(run.trajectories.read(step)) == 16


def test_the_run_did_learn_something(finished_run):
    """Else all comparisons of runs would be comparisons of nothing."""
    metrics = RunDirectory.open(finished_run).metrics.read()
    assert sum(one.grad_norm > 0.1 for one in metrics) >= 5
    assert any(one.reward_mean > 0 for one in metrics)
    assert metrics[-1].kl > 1e-4


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run(ten_steps, finished_run, tmp_path):
    assert train(ten_steps, tmp_path / "again") == 0
    assert differences(finished_run, tmp_path / "again") == []


@pytest.mark.slow
def test_another_seed_gives_another_run(ten_steps, finished_run, tmp_path):
    assert train(ten_steps, tmp_path / "other", "--seed", "4", "--set", "training.steps=2") == 0
    other = RunDirectory.open(tmp_path / "other").metrics.read()
    assert other[0] != RunDirectory.open(finished_run).metrics.read()[0]


INTERRUPTIONS = {
    "warm start": (LocalLearner, "supervised_step", 50),
    "first evaluation": (session, "run_each", 2),
    "first checkpoint": (LocalLearner, "save", 1),
    "step": (FlowGRPO, "step", 6),
    "update": (LocalLearner, "optimizer_step", 130),
    "trajectories": (Segments, "write", 6),
    "metrics": (Records, "append", 6, "metrics.jsonl"),
    "after the metrics": (Records, "append", 7, "timings.jsonl"),
    "checkpoint": (LocalLearner, "save", 4),
    "export": (LocalLearner, "export_weights", 1),
    "last evaluation": (session, "run_each", 7),
}


@pytest.mark.slow
@pytest.mark.parametrize("where", INTERRUPTIONS)
def test_an_interrupted_run_ends_bit_for_bit_like_one_that_was_not(
    ten_steps, finished_run, tmp_path, monkeypatch, capsys, where
):
    root = tmp_path / "interrupted"
    interrupt(monkeypatch, *INTERRUPTIONS[where])
    assert train(ten_steps, root) == 130
    assert f"midstream resume {root}" in capsys.readouterr().err.replace("\n", "")
    assert RunDirectory.open(root).status().state == "interrupted"
    assert main(["resume", str(root), "--quiet"]) == 0
    assert differences(finished_run, root) == []
    assert RunDirectory.open(root).status().state == "finished"


SMALL = {
    "warm start": (LocalLearner, "supervised_step", 1),
    "trajectories": (Segments, "write", 2),
    "metrics": (Records, "append", 2, "metrics.jsonl"),
    "checkpoint": (LocalLearner, "save", 2),
}


@pytest.mark.matrix(1)
@pytest.mark.parametrize("where", SMALL)
def test_a_small_run_that_is_interrupted_ends_the_same(ten_steps, tmp_path, monkeypatch, where):
    assert train(ten_steps, tmp_path / "whole", *settings(TRAINING)) == 0
    interrupt(monkeypatch, *SMALL[where])
    assert train(ten_steps, tmp_path / "interrupted", *settings(TRAINING)) == 130
    assert main(["resume", str(tmp_path / "interrupted"), "--quiet"]) == 0
    assert differences(tmp_path / "whole", tmp_path / "interrupted") == []


LITTLE_SHARED = (
    "--set",
    "evaluation.at=end",
    "--set",
    "evaluation.sets=[]",
    "--set",
    "warm_start.transcripts=20",
    "--set",
    "training.steps=4",
    "--set",
    "training.group_size=2",
    "--set",
    "agent.max_turns=1",
    "--set",
    "warm_start.steps=1",
)


def test_sigterm_ends_a_run_as_ctrl_c_does_and_saves_the_last_step(ten_steps, tmp_path, monkeypatch):
    two = settings({**TRAINING, "training.steps": 2, "training.checkpoint_every": 100})
    assert train(ten_steps, tmp_path / "whole", *two) == 0
    root, inner, handler = tmp_path / "ended", flow_grpo.rollout, signal.getsignal(signal.SIGTERM)
    steps = count(1)

    async def rollout(*arguments, **named):
        if next(steps) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return await inner(*arguments, **named)

    monkeypatch.setattr(flow_grpo, "rollout", rollout)
    assert train(ten_steps, root, *two) == 130
    assert signal.getsignal(signal.SIGTERM) is handler
    run = RunDirectory.open(root)
    assert (run.status().state, "SIGTERM" in run.status().message) == ("interrupted", True)
    assert run.checkpoints.steps()[-1] == 1 == len(run.metrics.read())
    assert main(["resume", str(root), "--quiet"]) == 0
    assert differences(tmp_path / "whole", root) == []


def test_ten_minutes_without_a_checkpoint_make_one(ten_steps, tmp_path, monkeypatch):
    clock = partial(next, count(step=400.0))  # asked at the start, after each step and after each checkpoint
    monkeypatch.setattr("midstream.training.session.TrainingSession", partial(TrainingSession, clock=clock))
    saved, inner = [], LocalLearner.save
    monkeypatch.setattr(LocalLearner, "save", lambda self, directory: (saved.append(directory), inner(self, directory)))
    five = settings({**TRAINING, "training.steps": 5, "training.checkpoint_every": 100})
    assert train(ten_steps, tmp_path / "slow", *five) == 0
    assert [int(directory.name.removeprefix(".tmp-")) for directory in saved] == [0, 2, 4, 5]


@pytest.mark.slow
def test_rows_that_share_little_are_reported_once_however_often_the_run_is_interrupted(
    ten_steps, tmp_path, monkeypatch, capsys
):
    assert train(ten_steps, tmp_path / "whole", *LITTLE_SHARED) == 0
    said = capsys.readouterr().err
    # Nor does the untrained planner write anything that the agent can read.
    assert said.count("warning: ") - said.count("are malformed") == 1
    assert said.count("tokens for each unique one") == 1
    metrics = RunDirectory.open(tmp_path / "whole").metrics.read()
    low = [one.step for one in metrics if one.sharing < WARN_BELOW]
    assert len(low) > 1, "the test needs another step that could warn"
    assert [one.step for one in metrics if one.warnings] == low[:1]
    interrupt(monkeypatch, FlowGRPO, "step", 4)
    assert train(ten_steps, tmp_path / "interrupted", *LITTLE_SHARED) == 130
    assert "tokens for each unique one" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "interrupted"), "--quiet"]) == 0
    assert "tokens for each unique one" not in capsys.readouterr().err
    assert differences(tmp_path / "whole", tmp_path / "interrupted") == []
    page = run_page(RunDirectory(tmp_path / "whole"))
    assert any(block["text"].startswith("Step ") for block in found(page, "text") if block["tone"] == "warn")


def test_a_model_that_cannot_share_prefixes_is_reported_at_the_start(ten_steps, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        learner, "choose", lambda model, wanted: Choice(None, "NovelForCausalLM has layers of type new")
    )
    for wanted, times in (("auto", 1), ("rows", 0)):
        arguments = settings({**TRAINING, "learner.attention": f'"{wanted}"'})
        assert train(ten_steps, tmp_path / wanted, *arguments) == 0
        assert capsys.readouterr().err.count("whole, each for itself: NovelForCausalLM has layers of type new") == times


def test_a_balanced_step_smaller_than_the_families_is_reported_at_the_start(ten_steps, tmp_path, capsys):
    for tasks, times in ((1, 1), (2, 0)):
        changes = {"training.steps": 1, "training.tasks_per_step": tasks, "training.family_sampling": '"balanced"'}
        assert train(ten_steps, tmp_path / str(tasks), *settings({**TRAINING, **changes})) == 0
        assert capsys.readouterr().err.count("set training.tasks_per_step to 2 or more") == times


@pytest.mark.slow
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(ten_steps, tmp_path, monkeypatch, capsys):
    root, four = tmp_path / "damaged", settings({**TRAINING, "training.steps": 4})
    assert train(ten_steps, tmp_path / "whole", *four) == 0
    interrupt(monkeypatch, FlowGRPO, "step", 4)
    assert train(ten_steps, root, *four) == 130
    newest = root / "checkpoints" / "step-000003" / "learner.pt"
    data = bytearray(newest.read_bytes())
    middle = slice(len(data) // 2, len(data) // 2 + 128)
    data[middle] = bytes(byte ^ 1 for byte in data[middle])
    newest.write_bytes(data)
    capsys.readouterr()
    assert main(["resume", str(root), "--quiet"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "step-000003 does not fit the model, or is damaged" in said
    assert main(["check", str(root)]) == 1
    shutil.rmtree(newest.parent)
    assert main(["resume", str(root), "--quiet"]) == 0
    assert differences(tmp_path / "whole", root) == []


def test_no_whole_checkpoint_is_an_error_and_nothing_is_overwritten(ten_steps, tmp_path, monkeypatch, capsys):
    root = tmp_path / "damaged"
    interrupt(monkeypatch, FlowGRPO, "step", 2)
    assert train(ten_steps, root, *settings({**TRAINING, "training.checkpoint_every": 2})) == 130
    (root / "checkpoints" / "step-000000" / "learner.pt").write_bytes(b"nothing")
    metrics = (root / "metrics.jsonl").read_bytes()
    assert main(["resume", str(root), "--quiet"]) == 1
    assert "error[checkpoint-unfit]" in capsys.readouterr().err
    assert RunDirectory.open(root).status().state == "failed"
    shutil.rmtree(root / "checkpoints" / "step-000000")
    assert main(["resume", str(root), "--quiet"]) == 1
    assert "error[no-checkpoint]" in capsys.readouterr().err
    assert (root / "metrics.jsonl").read_bytes() == metrics


def test_a_finished_run_is_not_trained_again(finished_run):
    before = {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")}
    assert main(["resume", str(finished_run), "--quiet"]) == 0
    assert {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")} == before


def test_the_gate_stops_a_run_whose_planner_cannot_copy(ten_steps, tmp_path, capsys):
    options = ("--set", "warm_start.min_copy_rate=1.0", "--set", "warm_start.steps=1")
    assert train(ten_steps, tmp_path / "run", *options) == 1
    assert "copy rate of validation names is 0.00" in capsys.readouterr().err
    run = RunDirectory.open(tmp_path / "run")
    assert (run.status().state, run.metrics.read()) == ("failed", [])


@pytest.mark.slow
def test_a_warm_start_from_a_file_is_not_held_to_the_gate(ten_steps, tmp_path):
    path = tmp_path / "transcripts.jsonl"
    line = {"prompt": "Question 1 plus 1 ?", "stream": [{"text": " goal find height", "sampled": True}]}
    path.write_text(json.dumps(line), encoding="utf-8")
    options = ("--set", f"warm_start.file='{path}'", "--set", "warm_start.min_copy_rate=1.0")
    short = ("--set", "warm_start.steps=2", "--set", "training.steps=0")
    assert train(ten_steps, tmp_path / "run", *options, *short) == 0
    assert {one.step for one in RunDirectory.open(tmp_path / "run").evaluations.read()} == {0}


@pytest.mark.slow
def test_a_run_that_draws_tasks_again_resumes_the_same(ten_steps, tmp_path, monkeypatch):
    again = {"training.variant": "dapo", "training.resample_uniform": 2, "training.family_sampling": "failure"}
    options = settings({**TRAINING, **again, "training.steps": 4})
    assert train(ten_steps, tmp_path / "whole", *options) == 0
    interrupt(monkeypatch, FlowGRPO, "step", 4)
    assert train(ten_steps, tmp_path / "interrupted", *options) == 130
    assert main(["resume", str(tmp_path / "interrupted"), "--quiet"]) == 0
    assert differences(tmp_path / "whole", tmp_path / "interrupted") == []
    metrics = RunDirectory.open(tmp_path / "whole").metrics.read()
    assert any(one.groups > 1 for one in metrics)


def test_a_run_that_cannot_learn_says_so_at_once_and_at_its_end(ten_steps, tmp_path, capsys):
    """An untrained planner of three tokens writes nothing that the agent can read."""
    root = tmp_path / "run"
    words = [str(ten_steps), "--out", str(root), "--quiet", *settings(TRAINING)]
    assert main(["train", *words]) == 0
    out, err = (" ".join(text.split()) for text in capsys.readouterr())
    assert "warning: step 1 has nothing to learn from: all 2 replies that should act are malformed" in err
    assert "E.g. " in err
    assert "nothing to learn from in any of 2 steps: all 2 replies" in out
    assert "nothing to learn from in any of 2 steps" in run_page(RunDirectory(root))["lead"]
    assert main(["show", str(root)]) == 0
    assert "nothing to learn from in any of 2 steps" in " ".join(capsys.readouterr().out.split())


@pytest.mark.matrix(1)
@pytest.mark.parametrize(("at", "steps"), [("none", set()), ("end", {2})])
def test_evaluations_can_be_left_out(ten_steps, tmp_path, capsys, at, steps):
    words = ["--set", f"evaluation.at={at}"]
    root = tmp_path / "run"
    assert main(["train", str(ten_steps), "--out", str(root), "--quiet", *settings(TRAINING), *words]) == 0
    run = RunDirectory.open(root)
    assert {result.step for result in run.evaluations.read()} == steps
    assert (len(run.metrics.read()), run.status().state) == (2, "finished")


def test_zero_steps_evaluate_only(ten_steps, tmp_path):
    assert train(ten_steps, tmp_path / "run", *settings({**TRAINING, "training.steps": 0})) == 0
    run = RunDirectory.open(tmp_path / "run")
    assert run.metrics.read() == []
    assert {one.step for one in run.evaluations.read()} == {0}


def test_the_last_checkpoint_is_the_exported_policy(finished_run, make_build):
    build = make_build()
    assert load_policy(build.policy.learner, RunDirectory.open(finished_run)) == 10
    exported = load_file(finished_run / "policy" / "model.safetensors")
    state = build.policy.learner.model.state_dict()
    assert exported
    assert all(torch.equal(tensor, state[name]) for name, tensor in exported.items())


def test_a_run_without_a_checkpoint_has_no_policy(make_build, tmp_path):
    run = RunDirectory.create(tmp_path / "new", collect_info("r", 0, {}), "")
    with raises("no-checkpoint", "midstream resume"):
        load_policy(make_build().policy.learner, run)


def test_metrics_hold_no_clock(finished_run):
    keys = {key for line in (finished_run / "metrics.jsonl").read_text().splitlines() for key in json.loads(line)}
    assert not {key for key in keys if key.endswith("_s") or "time" in key}


WARM_CHECK = 12  # rollouts of the copy check after the warm start


@pytest.mark.parametrize(
    ("more", "done", "evaluated"),
    [
        pytest.param(-20, -1, 0, id="copy check", marks=pytest.mark.slow),
        pytest.param(-8, 0, 1, id="first evaluations", marks=pytest.mark.slow),
        pytest.param(2 * 16 + 5, 2, 3, id="step", marks=pytest.mark.slow),
        pytest.param(5 * 16 + 2, 5, 3, id="validation", marks=pytest.mark.slow),
    ],
)
def test_a_limit_ends_a_run_after_a_whole_step_and_more_continues_it(
    ten_steps, finished_run, tmp_path, capsys, more, done, evaluated
):
    root = tmp_path / "run"

    def used():
        return sum(spent.rollouts for spent in read_spent(root / "ledger" / "spent.jsonl").values())

    before = sum(one.tasks * one.trials for one in RunDirectory.open(finished_run).evaluations.read() if one.step == 0)
    limit = before + WARM_CHECK + more
    assert train(ten_steps, root, "--budget", f"{limit} rollouts") == 1
    assert f"midstream resume {root} --budget" in capsys.readouterr().err.replace("\n", "")
    run = RunDirectory.open(root)
    assert (run.status().state, used()) == ("interrupted", limit)
    assert (max(run.checkpoints.steps(), default=-1), len(run.evaluations.read())) == (done, evaluated)
    assert [one.step for one in run.metrics.read()] == list(range(1, done + 1))
    assert main(["resume", str(root), "--quiet", "--budget", "100000 rollouts"]) == 0
    assert differences(finished_run, root) == ["recipe.toml"], "which holds the limit"


def test_requests_that_join_a_running_batch_have_the_newest_weights(ten_steps, tmp_path):
    changes = {"rollout.batching": "continuous", "training.learning_rate": 1e-2, "training.warmup_steps": 1}
    assert train(ten_steps, tmp_path / "run", *settings({**TRAINING, **changes, "evaluation.at": "none"})) == 0
    run = RunDirectory.open(tmp_path / "run")
    metrics = run.metrics.read()
    assert [one.policy_version for one in metrics] == [0, 1]
    for one in metrics:
        calls = [call for each in run.trajectories.read(one.step) for call in each.calls]
        assert {call.policy_version for call in calls if call.completion_ids} == {one.step - 1}
        assert one.logprob_gap < 1e-4, "older weights, or samples of another row, would lie further away"
