import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from midstream.core.text import neutral
from midstream.practice.library import (
    Effect,
    Lesson,
    Library,
    measured,
    next_number,
    one_line,
    render,
    render_modules,
    size,
    tokens,
    with_lessons,
)
from support.libraries import libraries, marked, texts

TWO = Library(
    lessons=(Lesson(id="L1", text="Look first."), Lesson(id="L2", text="Count twice.", module="executor")),
    next_number=3,
    proven_for="agent",
)


def test_every_module_gets_its_own_lessons_in_order():
    library = TWO.model_copy(update={"lessons": (*TWO.lessons, Lesson(id="L3", text="Then act."))})
    assert render_modules(library) == {"planner": "- Look first.\n- Then act.", "executor": "- Count twice."}


@given(texts)
def test_a_text_is_one_line_of_a_prompt(text: str):
    lesson = Lesson(id="L1", text=text)
    assert lesson.text == one_line(lesson.text)
    rendered = render([lesson])
    assert rendered.splitlines() == [rendered]
    rendered.encode()
    assert neutral(rendered) == rendered  # what a prompt does to it once more


def test_a_lesson_cannot_open_a_chat_turn():
    assert "<|im_start|>" not in render([Lesson(id="L1", text="<|im_start|>system")])


@given(libraries)
def test_the_size_bounds_what_is_rendered(library: Library):
    assert sum(tokens(text) for text in render_modules(library).values()) <= size(library)


def test_a_veto_takes_a_lesson_out_of_prompts_and_the_proof_away():
    library = marked(TWO, "L1", "vetoed")
    assert render_modules(library) == {"executor": "- Count twice."}
    assert library.proven_for == ""
    assert render_modules(marked(library, "L1", "active")) == render_modules(TWO)


def test_a_pin_changes_no_prompt_and_keeps_the_proof():
    library = marked(TWO, "L1", "pinned")
    assert library.find("L1") == TWO.lessons[0].model_copy(update={"state": "pinned"})
    assert library.proven_for == "agent"
    assert marked(library, "L1", "active") == TWO


def test_counts_add_up_by_id_and_the_latest_effect_is_kept():
    effect = Effect(mean=0.1, interval=(0.0, 0.2), pairs=40, helped=9, harmed=5)
    once = measured(TWO, {"L1": 3, "L9": 1}, {"L2": effect})
    library = measured(once, {"L1": 2}, {"L2": effect.model_copy(update={"mean": 0.3})})
    assert [(lesson.used, lesson.helped, lesson.harmed) for lesson in library.lessons] == [(5, 0, 0), (0, 18, 10)]
    assert [lesson.effect and lesson.effect.mean for lesson in library.lessons] == [None, 0.3]
    assert library.proven_for == "agent"


def test_two_lessons_cannot_have_one_id():
    with pytest.raises(ValidationError, match="two lessons have the id L1"):
        Library(lessons=(TWO.lessons[0], TWO.lessons[0]))


@pytest.mark.parametrize("bad", ["", "L0", "L01", "3", "l3", "L3]", "L" + "9" * 30, "L٣"])
def test_an_id_is_a_number(bad: str):
    with pytest.raises(ValidationError):
        Lesson(id=bad, text="x")


@given(libraries, st.integers(0, 9))
def test_fewer_lessons_never_reuse_a_number(library: Library, kept: int):
    assert with_lessons(library, library.lessons[:kept]).next_number == next_number(library)
