"""`--tasks` and `--reward`: other questions and another reward for a recipe that learns, and for an evaluation."""

from __future__ import annotations

import json

import pytest

from midstream.cli.main import main
from midstream.core.text_file import parse_toml
from midstream.recipe.check import resolve, set_reward
from midstream.recipe.files import to_toml
from midstream.recipe.overrides import changed_recipe, evaluation_recipe
from midstream.recipe.schema import parse_recipe

ROWS = '''
def rows():
    """Questions of three splits."""
    splits = ["train"] * 4 + ["validation"] * 2 + ["test"] * 2
    return [{"question": f"{n} + 1 ?", "answer": str(n + 1), "split": split} for n, split in enumerate(splits)]


def close(answer, gold) -> float:
    """1 for the gold answer."""
    return float(answer == gold)
'''
LESSONS_TABLE = ["lessons.tasks=4", "lessons.batch_size=4", "lessons.gate.tasks=2"]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(ROWS)
    (tmp_path / "mine.jsonl").write_text('{"question": "2 + 1 ?", "answer": "3"}')
    return tmp_path


def test_a_recipe_learns_from_other_tasks_by_another_reward(mine):
    source = "lessons-math"
    recipe = changed_recipe(source, tasks="mine.py:rows", reward="mine.py:close", overrides=LESSONS_TABLE)
    assert recipe.tasks.type == f"{mine}/mine.py:rows"
    assert recipe.reward.type == f"{mine}/mine.py:close"
    assert (recipe.evaluation.validation.count, recipe.evaluation.validation.per_family) == (None, None)
    assert [chosen.tasks and chosen.tasks.type for chosen in recipe.evaluation.sets] == ["benchmark", "benchmark"]
    judged = changed_recipe(source, reward="judge").reward
    assert (judged.type, judged.engine) == ("judge", "model")


def test_sets_of_the_same_source_hold_all_of_its_tasks(mine):
    recipe = changed_recipe("lessons-simulated", tasks="mine.jsonl", overrides=["evaluation.sets=[]"])
    assert recipe.table()["tasks"]["path"] == f"{mine}/mine.jsonl"
    [chosen] = changed_recipe("agentflow-prompted", tasks="mine.py:rows").evaluation.sets
    assert (chosen.split, chosen.per_family, chosen.seed) == ("test", None, 99)
    overridden = changed_recipe("agentflow-prompted", tasks="mine.py:rows", overrides=["tasks.type=gazetteer"])
    assert overridden.tasks.type == "gazetteer"


def test_an_evaluation_takes_a_function(mine):
    recipe = evaluation_recipe("direct", task_files=["mine.py:rows", "mine.jsonl"], reward="mine.py:close")
    assert [chosen.name for chosen in recipe.evaluation.sets] == ["rows", "mine"]
    assert {chosen.reward.type for chosen in recipe.evaluation.sets if chosen.reward} == {f"{mine}/mine.py:close"}


def scored_by(source, **changes):
    """The types of the rewards that score the first set of an evaluation's recipe."""
    recipe = evaluation_recipe(source, **changes)
    used = set_reward(recipe, recipe.evaluation.sets[0])
    return [used.type, *(part.type for part in (getattr(used.config, "parts", None) or {}).values())]


def test_the_recipes_reward_scores_questions_unless_they_or_the_caller_name_one(mine):
    judged = ["reward.type=judge", "reward.engine=model"]
    questions = {"task_files": ["mine.jsonl"]}
    assert scored_by("direct", **questions) == ["per_task"]
    assert scored_by("artist-prompted", **questions) == ["per_task", "math"]
    assert scored_by("function-calling-tiny", **questions) == ["per_task"]  # its own is for dialogues
    assert scored_by("direct", **questions, overrides=judged) == ["judge"]
    assert scored_by("direct", **questions, reward="judge", overrides=["reward.engine=model"]) == ["judge"]
    assert scored_by("direct", benchmarks=["bamboogle"], overrides=judged) == ["judge"]
    assert scored_by("direct", **questions, reward="f1") == ["f1"]
    for source in ("artist-prompted", "direct"):  # as a run writes it, and reads it again
        resolved = resolve(evaluation_recipe(source, **questions))
        assert resolve(parse_recipe(parse_toml(to_toml(resolved)))) == resolved


def test_train_takes_model_tasks_and_reward_as_options(mine, capsys):
    words = ["--tasks", "mine.py:rows", "--reward", "mine.py:close", "--provider", "ollama", "--model", "m"]
    settings = [word for text in [*LESSONS_TABLE, "evaluation.sets=[]"] for word in ("--set", text)]
    assert main(["train", "lessons-math", "--dry-run", *words, *settings]) == 0
    out = capsys.readouterr().out
    assert f"type = {json.dumps(f'{mine}/mine.py:rows')}" in out
    assert 'provider = "ollama"' in out
