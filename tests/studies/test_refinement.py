"""The statistics of refinement on chains of known probabilities: intervals, closed form, votes, advice."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

import pytest
from studies.refinement import (
    Attempt,
    Estimate,
    RefinementStudy,
    combined,
    estimate,
    expected_accuracy,
    limit_of,
    study_of,
    vote_accuracy,
)

from midstream_extra.dser import Dser

Rates = Callable[[random.Random], tuple[float, float]]  # a task's p and q


def attempt(draw: random.Random, start: float, p: float, q: float, K: int, T: int) -> Attempt:
    chains = []
    for _ in range(K):
        right = draw.random() < start
        states = [("right" if right else "wrong", right)]
        for _ in range(T):
            right = draw.random() >= q if right else draw.random() < p
            states.append(("right" if right else "wrong", right))
        chains.append(states)
    return chains


def study(
    start: float, p: float, q: float, *, tasks: int = 60, K: int = 8, T: int = 4, budget: int = 72, seed: int = 1
) -> RefinementStudy:
    draw = random.Random(seed)
    chains = [[attempt(draw, start, p, q, K, T)] for _ in range(tasks)]
    return study_of(chains, Dser(K=K, T=T), budget=budget, runs=K * (1 + 2 * T))


def changes(chains: Attempt, *, was: bool) -> tuple[int, int]:
    pairs = [(old, new) for chain in chains for (_, old), (_, new) in pairwise(chain) if old == was]
    return sum(old != new for old, new in pairs), len(pairs)


def coverage(
    draw_rates: Rates, truth: tuple[float, float], *, repetitions: int, tasks: int
) -> tuple[float, float, float]:
    """How often the intervals of p, q and the limit hold the truth; each task has 4 chains of 4 rounds."""
    draw, held = random.Random(2), [0, 0, 0]
    for _ in range(repetitions):
        found = []
        for _ in range(tasks):
            p_task, q_task = draw_rates(draw)
            found.append(attempt(draw, 0.4, p_task, q_task, 4, 4))
        p, q = (estimate([changes(chains, was=was) for chains in found]) for was in (False, True))
        both = combined(limit_of, [p], [q])
        for place, (interval, value) in enumerate(
            ((p.interval, truth[0]), (q.interval, truth[1]), (both, limit_of(*truth)))
        ):
            held[place] += interval[0] <= value <= interval[1]
    return held[0] / repetitions, held[1] / repetitions, held[2] / repetitions


def test_95_percent_intervals_hold_the_truth_in_93_to_97_percent_of_1000_repetitions():
    found = coverage(lambda draw: (0.35, 0.1), (0.35, 0.1), repetitions=1000, tasks=60)
    assert all(0.93 <= share <= 0.97 for share in found), found


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [30, 60])
def test_they_hold_it_too_where_tasks_differ(tasks: int):
    """The truth is then the share of all such rounds, of which a task has more the longer it stays wrong or right."""
    draw = random.Random(5)
    counts = {False: [0, 0], True: [0, 0]}

    def rates(draw: random.Random) -> tuple[float, float]:
        return draw.betavariate(2, 3), draw.betavariate(1, 6)

    for _ in range(60_000):
        p, q = rates(draw)
        chains = attempt(draw, 0.4, p, q, 1, 4)
        for was, sums in counts.items():
            for place, count in enumerate(changes(chains, was=was)):
                sums[place] += count
    truth = counts[False][0] / counts[False][1], counts[True][0] / counts[True][1]
    found = coverage(rates, truth, repetitions=1000, tasks=tasks)
    assert all(0.92 <= share <= 0.97 for share in found), found


def test_tasks_that_differ_widen_the_interval():
    alike, differ = estimate([(5, 10)] * 20), estimate([(10, 10), (0, 10)] * 10)
    assert (alike.value, differ.value) == (0.5, 0.5)
    assert alike.design_effect == 1
    assert differ.design_effect == pytest.approx(10 * 20 / 19)
    assert differ.interval[1] - differ.interval[0] > 2.9 * (alike.interval[1] - alike.interval[0])


def test_without_spread_or_trials_the_interval_is_wide():
    assert estimate([(0, 50)] * 4).interval == estimate([(0, 1)] * 4).interval
    assert estimate([]).interval == (0.0, 1.0)
    assert estimate([(0, 0), (0, 0)]) == Estimate(value=0.0, interval=(0.0, 1.0), trials=0)
    assert estimate([(3, 10)]).interval[1] > 0.85  # one task says little of others


@pytest.mark.parametrize(("start", "p", "q"), [(0.4, 0.35, 0.1), (0.9, 0.1, 0.3), (0.2, 0.9, 0.8), (0.5, 0.0, 0.0)])
def test_the_closed_form_is_the_recursion(start: float, p: float, q: float):
    accuracy = start
    for number in range(12):
        assert expected_accuracy(start, p, q, number) == pytest.approx(accuracy)
        accuracy = accuracy * (1 - q) + (1 - accuracy) * p


def test_accuracies_are_the_closed_form_within_their_intervals():
    found = study(0.3, 0.3, 0.1, tasks=100, T=6)
    for each in found.rounds:
        low, high = each.interval
        assert low <= expected_accuracy(0.3, 0.3, 0.1, each.number) <= high
        assert abs(each.expected - each.average) < 0.03
    assert [each.number for each in found.rounds] == list(range(7))
    assert found.limit_interval[0] < 0.75 < found.limit_interval[1]
    assert found.speed == pytest.approx(0.6, abs=0.05)
    assert found.rounds[-1].consensus > found.rounds[-1].average + 0.1


def test_a_vote_of_chains():
    assert vote_accuracy(1, 0.3) == pytest.approx(0.3)
    assert vote_accuracy(3, 0.6) == pytest.approx(0.6**3 + 3 * 0.6**2 * 0.4)
    assert vote_accuracy(2, 0.6) == pytest.approx(0.6)
    assert (vote_accuracy(9, 0.0), vote_accuracy(9, 1.0)) == (0.0, 1.0)
    assert vote_accuracy(1001, 0.55) > 0.99
    draw = random.Random(0)
    drawn = fmean(sum(draw.random() < 0.55 for _ in range(15)) > 7 for _ in range(20_000))
    assert vote_accuracy(15, 0.55) == pytest.approx(drawn, abs=0.01)


def plan_fits(found: RefinementStudy, budget: int) -> bool:
    plan = found.plan
    return plan.agent_runs == plan.K * (1 + 2 * plan.T) <= budget


def test_it_advises_to_refine_where_that_helps():
    found = study(0.4, 0.35, 0.1)
    assert (found.advice, found.plan.T > 0) == ("refine", True)
    assert plan_fits(found, 72)
    assert found.plan.expected > found.votes_only.expected + 0.3
    large = study(0.4, 0.35, 0.1, budget=500)
    assert large.plan.expected > found.plan.expected
    assert plan_fits(large, 500)


def test_the_expected_vote_is_that_of_chains_of_the_plan():
    plan = study(0.4, 0.35, 0.1, tasks=200).plan
    draw = random.Random(3)
    votes = [attempt(draw, 0.4, 0.35, 0.1, plan.K, plan.T) for _ in range(2000)]
    share = fmean(sum(chain[-1][1] for chain in chains) > plan.K / 2 for chains in votes)
    assert plan.expected == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize(
    ("start", "p", "q"),
    [(0.5, 0.1, 0.3), (0.2, 0.2, 0.4), (0.8, 0.3, 0.2)],
    ids=["p < q", "p < q, though the limit is higher", "p > q, but the limit is lower"],
)
def test_it_advises_against_what_does_not_help(start: float, p: float, q: float):
    assert study(start, p, q).advice == "do not refine"


@pytest.mark.slow
def test_a_vote_over_single_runs_may_do_as_well():
    """The limit is hardly above what one run scores, and a vote needs many of them."""
    found = study(0.70, 0.30, 0.10, tasks=800, K=4, T=4, budget=9)
    assert found.gain[0] > 0
    assert found.lift[0] > 0
    assert (found.advice, found.plan.T) == ("do not refine", 0)


@pytest.mark.parametrize(
    ("start", "p", "q", "tasks"), [(0.4, 0.21, 0.2, 5), (1.0, 0.5, 0.0, 20), (0.0, 0.0, 0.5, 20)], ids=str
)
def test_it_is_undecided_where_the_data_leave_it_open(start: float, p: float, q: float, tasks: int):
    found = study(start, p, q, tasks=tasks, K=3, T=2)
    assert found.advice == "undecided"
    assert not math.isnan(found.limit)


def test_stopped_chains_count_for_the_rounds_that_they_have():
    full = [("right", True)] * 3
    cut = [("wrong", False), ("wrong", False)]
    found = study_of([[[full, cut, [], full]]], Dser(K=4, T=2), budget=20, runs=17)
    assert (found.chains, found.cut_short) == (4, 2)
    assert [each.chains for each in found.rounds] == [3, 3, 2]
    assert (found.improvement.trials, found.degradation.trials) == (1, 4)


def test_chains_that_ended_before_their_first_solution_are_cut_short():
    solved = [("right", True)]
    found = study_of([[[solved, solved, solved, []]]], Dser(K=4, T=0), budget=4, runs=3)
    assert (found.chains, found.cut_short, found.start.trials) == (4, 1, 3)
