"""The recipe of the small language model: two steps end to end, and (slow) what its warm start reaches."""

from __future__ import annotations

import pytest

from midstream.cli.main import main
from midstream.core.stream_template import load_template
from midstream.runs import RunDirectory

FEW_STEPS = """
extends = "text-tiny"
name = "few-steps"
tasks = { type = "atlas", regions = 2 }
warm_start = { transcripts = 40, steps = 4, min_copy_rate = 0.0 }
training = { steps = 2, tasks_per_step = 3, group_size = 2, resample_uniform = 0 }

[agent.policy]
sampling.max_tokens = 12

[evaluation]
temperatures = [0.0]
validation = { per_family = 1 }

[[evaluation.sets]]
name = "unseen"
split = "unseen"
per_family = 1
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("text")
    (root / "recipe.toml").write_text(FEW_STEPS)
    assert main(["train", str(root / "recipe.toml"), "--quiet", "--out", str(root / "run")]) == 0
    return RunDirectory.open(root / "run")


def test_two_steps_of_the_text_recipe(run):
    for step in run.metrics.read():
        assert step.trajectories == 6
        assert step.trajectories_error == 0
        assert step.logprob_gap < 1e-4
        assert step.unique_tokens < step.total_tokens, "the prefix tree is on"
    assert [result.policy for result in run.evaluations.read()] == ["warm start"] * 2 + ["trained"] * 2


def test_a_prompt_holds_tools_and_question_alone(run):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(run.policy_dir)
    for trajectory in run.trajectories.read(1):
        first = trajectory.calls[0]
        assert [message.role for message in first.messages] == ["user"]
        assert tokenizer.decode(first.prompt_ids) == (
            '<|system|>{"name": "local_search", "arguments": {"query": "string"}}\n'
            '{"name": "python", "arguments": {"code": "string"}}<|end|>'
            f"<|user|>{trajectory.question}<|end|><|assistant|>"
        )


def test_the_template_is_the_chat_models_own_without_instructions():
    text, native = load_template("text"), load_template("native")
    assert text.shows_lessons
    assert text.filled(text.system, lessons="Heights are in feet.") == "Heights are in feet."
    assert text.model_dump(exclude={"name", "source", "system"}) == native.model_dump(
        exclude={"name", "source", "system"}
    )
