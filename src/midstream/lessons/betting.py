"""A sequential test on pairs of rollouts: is the mean difference in reward above zero?

Each pair runs one validation task with two lesson sets. Its task is drawn from the validation set with replacement, by
seed, so the differences d are independent, all with the mean over the whole set as their mean, which is what the test
needs. Draws do not depend on results or on concurrency: equal seeds draw equal pairs.

The test may look after every pair and stop at any time. Bet the share b of the stake on each difference: after n
values a stake of 1 is K = (1 + b d_1) ... (1 + b d_n), never negative as long as b < 1. If no value's mean, given those
before it, is above zero, K is a supermartingale whatever the distribution, and the chance that K *ever* reaches
1 / level is at most `level` (Ville's inequality; Waudby-Smith and Ramdas 2023, arXiv 2010.09686). So the error rate is
exact and not asymptotic: no normal distribution, no known variance, no number of pairs fixed in advance.

The share that grows fastest is about mean / variance, which is unknown in advance. The stake is spread evenly over a
fixed grid of shares; their sum is again such a K, at a loss of at most log(5) against the grid's best. Nothing is
tuned, and K does not depend on the order of the values.

The mirrored bet, on min_effect - d, stops for futility: it wins where the mean is below `min_effect`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Literal

from midstream.core.errors import InfrastructureError, UsageError
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.lessons.lesson_set import Effect, LessonSet
from midstream.lessons.runner import Match

Verdict = Literal["better", "not better", "undecided"]
Play = Callable[[str, Sequence[Match]], Awaitable[list[tuple[float, float] | None]]]
Sides = Callable[[random.Random], tuple[LessonSet, LessonSet]]

# Best for means of about 0.02 to 0.4 where the variance is about 0.5.
SHARES = (0.05, 0.1, 0.2, 0.4, 0.8)
Z = NormalDist().inv_cdf(0.975)
FUTILITY = 0.1
"""The chance that a test gives up on an effect of `min_effect` or more."""
_REPEATS = 100


class Bets:
    """A stake of 1, spread evenly over `SHARES`, after bets on values above -1 / max(SHARES)."""

    def __init__(self) -> None:
        self._logs = [0.0] * len(SHARES)

    def add(self, counts: Mapping[float, int]) -> float:
        """Bet on each value as often as it occurred, and return the natural log of the stake."""
        for i, share in enumerate(SHARES):
            self._logs[i] += math.fsum(count * math.log1p(share * value) for value, count in counts.items())
        most = max(self._logs)
        return most + math.log(fmean(math.exp(log - most) for log in self._logs))


class Sequential:
    """One test of "the mean difference is above zero", fed a block of differences at a time.

    It returns "better" wrongly with a chance of at most `level`, and "not better" for a true mean of `min_effect` or
    more with a chance of at most `futility`, both over all looks together. The first verdict other than "undecided"
    stays. `evidence` is the largest natural log of K so far, `needed` the value that it must reach.

    With a `margin` it is a test of "the mean difference is above -margin": it bets on (d + margin) / (1 +
    margin), which is in [-1, 1] like d, and gives up on a mean of 0 or more with a chance of at most `futility`.
    """

    def __init__(self, *, level: float, min_effect: float, futility: float = FUTILITY, margin: float = 0.0) -> None:
        self.needed, self.evidence = math.log(1 / level), 0.0
        self.verdict: Verdict = "undecided"
        self._margin, self._give_up = margin, math.log(1 / futility)
        self._min_effect = margin / (1 + margin) if margin else min_effect
        self._better, self._worse = Bets(), Bets()

    def add(self, values: Sequence[float]) -> Verdict:
        """Add differences and return the verdict; raises `UsageError` for one outside [-1, 1]."""
        for value in values:
            if not -1 <= value <= 1:
                raise UsageError(
                    f"two rewards of one task differ by {value}; the gate's test holds for rewards in [0, 1]",
                    code="reward-out-of-range",
                    fix="scale the reward to [0, 1], or turn the gate off: lessons.gate.enabled = false",
                )
        # Equal differences are one term, so that the sum does not depend on their order.
        counts = Counter((value + self._margin) / (1 + self._margin) for value in values)
        evidence = self._better.add(counts)
        against = self._worse.add({self._min_effect - value: count for value, count in counts.items()})
        self.evidence = max(self.evidence, evidence)
        if self.verdict == "undecided":
            if evidence >= self.needed:
                self.verdict = "better"
            elif against >= self._give_up:
                self.verdict = "not better"
        return self.verdict


def unbiased_mean(
    values: Sequence[float], begin: Callable[[], Sequential], *, limit: int, size: int, seed: int
) -> float:
    """The mean difference of a test's `values`, without what its stopping adds on average.

    A test that stops while luck is on its side has a mean that is too far from 0. How far is found by repeating the
    test, a block of `size` at a time up to `limit`, on values drawn from its own (the bootstrap's estimate of bias).
    """
    mean, draw, means = fmean(values), random.Random(seed), list[float]()
    for _ in range(_REPEATS):
        test, drawn = begin(), list[float]()
        while test.verdict == "undecided" and len(drawn) < limit:
            block = draw.choices(values, k=min(size, limit - len(drawn)))
            test.add(block)
            drawn += block
        means.append(fmean(drawn))
    return max(-1.0, min(1.0, 2 * mean - fmean(means)))


class Pairs:
    """Runs at most `limit` pairs, `size` at a time, under names that begin with `name`.

    `left_out` counts the pairs without a result on one side (a failed endpoint, never a reward of 0). The other pairs
    stand in for them, which is unbiased as long as failures do not depend on the lessons.
    """

    def __init__(self, tasks: Sequence[Task], play: Play, *, name: str, limit: int, size: int, seed: int) -> None:
        self.tasks, self.play, self.name, self.limit, self.size, self.seed = tasks, play, name, limit, size, seed
        self.drawn = self.left_out = 0

    @property
    def spent(self) -> bool:
        """True if all pairs were drawn."""
        return self.drawn >= self.limit

    async def block(self, sides: Sides) -> list[float | None]:
        """Run the next block; return each pair's difference in reward, `other` minus `first`, or None without a result.

        `sides` returns the two lesson sets (first, other) of a pair, drawn from the pair's random numbers. Raises
        `InfrastructureError` if no pair has a result.
        """
        matches = []
        for number in range(self.drawn, min(self.limit, self.drawn + self.size)):
            draw = random.Random(derive_seed(self.seed, self.name, number))
            task = draw.choice(self.tasks)
            first, other = sides(draw)
            # A task may be drawn twice: the pair's number makes its id unique.
            task = task.model_copy(update={"id": f"{task.id}@{self.name}-{number}"})
            matches.append(Match(task=task, first=first, other=other))
        rewards = await self.play(f"{self.name}-{self.drawn // self.size}", matches)
        self.drawn += len(matches)
        differences = [None if pair is None else pair[1] - pair[0] for pair in rewards]
        self.left_out += differences.count(None)
        if all(difference is None for difference in differences):
            raise InfrastructureError(
                f"none of {len(matches)} pairs of validation rollouts has a result on both sides",
                code="all-rollouts-failed",
                fix="repair the server, tool or reward that failed; pairs with a result are kept",
            )
        return differences


@dataclass(slots=True)
class Differences:
    """Summary of differences in reward: count, sum, sum of squares, and how many were above and below 0."""

    pairs: int = 0
    total: float = 0.0
    squares: float = 0.0
    above: int = 0
    below: int = 0

    def add(self, value: float) -> None:
        """Add one difference."""
        self.pairs += 1
        self.total += value
        self.squares += value * value
        self.above += value > 0
        self.below += value < 0

    @property
    def mean(self) -> float:
        """The mean difference; 0 without any."""
        return self.total / self.pairs if self.pairs else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean.

        It counts two extra pairs, one won and one lost by the root mean square of the differences other than 0: a few
        pairs would look more certain than they are (Bonett and Price 2012; as in `evaluation/pairs.py`, but without
        resampling, because it is computed for each change after every block).
        """
        apart = self.above + self.below
        square = self.squares / apart if apart else 1.0
        count = self.pairs + 2
        return math.sqrt(max(0.0, (self.squares + 2 * square) / count - (self.total / count) ** 2) / count)

    def effect(self, *, alone: bool, mean: float | None = None, error: float | None = None) -> Effect:
        """An estimate with its 95 % interval, for people; `mean` and `error` may replace what the differences give."""
        mean = self.mean if mean is None else mean
        error = self.error if error is None else error
        interval = max(-1.0, mean - Z * error), min(1.0, mean + Z * error)
        return Effect(mean=mean, interval=interval, pairs=self.pairs, helped=self.above, harmed=self.below, alone=alone)
