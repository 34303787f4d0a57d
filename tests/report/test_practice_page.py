"""The page of a practice run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.metrics import Spent
from midstream.report.practice_data import PracticeData
from midstream.report.practice_page import curves, lead, practice_page, span_of
from midstream.runs.budget import BudgetConfig
from midstream.training_free.commit import Version
from midstream.training_free.gate import ChangeRecord
from midstream.training_free.library import Effect, Lesson, LessonOrigin, Library
from midstream.training_free.operations import Operation, OperationOutcome
from support.pages import found, keys, made, rows, texts
from support.practice_runs import made_up, rollout, view


def page(data: PracticeData) -> dict[str, Any]:
    return made(practice_page(data))


def with_lesson(lesson: Lesson, **changes: Any) -> PracticeData:
    before = Version(number=1, by="start", library=Library())
    return view(versions=[before, Version(number=2, update=1, library=Library(lessons=(lesson,)))], **changes)


def test_the_page_has_the_numbers_of_the_run():
    run = made_up(4)
    whole = page(view(run))
    assert keys(whole) == ["summary", "results", "lessons", "curves", "tried", "updates", "cost", "counts"]
    lessons, tried = found(whole, "cards")[:2]
    assert {card["text"] for card in lessons["cards"]} == {lesson.text for lesson in run.library.lessons}
    assert all(card["vote"] for card in lessons["cards"])
    assert not any(card["vote"] for card in tried["cards"])
    assert len(found(whole, "fold", "Update ")) == 4
    for part in ("repeats L1", "no gain was measured", "5.1 of 4.8", "critic, task t5"):
        assert part in texts(whole), part


def test_every_chart_says_in_words_what_it_shows():
    charts = found(page(view(made_up(4))), "chart")
    assert len(charts) == 6
    assert all(chart["summary"] and chart["x"] == "update" for chart in charts)


def test_a_lesson_shows_the_question_and_rollouts_that_it_came_from():
    origin = LessonOrigin(
        update=1, tasks=("t4",), trajectories=("t4#0", "t4#1"), model="gpt-4o-mini", why="t4#1 counted"
    )
    effect = Effect(mean=0.05, interval=(0.01, 0.09), pairs=40, helped=9, harmed=3, alone=False)
    lesson = Lesson(id="L1", text="count twice", origin=origin, used=300, helped=9, harmed=3, effect=effect)
    sources = {(1, f"t4#{index}"): rollout("t4", index, 1) for index in range(2)}
    said = texts(page(with_lesson(lesson, sources=sources)))
    for part in (
        *("How many towns of district t4", "Correct answer: 41", "t4#1 counted", "gpt-4o-mini", "search → python"),
        *("+5.0 (+1.0 to +9.0), measured only together with others", "in 300 rollouts, helped 9, harmed 3"),
        "midstream show runs/made-up 'step-000001/t4#0'",
    ):
        assert part in said, part


def test_a_lesson_from_another_run_does_not_show_this_runs_rollouts():
    lesson = Lesson(id="L1", text="brought along", origin=LessonOrigin(update=1, tasks=("t4",), trajectories=("t4#0",)))
    start = [Version(number=1, by="start", library=Library(lessons=(lesson,)))]
    text = texts(page(view(versions=start, sources={(1, "t4#0"): rollout("t4", 0, 1)})))
    assert "Rollouts of another run: t4#0" in text
    assert "district t4" not in text


def test_every_update_says_what_it_left_out():
    record = (
        made_up(3)
        .updates[2]
        .model_copy(update={"failed": {"t1#2": "503: overloaded\n  fix: wait"}, "broken": {"t1": "one rollout ended"}})
    )
    facts = found(page(view(updates=[record])), "facts")[0]["facts"]
    assert ["Failed", "t1#2: 503: overloaded"] in facts
    assert ["Left out", "t1: one rollout ended"] in facts
    assert any(value.startswith("critic, task t5: the reply is no JSON") for _, value in facts)


def test_costs_stand_by_phase_and_role_with_their_limits():
    costs = {("learning", ""): Spent(rollouts=500), ("gate", "planner"): Spent(calls=9, tokens=1234, cost_usd=0.5)}
    data = view(made_up(1), costs=costs, budget=BudgetConfig(tokens=5_000_000))
    (table,) = found(page(data), "table", "What the run has used up")
    assert rows(table)[0] == ["learning", "-", "500", "-", "-", "-"]
    assert rows(table)[1] == ["gate", "planner", "-", "9", "1,234", "$0.5000"]
    assert rows(table)[-1] == ["Limit", "", "-", "-", "5,000,000", "-"]
    assert [row["total"] for row in table["rows"]] == [False, False, True, True]


def test_a_run_without_any_record_makes_a_page_too():
    whole = page(view())
    assert keys(whole) == ["summary", "results", "lessons", "curves", "counts"]
    assert "No update of the library has finished yet." in whole["lead"]


def test_without_a_gate_the_summary_says_so():
    said = lead(view(made_up(2, gate=False), gated=False, learned_from="rollouts without any grade"))
    assert "It learned from rollouts without any grade." in said
    assert "no gate" in said
    assert "unproven" in said
    assert "not known" in said


def test_a_run_that_ended_early_says_how_far_it_came():
    assert "made 2 of 6 updates" in lead(view(made_up(2), updates_planned=6))
    assert "made 2 updates" in lead(view(made_up(2), updates_planned=2))


def test_a_long_run_stays_folded():
    run = made_up(90, changes=8)
    whole = page(view(run))
    assert len(found(whole, "fold", "Update ")) == 90
    (more,) = found(whole, "fold", f"{len(run.library.lessons) - 25} more lessons")
    assert len(more["blocks"][0]["cards"]) == len(run.library.lessons) - 25


def test_effects_share_an_axis_that_all_of_them_fit_on():
    small, large = (Effect(mean=mean, interval=(mean - 0.05, mean + 0.05), pairs=9) for mean in (0.0, 0.3))
    assert span_of([small, None, large]) == pytest.approx(0.35)
    assert span_of([]) == 0.01
    lesson = Lesson(id="L1", text="count twice", effect=large)
    (card,) = found(page(with_lesson(lesson)), "cards")[0]["cards"]
    assert card["interval"] == pytest.approx({"low": 0.25, "mid": 0.3, "high": 0.35, "span": 0.35})


def test_bands_stack_to_what_was_proposed():
    updates = made_up(3).updates
    (chart,) = found(list(curves(updates)), "chart", "Changes")
    assert chart["stacked"]
    assert not chart["percent"]
    for place, update in enumerate(updates):
        total = sum(band["points"][place][1] for band in chart["lines"])
        assert total == sum(update.event.fates.values())


HOSTILE = st.lists(
    st.sampled_from(["<", ">", "&", '"', "'", "\x1b", "\u202e", "\ud800", "</script>", "<b>", "\n", "]]>", "L1", "é"]),
    max_size=6,
).map("".join)


@given(HOSTILE, HOSTILE, HOSTILE)
def test_hostile_texts_stay_text(text, module, why):
    lesson = Lesson(
        id="L1", text=text, module=module, origin=LessonOrigin(update=1, tasks=(text,), trajectories=(why,), why=why)
    )
    operation = Operation(kind="add", id=text, text=text, module=module)
    record = (
        made_up(1)
        .updates[0]
        .model_copy(
            update={
                "proposed": (OperationOutcome(operation=operation, refused=why or "no"),),
                "changes": (ChangeRecord(operation=operation, fate="rejected"),),
                "broken": {text: why},
                "failed": {text: why},
                "unreadable": (why,),
            }
        )
    )
    sources = {(1, why): rollout(text, 0, 1).model_copy(update={"question": text, "answer": why, "id": why})}
    whole = page(with_lesson(lesson, updates=[record], sources=sources))
    (card,) = found(whole, "cards")[0]["cards"]
    assert (card["id"], card["text"]) == ("L1", lesson.text)
    (facts, *_) = found(whole, "facts")
    assert ["Left out", f"{text}: {why}"] in facts["facts"]
