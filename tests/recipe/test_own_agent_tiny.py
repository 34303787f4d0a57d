"""The agent of another program learns through the gateway: recipe `own-agent-tiny`."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream import api
from midstream.core.metrics import EvaluationResult
from midstream.core.trajectory import Sampling
from midstream.evaluation.settings import sampling_name
from midstream.recipe.build import Build, sampling_notes
from midstream.recipe.overrides import evaluation_recipe
from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory

SMALL = (
    "training.steps=1", "training.tasks_per_step=4", "training.group_size=4", "training.warmup_steps=1",
    "training.decay_steps=0", "training.minibatches=1", "evaluation.at=none",
)  # fmt: skip


@pytest.mark.slow
def test_a_step_trains_what_the_agent_asked(tmp_path: Path) -> None:
    fewer = ("training.tasks_per_step=2", "training.group_size=2")
    run = api.train(load_recipe("own-agent-tiny", (*SMALL, *fewer)), out=tmp_path / "run").directory
    [step] = run.metrics.read()
    assert (step.trajectories, step.trajectories_error) == (4, 0)
    assert step.rows >= 1
    assert run.info().resolved["serve"]["batching"] == "continuous"  # type: ignore[index]
    [part] = run.trajectories.parts().values()
    ended = list(part)
    assert {call.role for one in ended for call in one.calls} == {"policy"}
    assert all(call.delivered and call.policy_version == 0 for one in ended for call in one.calls)
    assert any(turn.action and turn.observation for one in ended for turn in one.turns)
    # The agent drops the thoughts, so that every later call begins a row of its own.
    assert step.rows_split.get("reply changed", 0) > 0


@pytest.mark.slow
def test_only_where_weights_are_trained_the_recipes_sampling_replaces_the_agents() -> None:
    recipe = load_recipe("own-agent-tiny", SMALL)
    with Build(recipe) as build:
        assert build.environment().sampling == Sampling(temperature=1.0, max_tokens=110)
        assert build.environment(temperature=0).sampling == Sampling(temperature=0, max_tokens=110)
    assert len(sampling_notes(recipe)) == 1
    recipe = recipe.model_copy(update={"training": None})
    with Build(recipe) as build:
        assert [build.environment(temperature=temperature).sampling for temperature in (None, 0.5)] == [None, 0.5]
    assert not sampling_notes(recipe)


def test_an_agent_of_another_program_is_evaluated_at_its_own_temperature() -> None:
    for changes, names in (({}, ["own"]), ({"temperature": 0.5}, ["T=0.5"])):
        recipe = evaluation_recipe("own-agent", task_files=[__file__], **changes)
        assert [sampling_name(temperature) for temperature in recipe.evaluation.temperatures] == names


@pytest.mark.slow
@pytest.mark.parametrize("shuffled", [False, True])
def test_it_learns_from_its_outcomes_alone(tmp_path: Path, shuffled: bool) -> None:
    settings = [f"training.shuffle_rewards={str(shuffled).lower()}"]
    run = api.train(load_recipe("own-agent-tiny", settings), out=tmp_path / "run").directory
    before, after = _sampled(run, 0), _sampled(run, 30)
    assert before.success < 0.2
    assert (after.success > 0.8) != shuffled
    assert shuffled is (after.success < 0.2)


def _sampled(run: RunDirectory, step: int) -> EvaluationResult:
    results = run.evaluations.read()
    [found] = [each for each in results if (each.set_name, each.sampling, each.step) == ("test", "T=1", step)]
    return found
