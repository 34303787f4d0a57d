"""The study of weights and lessons in two worlds: its recipes, its rows, and what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from studies.two_ways import TwoWaysFile, main

from midstream.core.tables import validate
from midstream.core.text_file import read_toml
from midstream.recipe.schema import load_recipe

SHIPPED = Path(__file__).parents[2] / "studies" / "two-ways.toml"
SMALL = """
engines.policy = { hidden_size = 32, layers = 1 }
warm_start = { transcripts = 60, steps = 3, min_copy_rate = 0.0 }
[evaluation]
validation = { name = "validation", split = "validation", per_family = 1 }
sets = [{ name = "test", split = "test", per_family = 1 }]
"""
CHANGES = {
    "lessons": "[practice]\ntasks = 8\nbatch_size = 8\nepochs = 1\ngroup_size = 2\ngate = { enabled = false }\n",
    "weights": "[training]\nsteps = 1\ntasks_per_step = 2\ngroup_size = 2\n",
}


def shipped() -> TwoWaysFile:
    return validate(TwoWaysFile, read_toml(SHIPPED), str(SHIPPED))


def test_both_ways_of_a_world_begin_with_the_same_weights() -> None:
    for world in shipped().worlds.values():
        lessons, weights = load_recipe(world.lessons), load_recipe(world.weights)
        assert lessons.practice is not None
        assert weights.training is not None
        assert lessons.warm_start == weights.warm_start
        assert (lessons.tasks, lessons.tools, lessons.engines["policy"]) == (
            weights.tasks, weights.tools, weights.engines["policy"],
        )  # fmt: skip
        assert lessons.evaluation.sets == weights.evaluation.sets


@pytest.mark.slow
def test_every_way_has_numbers_and_nothing_is_done_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = list[str]()
    for name, world in shipped().worlds.items():
        lines.append(f"[worlds.{name}]")
        for way, changes in CHANGES.items():
            file = tmp_path / f"{name}-{way}.toml"
            file.write_text(f'extends = "{getattr(world, way)}"\nname = "{name}-{way}"\n{SMALL}{changes}', "utf-8")
            lines.append(f"{way} = {json.dumps(str(file))}")
    study = tmp_path / "study.toml"
    study.write_text("\n".join(lines), "utf-8")
    arguments = [str(study), "--seeds", "1", "--quiet", "--json", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    ways = ("frozen", "lessons", "lessons of {}", "weights", "weights, then lessons", "both")
    expected = {
        (f"{world}: {way.format(other)}", sampling)
        for world, other in (("gazetteer", "graphs"), ("graphs", "gazetteer"))
        for way in ways
        for sampling in ("T=1", "greedy")
    }
    assert {(row["name"], row["metric"]) for row in json.loads(first)} == expected
    started = time.time()
    assert main(arguments) == 0
    assert capsys.readouterr().out == first
    assert all(path.stat().st_mtime < started for path in (tmp_path / "out").glob("*/metrics.jsonl"))


def test_a_recipe_of_the_wrong_kind_is_refused_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study.toml"
    study.write_text('[worlds.one]\nlessons = "training-free-tiny"\nweights = "training-free-graphs"\n', "utf-8")
    assert main([str(study), "--out", str(tmp_path / "out")]) == 1
    assert "error[wrong-kind-of-recipe]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
