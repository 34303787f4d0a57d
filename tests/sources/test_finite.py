"""Drawing from tasks that are all there."""

from __future__ import annotations

from collections import Counter

import pytest

from midstream.core.errors import RecipeError
from midstream.core.source import TaskSource
from midstream.core.task import Task
from midstream.sources.finite import Finite
from support.errors import coded


class Letters(Finite):
    """A hundred tasks of families a (80) and b (20); split "train" has ten."""

    def load(self, split):
        count = 10 if split == "train" else 100
        return [
            Task(id=f"{split}{i}", question=str(i), answer="", family="b" if i % 5 == 4 else "a") for i in range(count)
        ]


@pytest.fixture
def letters():
    return Letters("letters", ["train", "test"])


def numbers(tasks):
    return [int(task.question) for task in tasks]


def test_it_is_a_source(letters):
    source: TaskSource = letters
    assert list(source.families) == ["a", "b"]


def test_everything_without_a_number(letters):
    assert numbers(letters.fixed("test", seed=1)) == list(range(100))
    assert numbers(letters.fixed("test", seed=1, families=["b"])) == list(range(4, 100, 5))


def test_a_draw_is_the_same_for_the_same_seed_and_keeps_the_order(letters):
    drawn = numbers(letters.fixed("test", seed=1, count=30))
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 30
    assert drawn == numbers(Letters("again", ["test"]).fixed("test", seed=1, count=30))
    assert drawn != numbers(letters.fixed("test", seed=2, count=30))
    assert set(numbers(letters.fixed("test", seed=1, count=10))) < set(drawn)


def test_so_many_of_each_family(letters):
    tasks = letters.fixed("test", seed=1, per_family=20)
    assert Counter(task.family for task in tasks) == {"a": 20, "b": 20}
    assert len(letters.fixed("test", seed=1, per_family=3, families=["b"])) == 3


@pytest.mark.parametrize(
    ("asked", "there"),
    [({"count": 101}, 100), ({"count": 21, "families": ["b"]}, 20), ({"per_family": 21}, 20), ({"per_family": 81}, 80)],
)
def test_more_than_there_are(letters, asked, there):
    with pytest.raises(RecipeError, check=coded("too-few-tasks", f"and there are {there}")):
        letters.fixed("test", seed=1, **asked)


def test_what_is_not_there(letters):
    with pytest.raises(RecipeError, check=coded("unknown-split", "'validation'")):
        letters.fixed("validation", seed=1)
    with pytest.raises(RecipeError, check=coded("unknown-family", "'c'")):
        letters.fixed("test", seed=1, families=["c"])


def test_a_step_takes_no_task_twice_and_steps_differ(letters):
    first, again, second = (numbers(letters.sample("test", 32, seed)) for seed in (1, 1, 2))
    assert len(set(first)) == 32
    assert first == again != second
    assert sorted(numbers(letters.sample("train", 10, 3))) == list(range(10))
    with pytest.raises(
        RecipeError, check=coded("too-few-tasks", "11 tasks of letters (train) were asked for, and there are 10")
    ):
        letters.sample("train", 11, 1)


def test_weights_bias_the_draw(letters):
    drawn = Counter(task.family for seed in range(200) for task in letters.sample("test", 4, seed, {"b": 4.0}))
    assert 0.42 < drawn["b"] / 800 < 0.58  # 80 of weight 1, 20 of weight 4
    assert {task.family for task in letters.sample("test", 32, 1, {"b": 1e-9})} == {"a"}
    assert {task.family for task in letters.sample("test", 32, 1, {"b": 0.0})} == {"a"}
    with pytest.raises(RecipeError, check=coded("too-few-tasks")):  # all other tasks, and one more
        letters.sample("test", len([task for task in letters.tasks("test") if task.family == "a"]) + 1, 1, {"b": 0.0})
