"""What follows from a practice run's records."""

from __future__ import annotations

from typing import Any

from midstream.core.metrics import Spent
from midstream.report import practice_data
from midstream.report.practice_data import learned, left_out_text, short, spent_text, text_of, total_fates, tried
from midstream.runs.budget import BudgetConfig
from midstream.training_free.commit import UpdateRecord, Version
from midstream.training_free.gate import ChangeRecord
from midstream.training_free.library import Effect, Lesson, LessonOrigin, Library
from midstream.training_free.operations import Operation, OperationOutcome
from support.practice_runs import made_up, view


def update(step: int, **about: Any) -> UpdateRecord:
    whole = made_up(1).updates[0].model_copy(update={"step": step, "proposed": (), "changes": (), "tests": ()})
    return whole.model_copy(update=about)


def add(text: str, id: str = "L1") -> Operation:
    return Operation(kind="add", id=id, text=text, module="planner")


def test_a_change_that_was_accepted_in_the_end_is_not_among_those_tried_in_vain():
    pending = update(1, changes=(ChangeRecord(operation=add("late"), fate="pending"),))
    accepted = update(2, changes=(ChangeRecord(operation=add("late"), fate="accepted"),))
    rejected = update(2, changes=(ChangeRecord(operation=add("late"), fate="rejected"),))
    assert tried(view(updates=[pending, accepted])) == []
    assert [(one.update, one.fate) for one in tried(view(updates=[pending]))] == [(1, "pending")]
    assert [(one.update, one.fate) for one in tried(view(updates=[pending, rejected]))] == [(2, "rejected")]


def test_a_refused_change_has_its_reason():
    record = update(1, proposed=(OperationOutcome(operation=add("again"), refused="repeats L1"),))
    (one,) = tried(view(updates=[record]))
    assert (one.fate, one.why, one.text) == ("refused", "repeats L1", "again")


def test_a_rejected_deletion_shows_the_lesson_that_stays_and_a_rejected_change_both_texts():
    library = Library(lessons=(Lesson(id="L1", text="old"),), next_number=2)
    versions = [Version(number=1, by="start", library=library)]
    operations = (Operation(kind="delete", id="L1"), Operation(kind="modify", id="L1", text="new"))
    record = update(1, changes=tuple(ChangeRecord(operation=one, fate="rejected") for one in operations))
    found = tried(view(updates=[record], versions=versions))
    assert [(one.text, one.old) for one in found] == [("old", ""), ("new", "old")]


def test_a_lessons_text_is_that_of_before_the_update():
    def version(number: int, update: int, text: str) -> Version:
        return Version(number=number, update=update, library=Library(lessons=(Lesson(id="L1", text=text),)))

    versions = [version(1, 1, "first"), version(2, 2, "second")]
    assert [text_of(versions, step, "L1") for step in (1, 2, 3)] == ["first", "first", "second"]
    assert text_of(versions, 3, "L9") == ""


def test_a_lesson_of_another_run_is_not_taken_for_one_learned_here():
    brought = Lesson(id="L1", text="from elsewhere", origin=LessonOrigin(update=1, trajectories=("t1#0",)))
    mine = Lesson(id="L2", text="learned here", origin=LessonOrigin(update=1, trajectories=("t1#0",)))
    edited = mine.model_copy(update={"text": "by a person"})
    start = Version(number=1, by="start", library=Library(lessons=(brought,)))
    after = Version(number=2, by="learning", update=1, library=Library(lessons=(brought, mine)))
    edit = Version(number=3, by="edit", library=Library(lessons=(brought, edited)))
    back = Version(number=4, by="rollback", library=after.library)
    assert learned([start]) == []
    assert learned([start, after]) == [mine]
    assert learned([start, after, edit]) == []
    assert learned([start, after, edit, back]) == [mine]


def test_pending_changes_are_counted_once():
    again = update(1, changes=(ChangeRecord(operation=add("late"), fate="pending"),))
    assert total_fates([again.event.fates, again.event.fates])["pending"] == 1
    assert total_fates([]) == {"accepted": 0, "rejected": 0, "refused": 0, "pending": 0}


def test_what_was_spent_is_shown_with_its_limits():
    spent = Spent(rollouts=1500, tokens=2_050_000, cost_usd=0.84)
    assert spent_text(spent) == "1,500 rollouts, 2.05M tokens, $0.8400"
    limits = BudgetConfig(rollouts=2000, tokens=3_000_000, cost_usd=5).limits
    assert spent_text(spent, limits) == "1,500 of 2,000 rollouts, 2.05M of 3M tokens, $0.8400 of $5.00"
    assert spent_text(Spent(rollouts=1, tokens=9999)) == "1 rollout, 9,999 tokens"
    assert [short(count) for count in (9_999, 41_300, 999_400, 999_700)] == ["9,999", "41.3k", "999k", "1M"]


def test_only_what_was_left_out_is_named():
    assert left_out_text([update(1, uniform=0, broken={})]) == ""
    record = update(1, uniform=3, broken={"t1": "why"}, failed={"t2#0": "gone"}, unreadable=("critic, t5",))
    assert left_out_text([record]) == "uniform groups 3, failed rollouts 1, broken groups 1, lost replies 1"


def test_an_effect_is_in_points():
    assert practice_data.points(Effect(mean=0.031, interval=(-0.019, 0.081), pairs=9)) == "+3.1 (-1.9 to +8.1)"
