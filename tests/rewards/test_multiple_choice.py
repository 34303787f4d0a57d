"""What chooses an option, and what does not."""

from __future__ import annotations

import pytest

from midstream.core.errors import RecipeError
from midstream.rewards.multiple_choice import MultipleChoice, find_choice
from support.errors import coded
from support.rules import value

OPTIONS = {"A": "Hemolytic anaemia", "B": "Oral ulcers", "C": "Colon cancer", "D": "Vitamin B deficiency"}


def chooses(answer, gold, options=None):
    return value(MultipleChoice(), answer, gold, options=OPTIONS if options is None else options)


@pytest.mark.parametrize(
    "answer",
    [
        "B",
        "b",
        "(B)",
        "[B].",
        "**B**",
        r"$\boxed{\text{B}}$",
        "<answer>B</answer>",
        "B. Oral ulcers",
        "(B) oral ulcers",
        "B - Oral ulcers",
        "B Oral ulcers",
        "b. oral ulcers",
        "B, because they are the most likely",
        "B\n\nThe patient has them.",
        "Oral ulcers",
        "oral  ulcers.",
        "The answer is oral ulcers.",
        "The answer is B",
        "the answer is b",
        "Therefore, the best answer is **B. Oral ulcers**.",
        "The answer is B because A and C are rare",
        "Answer: (B)",
        "Option B is right",
        "I ruled out A; so I choose B because C is not likely",
        "I choose B.",
        "B. The patient is young.",
        "I think the answer is A. Let me check.\nAnswer: B",
    ],
)
@pytest.mark.parametrize("gold", ["B", "Oral ulcers", "oral ulcers."])
def test_chosen(answer, gold):
    assert chooses(answer, gold) == 1.0
    assert chooses(answer, "A") == chooses(answer, "C") == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        None,
        "A patient of this age",
        "A Patient",
        "I think so",
        "The answer is A patient with pain",
        "A or B",
        "A, B",
        "A B",
        "(A) (B)",
        "A/B",
        "The answer is A or B",
        "Both A and B",
        "B. Hemolytic anaemia",
        "A. Oral ulcers",
        "not (B)",
        "It is not option B",
        "I would not choose B",
        "I rule out option B",
        "not the answer B",
        "(B) cannot be",
        "(B) isn't it",
        "The answer is not (A)",
        "Hepatitis B",
        "Answer: B cells",
        "Oral ulcers or colon cancer",
        "AB",
        "E",
        "The answer is E",
        "Ａ",
        "It is not option A but option B",  # right for a person: a judge's work
    ],
)
def test_not_chosen(answer):
    assert [chooses(answer, gold) for gold in "ABCD"] == [0.0] * 4


def test_of_several_answers_the_last_counts():
    assert [chooses("The answer is B. No, the answer is A.", gold) for gold in "ABCD"] == [1, 0, 0, 0]


def test_letters_in_option_texts_choose_nothing():
    assert chooses("D. Vitamin B deficiency", "D") == 1.0
    assert chooses("Vitamin B deficiency", "D") == 1.0
    assert chooses("Vitamin B deficiency is likely", "B") == 0.0


def test_options_of_the_same_text_are_all_right():
    same = {"A": "yes", "B": "Yes.", "C": "no"}
    assert [chooses(answer, "A", same) for answer in ("A", "B", "yes", "C", "A or C")] == [1, 1, 1, 0, 0]


def test_numbers_in_options_are_compared_as_numbers():
    options = {"A": "-5", "B": "5", "C": "3.14", "D": "314"}
    assert [chooses(answer, "B", options) for answer in ("5", "-5", "B. 5", "B. -5", "A. 5")] == [1, 0, 1, 0, 0]
    assert chooses("3.14", "D", options) == 0.0
    assert chooses("B 5 6", "B", options) == 0.0


def test_a_letter_is_a_letter_before_it_is_a_text():
    options = {"A": "B", "B": "x"}
    assert [chooses(answer, "A", options) for answer in ("A", "B", "x", "A. B")] == [1, 0, 0, 1]
    assert [chooses(answer, "B", options) for answer in ("B", "x", "B. x", "A")] == [1, 1, 1, 0]


@pytest.mark.parametrize("options", [{}, ["A"], {"a": "one"}, {"AB": "one"}, {"A": 1}])
def test_a_task_without_proper_options_is_named(options):
    with pytest.raises(RecipeError, check=coded("task-unfit", "'t'")):
        chooses("A", "A", options)


def test_a_gold_answer_that_is_no_option_is_named():
    with pytest.raises(RecipeError, check=coded("task-unfit", "'t'", "'E'", "A, B, C, D")):
        chooses("A", "E")


@pytest.mark.matrix(3)
@pytest.mark.parametrize("part", ["A", "A, ", "(B) ", "if ", "B? ", "answer\n", "is B is ", "if x was ", "⟦", "24 "])
def test_long_answers_take_no_time(part):
    find_choice(part * 7_000 + "B", OPTIONS | {"E": "24"})
