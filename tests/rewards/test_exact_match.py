"""What counts as the same answer, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.rewards.exact_match import F1, ExactMatch, f1
from support.rules import value


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("112", "112"),
        ("112.", "112"),
        ("the 112", "112"),
        ("1,000", "1000"),
        ("$5.00", "5.00"),
        (" New\n york ", "The new  York!"),
        ("-5", "-5"),
        ("−5", "-5"),
        ("+5", "5"),
        ("ÉCOLE", "école"),
        ("COVID-19", "covid19"),
        ("March 29,  2018", "March 29 2018"),
        ("U.S.", "us"),
        ("+", "+"),
        ("an", "The"),
    ],
)
def test_what_does_not_matter(answer, gold):
    assert value(ExactMatch(), answer, gold) == 1.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("113", "112"),
        ("1 12", "112"),
        ("-5", "5"),
        ("- 5", "5"),
        ("-$5", "$5"),
        ("3.14", "314"),
        ("1,000.0", "10000"),
        ("1e-5", "1e5"),
        ("1990-1995", "19901995"),
        ("12:30", "1230"),
        ("1/2", "12"),
        ("1/2", "1:2"),
        ("5 - 3", "5 + 3"),
        ("-5 degrees", "5 degrees"),
        ("well-known", "well known"),
        ("+", "-"),
        ("", "a"),
        ("!", "the"),
        ("", "+"),
        ("one", "1"),
    ],
)
def test_what_does(answer, gold):
    assert value(ExactMatch(), answer, gold) == 0.0


def test_any_accepted_answer_counts():
    assert value(ExactMatch(), "nyc", "New York City", "NYC") == 1.0
    assert value(ExactMatch(), "york", "New York City", "NYC") == 0.0


def test_no_answer_is_wrong_even_where_gold_is_empty():
    assert value(ExactMatch(), None, "") == value(ExactMatch(), "", "") == 0.0
    assert value(ExactMatch(), None, "112") == value(ExactMatch(), " \n", "112") == 0.0


def test_of_a_list_of_guesses_the_last_counts():
    assert value(ExactMatch(), "<answer>Rome</answer>" * 11 + "<answer>Paris</answer>", "Paris") == 1.0
    assert value(ExactMatch(), "<answer>Paris</answer>" * 11 + "<answer>Rome</answer>", "Paris") == 0.0


# --- F1 over words ---------------------------------------------------------------------------------------------------

WORDS = st.lists(st.sampled_from(["the", "red", "house", "yes", "no", "5", "-5", "1,000"]), max_size=5).map(" ".join)


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("the red house", "red house", 1.0),
        ("house red", "red house", 1.0),
        ("red red house", "red house", 0.8),
        ("blue", "red house", 0.0),
        ("-5", "5", 0.0),
        ("-5 degrees", "5 degrees", 0.5),
        ("1,000 men", "1000 men", 1.0),
        ("yes it is", "yes", 0.0),
        ("yes", "yes it is", 0.0),
        ("Yes.", "yes", 1.0),
        ("", "", 0.0),
    ],
)
def test_values(answer, gold, expected):
    assert value(F1(), answer, gold) == pytest.approx(expected)


def test_the_best_accepted_answer_counts():
    assert value(F1(), "red house", "blue boat", "house", "red barn") == pytest.approx(2 / 3)
    assert value(F1(), None, "house") == 0.0


@given(WORDS, WORDS)
def test_it_is_symmetric_and_one_for_the_same_words_alone(one, other):
    assert f1(one, other) == f1(other, one)
    assert 0.0 <= f1(one, other) <= 1.0
    assert (f1(one, one) == 1.0) == bool(one.replace("the", "").strip())
