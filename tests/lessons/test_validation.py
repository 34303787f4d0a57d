"""A whole lesson set against none: what is found, how surely, and what each lesson does by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

import pytest

from midstream.core.errors import InfrastructureError
from midstream.core.task import Task
from midstream.lessons.gate import Test
from midstream.lessons.lesson_set import Effect, Lesson, LessonSet
from midstream.lessons.runner import Match
from midstream.lessons.settings import GateConfig
from midstream.lessons.validation import Validation, measure

TASKS = [Task(id=f"t{i}", question=f"Question {i} ?", answer="x") for i in range(20)]
CONFIG = GateConfig(block=16, test_pairs=320, bisect_pairs=400)


def lesson_set(*ids: str, vetoed: str = "") -> LessonSet:
    lessons = [Lesson(id=one, text=f"Advice {one}.", state="vetoed" if one == vetoed else "active") for one in ids]
    return LessonSet(lessons=tuple(lessons), next_number=10)


class World:
    """Success is 0.4 and what each lesson adds; `lost` of the pairs have no result. It notes what was played."""

    def __init__(self, adds: Mapping[str, float], *, lost: float = 0.0, seed: int = 0) -> None:
        self.adds, self.lost, self.draw = adds, lost, random.Random(seed)
        self.played: list[tuple[str, Match]] = []

    async def play(self, name: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
        self.played += [(name, match) for match in matches]
        return [self._pair(match) for match in matches]

    def _pair(self, match: Match) -> tuple[float, float] | None:
        if self.draw.random() < self.lost:
            return None
        first, other = (self._reward(side) for side in (match.first, match.other))
        return first, other

    def _reward(self, side: LessonSet) -> float:
        return float(self.draw.random() < 0.4 + sum(self.adds.get(lesson.id, 0) for lesson in side.rendered))


def run(world: World, found: LessonSet, config: GateConfig = CONFIG, seed: int = 1) -> Validation:
    return asyncio.run(measure(found, tasks=TASKS, play=world.play, config=config, seed=seed))


def test_a_lesson_set_that_helps_is_found_early():
    found = run(World({"L1": 0.2, "L2": 0.15}), lesson_set("L1", "L2"))
    assert found.test.verdict == "better"
    assert found.test.evidence >= found.test.needed
    assert found.test.pairs < CONFIG.test_pairs
    assert found.test.interval[0] > 0


def test_a_lesson_set_that_harms_is_given_up_early():
    found = run(World({"L1": -0.3}), lesson_set("L1", "L2"))
    assert found.test.verdict == "not better"
    assert found.test.pairs < CONFIG.test_pairs
    assert found.test.mean < 0


def test_each_lesson_gets_its_own_effect():
    found = run(World({"L1": 0.25, "L2": -0.25, "L3": 0.0}), lesson_set("L1", "L2", "L3", "L4", vetoed="L4"))
    assert list(found.effects) == ["L1", "L2", "L3"]
    for name, truth in (("L1", 0.25), ("L2", -0.25), ("L3", 0.0)):
        effect = found.effects[name]
        assert effect.mean == pytest.approx(truth, abs=0.12)
        assert (effect.pairs, effect.alone) == (found.halves_pairs, True)
    assert found.effects["L1"].interval[0] > 0 > found.effects["L2"].interval[1]
    assert 0 < found.halves_pairs <= CONFIG.bisect_pairs


def test_the_two_sides_are_the_lesson_set_and_nothing_then_complementary_halves():
    whole, world = lesson_set("L1", "L2", "L3", "L4", vetoed="L4"), World({})
    run(world, whole)
    tested = [match for name, match in world.played if name.startswith("whole")]
    assert {match.first.lessons for match in tested} == {()}
    assert {match.other.rendered for match in tested} == {whole.rendered}
    halves = [match for name, match in world.played if name.startswith("halves")]
    for match in halves:
        ids = [lesson.id for side in (match.first, match.other) for lesson in side.rendered]
        assert sorted(ids) == ["L1", "L2", "L3"]
    assert len({tuple(lesson.id for lesson in match.first.rendered) for match in halves}) >= 6
    assert len({match.task.id for _, match in world.played}) == len(world.played), "each pair has a task of its own"


def test_one_lesson_alone_is_measured_by_the_test():
    world = World({"L1": 0.3})
    found = run(world, lesson_set("L1"))
    assert found.effects["L1"].pairs == found.test.pairs == len(world.played)


def test_pairs_without_a_result_are_left_out_and_counted():
    found = run(World({"L1": 0.3}, lost=0.3), lesson_set("L1"))
    assert found.test.left_out > 0
    assert found.test.pairs + found.test.left_out <= CONFIG.test_pairs
    with pytest.raises(InfrastructureError) as caught:
        run(World({}, lost=1.0), lesson_set("L1"))
    assert caught.value.code == "all-rollouts-failed"
    assert "16 pairs" in caught.value.what


@pytest.mark.slow
def test_what_does_nothing_is_rarely_said_to_help():
    level = CONFIG.model_copy(update={"error_rate": 0.1, "test_pairs": 96, "bisect_pairs": 0})
    wrong = sum(
        run(World({}, seed=seed), lesson_set("L1", "L2"), level, seed).test.verdict == "better" for seed in range(50)
    )
    assert wrong <= 0.1 * 50


def test_the_same_seed_draws_the_same_pairs():
    one, two, three = World({}), World({}), World({})
    for world, seed in ((one, 1), (two, 1), (three, 2)):
        run(world, lesson_set("L1", "L2"), seed=seed)
    assert one.played == two.played != three.played


def test_what_was_found_is_written_into_the_lesson_set():
    effect = Effect(mean=0.1, interval=(0.0, 0.2), pairs=64, helped=12, harmed=5)
    test = Test(name="whole", changes=(0,), pairs=64, mean=0.1, interval=(0.0, 0.2), verdict="better")
    found = Validation(test=test, effects={"L1": effect}, halves_pairs=32)
    before = lesson_set("L1", "L2", vetoed="L2")
    after = found.applied(before, "agent")
    assert after.lessons[0] == before.lessons[0].model_copy(
        update={"effect": effect, "used": 96, "helped": 12, "harmed": 5}
    )
    assert (after.lessons[1], after.proven_for) == (before.lessons[1], "agent")
    failed = found.model_copy(update={"test": test.model_copy(update={"verdict": "undecided"})})
    assert failed.applied(after, "agent").proven_for == ""
    assert failed.applied(after, "another").proven_for == "agent"
