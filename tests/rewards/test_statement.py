"""What a reply states: boxes, conclusions, and values in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.answers import extract
from midstream.rewards.statement import Statement, answer_value, conclusion, in_latex, plain, state, unbox


@given(
    st.lists(st.sampled_from(["<answer>", "</answer>", "<ANSWER>", " ", "Paris", "\\boxed{", "}", "not "]), max_size=9)
)
def test_extracting_twice_is_extracting_once(parts):
    """Agents extract, and rules extract again: another agent may not have."""
    once = unbox(extract("".join(parts)))
    assert unbox(extract(once)) == once


@pytest.mark.parametrize(
    ("answer", "inside"),
    [
        (r"\boxed{Paris}", "Paris"),
        (r"It is $\boxed{\text{Paris}}$.", r"\text{Paris}"),
        (r"\boxed{5}, so \boxed{5}", "5"),
        (r"\boxed{5}, so \boxed{6}", "5, 6"),
        (r"\boxed{5}. Wait: \boxed{6}", "6"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{Paris}, the capital of France", "Paris"),
        (r"\boxed{5}\%", "5%"),
        (r"\boxed{5}. The answer is 6", r"\boxed{5}. The answer is 6"),
        (r"I don't know, but \boxed{5}", "5"),
        (r"It is not \boxed{5}", r"It is not \boxed{5}"),
        (r"\boxed{5} is wrong", r"\boxed{5} is wrong"),
        (r"\boxed{}", r"\boxed{}"),
        (r"\boxed{5", r"\boxed{5"),
    ],
)
def test_unboxed(answer, inside):
    assert unbox(answer) == inside


def test_answers_mean_the_same_where_their_words_do():
    for left, right in [("The 1,000 m", "1000 M."), ("so: <answer>7</answer>", "7"), ("−5", "- 5"), ("?!", "?!")]:
        assert answer_value(left) == answer_value(right)
    for left, right in [("-5", "5"), ("7", "8"), ("?!", "!?"), ("<answer></answer>", "7")]:
        assert answer_value(left) != answer_value(right)


@pytest.mark.parametrize(
    ("reply", "read", "result"),
    [
        (r"It is $\boxed{\text{Paris}}$.", unbox, r"\text{Paris}"),
        ("**L’Aquila**, I’m sure", plain, "L'Aquila, I'm sure"),
        ("So the answer is: Paris", conclusion, "Paris"),
        ("**5½ × 2**", in_latex, r" 5 \frac{1}{2} \times 2 "),
        ("2 of 5 are gone.\nSo 3 km are left.", state, Statement("So 3 km are left", "3", bare=False)),
        ("The answer is half of 5.", state, Statement("half of 5", "", bare=False)),
    ],
)
def test_the_table_of_the_module(reply, read, result):
    assert read(reply) == result


def test_long_replies_take_no_time():
    for part in ("*", "\\", "\\boxed{", "\\boxed{5} ", "not ", ". answer ", ". ", "{", "{}", "\\boxed{{", "\\boxed 5"):
        conclusion(plain(unbox(part * 50_000)))
