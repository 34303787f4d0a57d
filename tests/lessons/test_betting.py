"""Pairs of validation rollouts: drawn by seed, played in blocks, summed up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from midstream.core.errors import InfrastructureError
from midstream.core.task import Task
from midstream.evaluation.pairs import difference_interval
from midstream.lessons.betting import Differences, Pairs, Play
from midstream.lessons.lesson_set import Lesson, LessonSet
from midstream.lessons.runner import Match

TASKS = [Task(id=f"t{i}", question="", answer="") for i in range(3)]
EMPTY = LessonSet()
FULL = LessonSet(lessons=(Lesson(id="L1", text="look first"),))


class Script:
    """Returns the given results, and records the requests."""

    def __init__(self, *results: tuple[float, float] | None) -> None:
        self.results = list(results)
        self.asked: list[tuple[str, list[Match]]] = []

    async def play(self, name: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
        self.asked.append((name, list(matches)))
        return [self.results[i % len(self.results)] for i in range(len(matches))]

    @property
    def ids(self) -> list[str]:
        return [match.task.id for _, matches in self.asked for match in matches]


def pairs(play: Play, *, limit: int = 10, size: int = 4, seed: int = 1) -> Pairs:
    return Pairs(TASKS, play, name="whole", limit=limit, size=size, seed=seed)


def played(one: Pairs) -> list[list[float | None]]:
    async def blocks() -> list[list[float | None]]:
        found = []
        while not one.spent:
            found.append(await one.block(lambda draw: (EMPTY, FULL)))
        return found

    return asyncio.run(blocks())


def test_blocks_end_at_the_limit_and_have_names_of_their_own():
    script = Script((0, 1))
    assert [len(block) for block in played(pairs(script.play))] == [4, 4, 2]
    assert [name for name, _ in script.asked] == ["whole-0", "whole-1", "whole-2"]
    assert all((match.first, match.other) == (EMPTY, FULL) for _, matches in script.asked for match in matches)


def test_a_pair_is_what_the_other_earned_more_than_the_first():
    assert played(pairs(Script((0, 1), (1, 0.25), (1, 1)).play, limit=3)) == [[1, -0.75, 0]]


def test_tasks_are_drawn_with_replacement_and_every_pair_has_an_id():
    script = Script((0, 1))
    played(pairs(script.play))
    assert len(set(script.ids)) == 10
    assert {one.split("@")[0] for one in script.ids} == {"t0", "t1", "t2"}
    assert {one.split("@")[1] for one in script.ids} == {f"whole-{i}" for i in range(10)}


def test_the_seed_alone_says_what_is_drawn():
    one, same, other = Script((0, 1)), Script((1, 0), None), Script((0, 1))
    played(pairs(one.play))
    played(pairs(same.play, size=5))
    played(pairs(other.play, seed=2))
    assert one.ids == same.ids
    assert one.ids != other.ids


def test_pairs_without_a_result_are_left_out_and_counted():
    one = pairs(Script((0, 1), None).play, limit=4)
    assert played(one) == [[1, None, 1, None]]
    assert one.left_out == 2


def test_nothing_is_decided_where_nothing_has_a_result():
    one = pairs(Script(None).play)
    with pytest.raises(InfrastructureError) as caught:
        played(one)
    assert caught.value.code == "all-rollouts-failed"
    assert "4 pairs" in caught.value.what


def test_the_interval_is_that_of_the_paired_comparison():
    draw = random.Random(0)
    values = [draw.choice((-1.0, 0.0, 0.0, 0.5, 1.0)) for _ in range(300)]
    found = Differences()
    for value in values:
        found.add(value)
    effect = found.effect(alone=True)
    assert effect.mean == pytest.approx(sum(values) / 300)
    assert effect.interval == pytest.approx(difference_interval(values), abs=0.01)
    assert (effect.helped, effect.harmed, effect.pairs) == (
        sum(value > 0 for value in values),
        sum(value < 0 for value in values),
        300,
    )


def test_few_differences_are_not_sure():
    found = Differences()
    for _ in range(3):
        found.add(1.0)
    low, high = found.effect(alone=True).interval
    assert low < 0.5
    assert high == 1.0
    ties = Differences()
    ties.add(0.0)
    assert ties.effect(alone=True).interval[1] > 0.5
