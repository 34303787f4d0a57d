"""`midstream train` of one policy in one stream on a chat model: dialogues at the desks, in process and over HTTP."""

from __future__ import annotations

import json

import pytest

from midstream.cli.main import main
from midstream.core.sequences import joined
from midstream.runs import RunDirectory
from support.llm_server import LLMServer
from support.served_model import ServedModel, save_model

THOUGHT = "<reasoning>so</reasoning>"
CALL = '<tool>[{"name": "nothing", "arguments": {}}]</tool>'
LORA = "learner.lora={rank=4,alpha=8}"
RECIPE = """
name = "desks"
seed = 1
tasks = { type = "desks", families = ["base"], difficulty = "standard" }
reward = { type = "function_calling" }
tools = {}

[agent]
type = "interleaved"
template = "artist-function-calling"
max_turns = 2

[agent.policy]
type = "model"
engine = "policy"
sampling = { temperature = 0.9, max_tokens = 6 }

[engines.weights]
type = "transformers_local"

[training]
steps = 2
tasks_per_step = 2
group_size = 4
minibatches = 1
learning_rate = 1e-2
warmup_steps = 1
validate_every = 2

[evaluation]
temperatures = [0.9]
validation = { name = "validation", split = "validation", per_family = 1, reward = { type = "dialogue" } }
"""


class ServedPolicy(ServedModel):
    """Anyone who asks is the policy."""

    def __call__(self, body):
        with self._lock:
            return self._plan(body)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("streams") / "model", pieces=(THOUGHT, CALL, "Done."), positions=16384)


@pytest.fixture
def trained(model, tmp_path):
    """`trained(*settings)` is the directory of a run."""

    def train(*settings):
        (tmp_path / "desks.toml").write_text(RECIPE, encoding="utf-8")
        words = [word for one in (f"engines.weights.model={model}", *settings) for word in ("--set", one)]
        assert main(["train", str(tmp_path / "desks.toml"), "--out", str(tmp_path / "run"), "--quiet", *words]) == 0
        return RunDirectory.open(tmp_path / "run")

    return train


def check(run):
    """Every trajectory is one row of what was sampled, whose log-probabilities are the learner's; parts are logged."""
    steps = run.metrics.read()
    for step in steps:
        assert step.rows == step.trajectories == 8
        assert step.logprob_gap < 1e-4
        assert step.reward_parts.keys() == {"state", "function", "relaxed_format", "strict_format", "total"}
        trajectories = run.trajectories.read(step.step)
        assert all(len(joined(one.calls)) == 1 for one in trajectories)
        assert sum(len(one.calls) for one in trajectories) > len(trajectories), "some were spoken to more than once"
        assert step.completion_tokens == sum(len(call.completion_ids) for one in trajectories for call in one.calls)
    assert any(step.grad_norm > 0 for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [[], [LORA, "training.variant=dapo"]], ids=["all weights", "lora"])
def test_a_chat_model_in_process(trained, settings):
    check(trained("agent.policy.engine=weights", *settings))


@pytest.mark.slow
def test_a_chat_model_behind_a_server(trained, model):
    served = ServedPolicy(model)
    with LLMServer(served) as server:
        served.adapters = server.adapters
        engine = f'{{type="openai_compatible",model="m",base_url={json.dumps(server.base_url)},token_ids=true}}'
        run = trained(f"engines.policy={engine}", "training.weights=weights", LORA)
    check(run)
    assert {call.policy_version for one in run.trajectories.read(2) for call in one.calls} == {1}
