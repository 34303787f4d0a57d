"""The study of weights and lessons in two worlds: its recipes, its rows, and what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from studies.two_ways import Runs, TwoWaysFile, main

from midstream.components.tables import validate
from midstream.core.text_file import read_toml
from midstream.recipe.schema import load_recipe
from midstream_worlds.both import Both, BothConfig

SHIPPED = Path(__file__).parents[2] / "studies" / "two-ways.toml"
SMALL = """
engines.policy = { hidden_size = 32, layers = 1 }
warm_start = { transcripts = 60, steps = 3, min_copy_rate = 0.0 }
[evaluation]
validation = { name = "validation", split = "validation", per_family = 1 }
sets = [{ name = "all", split = "test", per_family = 1 }]
"""
RECIPES = 'lessons = "lessons-both"\nweights = "flow-grpo-both"\n'
WORLDS = '[worlds]\none = ["graphs.sum"]\n'
CHANGES = {
    "lessons": "[lessons]\ntasks = 8\nbatch_size = 8\nepochs = 1\ngroup_size = 2\ngate = { enabled = false }\n",
    "weights": "[training]\nsteps = 1\ntasks_per_step = 2\ngroup_size = 2\n",
}


def shipped() -> TwoWaysFile:
    return validate(TwoWaysFile, read_toml(SHIPPED), str(SHIPPED))


def test_both_ways_begin_with_the_same_weights_and_are_asked_the_same() -> None:
    lessons, weights = load_recipe(shipped().lessons), load_recipe(shipped().weights)
    assert lessons.lessons is not None
    assert weights.training is not None
    assert lessons.warm_start == weights.warm_start
    assert lessons.engines["policy"] == weights.engines["policy"]
    assert (lessons.tasks, lessons.tools, lessons.evaluation.sets) == (
        weights.tasks, weights.tools, weights.evaluation.sets,
    )  # fmt: skip


def test_the_worlds_are_all_families_and_their_sets() -> None:
    worlds = shipped().worlds
    assert [family for families in worlds.values() for family in families] == list(Both(BothConfig()).families)
    sets = load_recipe(shipped().weights).evaluation.sets
    assert {chosen.name: chosen.families for chosen in sets} == worlds


@pytest.mark.slow
def test_every_way_has_numbers_and_nothing_is_done_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for way, changes in CHANGES.items():
        base = f'extends = "{getattr(shipped(), way)}"\nname = "{way}"\n'
        (tmp_path / f"{way}.toml").write_text(base + SMALL + changes, "utf-8")
    files = {way: str(tmp_path / f"{way}.toml") for way in CHANGES}
    study = tmp_path / "study.toml"
    worlds = '[worlds]\ngazetteer = ["gazetteer.sum"]\ngraphs = ["graphs.sum", "graphs.core"]\n'
    study.write_text("".join(f"{way} = {json.dumps(file)}\n" for way, file in files.items()) + worlds, "utf-8")
    arguments = [str(study), "--seeds", "1", "--quiet", "--json", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    names = [f"{way} of {world}" for world in ("gazetteer", "graphs") for way in ("lessons", "weights", "both")]
    found = [(row["name"], row["metric"]) for row in json.loads(first)]
    assert found == [(name, metric) for name in ("frozen", *names) for metric in ("all, T=1", "all, greedy")]
    started = time.time()
    assert main(arguments) == 0
    assert capsys.readouterr().out == first
    assert all(path.stat().st_mtime < started for path in (tmp_path / "out").glob("*/evaluations.jsonl"))
    assert main([*arguments, "--only", "both", "lessons"]) == 0
    assert json.loads(capsys.readouterr().out) == [row for row in json.loads(first) if "weights" not in row["name"]]


def test_a_setting_is_for_the_recipe_that_has_its_section(tmp_path: Path) -> None:
    runs = Runs(root=tmp_path, config=shipped(), overrides=("training.steps=7", "lessons.epochs=2"), seed=0)
    lessons, weights = runs.recipe("lessons", "graphs"), runs.recipe("weights", "graphs")
    assert (lessons.training, weights.lessons) == (None, None)
    assert lessons.lessons is not None
    assert weights.training is not None
    assert (lessons.lessons.epochs, weights.training.steps) == (2, 7)


@pytest.mark.matrix(3)
@pytest.mark.parametrize(
    ("text", "more", "code"),
    [
        (RECIPES.replace("lessons-both", "flow-grpo-both") + WORLDS, (), "wrong-kind-of-recipe"),
        (RECIPES.replace("flow-grpo-both", "lessons-both") + WORLDS, (), "wrong-kind-of-recipe"),
        (RECIPES + '[worlds]\none = ["graphs.sum"]\ntwo = ["graphs.nope"]\n', (), "unknown-family"),
        (RECIPES + "[worlds]\n", (), "recipe-invalid"),
        (RECIPES + '[worlds]\n"../one" = ["graphs.sum"]\n', (), "recipe-invalid"),
        (RECIPES + WORLDS, ("--only", "wheights"), "unknown-name"),
        (RECIPES + WORLDS, ("--set", "evaluation.at=end"), "setting-conflict"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(
    text: str, more: tuple[str, ...], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.toml"
    study.write_text(text, "utf-8")
    assert main([str(study), "--out", str(tmp_path / "out"), *more]) == 1
    assert f"error[{code}]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
