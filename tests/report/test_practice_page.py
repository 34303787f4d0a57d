"""The report of a practice run."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import StorageError
from midstream.core.metrics import Spent
from midstream.report.html import save_page
from midstream.report.practice_data import PracticeData
from midstream.report.practice_page import (
    fate_bars,
    render_practice,
    summary,
    whisker,
    whisker_span,
)
from midstream.runs.budget import BudgetConfig
from midstream.training_free.commit import Version
from midstream.training_free.gate import ChangeRecord
from midstream.training_free.library import Effect, Lesson, Library, Origin
from midstream.training_free.operations import Operation, Outcome
from support.errors import coded
from support.practice_runs import made_up, rollout, view

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Headings, tags and text of a page; fails on tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
        if "style" not in self.open:
            self.text += data


def page(data: PracticeData) -> Page:
    return Page(render_practice(data))


def with_lesson(lesson: Lesson, **changes: Any) -> PracticeData:
    before = Version(number=1, by="start", library=Library())
    return view(versions=[before, Version(number=2, update=1, library=Library(lessons=(lesson,)))], **changes)


def test_the_page_has_the_whole_story(tmp_path):
    path = tmp_path / "new" / "report.html"
    made = made_up(4)
    save_page(path, render_practice(view(made)))
    found = Page(path.read_text(encoding="utf-8"))
    assert found.headings == [
        *("Results", "The lessons", "Update by update", "Tried and not accepted", "What each update did", "Cost"),
        *("What was counted and left out", "How it was run", "Limits", "What to try next"),
    ]
    for lesson in made.library.lessons:
        assert lesson.text in found.text
    for part in (
        "proven for 4f2a81",
        "repeats L1",
        "no gain was measured",
        "5.1 of 4.8",
        "critic, task t5",
        "One seed.",
    ):
        assert part in found.text, part


def test_pictures_can_be_read_without_seeing_them():
    html = render_practice(view(made_up(4)))
    found = Page(html)
    assert all(attributes.get("aria-label") for tag, attributes in found.tags if tag == "svg")
    assert html.count("<table>") == html.count("<caption>")
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_a_lesson_shows_the_question_and_rollouts_that_it_came_from():
    origin = Origin(update=1, tasks=("t4",), trajectories=("t4#0", "t4#1"), model="gpt-4o-mini", why="t4#1 counted")
    effect = Effect(mean=0.05, interval=(0.01, 0.09), pairs=40, helped=9, harmed=3, alone=False)
    lesson = Lesson(id="L1", text="count twice", origin=origin, used=300, helped=9, harmed=3, effect=effect)
    sources = {(1, f"t4#{index}"): rollout("t4", index, 1) for index in range(2)}
    said = " ".join(page(with_lesson(lesson, sources=sources)).text.split())
    for part in (
        *("How many towns of district t4", "Correct answer: 41", "t4#1 counted", "gpt-4o-mini", "search → python"),
        *("+5.0 (+1.0 to +9.0), measured only together with others", "in 300 rollouts, helped 9, harmed 3"),
        "midstream show runs/made-up 'step-000001/t4#0'",
    ):
        assert part in said, part


def test_a_lesson_from_another_run_does_not_show_this_runs_rollouts():
    lesson = Lesson(id="L1", text="brought along", origin=Origin(update=1, tasks=("t4",), trajectories=("t4#0",)))
    start = [Version(number=1, by="start", library=Library(lessons=(lesson,)))]
    text = page(view(versions=start, sources={(1, "t4#0"): rollout("t4", 0, 1)})).text
    assert "Rollouts of another run: t4#0" in text
    assert "district t4" not in text


def test_every_update_says_what_it_left_out():
    record = (
        made_up(3)
        .updates[2]
        .model_copy(update={"failed": {"t1#2": "503: overloaded\n  fix: wait"}, "broken": {"t1": "one rollout ended"}})
    )
    text = page(view(updates=[record])).text
    for part in ("t1#2: 503: overloaded", "t1: one rollout ended", "critic, task t5: the reply is no JSON"):
        assert part in text, part


def test_costs_stand_by_phase_and_role_with_their_limits():
    costs = {("learning", ""): Spent(rollouts=500), ("gate", "planner"): Spent(calls=9, tokens=1234, cost_usd=0.5)}
    data = view(made_up(1), costs=costs, budget=BudgetConfig(tokens=5_000_000))
    text = page(data).text
    for part in ("gate", "planner", "1,234", "Limit", "5,000,000"):
        assert part in text, part


def test_a_run_without_any_record_makes_a_page_too():
    found = page(view())
    assert "The library is empty." in found.text
    assert "No update of the library has finished yet." in found.text
    assert "Tried and not accepted" not in found.headings


def test_without_a_gate_the_summary_says_so():
    said = summary(view(made_up(2, gate=False), gated=False, learned_from="rollouts without any grade"))
    assert "It learned from rollouts without any grade." in said
    assert "no gate" in said
    assert "unproven" in said
    assert "not known" in said


def test_a_run_that_ended_early_says_how_far_it_came():
    assert "made 2 of 6 updates" in summary(view(made_up(2), updates_planned=6))
    assert "made 2 updates" in summary(view(made_up(2), updates_planned=2))


def test_a_long_run_stays_folded():
    made = made_up(90, changes=8)
    found = page(view(made))
    shut = [attributes for tag, attributes in found.tags if tag == "details" and "open" not in attributes]
    opened = [attributes for tag, attributes in found.tags if tag == "details" and "open" in attributes]
    assert len(opened) == 1
    assert len(shut) > 90
    assert f"{len(made.library.lessons) - 25} more lessons" in found.text


def test_a_report_that_cannot_be_written_says_why(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, check=coded("write-failed", "report.html")):
        save_page(tmp_path / "file" / "report.html", render_practice(view()))


def test_an_effect_is_drawn_where_it_lies():
    effect = Effect(mean=0.05, interval=(-0.05, 0.1), pairs=9)
    drawn = whisker(effect, 0.1)
    assert 'cx="109.0"' in drawn  # three quarters of the way from -10 to +10 points
    assert 'x1="41.0" x2="143.0"' in drawn
    assert whisker_span([effect]) == 0.1
    assert whisker_span([]) == 0.01


def test_an_effect_beyond_the_scale_is_drawn_at_its_edge():
    assert 'cx="143.0"' in whisker(Effect(mean=0.5, interval=(-0.9, 0.9), pairs=2), 0.1)


def test_bars_stack_to_what_was_proposed():
    html = fate_bars([(1, {"accepted": 2, "rejected": 1}), (2, {"pending": 3})])
    assert html.count("<rect") == 3
    assert "update 1: 2 accepted, 0 pending, 1 rejected, 0 refused" in html
    assert fate_bars([(1, {})]) == '<p class="empty">No change was proposed.</p>'


HOSTILE = st.lists(
    st.sampled_from(["<", ">", "&", '"', "'", "\x1b", "\u202e", "\ud800", "</script>", "<b>", "\n", "]]>", "L1", "é"]),
    max_size=6,
).map("".join)


@given(HOSTILE, HOSTILE, HOSTILE)
def test_hostile_texts_stay_text(text, module, why):
    lesson = Lesson(
        id="L1", text=text, module=module, origin=Origin(update=1, tasks=(text,), trajectories=(why,), why=why)
    )
    operation = Operation(kind="add", id=text, text=text, module=module)
    record = (
        made_up(1)
        .updates[0]
        .model_copy(
            update={
                "proposed": (Outcome(operation=operation, refused=why or "no"),),
                "changes": (ChangeRecord(operation=operation, fate="rejected"),),
                "broken": {text: why},
                "failed": {text: why},
                "unreadable": (why,),
            }
        )
    )
    sources = {(1, why): rollout(text, 0, 1).model_copy(update={"question": text, "answer": why, "id": why})}
    html = render_practice(with_lesson(lesson, updates=[record], sources=sources))
    found = Page(html)
    assert not any(tag in ("script", "b<") for tag, _ in found.tags)
    assert not set("\x1b\u202e\ud800") & set(html)
