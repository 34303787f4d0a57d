"""Several sources as one."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from midstream.components.tables import parse_component
from midstream.core.errors import RecipeError
from midstream.recipe.check import resolve, task_source
from midstream.recipe.files import read_table, to_toml
from midstream.recipe.schema import parse_recipe
from support.errors import coded


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.jsonl"
    rows = [{"question": f"What is {i} + 1?", "answer": i + 1, "family": "odd" if i % 2 else "even"} for i in range(60)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return {"type": "file", "path": str(path), "splits": {"train": 0.5, "test": 0.5}}


def source_of(table):
    return task_source(parse_component("tasks", table, "tasks"))


def mixture(own, weight=1):
    parts = {"own": own | {"weight": weight}, "world": {"type": "gazetteer"}}
    return source_of({"type": "mixture", "parts": parts})


def test_parts_are_drawn_by_weight(own):
    mixed = mixture(own, weight=3)
    assert list(mixed.families) == ["own", "world"]
    drawn = Counter(task.family for seed in range(100) for task in mixed.sample("train", 8, seed))
    assert 0.7 < drawn["own"] / 800 < 0.8
    biased = Counter(task.family for seed in range(100) for task in mixed.sample("train", 8, seed, {"world": 3.0}))
    assert 0.45 < biased["own"] / 800 < 0.55


def test_draws_repeat_and_tasks_say_whose_they_are(own):
    mixed = mixture(own)
    tasks = mixed.sample("train", 16, 5)
    assert tasks == mixture(own).sample("train", 16, 5) != mixed.sample("train", 16, 6)
    assert len({task.id for task in tasks}) == 16
    for task in tasks:
        assert task.id.startswith(f"{task.family}:")
    assert {task.metadata["own_family"] for task in tasks if task.family == "own"} <= {"odd", "even"}


def test_a_part_that_is_too_small_fails_at_once(own):
    """Not in the first step that happens to want more of it than it has."""
    with pytest.raises(RecipeError, check=coded("too-few-tasks", "90 tasks of ")):
        mixture(own, weight=1e-9).sample("train", 90, 0)


def test_fixed_sets(own):
    mixed = mixture(own, weight=3)
    count = len(source_of(own).fixed("test", seed=0))
    assert Counter(task.family for task in mixed.fixed("test", seed=1, count=10)) == {"own": 8, "world": 2}
    assert Counter(task.family for task in mixed.fixed("test", seed=1, per_family=4)) == {"own": 4, "world": 4}
    assert len(mixed.fixed("test", seed=1, families=["own"])) == count
    assert [task.family for task in mixed.fixed("test", seed=1, count=1)] == ["own"]
    with pytest.raises(RecipeError, check=coded("too-few-tasks", f"and there are {count}")):
        mixed.fixed("test", seed=1, count=count + 1, families=["own"])
    with pytest.raises(RecipeError, check=coded("unknown-family", "'odd'")):
        mixed.fixed("test", seed=1, families=["odd"])


@pytest.mark.parametrize("weight", [0, -1, "1", True, float("inf")])
def test_weights_are_numbers_above_zero(weight):
    part = {"type": "gazetteer", "weight": weight}
    for parts, code in (({"a": part}, "recipe-invalid"), ({}, "parts-invalid")):
        with pytest.raises(RecipeError, check=coded(code)):
            source_of({"type": "mixture", "parts": parts})


def test_a_recipe_checks_its_parts_and_can_be_read_again(own):
    table = read_table("gazetteer-prompted")
    del table["tools"]["local_search"]  # the offline world's
    table["evaluation"] = {"sets": []}
    table["tasks"] = {
        "type": "mixture",
        "parts": {"own": own, "search": {"type": "benchmark", "name": "search-r1", "weight": 2}},
    }
    resolved = resolve(parse_recipe(table))
    parts = resolved["tasks"]["parts"]
    assert (parts["own"]["weight"], parts["own"]["duplicates"], parts["search"]["weight"]) == (1.0, "error", 2)
    assert "search-r1" in to_toml(resolved)
    assert resolve(parse_recipe(table | {"tasks": resolved["tasks"]}))["tasks"] == resolved["tasks"]
    for wrong, code, value in (
        ({"name": "zebra"}, "unknown-benchmark", "'zebra'"),
        ({"nme": "search-r1"}, "recipe-invalid", "tasks.parts.search.nme = 'search-r1'"),
        ({"type": "zebra"}, "unknown-type", "tasks.parts.search.type = 'zebra'"),
    ):
        table["tasks"]["parts"]["search"] = {"type": "benchmark", "name": "search-r1"} | wrong
        with pytest.raises(RecipeError, check=coded(code, value)):
            resolve(parse_recipe(table))
