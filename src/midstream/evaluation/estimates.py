"""Confidence intervals of scores, and scores over several trials of a task. Pure Python: the base install has no numpy.

A score is a mean over tasks, each task's value in [0, 1] being the mean over its trials. What varies from one set of
tasks to another is the tasks, so every interval here is over tasks: more trials of the same tasks make each value
better known, not the set larger. How often the intervals hold the truth is measured by `benchmarks/intervals.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence
from functools import cache
from statistics import NormalDist, fmean, variance

from midstream.core.answers import most_frequent
from midstream.core.trajectory import Trajectory

Interval = tuple[float, float]

RESAMPLES = 2_000
FEW_TASKS = 100
FEW_OUTCOMES = 10
BOOTSTRAP, WILSON = "bootstrap over tasks", "Wilson"
WILSON_EFFECTIVE = "Wilson, effective number of tasks"


def mean_interval(values: Sequence[float], error: float = 0.05) -> tuple[Interval, str]:
    """The confidence interval of a mean over tasks, 95 % by default, and its method's name; `values` in [0, 1].

    From 100 tasks on the percentile bootstrap over tasks. Below, and where the mean lies so near 0 or 1 that fewer than
    10 tasks' worth of value stands on one side, the bootstrap is too narrow (all wrong would be 0 ± 0): there it is
    Wilson's score interval, for values other than 0 and 1 (several trials, F1) with an effective number of tasks.
    """
    few = len(values) * min(fmean(values), 1 - fmean(values)) < FEW_OUTCOMES
    if len(values) >= FEW_TASKS and not few:
        return bootstrap(values, error), BOOTSTRAP
    if set(values) <= {0.0, 1.0}:
        return wilson(fmean(values), len(values), error), WILSON
    return wilson(fmean(values), effective_tasks(values, error), error), WILSON_EFFECTIVE


def bootstrap(values: Sequence[float], error: float = 0.05) -> Interval:
    """The percentile bootstrap interval of the mean: means of as many values, drawn from these with replacement.

    It leaves out `error` / 2 of the resamples on either side, of which there are more where that is less than 2.5 %.
    The seed is fixed: the same values in the same order give the same interval.
    """
    count, resamples = len(values), max(RESAMPLES, math.ceil(RESAMPLES * 0.05 / error))
    draw = random.Random(0).choices
    totals = sorted(sum(draw(values, k=count)) for _ in range(resamples))
    out = int(resamples * error / 2)
    return totals[out] / count, totals[-1 - out] / count


def wilson(share: float, count: float, error: float = 0.05) -> Interval:
    """The score interval of a share (Wilson 1927) of `count` trials; it never leaves [0, 1] and is never empty."""
    square = NormalDist().inv_cdf(1 - error / 2) ** 2
    center = (share + square / (2 * count)) / (1 + square / count)
    half = math.sqrt(square * (share * (1 - share) + square / (4 * count)) / count) / (1 + square / count)
    return max(0.0, center - half), min(1.0, center + half)


@cache
def exact_interval(right: int, count: int, error: float = 0.05) -> Interval:
    """Clopper and Pearson's interval of a share: either side misses the truth in at most `error` / 2 of samples."""

    def highest(most: int) -> float:
        """The share at which at most so many of `count` are right with a chance of `error` / 2."""
        if most == count:
            return 1.0
        low, high = most / count, 1.0
        for _ in range(50):
            share = (low + high) / 2
            k, total = most, 0.0
            term = math.exp(
                math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
                + k * math.log(share) + (count - k) * math.log1p(-share)
            )  # fmt: skip
            # `most` is below the mode, so the terms soon vanish.
            while term > total * 1e-17:
                total += term
                term *= k * (1 - share) / ((count - k + 1) * share)
                k -= 1
            low, high = (share, high) if total > error / 2 else (low, share)
        return low

    return 1 - highest(count - right), highest(right)


