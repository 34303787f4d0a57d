"""The quiz: arithmetic, and facts about countries."""

from __future__ import annotations

import re

import pytest

from midstream.recipe.schema import load_recipe
from midstream_worlds.quiz import ARITHMETIC, FACTS, Quiz, QuizConfig, countries

FAMILIES = (*ARITHMETIC, *FACTS)


def named_in(question: str) -> list[str]:
    """The countries of a question in its order, without those that are a part of another's name."""
    found = [name for name in countries() if name in question]
    whole = [name for name in found if not any(name in other for other in found if other != name)]
    return sorted(whole, key=question.index)


@pytest.fixture(scope="module")
def quiz() -> Quiz:
    return Quiz(QuizConfig(families=FAMILIES))


def test_expressions_have_the_value_that_python_gives(quiz):
    for task in quiz.fixed("train", seed=1, families=["expression"], per_family=50):
        (expression,) = re.findall(r"[(\d][\d +*()-]+\d", task.question)
        assert eval(expression) == int(task.answer)


def test_answers_about_countries_are_in_the_documents(quiz):
    documents = dict(quiz.documents())
    for task in quiz.fixed("test", seed=1, families=["lookup"], per_family=30):
        (name,) = named_in(task.question)
        assert f" {task.answer}" in documents[name]


@pytest.mark.parametrize(("family", "sign"), [("difference", -1), ("sum", 1)])
def test_two_countries_are_subtracted_and_added(quiz, family, sign):
    for task in quiz.fixed("train", seed=1, families=[family], per_family=30):
        field = "population" if "people" in task.question else "area"
        named = named_in(task.question)
        first, second = (int(countries()[name][field]) for name in named)
        assert int(task.answer) == first + sign * second > 0


def test_splits_share_no_country_and_no_wording(quiz):
    seen = {split: {name for name in quiz.splits[split]} for split in quiz.splits}
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    openings = {
        split: {task.question[:8] for task in quiz.fixed(split, seed=1, families=ARITHMETIC, per_family=60)}
        for split in ("train", "test")
    }
    assert not {text for text in openings["train"] & openings["test"] if not text.startswith("Compute")}


def test_a_seed_draws_the_same_tasks_and_questions_do_not_repeat(quiz):
    first, again = (quiz.fixed("test", seed=3, per_family=40) for _ in range(2))
    assert first == again
    assert len({task.question for task in first}) == len(first) == 40 * len(FAMILIES)


def test_arithmetic_needs_no_package():
    assert Quiz(QuizConfig()).families == ARITHMETIC
    assert list(Quiz(QuizConfig()).documents()) == []


@pytest.mark.parametrize("name", ["agentflow-small", "tool-use-small"])
def test_the_recipes_ask_it(name):
    recipe = load_recipe(name)
    assert recipe.tasks.type == "quiz"
    assert recipe.training is not None
    assert recipe.training.loss.clip_high == 0.2
