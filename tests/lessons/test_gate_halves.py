"""Random halves of a batch: each change's effect, and which are kept."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import pytest

from midstream.core.task import Task
from midstream.lessons.betting import Differences, Pairs
from midstream.lessons.gate import Halved, Test, halved, random_half
from midstream.lessons.lesson_set import LessonSet
from midstream.lessons.operations import Operation
from midstream.lessons.runner import Match

TASKS = [Task(id="t", question="", answer="")]


def batch(effects: Sequence[float]) -> list[Operation]:
    return [Operation(kind="add", id=f"L{i + 1}", text=str(one), module="planner") for i, one in enumerate(effects)]


def halve(
    effects: Sequence[float], *, noise: float = 0.0, limit: int = 400, seed: int = 0, enough: float = 1e-9
) -> Halved:
    """Rewards are 0.5 and the lessons' effects, plus noise; the whole batch's effect is known exactly."""
    draw = random.Random(seed)

    def reward(lesson_set: LessonSet) -> float:
        return 0.5 + sum(float(lesson.text) for lesson in lesson_set.rendered) + draw.uniform(-noise, noise)

    async def play(name: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
        return [(reward(match.first), reward(match.other)) for match in matches]

    total = Differences()
    for _ in range(10_000):
        total.add(sum(effects))
    pairs = Pairs(TASKS, play, name="halves", limit=limit, size=20, seed=seed)
    whole = whole_test(len(effects), total)
    return asyncio.run(halved(LessonSet(), batch(effects), whole=whole, total=total, pairs=pairs, enough=enough))


def whole_test(count: int, total: Differences) -> Test:
    changes = tuple(range(count))
    return Test(
        name="whole", changes=changes, pairs=total.pairs, mean=total.mean, error=total.error, verdict="undecided"
    )


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_halves_are_even_and_sides_are_fair(count: int):
    draw = random.Random(0)
    found = [random_half(count, draw) for _ in range(4000)]
    assert {len(one) for one in found} == {count // 2, -(-count // 2)}
    sides = Counter(i for one in found for i in one)
    assert all(1850 < sides[i] < 2150 for i in range(count))


def test_of_two_changes_each_effect_is_exact():
    found = halve([0.2, -0.1])
    assert [effect.mean for effect in found.effects] == pytest.approx([0.2, -0.1])
    assert found.kept == (0,)


@pytest.mark.slow
@pytest.mark.matrix(1)
@pytest.mark.parametrize(
    "effects", [(0.05, 0.05, -0.1), (0.1, 0.0, -0.05, 0.02), (0.08,) * 5, (-0.05, -0.05, 0.1, -0.1, 0)]
)
def test_effects_are_right_on_average(effects: tuple[float, ...]):
    found = [halve(effects, limit=200, seed=seed) for seed in range(40)]
    for i, effect in enumerate(effects):
        assert fmean(one.effects[i].mean for one in found) == pytest.approx(effect, abs=0.01)


@pytest.mark.slow
def test_intervals_hold_the_truth():
    effects = (0.1, -0.1, 0.05, 0.0)
    found = [halve(effects, noise=0.4, limit=100, seed=seed) for seed in range(60)]
    inside = [
        one.effects[i].interval[0] <= effect <= one.effects[i].interval[1]
        for one in found
        for i, effect in enumerate(effects)
    ]
    assert 0.9 < fmean(inside) < 1.0


def test_what_helps_is_kept():
    found = halve([0.1, -0.1, 0.1, -0.05, 0.08, 0.05], noise=0.3)
    assert found.kept == (0, 2, 4, 5)
    assert all(effect.alone for effect in found.effects)


def test_of_a_harmful_batch_the_better_part_is_kept():
    """Small gains cannot be distinguished from 0 next to so much harm; the test of the kept ones decides."""
    assert halve([-0.2, -0.005, -0.2, -0.005], noise=0.1).kept == (1, 3)


def test_rewards_too_small_to_square_are_no_error():
    async def play(name: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
        return [(len(match.first.rendered) * 1e-200, len(match.other.rendered) * 2e-200) for match in matches]

    pairs = Pairs(TASKS, play, name="halves", limit=20, size=10, seed=0)
    total = Differences(pairs=10, total=1e-199, above=10)
    changes, whole = batch([1.0, 2.0]), whole_test(2, total)
    found = asyncio.run(halved(LessonSet(), changes, whole=whole, total=total, pairs=pairs, enough=0.02))
    assert found.pairs == 10


def test_it_stops_when_choices_are_clear():
    assert halve([0.15, -0.15, 0.1], noise=0.2, enough=0.02, limit=2000).pairs < 200
    assert halve([0.001, -0.001, 0.001], noise=0.2, enough=0.001, limit=300).pairs == 300


def test_wins_and_losses_are_of_the_change_s_side():
    first, other = halve([0.2, -0.1]).effects
    assert (first.helped, first.harmed) == (first.pairs, 0)
    assert (other.helped, other.harmed) == (0, other.pairs)
