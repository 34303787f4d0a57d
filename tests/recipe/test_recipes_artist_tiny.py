"""The offline recipes of an interleaved policy: comparable with the planner's, and a few steps of one end to end."""

from __future__ import annotations

from typing import Any

import pytest

from midstream.cli.main import main
from midstream.core.stream import blocks, stream_of
from midstream.core.stream_template import load_template
from midstream.core.trajectory import Call, Trajectory
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory
from midstream.runs.info import differing_settings

FEW_STEPS = """
extends = "artist-tiny"
name = "few-steps"
seed = 3

[tasks]
type = "gazetteer"
families = ["arith", "lookup"]
countries = 40

[engines.policy]
type = "tiny"
hidden_size = 32
layers = 1

[warm_start]
transcripts = 150
steps = 60
batch_size = 32
learning_rate = 2e-2
min_copy_rate = 0.0
policy = { sense = 1.0, malformed = 0.0 }

[reward]
gated = false

[training]
steps = 2
tasks_per_step = 4
group_size = 4
validate_every = 2

[evaluation]
temperatures = [1.0]
validation = { per_family = 2 }

[[evaluation.sets]]
name = "test"
split = "test"
per_family = 2
seed = 99
reward = { type = "exact_match" }
"""


def resolved(name: str) -> dict[str, Any]:
    return resolve(load_recipe(name))


def test_policy_and_planner_differ_in_the_agent_and_not_in_what_they_are_asked():
    policy, planner = resolved("artist-tiny"), resolved("flow-grpo-tiny")
    assert {key: policy[key] for key in ("tasks", "tools", "engines", "sandbox", "learner")} == {
        key: planner[key] for key in ("tasks", "tools", "engines", "sandbox", "learner")
    }
    for ours, theirs in zip(policy["evaluation"]["sets"], planner["evaluation"]["sets"], strict=True):
        assert ours["reward"] == planner["reward"], "held-out tasks are scored alike"
        assert {**ours, "reward": None} == {**theirs, "reward": None}
    assert policy["training"]["steps"] == planner["training"]["steps"]
    for size in ("tasks_per_step", "group_size", "minibatches"):
        assert policy["training"][size] == planner["training"][size]


def test_torl_differs_in_the_reward_alone():
    assert {line.split(":")[0] for line in differing_settings(resolved("artist-tiny"), resolved("torl-tiny"))} == {
        "reward.type",
        "reward.answer",
        "reward.gated",
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A few steps of a smaller policy."""
    pytest.importorskip("torch", reason="the training extra is not installed")
    root = tmp_path_factory.mktemp("few-steps")
    (root / "few-steps.toml").write_text(FEW_STEPS, encoding="utf-8")
    assert main(["train", str(root / "few-steps.toml"), "--out", str(root / "run"), "--quiet"]) == 0
    return RunDirectory.open(root / "run")


def of_training(run: RunDirectory) -> list[Trajectory]:
    return [one for step in run.trajectories.steps() for one in run.trajectories.read(step)]


def test_every_trajectory_is_one_row_and_the_learner_agrees_with_what_was_sampled(run):
    for step in run.metrics.read():
        left_out = step.samples_left_out.get("uniform group whose KL term was not drawn", 0)
        assert sum(step.samples_left_out.values()) == left_out
        assert step.rows == step.trajectories - left_out == 16 - left_out
        assert step.logprob_gap < 1e-4
    assert any(step.grad_norm > 0 for step in run.metrics.read())


def test_the_stream_is_one_sequence_and_output_is_put_in_as_it_is(run):
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(run.policy_dir)
    continued = 0
    for one in of_training(run):
        assert tokenizer.decode(one.calls[0].prompt_ids) == f"Question {one.question}"
        given: list[tuple[Call, str]] = []
        for turn in one.turns:
            given += [(call, "") for call in turn.calls]  # the first of the turns that a reply makes has it
            given[-1] = (given[-1][0], given[-1][1] + turn.appended)
        for (call, appended), after in zip(given, one.calls[1:], strict=False):
            assert after.prompt_ids == (*call.prompt_ids, *call.completion_ids, *tokenizer.encode(appended))
            continued += appended.startswith("<output> ")
    assert continued > 10


def test_the_warm_policy_writes_the_form_and_calls_tools(run):
    template = load_template("tiny")
    kinds = {block.kind for one in of_training(run) for block in blocks(stream_of(one), template)}
    assert kinds >= {"think", "call", "output", "answer"}
    assert {one.status for one in of_training(run)} == {"ok"}
    assert {one.stop_reason for one in of_training(run)} <= {"answered", "ended", "turn_limit", "token_limit"}


def test_rewards_of_training_have_the_papers_parts_and_held_out_tasks_are_right_or_wrong(run):
    parts = {tuple(one.reward.parts) for one in of_training(run) if one.reward}
    assert parts == {("answer", "relaxed_format", "strict_format", "tool_success", "total")}
    for one in of_training(run):
        assert one.reward
        assert one.reward.value == pytest.approx(one.reward.parts["total"] / 4)
    assert {result.metric for result in run.evaluations.read()} == {"exact match"}
