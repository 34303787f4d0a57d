"""The page of a lesson run."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.metrics import Spent
from midstream.core.terminal import Terminal
from midstream.core.text import visible
from midstream.evaluation.pairs import Evaluated, Paired, compare
from midstream.lessons.commit import UpdateRecord, Version
from midstream.lessons.gate import ChangeRecord
from midstream.lessons.lesson_set import Effect, Lesson, LessonOrigin, LessonSet
from midstream.lessons.operations import Operation, OperationOutcome
from midstream.report.draw import chosen, draw
from midstream.report.lessons import LessonsData, change_cards, curves, lead, lessons_page
from midstream.report.numbers import short, spent_text, total_fates
from midstream.runs.budget import BudgetConfig
from support.evaluations import Trials, evaluated
from support.lesson_runs import made_up, view
from support.pages import found, keys, made, rows, texts


def page(data: LessonsData) -> dict[str, Any]:
    return made(lessons_page(data))


def with_lesson(lesson: Lesson, **changes: Any) -> LessonsData:
    before = Version(number=1, by="start", lesson_set=LessonSet())
    return view(versions=[before, Version(number=2, update=1, lesson_set=LessonSet(lessons=(lesson,)))], **changes)


def test_the_page_has_the_numbers_of_the_run():
    run = made_up(4)
    whole = page(view(run))
    assert keys(whole) == ["summary", "results", "lessons", "curves", "updates", "cost"]
    lessons, changes = found(whole, "cards")[:2]
    assert {card["text"] for card in lessons["cards"]} == {lesson.text for lesson in run.lesson_set.lessons}
    assert all(card["vote"] for card in lessons["cards"])
    assert not any(card["vote"] for card in changes["cards"])
    assert len(found(whole, "fold", "Update ")) == 4
    for part in ("repeats L1", "refused: ", "5.1 of 4.8", "critic, task t5"):
        assert part in texts(whole), part


def test_every_chart_says_in_words_what_it_shows():
    charts = found(page(view(made_up(4))), "chart")
    assert len(charts) == 5
    assert all(chart["summary"] and chart["x"] == "update" for chart in charts)


def test_a_lesson_shows_the_rollouts_that_it_came_from():
    origin = LessonOrigin(
        update=1, tasks=("t4",), trajectories=("t4#0", "t4#1"), model="gpt-4o-mini", why="t4#1 counted"
    )
    effect = Effect(mean=0.05, interval=(0.01, 0.09), pairs=40, helped=9, harmed=3, alone=False)
    lesson = Lesson(id="L1", text="count twice", origin=origin, used=300, helped=9, harmed=3, effect=effect)
    said = texts(page(with_lesson(lesson)))
    for part in (
        *("gpt-4o-mini, update 1; task t4; rollouts t4#0 t4#1", "t4#1 counted"),
        *(
            "+5.0 (+1.0 to +9.0) points, 40 pairs, measured only together with others",
            "used in 300 rollouts, helped 9, harmed 3",
        ),
        "midstream show runs/made-up 'step-000001/t4#0'",
    ):
        assert part in said, part


def test_a_lesson_from_another_run_names_no_rollout_of_this_run():
    lesson = Lesson(id="L1", text="brought along", origin=LessonOrigin(update=1, tasks=("t4",), trajectories=("t4#0",)))
    start = [Version(number=1, by="start", lesson_set=LessonSet(lessons=(lesson,)))]
    text = texts(page(view(versions=start)))
    assert "rollout t4#0; of another run" in text
    assert "midstream show" not in text


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
    assert keys(whole) == ["summary", "results", "lessons", "curves"]
    assert "No update of the lesson set has finished yet." in whole["lead"]


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
    (more,) = found(whole, "fold", f"{len(run.lesson_set.lessons) - 25} more lessons")
    assert len(more["blocks"][0]["cards"]) == len(run.lesson_set.lessons) - 25


def test_effects_share_an_axis_that_all_of_them_fit_on():
    large = Effect(mean=0.3, interval=(0.25, 0.35), pairs=9)
    (card,) = found(page(with_lesson(Lesson(id="L1", text="count twice", effect=large))), "cards")[0]["cards"]
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
    whole = page(with_lesson(lesson, updates=[record]))
    (card,) = found(whole, "cards")[0]["cards"]
    assert (card["id"], card["text"]) == ("L1", visible(lesson.text))
    (facts, *_) = found(whole, "facts")
    assert ["Left out", visible(f"{text}: {why}")] in facts["facts"]


# --- records ---


def update(step: int, **about: Any) -> UpdateRecord:
    whole = made_up(1).updates[0].model_copy(update={"step": step, "proposed": (), "changes": (), "tests": ()})
    return whole.model_copy(update=about)


def add(text: str, id: str = "L1") -> Operation:
    return Operation(kind="add", id=id, text=text, module="planner")


def test_a_refused_change_has_its_reason():
    record = update(1, proposed=(OperationOutcome(operation=add("again"), refused="repeats L1"),))
    (one,) = change_cards(view(updates=[record]), record)
    assert (one["text"], one["facts"]) == ("again", ["planner", "refused: repeats L1"])


def test_a_rejected_deletion_shows_the_lesson_that_stays_and_a_rejected_change_both_texts():
    lesson_set = LessonSet(lessons=(Lesson(id="L1", text="old"),), next_number=2)
    versions = [Version(number=1, by="start", lesson_set=lesson_set)]
    operations = (Operation(kind="delete", id="L1"), Operation(kind="modify", id="L1", text="new"))
    record = update(1, changes=tuple(ChangeRecord(operation=one, fate="rejected") for one in operations))
    found = change_cards(view(updates=[record], versions=versions), record)
    assert [one["text"] for one in found] == ["old", "new"]
    assert [texts(one["blocks"]) for one in found] == ["", "text\nin place of: old\nsoft"]


def test_a_lesson_that_a_person_edited_keeps_its_rollouts():
    mine = Lesson(id="L1", text="learned here", origin=LessonOrigin(update=1, trajectories=("t1#0",)))
    start = Version(number=1, by="start", lesson_set=LessonSet())
    after = Version(number=2, by="learning", update=1, lesson_set=LessonSet(lessons=(mine,)))
    edited = LessonSet(lessons=(mine.model_copy(update={"text": "by a person"}),))
    said = texts(page(view(versions=[start, after, Version(number=3, by="edit", lesson_set=edited)])))
    assert "rollout t1#0" in said
    assert "of another run" not in said


def test_pending_changes_are_counted_once():
    again = update(1, changes=(ChangeRecord(operation=add("late"), fate="pending"),))
    assert total_fates([again.event.fates, again.event.fates])["pending"] == 1
    assert total_fates([]) == dict.fromkeys(("accepted", "waiting", "rejected", "refused", "pending"), 0)


def test_what_was_spent_is_shown_with_its_limits():
    spent = Spent(rollouts=1500, tokens=2_050_000, cost_usd=0.84)
    assert spent_text(spent) == "1,500 rollouts, 2.05M tokens, $0.8400"
    limits = BudgetConfig(rollouts=2000, tokens=3_000_000, cost_usd=5).limits
    assert spent_text(spent, limits) == "1,500 of 2,000 rollouts, 2.05M of 3M tokens, $0.8400 of $5.00"
    assert spent_text(Spent(rollouts=1, tokens=9999)) == "1 rollout, 9,999 tokens"
    assert [short(count) for count in (9_999, 41_300, 999_400, 999_700)] == ["9,999", "41.3k", "999k", "1M"]


def test_only_what_was_left_out_is_named():
    assert "Left out" not in lead(view(updates=[update(1, uniform=0, broken={})]))
    record = update(1, uniform=3, broken={"t1": "why"}, failed={"t2#0": "gone"}, unreadable=("critic, t5",))
    said = lead(view(updates=[record]))
    assert "Left out: uniform groups 3, failed rollouts 1, broken groups 1, lost replies 1." in said


# --- on the terminal ---


def shown(data: LessonsData, width: int = 80) -> str:
    console = Terminal(file=io.StringIO(), width=width, color_system=None)
    keys = [key for key, _, _ in lessons_page(data)[1]]
    console.print(draw(chosen(lessons_page(data)[1], *keys)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def compared(*pairs: tuple[float | None, float | None]) -> Paired:
    sides = []
    for place, name in enumerate(("no lessons", "with lessons")):
        scores: dict[str, Trials] = {f"t{index}": [pair[place]] for index, pair in enumerate(pairs)}
        result, trajectories = evaluated(scores, policy=name)
        sides.append(Evaluated(name=name, result=result, trajectories=trajectories))
    return compare(*sides)


@pytest.mark.parametrize("updates", [1, 4, 90])
def test_everything_fits_eighty_columns(updates):
    made = made_up(updates, changes=8)
    text = shown(view(made, compared=[compared(*[(0.0, 1.0)] * 9, (None, 1.0))]))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text.replace("…\n", "")


def test_an_update_and_its_tests_are_a_line_each():
    text = shown(view(made_up(4)))
    lines = [line.split() for line in text.splitlines()]
    assert ["3", "2", "0.588", "10/1/1", "7", "3", "4", "0", "4", "1.23M", "$0.6300"] in lines
    assert ["3", "3", "of", "5", "112", "0", "+7.0", "+2.0", "to", "+12.0", "5.1", "of", "4.8", "better"] in lines
    assert "proven for 4f2a81 (qwen2.5-7b-instruct)" in text


def test_long_runs_say_what_is_not_shown():
    assert "the newest 24; 66 earlier are folded below" in shown(view(made_up(90, changes=8)))


def test_without_a_gate_there_are_no_tests_and_it_is_said():
    text = shown(view(made_up(3, gate=False), gated=False))
    assert "Tests of the gate" not in text
    assert "unproven" in text


def test_a_run_at_its_beginning_has_an_empty_lesson_set():
    assert "The lesson set is empty." in shown(view())


def test_the_end_of_a_run_shows_before_and_after_with_the_interval():
    one = compared(*[(0.0, 1.0)] * 12, *[(1.0, 1.0)] * 8)
    text = " ".join(shown(view(made_up(2), compared=[one])).split())
    assert "with lessons 20 100.0% +60.0" in text
    assert "with lessons is better than no lessons by 60.0 points (95% interval" in text


def test_tasks_without_a_result_are_counted_under_the_table():
    text = shown(view(compared=[compared((0.0, 1.0), (None, 1.0))]))
    assert "1 task left out: no result on one side" in " ".join(text.split())
