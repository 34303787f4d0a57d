"""A trial: one step that is thrown away, and what it says to change."""

from __future__ import annotations

import asyncio
import json

import pytest

from midstream.cli.main import main
from midstream.core.errors import UsageError
from midstream.core.metrics import StepMetrics
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import parts_of
from midstream_extra import trial
from support.errors import coded

USUAL = {
    "tasks": 16, "group_size": 8, "success": 0.5, "turns": 10, "readable": 1.0, "contrast": 0.8, "rollout_s": 5.0,
    "update_s": 5.0, "update_rows": 9, "memory_gb": 1.0, "steps": 8,
}  # fmt: skip


def test_it_plays_and_updates_and_measures(monkeypatch):
    monkeypatch.setattr(trial, "TASKS", 2)
    monkeypatch.setattr(trial, "GROUP", 2)
    small = ["warm_start=false", "training.tasks_per_step=2", "training.group_size=2"]
    with Build(load_recipe("flow-grpo-tiny", small)) as build:
        found = asyncio.run(trial.measure(parts_of(build)))
    assert (found.tasks, found.group_size) == (2, 2)
    assert 0 <= found.readable <= 1
    assert found.turns >= 4
    assert sum(found.tools.values()) == pytest.approx(1)
    assert found.rollout_s > 0 < found.memory_gb
    assert found.training_s == pytest.approx(found.steps * (found.rollout_s + found.update_s))


def test_the_command_prints_what_a_trial_measured(monkeypatch, capsys):
    measured = trial.RecipeTrial(**USUAL)
    monkeypatch.setattr(trial, "try_training", lambda recipe: measured)
    assert main(["train", "tool-use-small", "--try", "--quiet"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "readable turns 100% of 10 contrast 80% of 16 groups" in shown
    assert main(["train", "tool-use-small", "--try", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == measured.model_dump(mode="json")
    assert main(["train", "tool-use-small", "--try", "--out", "runs/none"]) == 2
    assert "option-without-effect" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"readable": 0.1}, "agentflow-small"),
        ({"contrast": 0.1, "success": 0.9}, "harder"),
        ({"contrast": 0.1, "success": 0.1}, "easier"),
        ({"steps": 1000}, "tasks_per_step"),
        ({"update_rows": 0}, "no update"),
        ({}, ""),
    ],
)
def test_advice_names_what_to_change(changes, words):
    metrics = StepMetrics(step=1, policy_version=0, reward_mean=0.5, groups=16, groups_uniform=3)
    advice = trial._advice(trial.RecipeTrial(**{**USUAL, **changes}), metrics)
    assert (words in advice[0]) if words else advice == []


@pytest.mark.parametrize("name", ["flow-grpo-tiny", "lessons-simulated", "control-supervised"])
def test_a_recipe_without_a_pretrained_model_to_reinforce_is_refused(name):
    with pytest.raises(UsageError, check=coded("not-trainable", name)):
        trial.try_training(name)
