"""Which answers are the same in a vote, by the kind of question."""

from __future__ import annotations

import pytest

from midstream.rewards.votes import answer_key

CHOICE = "Which of these is a sign?\nA. Oral ulcers\nB. Rash\nC. Fever"


@pytest.mark.parametrize(
    ("question", "same"),
    [
        ("How much?", ["62", "62.0", "$62$", "The answer is 62.", "\\boxed{62}", "<answer>62</answer>"]),
        ("How much?", ["1/2", "0.5", "\\frac{1}{2}", ".50"]),
        ("How much?", ["1,000", "1000"]),
        ("Solve it.", ["x^2 + 1", "$x^2+1$"]),
        ("Who?", ["Paris", "paris.", "the Paris"]),
        (CHOICE, ["B", "(b)", "The answer is B", "Rash"]),
    ],
)
def test_the_same_answers_have_one_key(question: str, same: list[str]):
    assert len({answer_key(question, answer) for answer in same}) == 1


@pytest.mark.parametrize(
    ("question", "others"),
    [
        ("How much?", ["5", "-5", "50%", "0.5", "42 apples", "42 pears", "half of 5"]),
        ("Who?", ["Apollo 11", "Apollo 13", "Apollo", "11"]),
        (CHOICE, ["A", "B", "C", "none"]),
    ],
)
def test_other_answers_have_other_keys(question: str, others: list[str]):
    keys = [answer_key(question, answer) for answer in others]
    assert None not in keys
    assert len(set(keys)) == len(others)


@pytest.mark.parametrize("answer", [None, "", "  "])
def test_no_answer_has_no_vote(answer: str | None):
    assert answer_key("How much?", answer) is None
