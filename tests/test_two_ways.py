"""Frozen, lessons, weights and both on the offline world: from one warm start, on the same questions, side by side."""

from __future__ import annotations

import json

import pytest
import torch

from midstream.cli.main import main
from midstream.core.errors import RecipeError
from midstream.lessons.commit import History
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory
from support.errors import coded

SMALL = (
    'tasks.families=["arith","lookup"]',
    "tasks.countries=40",
    "engines.policy.hidden_size=32",
    "engines.policy.layers=1",
    "warm_start={transcripts=200,steps=100,batch_size=32,learning_rate=2e-2,min_copy_rate=0.0,policy={sense=0.9}}",
    "evaluation.temperatures=[1.0]",
    "evaluation.validation.per_family=3",
    'evaluation.sets=[{name="test",split="test",per_family=10,seed=99}]',
)
LESSONS_TABLE = ("lessons={tasks=12,epochs=2,batch_size=12,group_size=4}", "lessons.gate.enabled=false")
TRAINING = ("training={steps=2,tasks_per_step=4,group_size=4}",)


def run(*arguments, settings=()):
    overrides = [part for one in settings for part in ("--set", one)]
    assert main([*map(str, arguments), *overrides, "--quiet"]) == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Directories of the three runs that `midstream compare` needs for all four."""
    root = tmp_path_factory.mktemp("two-ways")
    run("train", "lessons-tiny", "--out", root / "lessons", settings=(*SMALL, *LESSONS_TABLE))
    run("train", "flow-grpo-tiny-lessons", "--out", root / "weights", settings=(*SMALL, *TRAINING))
    run("eval", root / "weights", "--lessons", root / "lessons", "--out", root / "both")
    return root


def weights(directory, step):
    path = directory / "checkpoints" / f"step-{step:06d}" / "learner.pt"
    return torch.load(path, weights_only=True)["model"]


@pytest.mark.slow
def test_lessons_were_learned_and_no_weight_was_touched(runs):
    lesson_set = History(runs / "lessons" / "lessons").current().lesson_set
    assert lesson_set.rendered
    assert [path.name for path in (runs / "lessons" / "checkpoints").iterdir()] == ["step-000000"]
    frozen, warm, trained = weights(runs / "lessons", 0), weights(runs / "weights", 0), weights(runs / "weights", 2)
    assert all(torch.equal(frozen[name], warm[name]) for name in warm)
    assert not all(torch.equal(trained[name], warm[name]) for name in warm)


@pytest.mark.slow
def test_both_begin_with_the_very_same_answers(runs):
    first = [RunDirectory.open(runs / name).evaluations.read()[0] for name in ("lessons", "weights")]
    assert [one.step for one in first] == [0, 0]
    assert [one.policy for one in first] == ["no lessons", "warm start"]
    same = [one.model_copy(update={"policy": "", "duration_s": 0.0}) for one in first]
    assert same[0] == same[1]


@pytest.mark.slow
def test_compare_sets_all_four_side_by_side(runs, capsys):
    four = [f"{runs}/weights@0", f"{runs}/lessons", f"{runs}/weights", f"{runs}/both"]
    assert main(["compare", *four, "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["compared"]
    tested = [one for one in compared if one["set_name"] == "test"]
    assert [one["other"] for one in tested] == four[1:]
    assert {one["first"] for one in tested} == {four[0]}


def test_the_two_recipes_differ_in_what_learns_alone():
    lesson_set, trained = (resolve(load_recipe(name)) for name in ("lessons-tiny", "flow-grpo-tiny-lessons"))
    lesson_set["engines"].pop("reflector")
    for name in ("seed", "tasks", "agent", "engines", "tools", "reward", "warm_start", "evaluation", "learner"):
        assert lesson_set[name] == trained[name], name


def test_lessons_for_a_tiny_planner_that_was_not_taught_to_follow_any_are_refused():
    with pytest.raises(RecipeError, check=coded("setting-conflict", "warm_start.lessons = 0")):
        resolve(load_recipe("lessons-tiny", ["warm_start.lessons=0"]))
