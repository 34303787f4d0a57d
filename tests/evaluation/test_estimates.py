"""Intervals, pass@k, pass^k and majority@k, against exact values and on simulated agents."""

from __future__ import annotations

import itertools
import math
import random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.trajectory import Score, Trajectory
from midstream.evaluation.estimates import (
    BOOTSTRAP,
    WILSON,
    WILSON_EFFECTIVE,
    bootstrap,
    effective_tasks,
    exact_interval,
    majority,
    mean_interval,
    pass_all,
    pass_at,
    wilson,
)
from support.simulated import coverage, detections

SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=60)


# --- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_bootstrap_of_300_tasks_holds_the_truth_as_often_as_it_says(share):
    assert 0.93 <= coverage(share, 300) <= 0.97


@pytest.mark.parametrize("tasks", [20, 50, 99])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_wilson_below_100_tasks_holds_the_truth_as_often_as_it_says(share, tasks):
    assert 0.93 <= coverage(share, tasks) <= 0.97


@pytest.mark.parametrize(("trials", "correlation"), [(4, 0.1), (4, 0.8)])
def test_trials_of_few_tasks_hold_the_truth_as_often(trials, correlation):
    assert 0.93 <= coverage(0.5, 30, trials=trials, correlation=correlation) <= 0.98


@pytest.mark.matrix(1)
@pytest.mark.parametrize(
    ("tasks", "trials", "correlation"), [(20, 1, 0.0), (20, 4, 0.1), (60, 1, 0.5), (10, 4, 0.8), (5, 1, 0.0)]
)
def test_two_equal_agents_rarely_seem_different(tasks, trials, correlation):
    assert detections(0.5, tasks, trials=trials, correlation=correlation) <= 0.06


def test_a_much_better_agent_is_found():
    assert detections(0.4, 60, better_by=0.4, repetitions=50) > 0.9


@pytest.mark.slow
def test_bootstrap_is_that_of_a_normal_mean_where_there_are_many_tasks():
    values = [random.Random(i).random() for i in range(2000)]
    half = 1.96 * stdev(values) / math.sqrt(len(values))
    low, high = bootstrap(values)
    assert low == pytest.approx(fmean(values) - half, abs=half / 10)
    assert high == pytest.approx(fmean(values) + half, abs=half / 10)
    assert bootstrap(values) == (low, high)
    narrow = bootstrap(values, 0.5)
    assert low < narrow[0] < fmean(values) < narrow[1] < high


def test_methods():
    assert mean_interval([0.0, 1.0] * 50)[1] == BOOTSTRAP
    assert mean_interval([0.0, 1.0] * 49)[1] == WILSON
    assert mean_interval([0.0, 0.5] * 49)[1] == WILSON_EFFECTIVE
    assert mean_interval([0.0] * 5000 + [1.0] * 9) == (wilson(9 / 5009, 5009), WILSON)  # nine are few in any crowd


def test_nothing_right_is_not_certain():
    for tasks in (1, 20, 300):
        (low, high), _ = mean_interval([0.0] * tasks)
        assert low == 0
        assert high == pytest.approx(1.96**2 / (tasks + 1.96**2), abs=1e-4)  # Wilson's own value at 0


def test_wilson_published_values():
    # Newcombe 1998, table I, method 3: 81/263, 15/148, 0/20, 1/29.
    for right, of, low, high in [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611),
                                 (1, 29, 0.0061, 0.1718)]:  # fmt: skip
        assert wilson(right / of, of) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_trials_that_agree_are_worth_no_more_than_one_and_others_more():
    agreeing = [0.0, 1.0] * 20
    assert effective_tasks(agreeing) < 40
    assert effective_tasks([0.25, 0.75] * 20) > 100
    assert effective_tasks([0.5] * 40) == 40


