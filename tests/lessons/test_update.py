"""One update: what is counted, what is on record, for which agent the lesson set is proven, and what is pending."""

from __future__ import annotations

import asyncio

import pytest

from midstream.core.errors import InfrastructureError
from midstream.core.tool import RunProgress
from midstream.lessons import update as update_room
from midstream.lessons.approval import Approvals
from midstream.lessons.gate import ChangeRecord, Decision
from midstream.lessons.gate import Test as Tested
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import Effect, Lesson, LessonSet
from midstream.lessons.operations import Operation, applied
from midstream.lessons.reflector import ROLES
from midstream.lessons.runner import Match
from midstream.lessons.update import LessonLearner
from midstream.rollout import Environment, RolloutConfig
from support.reflectors import FAILS, SetAnswers, operations, role_engine, settings
from support.rollouts import TASKS, StubReward

BEFORE = LessonSet(
    lessons=(Lesson(id="L1", text="look first", used=10), Lesson(id="L2", text="guess", state="vetoed")),
    next_number=3,
    proven_for="the agent",
)
EFFECT = Effect(mean=0.2, interval=(0.1, 0.3), pairs=8, helped=5, harmed=1)
ADDS = operations({"kind": "add", "text": "write units down"}, {"kind": "add", "text": "count the clasps twice"})


def gate(fates, effect=None, *, plays=()):
    """A gate that gives the changes these fates, after pairs with these names."""

    async def decide(lesson_set, changes, *, retested, tasks, play, config, updates, seed):
        accepted = [one for one, fate in zip(changes, fates, strict=True) if fate == "accepted"]
        after = applied(lesson_set, accepted)
        for name in plays:
            task = tasks[0].model_copy(update={"id": f"pair-{name}"})
            await play(name, [Match(task=task, first=lesson_set, other=after)])
        records = tuple(
            ChangeRecord(operation=one, fate=fate, effect=effect) for one, fate in zip(changes, fates, strict=True)
        )
        tests = (Tested(name="whole", changes=(0,), pairs=len(plays), verdict="better"),)
        return Decision(lesson_set=after, changes=records, tests=tests, bisect_pairs=2)

    return decide


def updated(monkeypatch, answers, decide=None, *, before=BEFORE, pending=(), proposed=ADDS, **more):
    """An update with one task and two rollouts, whose critic proposes to add two lessons."""
    if decide is not None:
        monkeypatch.setattr(update_room, "decide", decide)
    config = settings(tasks=1, batch_size=1, epochs=3, **more)
    made = LessonLearner(
        config=config,
        tasks=TASKS[:1],
        validation=TASKS[3:],
        environment=Environment(
            agent=SetAnswers(answers), tools=(), engines={}, reward=StubReward(), config=RolloutConfig(max_attempts=1)
        ),
        engines=dict.fromkeys(ROLES, role_engine(proposed)),
        ledger=Ledger(),
        seed=1,
        identity="the agent",
    )
    return asyncio.run(asyncio.wait_for(made.update(2, before, pending, 5, Approvals()), timeout=30))


def test_an_accepted_change_is_proven_and_has_its_effect(monkeypatch):
    found = updated(monkeypatch, ["0", "1"], gate(["accepted", "rejected"], EFFECT))
    lesson = found.lesson_set.find("L3")
    assert (lesson.text, lesson.effect, lesson.helped, lesson.harmed) == ("write units down", EFFECT, 5, 1)
    assert found.lesson_set.find("L4") is None
    assert found.lesson_set.next_number == 5
    assert found.lesson_set.proven_for == "the agent"
    assert [one.id for one in found.operations] == ["L3"]
    record = found.record
    assert (record.step, record.epoch, record.version, record.lessons, record.mean_reward) == (2, 2, 5, 2, 0.5)
    assert [change.fate for change in record.changes] == ["accepted", "rejected"]
    assert (record.tests[0].verdict, record.bisect_pairs, record.groups, record.uniform) == ("better", 2, 1, 0)


def test_lessons_count_the_rollouts_that_had_them_in_a_prompt(monkeypatch):
    found = updated(monkeypatch, ["0", "1"], gate(["accepted", "rejected"], plays=["a", "b", "c"]))
    used = {lesson.id: lesson.used for lesson in found.lesson_set.lessons}
    assert used == {"L1": 10 + 2 + 6, "L2": 0, "L3": 3}


