"""Function calling learned offline: the recipe runs, and its policy improves on plans that it never met."""

from __future__ import annotations

import pytest

from midstream.api import train
from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory

RECIPE = "function-calling-tiny"
FEW = [
    "warm_start.transcripts=16", "warm_start.steps=3", "warm_start.min_copy_rate=0", "training.steps=1",
    "training.tasks_per_step=2", "training.group_size=3", "agent.policy.sampling.max_tokens=12",
    "engines.policy.hidden_size=32", "engines.policy.layers=1",
    "evaluation.validation.per_family=1", "evaluation.temperatures=[1.0]",
    "evaluation.sets=[{name='test',split='test',per_family=1,reward={type='dialogue'}}]",
]  # fmt: skip


def test_a_step_of_the_recipe(tmp_path):
    pytest.importorskip("torch", reason="the training extra is not installed")
    run = train(load_recipe(RECIPE, FEW), out=tmp_path / "run").directory
    [step] = run.metrics.read()
    assert step.trajectories == 6
    assert step.rows == 6, "every dialogue is one row: no reply is tokenized again"
    assert step.logprob_gap < 1e-4
    assert {"state", "calls"} <= set(step.reward_parts)
    assert {result.metric for result in run.evaluations.read()} == {"dialogue"}
    assert all(call.prompt_ids for turn in run.trajectories.read(1)[0].turns for call in turn.calls)


@pytest.mark.slow
def test_the_policy_improves_on_plans_that_it_never_met(tmp_path):
    def success(run: RunDirectory, policy: str) -> float:
        results = [found for found in run.evaluations.read() if (found.policy, found.set_name) == (policy, "test")]
        return next(found.success for found in results if found.sampling == "T=1")

    run = train(RECIPE, out=tmp_path / "run").directory
    assert success(run, "trained") > success(run, "warm start") + 0.1
