"""A practice run on the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import RenderableType

from midstream.core.terminal import Terminal
from midstream.evaluation.pairs import Evaluated, Paired, compare
from midstream.report import practice_tables
from midstream.report.practice_data import verdict
from midstream.training_free.commit import Version
from midstream.training_free.library import Effect, Lesson, Library
from support.evaluations import Trials, evaluated
from support.practice_runs import made_up, view


def shown(what: RenderableType, width: int = 80) -> str:
    console = Terminal(file=io.StringIO(), width=width, color_system=None)
    console.print(what)
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
    text = shown(practice_tables.practice_view(view(made, compared=[compared(*[(0.0, 1.0)] * 9, (None, 1.0))])))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text.replace("…\n", "")


def test_an_update_and_its_tests_are_a_line_each():
    text = shown(practice_tables.practice_view(view(made_up(4))))
    lines = [line.split() for line in text.splitlines()]
    assert ["3", "2", "0.588", "10/1/1", "7", "3", "4", "0", "4", "1.23M", "$0.6300"] in lines
    assert ["3", "3", "of", "5", "112", "0", "+7.0", "+2.0", "to", "+12.0", "5.1", "of", "4.8", "better"] in lines
    assert "8 accepted, 9 rejected, 8 refused, 3 pending" in text
    assert "proven for 4f2a81 (qwen2.5-7b-instruct)" in text


def test_long_runs_say_what_is_not_shown():
    text = shown(practice_tables.practice_view(view(made_up(90, changes=8))))
    assert "66 earlier lines: see the report" in " ".join(text.split())
    assert "more: midstream library show, or the report" in " ".join(text.split())


def test_without_a_gate_there_are_no_tests_and_it_is_said():
    text = shown(practice_tables.practice_view(view(made_up(3, gate=False), gated=False)))
    assert "Tests of the gate" not in text
    assert "no gate: accepted without a test" in " ".join(text.split())
    assert "unproven" in text
    assert "effect" not in text  # nothing was measured


def test_a_run_at_its_beginning_has_an_empty_library():
    text = shown(practice_tables.practice_view(view()))
    assert "0 of 1 at most" in text
    assert "The library is empty." in text


def test_lessons_stand_by_their_effect_and_are_never_markup():
    lessons = (
        Lesson(id="L1", text="unmeasured [red]x[/red] \x1b[2J", state="pinned"),
        Lesson(id="L2", text="small", effect=Effect(mean=0.01, interval=(-0.02, 0.04), pairs=9, alone=False)),
        Lesson(id="L3", text="large", effect=Effect(mean=0.2, interval=(0.1, 0.3), pairs=9)),
    )
    text = shown(practice_tables.lesson_table(Library(lessons=lessons)), 120)
    assert text.index("large") < text.index("small") < text.index("unmeasured")
    assert "[red]x[/red]" in text
    assert "\x1b" not in text
    assert "+1.0 (-2.0 to +4.0) *" in text
    assert "planner, pinned" in text


def test_the_end_of_a_run_shows_before_and_after_with_the_interval():
    one = compared(*[(0.0, 1.0)] * 12, *[(1.0, 1.0)] * 8)
    text = " ".join(shown(practice_tables.result_view(view(made_up(2), compared=[one]))).split())
    assert "40.0% 100.0% +60.0" in text
    assert verdict(one) in text
    assert "with lessons the agent is better (+60.0 points, 95% interval" in text
    assert "700 rollouts, 820k tokens, $0.4200" in text


def test_there_is_a_verdict_for_every_outcome():
    assert "no evidence that the lessons changed anything" in verdict(compared((0.0, 1.0), (1.0, 0.0)))
    assert "the agent is worse (-" in verdict(compared(*[(1.0, 0.0)] * 20))
    same = compared(*[(1.0, 1.0)] * 5)
    assert verdict(same).endswith("every turn of every task is the same")


def test_tasks_without_a_result_are_counted_under_the_table():
    text = shown(practice_tables.paired_table([compared((0.0, 1.0), (None, 1.0))]))
    assert "held-out: 1 task left out, without a result on one side" in " ".join(text.split())


def test_a_vetoed_lesson_is_shown_as_such():
    library = Library(lessons=(Lesson(id="L1", text="trust it", state="vetoed"),))
    text = shown(practice_tables.practice_view(view(versions=[Version(number=1, library=library)])))
    assert "vetoed" in text
    assert "0 lessons, empty" in text
