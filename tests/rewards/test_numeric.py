"""Numbers in answers: what is read, and what is refused."""

from __future__ import annotations

import asyncio
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.rewards.numeric import Numeric, NumericConfig, number_of
from midstream.rewards.statement import state
from support.errors import coded
from support.rules import value


def read(text: str) -> Fraction | None:
    """The number that a text states."""
    number = number_of(state(text).formula)
    return number.value if number else None


READ = {
    "$1,000": 1000,
    "42%": 42,
    "1/2": Fraction(1, 2),
    "-1/2": Fraction(-1, 2),
    ".5": Fraction(1, 2),
    "3.5e4": 35000,
    "3.5 × 10^4": 35000,
    r"3.5 \times 10^{-1}": Fraction(7, 20),
    "1.5 million": 1_500_000,
    "5 km": 5,
    "42°C": 42,
    "−5": -5,
    "- 5": -5,
    "-$5": -5,
    "The answer is 42.": 42,
    "**42**": 42,
    r"\boxed{42}": 42,
    "The result is 415 ppm": 415,
    "6*7=42": 42,
    "6 * 7 = 42 km": 42,
    "45 + 17 = 62": 62,
    "The answer is 62.": 62,
    "The final answer is $.5$.": Fraction(1, 2),
    "**Final Answer:** .5": Fraction(1, 2),
    r"$\mathbf{\frac{3}{4}}$": Fraction(3, 4),
    r"\boxed{11,\! 111,\! 111,\! 100}": 11_111_111_100,
    r"$\boxed{28}$ pct": 28,
    "10 - 5 = 5": 5,
    "2+2 = 3+1 = 4": 4,
    "x = 1,000": 1000,
    "There are 5.\nSo the answer is 2": 2,
    "42, that is 42": 42,
    "twelve": 12,
    "1 000": 1000,
    "1 1/2": Fraction(3, 2),
}
REFUSED = [
    "",
    "5 is wrong",
    "It can't be 42.",
    "I ruled out 42.",
    "I doubt that the answer is 42.",
    "42 nie",
    "42 неверно",
    "before 1984",
    "after 1984",
    "3,14",
    "1.000,5",
    "1,00,000",
    "1/0",
    "12:30",
    "1/2/2024",
    "3.14.15",
    "41 or 42",
    "5-7",
    "5 * 5",
    "x = 41, y = 42",
    "= 42 or 43",
    "40 + 2 = 42, of which 3 are red",
    "x >= 42",
    "42 ± 1",
    "٤٢",
    "４２",
    "9" * 201,
    "1e9999",
]


@pytest.mark.parametrize("text", READ)
def test_read(text):
    assert read(text) == READ[text]


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:30])
def test_refused(text):
    assert read(text) is None


@given(st.fractions(max_denominator=10_000))
def test_every_fraction_reads_as_itself(number):
    assert read(str(number)) == number
    assert read(f"{number.numerator:,} m") == number.numerator


def test_tolerances_are_shares_of_gold_or_absolute():
    assert value(Numeric(), "3.14", "3.140") == 1.0
    assert value(Numeric(), "3.14", "3.141") == 0.0
    relative, absolute = (
        Numeric(NumericConfig(relative_tolerance=0.125)),
        Numeric(NumericConfig(absolute_tolerance=0.5)),
    )
    assert [value(relative, one, "-8") for one in ("-9", "-7", "-9.01", "-6.99", "8")] == [1, 1, 0, 0, 0]
    assert [value(absolute, one, "8") for one in ("8.5", "7.5", "8.51")] == [1, 1, 0]
    assert value(relative, "0.001", "0") == 0.0


@pytest.mark.parametrize("bad", [-0.1, float("inf"), float("nan")])
def test_impossible_tolerances_are_refused(bad):
    with pytest.raises(ValidationError):
        NumericConfig(relative_tolerance=bad)


def test_any_accepted_number_counts_and_units_do_not():
    assert value(Numeric(), "5 miles", "five", "5 km") == 1.0
    assert value(Numeric(), None, "5") == value(Numeric(), "<answer></answer>", "5") == 0.0


def test_words_of_the_question_may_stand_around_a_number():
    task = Task(id="t", question="Half of the 84 sheep were sold before 1984. How many sheep were sold?", answer="42")
    answers = ("42 sheep", "So 42 sheep were sold.", "42 goats", "half of 42", "before 42", "Not 42 sheep")
    found = [Trajectory(id="t#0", task_id="t", answer=answer) for answer in answers]
    assert [asyncio.run(Numeric().score(task, one)).value for one in found] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("answer", "gold"), [("0,5", "0.5"), ("3,14", "3.14"), ("3.14", "3,14"), ("1,5", "3/2")])
def test_a_decimal_comma_is_read_where_it_is_no_thousands_separator(answer, gold):
    assert value(Numeric(), answer, gold) == 1.0
    assert value(Numeric(), "1,000", "1") == value(Numeric(), "5,5", "5") == 0.0


def test_a_share_is_a_percentage_unless_the_question_asks_for_percent():
    task = Task(id="t", question="What percent?", answer="42%")
    given = [Trajectory(id="t#0", task_id="t", answer=answer) for answer in ("0.42", "42", "42%", "21/50")]
    assert [asyncio.run(Numeric().score(task, one)).value for one in given] == [0.0, 1.0, 1.0, 0.0]


def test_a_gold_answer_that_is_no_number_is_named():
    with pytest.raises(RecipeError, check=coded("task-unfit", "'t'", "'Paris'")):
        value(Numeric(), "5", "Paris")
