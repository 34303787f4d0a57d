"""GAIA's scorer, besides the cases in test_golden_qa.py."""

from __future__ import annotations

import pytest

from midstream_benchmarks.gaia import Gaia
from support.rules import value


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("New York", "newyork"),
        ("St. Petersburg", "st petersburg"),
        ("$1,234.50", "1234.5"),
        ("-3", "-3.0"),
        ("1e3", "1000"),
        ("A, b;3.0", "a,B,3"),
        ("b", "B"),
        ("+", " + "),
        ("inf", "inf"),
        ("0.1", "0.10"),
    ],
)
def test_right(answer, gold):
    assert value(Gaia(), answer, gold) == 1.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("the boat", "boat"),
        ("5 km", "5"),
        ("five", "5"),
        ("-3", "3"),
        ("b, a", "a, b"),
        ("a, b, c", "a, b"),
        ("a. b", "a, b"),
        ("a., b", "a, b"),
        ("1000", "1,000"),
        ("٥", "5"),
        ("1_000", "1000"),
        ("five", "inf"),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("-", "+"),
        ("", "x"),
        ("", ""),
        (None, "x"),
    ],
)
def test_wrong(answer, gold):
    assert value(Gaia(), answer, gold) == 0.0
