"""Lessons and lesson sets in blocks."""

from __future__ import annotations

import io

from midstream.core.terminal import Terminal
from midstream.lessons.lesson_set import Effect, Lesson, LessonSet
from midstream.report import blocks
from midstream.report.draw import draw
from midstream.report.lesson_set import lesson_card, lesson_set_blocks, points


def shown(found, width: int = 120) -> str:
    console = Terminal(file=io.StringIO(), width=width, color_system=None)
    console.print(draw(found))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_lessons_have_their_effect_and_are_never_markup():
    lessons = (
        Lesson(id="L1", text="unmeasured [red]x[/red] \x1b[2J", state="pinned"),
        Lesson(id="L2", text="small", effect=Effect(mean=0.01, interval=(-0.02, 0.04), pairs=9, alone=False)),
        Lesson(id="L3", text="large", effect=Effect(mean=0.2, interval=(0.1, 0.3), pairs=9)),
    )
    text = shown([blocks.cards([lesson_card(lesson, 0.3) for lesson in lessons])])
    assert "[red]x[/red]" in text
    assert "\x1b" not in text
    assert "+1.0 (-2.0 to +4.0) points, 9 pairs, measured only together with others" in text
    assert "planner, pinned" in text


def test_a_vetoed_lesson_is_shown_as_such():
    lesson_set = LessonSet(lessons=(Lesson(id="L1", text="trust it", state="vetoed"),))
    text = shown(lesson_set_blocks("mine", lesson_set))
    assert "vetoed" in text
    assert "empty" in text
    assert lesson_card(lesson_set.lessons[0], 0.1)["struck"]


def test_a_lesson_set_without_lessons_says_so():
    assert "no lessons" in shown(lesson_set_blocks("mine", LessonSet()))


def test_an_effect_is_in_points():
    assert points(Effect(mean=0.031, interval=(-0.019, 0.081), pairs=9)) == "+3.1 (-1.9 to +8.1)"
