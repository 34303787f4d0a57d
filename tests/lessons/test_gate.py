"""The gate: what is accepted, rejected and put off, and how often it errs."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest

from midstream.core.errors import InfrastructureError
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.lessons.gate import Decision, decide
from midstream.lessons.lesson_set import Lesson, LessonSet
from midstream.lessons.operations import Operation, applied
from midstream.lessons.runner import Match
from midstream.lessons.settings import GateConfig
from support.gate_world import World, accepted, gated, run

TASKS = [Task(id=f"t{i}", question="", answer="") for i in range(20)]
OLD = LessonSet(lessons=(Lesson(id="L1", text="0.0 old"),), next_number=2)


class Agent:
    """It succeeds with chance 0.4 and what its lessons begin with, whatever the order in which pairs are played.

    `broken` is the share of rollouts that end in an error.
    """

    def __init__(self, seed: int = 0, broken: float = 0.0, *, backwards: bool = False) -> None:
        self.seed, self.broken, self.backwards = seed, broken, backwards
        self.names: list[str] = []
        self.ids: list[str] = []

    async def play(self, name: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
        self.names.append(name.split("-")[0])
        self.ids += [match.task.id for match in matches]
        order = reversed(matches) if self.backwards else matches
        found = {one.task.id: self.pair(one) for one in order}
        return [found[match.task.id] for match in matches]

    def pair(self, match: Match) -> tuple[float, float] | None:
        one, two = (
            self.reward(match, side, lesson_set) for side, lesson_set in (("a", match.first), ("b", match.other))
        )
        return None if one is None or two is None else (one, two)

    def reward(self, match: Match, side: str, lesson_set: LessonSet) -> float | None:
        draw = random.Random(derive_seed(self.seed, match.task.id, side))
        if draw.random() < self.broken:
            return None
        return float(draw.random() < 0.4 + sum(float(lesson.text.split()[0]) for lesson in lesson_set.rendered))


def batch(*effects: float) -> list[Operation]:
    return [Operation(kind="add", id=f"L{i + 2}", text=f"{one} new", module="planner") for i, one in enumerate(effects)]


def decided(changes: Sequence[Operation], agent: Agent | None = None, *, seed: int = 0, **config: Any) -> Decision:
    return asyncio.run(
        decide(
            OLD,
            changes,
            tasks=TASKS,
            play=(agent or Agent()).play,
            config=GateConfig(**config),
            updates=3,
            seed=seed,
        )
    )


def fates(decision: Decision) -> list[str]:
    return [change.fate for change in decision.changes]


def test_a_good_change_is_accepted_and_a_clear_case_costs_little():
    agent = Agent()
    decision = decided(batch(0.4), agent)
    assert fates(decision) == ["accepted"]
    assert decision.lesson_set == applied(OLD, batch(0.4))
    (test,) = decision.tests
    assert (test.name, test.verdict, test.changes) == ("whole", "better", (0,))
    assert test.pairs < 100
    assert test.evidence >= test.needed == pytest.approx(math.log(6 / 0.05))
    effect = decision.changes[0].effect
    assert effect is not None
    assert effect.alone
    assert effect.interval[0] < 0.4 < effect.interval[1]
    assert set(agent.names) == {"whole"}


def test_a_bad_change_is_rejected():
    decision = decided(batch(-0.3))
    assert fates(decision) == ["rejected"]
    assert decision.lesson_set == OLD
    assert decision.tests[0].verdict == "not better"
    assert decision.tests[0].pairs < 150


def test_undecided_changes_are_pending():
    decision = decided(batch(0.05), test_pairs=32)
    assert fates(decision) == ["pending"]
    assert [change.operation for change in decision.changes] == batch(0.05)
    assert decision.lesson_set == OLD


def test_a_mixed_batch_that_fails_keeps_its_good_changes():
    changes = batch(0.12, -0.2, 0.12, -0.2)
    agent = Agent()
    decision = decided(changes, agent)
    assert fates(decision) == ["accepted", "rejected", "accepted", "rejected"]
    assert decision.lesson_set == applied(OLD, [changes[0], changes[2]])
    assert [(test.name, test.changes) for test in decision.tests] == [("whole", (0, 1, 2, 3)), ("kept", (0, 2))]
    assert [test.verdict == "better" for test in decision.tests] == [False, True]
    assert decision.bisect_pairs == 32 * agent.names.count("halves")
    effects = [change.effect for change in decision.changes if change.effect]
    assert [effect.interval[0] < 0.12 < effect.interval[1] for effect in effects] == [True, False, True, False]


def test_the_numbers_of_a_decision_stay_the_same():
    """Golden numbers: equal seeds draw equal pairs and give equal statistics, from version to version."""
    decision = decided(batch(0.12, -0.2, 0.12, -0.2))
    whole, kept = decision.tests
    assert (whole.pairs, whole.mean, whole.evidence) == (256, -0.0862288726898102, 0.0)
    assert whole.interval == pytest.approx((-0.16708180813054857, -0.005375937249071816), rel=1e-12)
    assert (kept.pairs, kept.mean) == (64, 0.296296875)
    assert kept.evidence == pytest.approx(6.79934813050712, rel=1e-12)
    assert kept.needed == pytest.approx(4.787491742782046, rel=1e-12)
    effects = [change.effect for change in decision.changes if change.effect]
    assert [effect.mean for effect in effects] == pytest.approx([0.1481484375, -0.13874471817245254] * 2, rel=1e-12)
    assert effects[0].interval == pytest.approx((-0.03080774832993488, 0.3271046233299349), rel=1e-12)
    assert [effect.helped for effect in effects] == [9, 4, 9, 4]
    assert decision.bisect_pairs == 32


@pytest.mark.slow
def test_effects_are_right_on_average_and_those_of_a_bundle_sum_to_the_bundles():
    """A test that stops early overstates what it tested; over seeds neither the batch nor its changes may be off."""
    true = (0.1, 0.05, -0.05, 0.03)
    found = [decided(batch(*true), Agent(seed), seed=seed) for seed in range(30)]
    means = [[change.effect.mean for change in one.changes if change.effect] for one in found]
    for i, effect in enumerate(true):
        assert fmean(row[i] for row in means) == pytest.approx(effect, abs=0.025)
    assert fmean(one.tests[0].mean for one in found) == pytest.approx(sum(true), abs=0.025)
    accepted = [
        [change.effect for change in one.changes if change.fate == "accepted" and change.effect] for one in found
    ]
    bundles = [effects for effects in accepted if len(effects) > 1]
    assert len(bundles) > 10
    for effects in bundles:
        bundle = effects[0].bundle
        assert bundle is not None
        assert all(effect.bundle == bundle for effect in effects)
        assert sum(effect.mean for effect in effects) == pytest.approx(bundle.mean)
    assert all(effect.bundle is None for effects in accepted if len(effects) == 1 for effect in effects)


def test_a_batch_that_passes_is_rid_of_its_bad_changes():
    decision = decided(batch(0.2, 0.15, -0.1))
    assert [test.verdict for test in decision.tests] == ["better", "better"]
    assert fates(decision) == ["accepted", "accepted", "rejected"]


@pytest.mark.slow
def test_a_batch_that_passes_is_accepted_as_it_is_where_its_better_part_fails():
    """The whole passed at a small number of pairs; a limit of two blocks is too little for the part that was kept."""
    found = [decided(batch(0.12, 0.12, 0.0, 0.0), seed=seed, test_pairs=160) for seed in range(12)]
    mixed = [one for one in found if [test.verdict == "better" for test in one.tests] == [True, False]]
    assert mixed
    assert all(fates(decision) == ["accepted"] * 4 for decision in mixed)


def test_kept_changes_that_do_not_pass_are_pending():
    found = [decided(batch(0.06, -0.06, 0.06, -0.06), seed=seed, test_pairs=64) for seed in range(8)]
    undecided = [one for one in found if len(one.tests) == 2 and one.tests[1].verdict == "undecided"]
    assert undecided
    for decision in undecided:
        kept = decision.tests[1].changes
        assert fates(decision) == ["pending" if i in kept else "rejected" for i in range(4)]
        assert decision.lesson_set == OLD


def test_without_halves_a_batch_is_decided_on_as_a_whole():
    decision = decided(batch(0.2, 0.2, -0.1), bisect_pairs=0)
    assert fates(decision) == ["accepted"] * 3
    assert decision.bisect_pairs == 0
    effects = [change.effect for change in decision.changes]
    assert effects[0] == effects[2]
    assert effects[0] is not None
    assert not effects[0].alone


def test_deletes_and_modifies_are_tested_too():
    harmful = LessonSet(lessons=(Lesson(id="L1", text="-0.2 bad"), Lesson(id="L2", text="0.0 dull")), next_number=3)
    changes = [Operation(kind="delete", id="L1"), Operation(kind="modify", id="L2", text="0.2 bright")]
    decision = asyncio.run(
        decide(harmful, changes, tasks=TASKS, play=Agent().play, config=GateConfig(), updates=3, seed=0)
    )
    assert [lesson.text for lesson in decision.lesson_set.lessons] == ["0.2 bright"]


def test_no_change_needs_no_rollouts():
    agent = Agent()
    assert decided([], agent) == Decision(lesson_set=OLD, changes=(), tests=())
    assert agent.ids == []


def test_the_same_seeds_decide_the_same_in_whatever_order_rollouts_end():
    changes = batch(0.12, -0.2, 0.12, 0.0)
    assert decided(changes, Agent()) == decided(changes, Agent(backwards=True))
    assert decided(changes, Agent()) != decided(changes, Agent(), seed=1)


def test_every_pair_is_fresh():
    agent = Agent()
    decided(batch(0.12, -0.2, 0.12, -0.2), agent)
    assert set(agent.names) == {"whole", "halves", "kept"}
    assert len(set(agent.ids)) == len(agent.ids)


def test_failed_rollouts_are_counted_and_decide_nothing():
    whole, kept = (decision := decided(batch(0.12, -0.2, 0.12, -0.2), Agent(broken=0.15))).tests
    assert fates(decision) == ["accepted", "rejected", "accepted", "rejected"]
    assert whole.left_out > 0
    assert kept.left_out > 0
    assert (whole.pairs + whole.left_out) % 32 == 0
    assert decision.bisect_left_out > 0
    assert (decision.bisect_pairs + decision.bisect_left_out) % 32 == 0


def test_an_outage_decides_nothing():
    with pytest.raises(InfrastructureError):
        decided(batch(0.1), Agent(broken=1.0))


def test_more_updates_need_more_evidence_each():
    config = GateConfig(test_pairs=32)
    needed = [
        asyncio.run(decide(OLD, batch(0.1), tasks=TASKS, play=Agent().play, config=config, updates=n, seed=0))
        .tests[0]
        .needed
        for n in (1, 10)
    ]
    assert needed[1] - needed[0] == pytest.approx(math.log(10))


@pytest.mark.slow
@pytest.mark.parametrize("runs", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_what_does_not_help_is_accepted_at_the_stated_rate_at_most(runs: int):
    """Three updates of lessons that do nothing at all: every acceptance is an error."""
    world = World(rules=2, coverage=1.0, help=0.0, clutter=0.0, harm=0.0, test=1)
    config = GateConfig(error_rate=0.3, test_pairs=96, bisect_pairs=16, block=16)
    errors = sum(accepted(run(world, seed, gated(config, seed))) for seed in range(runs)) / runs
    assert errors <= 0.3 + 3 * math.sqrt(0.3 * 0.7 / runs)


@pytest.mark.parametrize("harm", [0.25, pytest.param(0.0, marks=pytest.mark.slow)])
def test_a_run_gains(harm: float):
    found = run(World(harm=harm), 0, gated(GateConfig(), 0))
    assert found.gain > 0
    assert found.rollouts <= 10 * 1500


# --- removals and shorter texts ---------------------------------------------------------------------------------------


def worth(*effects: float) -> LessonSet:
    """Lessons that raise the reward by so much, L1, L2, ..."""
    return LessonSet(lessons=tuple(Lesson(id=f"L{i}", text=f"{one} old") for i, one in enumerate(effects, 1)))


def removed(lesson_set: LessonSet, *ids: str, seed: int = 0, **config: Any) -> Decision:
    changes = [Operation(kind="delete", id=name) for name in ids]
    settings = GateConfig(**{"margin": 0.1, "bisect_pairs": 0, **config})
    deciding = decide(lesson_set, changes, tasks=TASKS, play=Agent().play, config=settings, updates=1, seed=seed)
    return asyncio.run(deciding)


def test_a_text_that_is_worth_nothing_is_removed_and_one_that_helps_is_not():
    decision = removed(worth(0.0, 0.3), "L1", test_pairs=1000)
    assert fates(decision) == ["accepted"]
    assert [lesson.id for lesson in decision.lesson_set.lessons] == ["L2"]
    tests = [(test.name, test.margin, test.verdict) for test in decision.tests]
    assert tests[1:] == [("not worse", 0.1, "better")]
    # Three tests share the error rate.
    assert decision.tests[0].needed == pytest.approx(math.log(3 / 0.05))
    assert fates(removed(worth(0.0, 0.3), "L2", test_pairs=1000)) == ["rejected"]
    assert fates(removed(worth(0.0, 0.3), "L1", test_pairs=1000, margin=0)) != ["accepted"]


def test_a_shorter_text_of_equal_worth_replaces_a_longer_one():
    lesson_set = worth(0.1)
    long = lesson_set.model_copy(update={"lessons": (Lesson(id="L1", text="0.1 and many words more than it needs"),)})
    change = Operation(kind="modify", id="L1", text="0.1 short")
    config = GateConfig(margin=0.1, bisect_pairs=0, test_pairs=1000)
    deciding = decide(long, [change], tasks=TASKS, play=Agent().play, config=config, updates=1, seed=0)
    assert asyncio.run(deciding).lesson_set.lessons[0].text == "0.1 short"


def test_a_removal_that_costs_the_margin_is_rarely_accepted():
    found = [removed(worth(0.1), "L1", seed=seed, test_pairs=200) for seed in range(40)]
    assert sum(fates(decision) == ["accepted"] for decision in found) <= 2


# --- removals that nobody suggested -----------------------------------------------------------------------------------


def retested(lesson_set: LessonSet, *ids: str, changes: Sequence[Operation] = (), **config: Any) -> Decision:
    removals = [Operation(kind="delete", id=name) for name in ids]
    settings = GateConfig(**{"margin": 0.1, "bisect_pairs": 0, "test_pairs": 1000, **config})
    return asyncio.run(
        decide(
            lesson_set, changes, retested=removals, tasks=TASKS, play=Agent().play, config=settings, updates=1, seed=0
        )
    )


def test_a_removal_that_is_retested_alone_has_one_test_with_its_share_of_the_error_rate():
    decision = retested(worth(0.0, 0.3), "L1")
    assert [lesson.id for lesson in decision.lesson_set.lessons] == ["L2"]
    [test] = decision.tests
    assert (test.name, test.changes, test.verdict, test.margin) == ("not worse", (0,), "better", 0.1)
    assert test.needed == pytest.approx(math.log(3 / 0.05))
    [record] = decision.changes
    assert (record.operation.id, record.fate) == ("L1", "accepted")
    assert (record.effect.alone, record.effect.mean, record.effect.pairs) == (True, test.mean, test.pairs)
    assert decision.bisect_pairs == 0


@pytest.mark.parametrize("test_pairs", [1000, 8])
def test_a_lesson_that_is_still_needed_or_that_may_be_stays(test_pairs):
    decision = retested(worth(0.0, 0.3), "L2", test_pairs=test_pairs)
    # Never pending: its turn comes again.
    assert fates(decision) == ["rejected"]
    assert decision.lesson_set == worth(0.0, 0.3).model_copy(update={"next_number": 3})
    assert decision.changes[0].effect.pairs == decision.tests[0].pairs


def test_a_retested_removal_is_no_part_of_the_tests_of_other_changes():
    changes = [Operation(kind="add", id="L3", text="0.3 new", module="planner")]
    before = worth(0.0, 0.1)
    decision = retested(before, "L1", changes=changes)
    assert [(test.name, test.changes) for test in decision.tests] == [("whole", (0,)), ("not worse", (1,))]
    assert [(record.operation.id, record.fate) for record in decision.changes] == [
        ("L3", "accepted"),
        ("L1", "accepted"),
    ]
    # What is accepted is on both sides of the last test.
    assert [lesson.id for lesson in decision.lesson_set.lessons] == ["L2", "L3"]
    assert [record.effect.alone for record in decision.changes] == [True, True]
    # The third test takes a share of the error rate.
    assert retested(before, changes=changes).tests[0].needed < decision.tests[0].needed


def test_removals_of_both_kinds_share_one_test_and_one_effect():
    changes = [Operation(kind="delete", id="L2")]
    decision = retested(worth(0.0, 0.0, 0.3), "L1", changes=changes)
    assert [(test.name, test.changes) for test in decision.tests] == [("whole", (0,)), ("not worse", (0, 1))]
    assert fates(decision) == ["accepted", "accepted"]
    one, two = (record.effect for record in decision.changes)
    assert one == two
    assert (one.alone, one.mean) == (False, decision.tests[-1].mean)
    assert [lesson.id for lesson in decision.lesson_set.lessons] == ["L3"]


def test_where_removals_of_both_kinds_cost_too_much_all_stay():
    changes = [Operation(kind="delete", id="L2")]
    decision = retested(worth(0.3, 0.0, 0.0), "L1", changes=changes)
    assert fates(decision)[1] == "rejected"
    assert {"L1", "L2"} <= {lesson.id for lesson in decision.lesson_set.lessons}


def test_with_nothing_to_retest_numbers_are_as_without():
    assert retested(worth(0.2), changes=batch(0.12, -0.2)) == asyncio.run(
        decide(
            worth(0.2), batch(0.12, -0.2), tasks=TASKS, play=Agent().play,
            config=GateConfig(margin=0.1, bisect_pairs=0, test_pairs=1000), updates=1, seed=0,
        )
    )  # fmt: skip
