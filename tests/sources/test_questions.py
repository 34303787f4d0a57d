"""The parts of tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.text import last_box
from midstream.sources.questions import Fields, as_text, as_texts, by_letter, letter_of, make_task, whole
from midstream.sources.records import BadRowError


def test_a_task_lists_its_options_and_its_instruction_below_the_question():
    fields = Fields(question="Which?", answer="B", options={"A": "oak", "B": "elm"}, metadata={"line": 3})
    task = make_task(fields, prefix="trees", reward="multiple_choice", family="easy", instruction="Give a letter.")
    assert task.question == "Which?\nA. oak\nB. elm\nGive a letter."
    assert (task.answers, task.family, task.reward) == (("B", "elm"), "easy", "multiple_choice")
    assert task.metadata == {"line": 3, "options": {"A": "oak", "B": "elm"}}
    assert task.id.startswith("trees-")


def test_an_option_that_reads_as_another_letter_is_no_alias():
    fields = Fields(question="Which blood group?", answer="B", options={"A": "0", "B": "A"})
    assert make_task(fields, prefix="x", reward="multiple_choice").answers == ("B",)


def made(question="a", answer="A", instruction="", **options):
    return make_task(
        Fields(question=question, answer=answer, options=options), prefix="x", reward="", instruction=instruction
    )


def test_ids_follow_what_is_asked_and_nothing_else():
    assert made().id == made(answer="B").id == made(instruction="Briefly.").id != made("b").id
    assert made(A="oak", B="elm").id == made(A="elm", B="oak").id
    assert len({made().id, made(A="oak", B="elm").id, made(A="oak", B="ash").id}) == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (3.5, "3.5"), (False, "false"), (True, "true"), (" a b ", "a b"), (10**30, "1" + "0" * 30)],
)
def test_answers_as_text(value, text):
    assert as_text(value, "answer") == text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "missing or null"),
        ("", "is empty"),
        (" \n", "is empty"),
        ({"a": 1}, "must be text or a number"),
        (["a"], "must be"),
    ],
)
def test_what_is_no_answer(value, reason):
    with pytest.raises(BadRowError, match=reason):
        as_text(value, "answer")


def test_lists_of_answers():
    assert as_texts(["a", 1], "answer") == ["a", "1"]
    assert as_texts("a", "answer") == ["a"]
    for value in ([], ["a", None], [""]):
        with pytest.raises(BadRowError):
            as_texts(value, "answer")


@pytest.mark.parametrize(
    "options", [["oak", "elm"], ["A. oak", "B. elm"], ["(A) oak", "(B) elm"], {"A": "oak", "B": "elm", "C": None}]
)
def test_options_by_letter(options):
    assert by_letter(options) == {"A": "oak", "B": "elm"}


def test_a_list_that_only_begins_with_letters_keeps_them():
    assert by_letter(["A. oak", "elm"]) == {"A": "A. oak", "B": "elm"}


@pytest.mark.parametrize(
    "options", [["oak"], "oak", {"1": "oak", "2": "elm"}, {"A": "oak"}, ["x"] * 27, ["oak", ""], 7]
)
def test_what_are_no_options(options):
    with pytest.raises(BadRowError):
        by_letter(options)


OPTIONS = {"A": "5", "B": "B", "C": "five", "D": "five"}


@pytest.mark.parametrize(
    ("answer", "letter"), [("A", "A"), ("5", "A"), ("B", "B"), ("A. 5", "A"), ("D. five", "D"), ("C", "C")]
)
def test_the_letter_of_an_answer(answer, letter):
    assert letter_of(answer, OPTIONS) == letter


@pytest.mark.parametrize(
    ("answer", "how"), [("five", "more than one"), ("six", "not one"), ("E", "not one"), ("A. five", "not one")]
)
def test_answers_that_are_no_option(answer, how):
    with pytest.raises(BadRowError, match=how):
        letter_of(answer, OPTIONS)


def test_a_letter_that_is_another_options_text_is_refused():
    with pytest.raises(BadRowError, match="more than one"):
        letter_of("A", {"A": "0", "B": "A"})


@pytest.mark.parametrize(
    ("value", "text"),
    [("033", "33"), (27.0, "27"), ("000", "0"), (142, "142"), ("1/2", "1/2"), ("-3", "-3"), ("2.50", "2.50")],
)
def test_whole_numbers(value, text):
    assert whole(value, "answer") == text


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so \boxed{12}.", "12"),
        (r"first \boxed{1}, then \boxed{\frac{1}{2}} is it", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"no box", ""),
        (r"\boxed{}", ""),
        (r"\boxed{1", ""),
    ],
)
def test_boxed_answers(solution, answer):
    assert last_box(solution) == answer


@given(
    inner=st.text("ab{}", max_size=12).filter(lambda text: text.strip() and balanced(text)),
    around=st.text("xy ", max_size=5),
)
def test_what_is_boxed_comes_out(inner, around):
    assert last_box(f"{around}\\boxed{{{inner}}}{around}") == inner.strip()


def balanced(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth < 0:
            return False
    return depth == 0