def test_pending_changes_join_the_next_batch_and_keep_their_ids(monkeypatch):
    first = updated(monkeypatch, ["0", "1"], gate(["pending", "rejected"]))
    assert [one.id for one in first.record.pending] == ["L3"]
    assert first.lesson_set.lessons[0].used == 12
    assert first.lesson_set.proven_for == "the agent"
    again = updated(monkeypatch, ["0", "0"], gate(["accepted"]), before=first.lesson_set, pending=first.record.pending)
    assert again.lesson_set.find("L3").text == "write units down"
    assert (again.record.uniform, again.record.proposed) == (1, ())
    assert [change.operation.id for change in again.record.changes] == ["L3"]


def test_a_pending_change_that_is_sound_no_longer_is_on_record(monkeypatch):
    put_off = Operation(kind="delete", id="L9")
    found = updated(monkeypatch, ["0", "0"], gate([]), pending=[put_off])
    assert [(outcome.operation.id, bool(outcome.refused)) for outcome in found.record.proposed] == [("L9", True)]


def test_what_is_added_to_an_unproven_lesson_set_does_not_prove_it(monkeypatch):
    before = BEFORE.model_copy(update={"proven_for": "another agent"})
    found = updated(monkeypatch, ["0", "1"], gate(["accepted", "rejected"]), before=before)
    assert len(found.lesson_set.lessons) == 3
    assert found.lesson_set.proven_for == ""
    found = updated(monkeypatch, ["0", "1"], gate(["accepted", "rejected"]), before=LessonSet())
    assert found.lesson_set.proven_for == "the agent"


def test_without_a_gate_a_changed_lesson_set_is_unproven(monkeypatch):
    found = updated(monkeypatch, ["0", "1"], gate={"enabled": False})
    assert [change.fate for change in found.record.changes] == ["accepted", "accepted"]
    assert found.lesson_set.proven_for == ""
    same = updated(monkeypatch, ["0", "0"], gate={"enabled": False})
    assert same.lesson_set.proven_for == "the agent"


def test_a_rollout_that_broke_is_named_and_one_that_is_left_is_no_group(monkeypatch):
    found = updated(monkeypatch, ["0", FAILS], gate([]))
    assert found.record.failed == {"t0#1": "EngineError: the endpoint failed"}
    assert list(found.record.broken) == ["t0"]
    assert found.record.mean_reward == 1.0


def test_where_every_rollout_broke_the_run_stops(monkeypatch):
    with pytest.raises(InfrastructureError) as caught:
        updated(monkeypatch, [FAILS, FAILS], gate([]))
    assert caught.value.code == "all-rollouts-failed"
    assert "endpoint failed" in caught.value.what


def test_a_lesson_set_that_is_not_changed_has_no_new_version(monkeypatch):
    before = LessonSet(proven_for="")
    found = updated(monkeypatch, ["0", "0"], gate([]), before=before)
    assert (found.lesson_set, found.record.version) == (before, 4)


def test_every_task_comes_once_an_epoch_in_an_order_of_its_own():
    config = settings(tasks=6, batch_size=4, epochs=3)
    made = LessonLearner(
        config=config,
        tasks=TASKS,
        validation=[],
        environment=Environment(agent=SetAnswers([]), tools=(), engines={}, reward=StubReward()),
        engines={},
        ledger=Ledger(),
        seed=1,
    )
    batches = [made.batch(step) for step in range(1, 7)]
    assert [epoch for epoch, _ in batches] == [1, 1, 2, 2, 3, 3]
    assert [len(tasks) for _, tasks in batches] == [4, 2] * 3
    orders = [[task.id for _, tasks in batches[i : i + 2] for task in tasks] for i in (0, 2, 4)]
    assert all(sorted(order) == [task.id for task in TASKS] for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_tools_that_are_worse_in_training_are_so_in_rollouts_alone(monkeypatch):
    """The rollouts of update 2 of 3 know how far learning is; pairs of the gate are evaluations."""
    seen = []
    run = update_room.Runner._run

    async def watched(self, purpose, scope, *more):
        seen.append((purpose, self.environment.progress))
        return await run(self, purpose, scope, *more)

    monkeypatch.setattr(update_room.Runner, "_run", watched)
    updated(monkeypatch, ["0", "1"], gate(["accepted", "rejected"], plays=["a"]))
    assert seen[0] == ("learning", RunProgress(step=2, steps=3))
    assert set(seen[1:]) == {("gate", None)}
