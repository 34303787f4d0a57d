"""Tables of a study: the mean of every number over seeds, with its interval."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.terminal import Terminal
from midstream.report.draw import draw
from midstream_extra.study_tables import StudyRow, study_blocks, t_interval


def shown(rows: list[StudyRow], head: str = "control", width: int = 80) -> str:
    console = Terminal(file=io.StringIO(), width=width, force_terminal=False)
    console.print(draw(study_blocks(rows, head, "A study")))
    return console.file.getvalue()  # type: ignore[attr-defined]


def cells(text: str, name: str) -> list[str]:
    return next(line for line in text.splitlines() if line.strip().startswith(name)).split(name, 1)[1].split()


def tokens(step: int, *values: float) -> StudyRow:
    return StudyRow(name=str(step), metric="tokens", values=values, as_percent=False)


def test_a_table_shows_mean_and_interval_of_every_arm():
    rows = [
        StudyRow(name="flow-grpo", metric="greedy success", values=(0.68, 0.70, 0.72)),
        StudyRow(name="flow-grpo", metric="sampled success", values=(0.6, 0.6, 0.6)),
        StudyRow(name="shuffled reward", metric="greedy success", values=(0.3,)),
    ]
    text = shown(rows, width=100)
    assert cells(text, "flow-grpo") == ["3", "70.0", "±", "5.0", "60.0", "(all)"]
    assert cells(text, "shuffled reward") == ["1", "30.0", "(one", "seed)", "-"]
    assert "Student t" in text
    assert "every seed has this value" in " ".join(text.split())
    text = shown([StudyRow(name="x", metric="success", values=(0.7, 0.7001))])
    assert cells(text, "x") == ["2", "70.0", "±", "0.1"], "which is at most its half-width"
    assert "this value" not in text


def test_numbers_that_are_no_shares_stand_as_they_are_in_a_table_of_their_own():
    rows = [StudyRow(name="10", metric="reward", values=(0.5, 0.5)), tokens(10, 11.0, 12.0), tokens(20, 9.5)]
    shares, _, numbers = shown(rows, "step").partition("percent, mean")
    assert cells(shares, "10") == ["2", "50.0", "(all)"]
    assert cells(numbers, "10") == ["2", "11.50", "±", "6.35"]
    assert cells(numbers, "20") == ["1", "9.50", "(one", "seed)"]
    assert "percent" not in numbers


@given(st.integers(1, 9), st.integers(1, 4), st.sampled_from(["10", "a planner with a long name"]))
def test_tables_fit_a_terminal_and_leave_no_metric_out(metrics: int, seeds: int, name: str):
    rows = [StudyRow(name=name, metric=f"metric {i}", values=(0.5,) * seeds) for i in range(metrics)]
    text = shown(rows, "planner")
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.count("50.0") == metrics


def test_a_number_that_no_seed_has_is_a_dash():
    rows = [StudyRow(name="a", metric="recovered", values=()), StudyRow(name="a", metric="errors", values=(0.1, 0.1))]
    assert cells(shown(rows), "a") == ["0", "to", "2", "-", "10.0", "(all)"]


def test_t_interval_against_a_worked_example():
    # Three seeds: t(2) = 4.303, standard deviation 0.02, so 4.303 * 0.02 / sqrt(3).
    middle, half = t_interval((0.68, 0.70, 0.72))
    assert middle == pytest.approx(0.70)
    assert half == pytest.approx(0.049687, abs=1e-5)
    assert t_interval((0.5,)) == (0.5, None)
    assert math.isnan(t_interval(())[0])


@given(st.lists(st.floats(0, 1), min_size=2, max_size=60))
def test_t_interval_shrinks_when_every_seed_is_seen_twice(values):
    once, twice = t_interval(values)[1], t_interval(values * 2)[1]
    assert once is not None
    assert twice is not None
    assert twice <= once + 1e-9
