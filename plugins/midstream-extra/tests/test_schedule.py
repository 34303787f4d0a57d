"""Schedules: exact values, numbers as schedules, and bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from midstream.core.tool import RunProgress
from midstream_extra.schedule import Probability, Schedule

probabilities = st.floats(0, 1)
read = TypeAdapter(Probability).validate_python


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("exponential", [0.1, 0.1 + 0.6 / 3, 0.7]),  # (4^(1/2) - 1)/3 is a third
        ("linear", [0.1, 0.4, 0.7]),
        ("success", [0.1 + 0.6 * 0.25] * 3),
    ],
)
def test_values_at_the_ends_and_in_the_middle(shape, values):
    schedule = Schedule(start=0.1, end=0.7, shape=shape)
    found = [schedule.at(RunProgress(step=step, steps=200, success=0.25)) for step in (0, 100, 200)]
    assert found == pytest.approx(values, abs=1e-15)


def test_released_codes_values():
    """ZeroSearch's `dynamic_threshold` with start 0, end 0.5, base 4, 203 steps."""
    schedule = Schedule(start=0.0, end=0.5)
    expected = [0.5 * (4 ** (step / 203) - 1) / 3 for step in range(204)]
    assert [schedule.at(RunProgress(step=step, steps=203)) for step in range(204)] == pytest.approx(expected, abs=1e-15)


@given(probabilities, probabilities, st.integers(0, 300), st.integers(0, 200), probabilities)
def test_every_value_lies_between_the_ends(start, end, step, steps, success):
    for shape in ("exponential", "linear", "success"):
        value = Schedule(start=start, end=end, shape=shape).at(RunProgress(step=step, steps=steps, success=success))
        assert min(start, end) - 1e-12 <= value <= max(start, end) + 1e-12


def test_a_number_is_constant():
    assert read(0.3) == Schedule(start=0.3)
    assert {read(0.3).at(RunProgress(step=step, steps=9)) for step in range(10)} == {0.3}


@pytest.mark.parametrize("wrong", [1.5, -0.1, True, "often", {"start": 0, "end": 2}, {"shape": "cosine"}])
def test_wrong_values_are_refused(wrong):
    with pytest.raises(ValidationError):
        read(wrong)
