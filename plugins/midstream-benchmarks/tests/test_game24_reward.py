"""Game of 24: what is a solution, exactly. The hands are our own."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.answers import LONGEST
from midstream.core.errors import RecipeError
from midstream_benchmarks.game24_reward import Game24, solves
from support.errors import coded
from support.rules import value

HAND = [4, 2, 6, 6]

RIGHT = [
    "6*(6-4/2)",
    "6 * (6 - 4 / 2) = 24",
    "6×(6−4÷2)",
    "6 x (6 - 4/2)",
    r"6*(6-\frac42)",
    "((6))*((6)-((4)/2))",
    "6*[6-4/2]",
    "(6-4/2)*6 = 4 * 6 = 24",
    "6*(6-4/2)\n= 24",
    "24 = 6*(6-4/2)",
    "The solution is 6*(6-4/2).",
    "With 4, 2, 6 and 6: 6*(6-4/2) = 24!",
    "Numbers: 4, 2, 6, 6\n6*(6-4/2)",
    "6*(6-4/2) makes 24, for 6 * (6 - 4/2) = 24.",
    "**6×(6−4/2) = 24**",
    "**6×(6−4/2)** = 24",
    "`6*(6-4/2)`",
    "<answer>6*(6-4/2)</answer>",
    r"$6 \times \left(6 - \frac{4}{2}\right) = 24$",
    r"\[6 \cdot (6 - 4 \div 2)\]",
    r"\boxed{6\times(6-\dfrac{4}{2})}",
    r"\boxed{6\times(6-4/2)=24}",
]
WRONG = [
    None,
    "",
    "24",
    "24 = 24",
    "= 24",
    "there is no solution",
    "6*(6-2)",
    "6*4",
    "6*(6-4/2)+0",
    "6*(6-4/2)*1",
    "6*4*(6-6)+24*2",
    "6+6+4*2",
    "(6+6)*2/4",
    "64-2*20",
    "66-42",
    "26-6/(6-4)",
    "6*(6-4/2) = 25",
    "6*(6-4/2) = 24 = 25",
    "6(6-4/2)",
    "6*((6)-(4)(1/2))",
    "-6*(4/2-6)",
    "6*(6+-4/2)",
    "+6*(6-4/2)",
    "6*(6-4//2)",
    "6*(6-√4)+2-2",
    "√4*6*6/2-12",
    "6*(6-4/2)^1",
    "6*(6-4/2)**1",
    "6*(6-4/2)!",
    "6*(6-4/2)%",
    "6*(6-4/2).5",
    "6*(6-4/2)*",
    "sqrt(6*(6-4/2))",
    "abs (6*(6-4/2))",
    "x*6*(6-4/2)",
    r"\log 6*(6-4/2)",
    "(6*(6-4/2)",
    "6*(6-4/2))",
    "6*(6-4/2]",
    "6*(6-4/2} ",
    "06*(6-4/2)",
    "6.0*(6-4/2)",
    "1,6*(6-4/2)",
    "6*(6-4/2) or 6*6-4*2-4",
    "6*(6-4/2) or 6*6-6",
    "6*(6-4/2) > 24",
    "6*(6-4/2) fails",
    "4/2=2, 6-2=4, 6*4=24",
    "6*6/(4-2-2)",
    "６*(6-4/2)",
    "٦*(6-4/2)",
    "six*(6-4/2)",
    "6*(6-4/2" + ")" * 5,
]
HOSTILE = [
    "2**99999**99999",
    "9" * 100_000 + "*1",
    "9" * 10_000 + "*1",
    "(" * 10_000 + "6" + ")" * 10_000,
    "(" * 200 + "6*(6-4/2)" + ")" * 200,
    "1+" * 5_000 + "1",
    "=" * 15_000,
    "6*6 " * 4_000,
    "\\frac{" * 2_000,
    "\\boxed{" * 2_500,
    " " * 15_000 + "*",
    "6 x " * 4_000,
    "__import__('os').system('true')",
    "(lambda: 24)()",
    "6*(6-4/2)" + ", so" * LONGEST,
]


@pytest.mark.parametrize("answer", RIGHT)
def test_right(answer):
    assert value(Game24(), answer, "?", numbers=HAND) == 1.0
    assert value(Game24(), answer, "?", numbers=[4, 2, 6, 7]) == 0.0


@pytest.mark.parametrize("answer", WRONG)
def test_wrong(answer):
    assert value(Game24(), answer, "?", numbers=HAND) == 0.0


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: answer[:12])
def test_hostile(answer):
    assert value(Game24(), answer, "?", numbers=HAND) == 0.0


def test_values_are_exact():
    assert solves("8/(3-8/3)", [3, 3, 8, 8])
    assert solves(r"\frac{8}{3-\frac{8}{3}}", [8, 3, 8, 3])
    assert not solves("24+1/999999-1/999998", [24, 1, 999999, 1, 999998])
    assert not solves("1/0*24", [1, 0, 24])


def test_every_number_counts_as_often_as_it_is_given():
    assert solves("(1+1+1)*8", [1, 1, 1, 8])
    assert not solves("(1+1+1)*8", [1, 1, 8])
    assert not solves("(1+1+1)*8", [1, 1, 1, 1, 8])
    assert not solves("12*2", [1, 2, 2])


@st.composite
def trees(draw, depth=3):
    """(text with every bracket, value or None, numbers) of a random expression."""
    if depth == 0 or draw(st.booleans()):
        number = draw(st.integers(min_value=1, max_value=13))
        return str(number), Fraction(number), [number]
    sign = draw(st.sampled_from("+-*/"))
    (left, a, some), (right, b, more) = draw(trees(depth=depth - 1)), draw(trees(depth=depth - 1))
    result = None
    if a is not None and b is not None and not (sign == "/" and b == 0):
        result = {"+": a + b, "-": a - b, "*": a * b, "/": a / (b or 1)}[sign]
    return f"({left} {sign} {right})", result, some + more


@given(trees())
def test_a_random_expression_is_right_where_its_value_is(tree):
    """With what is missing to 24 added, and given, it must be accepted; off by one, it must not."""
    text, result, numbers = tree
    if result is None:
        assert not solves(f"{text}*1", [*numbers, 1])
        return
    rest = 24 - result
    above, below = abs(rest.numerator), rest.denominator
    if max(above, below) < 1_000_000:
        sign = "+" if rest >= 0 else "-"
        assert solves(f"{text} {sign} {above}/{below}", [*numbers, above, below])
        assert not solves(f"{text} {sign} {above}/{below}", [*numbers, above, below + 1])
        assert not solves(f"{text} {sign} {above + 1}/{below}", [*numbers, above + 1, below])


@pytest.mark.parametrize("numbers", [None, [], "4266", [4, 2, 6, "6"], [4, 2, 6.0, 6], [True, 2, 6, 6]])
def test_a_task_without_its_numbers_is_named(numbers):
    with pytest.raises(RecipeError, check=coded("task-unfit", "'t'")):
        value(Game24(), "6*(6-4/2)", "?", numbers=numbers)