def effective_tasks(values: Sequence[float], error: float = 0.05) -> float:
    """Return how many tasks of value 0 or 1 would make a mean as well known as these values make it.

    The variance of a 0/1 value over that of `values`, times their number; less for a variance known from few values (by
    Student's t against the normal distribution: Korn and Graubard 1998). Values without spread count as one task each.
    """
    count, share = len(values), fmean(values)
    spread = variance(values) if count > 1 else 0.0
    if spread == 0:
        return count
    z = NormalDist().inv_cdf(1 - error / 2)
    return count * share * (1 - share) / spread * (z / _student(count - 1, error)) ** 2


def t_interval(values: Sequence[float], error: float = 0.05) -> Interval:
    """The Student t interval of a mean over tasks; without a spread, or of one value, it has no width."""
    middle = fmean(values)
    half = _student(len(values) - 1, error) * math.sqrt(variance(values) / len(values)) if len(values) > 1 else 0.0
    return middle - half, middle + half


def _student(freedom: int, error: float) -> float:
    """The quantile of Student's t that leaves out `error` / 2 on either side, by Cornish and Fisher's expansion."""
    z = NormalDist().inv_cdf(1 - error / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@cache
def t_quantile(freedom: float, error: float = 0.05) -> float:
    """The quantile of Student's t that leaves out `error` / 2 on either side, to six digits; `freedom` at least 1.

    With t = sqrt(`freedom`) tan(a), the probability of |t| is an integral of cos^(`freedom` - 1) from 0 to a: Simpson's
    rule, and a by bisection.
    """
    scale = 2 * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)

    def within(angle: float) -> float:
        heights = [math.cos(angle * place / 100) ** (freedom - 1) for place in range(101)]
        return scale * angle / 300 * (heights[0] + heights[-1] + 4 * sum(heights[1::2]) + 2 * sum(heights[2:-1:2]))

    low, high = 0.0, math.pi / 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < 1 - error else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def pass_at(right: Sequence[int], trials: int) -> dict[int, float]:
    """k -> the chance that the best of k trials is right, averaged over tasks, for k = 1, 2, 4 ... and `trials`.

    The unbiased estimate 1 - C(n - c, k) / C(n, k) of n trials with c right ones (Chen et al. 2021, arXiv 2107.03374);
    `right` holds each task's c.
    """
    return {k: fmean(1 - math.comb(trials - c, k) / math.comb(trials, k) for c in right) for k in _sizes(trials)}


def pass_all(right: Sequence[int], trials: int) -> dict[int, float]:
    """k -> the chance that all of k trials are right (pass^k), averaged over tasks, for the same k.

    The unbiased estimate C(c, k) / C(n, k) of n trials with c right ones (tau-bench, arXiv 2406.12045).
    """
    return {k: fmean(math.comb(c, k) / math.comb(trials, k) for c in right) for k in _sizes(trials)}


def _sizes(trials: int) -> list[int]:
    return [2**power for power in range(trials.bit_length()) if 2**power < trials] + [trials]


def majority(trials: Sequence[Trajectory]) -> float:
    """The score of one task's most frequent answer.

    `rewards.votes.answer_key` says which answers are the same. A trial without an answer has no vote; without any the
    score is 0. Of answers that are equally frequent each counts its share.
    """
    # The rewards are not needed for the intervals of a table.
    from midstream.rewards.votes import answer_key

    scores: dict[Hashable, list[float]] = {}
    for trial in trials:
        key = answer_key(trial.question, trial.answer) if trial.status == "ok" else None
        scores.setdefault(key, []).append(value(trial))
    keys = [key for key, given in scores.items() for _ in given]
    return fmean([fmean(scores[key]) for key in most_frequent(keys)] or [0.0])


def value(trajectory: Trajectory) -> float:
    """The score of a trial: its reward, 0 if an infrastructure error left it without one."""
    return trajectory.reward.value if trajectory.reward and trajectory.status == "ok" else 0.0