def test_few_values_are_trusted_by_student_and_not_by_gauss():
    values = [0.2, 0.4, 0.4, 0.6, 0.8, 0.6]
    share, quantile = fmean(values), 2.571  # Student's t, five degrees of freedom
    plain = len(values) * share * (1 - share) / stdev(values) ** 2
    assert effective_tasks(values) == pytest.approx(plain * (1.96 / quantile) ** 2, rel=0.02)


@given(SHARES)
def test_an_interval_holds_the_mean_and_stays_in_range(values):
    (low, high), _ = mean_interval(values)
    assert 0 <= low <= fmean(values) + 1e-9
    assert fmean(values) - 1e-9 <= high <= 1
    assert low < high


# --- several trials ---------------------------------------------------------------------------------------------------


def test_pass_at_is_the_mean_over_all_draws_of_k_trials():
    right, trials = [0, 1, 3, 6], 6
    found = pass_at(right, trials)
    assert list(found) == [1, 2, 4, 6]
    for k, value in found.items():
        draws = list(itertools.combinations(range(trials), k))
        exact = fmean(fmean(min(draw) < c for draw in draws) for c in right)
        assert value == pytest.approx(exact)


def test_pass_all_is_the_mean_over_all_draws_of_k_trials():
    right, trials = [0, 1, 3, 6], 6
    found = pass_all(right, trials)
    assert list(found) == [1, 2, 4, 6]
    for k, value in found.items():
        draws = list(itertools.combinations(range(trials), k))
        exact = fmean(fmean(max(draw) < c for draw in draws) for c in right)
        assert value == pytest.approx(exact)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.lists(st.integers(0, n), min_size=1), st.just(n))))
def test_all_of_k_are_right_as_often_as_none_of_k_is_wrong(case):
    right, trials = case
    wrong = pass_at([trials - c for c in right], trials)
    assert pass_all(right, trials) == pytest.approx({k: 1 - value for k, value in wrong.items()})
    assert pass_all(right, trials)[1] == pytest.approx(pass_at(right, trials)[1])


def test_pass_at_names_each_size_once():
    assert list(pass_at([1], 1)) == [1]
    assert list(pass_at([1], 2)) == [1, 2]
    assert list(pass_at([1], 8)) == [1, 2, 4, 8]


def trial(answer: str | None, score: float, status: str = "ok") -> Trajectory:
    return Trajectory.model_validate(
        {"id": "t", "task_id": "t", "answer": answer, "reward": Score(value=score), "status": status}
    )


@pytest.mark.parametrize(
    ("trials", "score"),
    [
        ([("Paris", 1), ("paris.", 1), ("Rome", 0)], 1),
        ([("Paris", 1), ("Rome", 0), ("<answer>Rome</answer>", 0)], 0),
        ([("Paris", 1), (None, 0), (None, 0)], 1),
        ([(None, 0), (None, 0)], 0),
        ([("Paris", 1), ("Rome", 0)], 0.5),
        ([("-5", 1), ("5", 0), ("5", 0)], 0),
        ([("1/2", 1), ("12", 0), ("1/2", 1)], 1),
        ([("1,000", 1), ("1000", 1), ("7", 0)], 1),
        ([("+", 1), ("-", 0), ("-", 0)], 0),
        ([("red hat", 0.5), ("hat", 0.2), ("coat", 1)], pytest.approx(1.7 / 3)),
    ],
)
def test_majority(trials, score):
    assert majority([trial(*one) for one in trials]) == score


def test_a_trial_with_an_error_has_no_vote():
    assert majority([trial("Paris", 1), trial("Rome", 0, "error"), trial("Rome", 0, "error")]) == 1


@pytest.mark.parametrize(
    ("right", "count", "interval"),
    [
        (0, 0, (0.0, 1.0)),
        (0, 10, (0.0, 0.3085)),
        (10, 10, (0.6915, 1.0)),
        (8, 10, (0.4439, 0.9748)),
        (50, 100, (0.3983, 0.6017)),
    ],
)
def test_the_exact_interval_is_that_of_tables(right, count, interval):
    assert exact_interval(right, count) == pytest.approx(interval, abs=1e-4)
