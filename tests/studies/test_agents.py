"""The study of agents: arms of equal budgets, trained once, validation over training as a figure."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from studies.agents import main

from midstream.core.errors import RecipeError
from midstream.recipe.schema import load_recipe
from midstream.study import read_study
from studies import agents

SMALL = (
    "tasks.countries=40", "engines.policy.hidden_size=32", "engines.policy.layers=1", "warm_start.transcripts=60",
    "warm_start.steps=3", "warm_start.min_copy_rate=0", "training.steps=2", "training.tasks_per_step=2",
    "training.group_size=2", "training.validate_every=1", "evaluation.validation.per_family=1",
    'evaluation.sets=[{name="test", per_family=1}]',
)  # fmt: skip


def study(root: Path, *labels: str, more: tuple[str, ...] = ()) -> list[str]:
    overrides = [part for override in (*SMALL, *more) for part in ("--set", override)]
    return ["--seeds", "2", "--out", str(root), "--quiet", "--only", *labels, *overrides]


def test_both_kinds_of_agents_stand_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*study(tmp_path, "AgentFlow", "ARTIST"), "--json"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    rows = json.loads(first)
    assert {row["name"] for row in rows if row["metric"] == "after"} == {"AgentFlow", "ARTIST"}
    assert all(len(row["values"]) == 2 for row in rows)
    curve = {row["name"] for row in rows if row["metric"] == "ARTIST: success"}
    assert curve == {"0", "4", "8"}, "validated before training and after each step of 2 tasks x 2 trajectories"
    ElementTree.fromstring((tmp_path / "agents.svg").read_text(encoding="utf-8"))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/metrics.jsonl")}
    assert main(arguments) == 0
    assert capsys.readouterr().out == first
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/metrics.jsonl")}


def test_unequal_budgets_are_refused() -> None:
    study = read_study("agents")
    recipes = {arm.name: load_recipe(arm.recipe) for arm in study.arms[:2]}
    agents.require_equal_budgets(recipes)
    unequal = {**recipes, "ARTIST": load_recipe("artist-tiny", ["training.steps=3"])}
    with pytest.raises(RecipeError) as caught:
        agents.require_equal_budgets(unequal)
    assert caught.value.code == "setting-conflict"
    assert "(ARTIST)" in caught.value.what
