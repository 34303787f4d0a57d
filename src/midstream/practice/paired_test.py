"""Is a mean difference above zero? A test that may look after every pair and stop whenever it likes.

The values d are differences of two rewards, each in [-1, 1]. Bet the share b of what you have on each of them: after n
values a stake of 1 has become K = (1 + b d_1) ... (1 + b d_n), never negative as long as b < 1. If no value's mean,
given those before it, is above zero, nobody can expect to gain so, whatever the values are distributed like, and the
chance that K is *ever* 1 / level or more is at most `level` (Ville's inequality; Waudby-Smith and Ramdas 2023,
arXiv 2010.09686). So the test may look as often as it likes and the error rate is exact, not asymptotic: no normal
distribution, no known variance, no number of pairs fixed beforehand.

The share that gains fastest is about mean / variance, which nobody knows beforehand. The stake is spread evenly over a
fixed grid of shares; what all of them have come to together is again such a K, at a loss of at most log(5) against the
grid's best. Nothing is tuned, and K does not depend on the order of the values.

The mirrored bet, on min_effect - d, gives up early: it wins where the mean is below `min_effect`.


Pairs of rollouts on validation tasks: how they are drawn, played, and summed up.

Each pair draws its task from the validation set with replacement, by seed. So the differences are independent, all with
the mean of the whole set as their mean, which is what `sequential.py` needs; what holds for the set holds for other
tasks as far as the set stands for them. Draws do not depend on results or on concurrency: the same seed plays the same.
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
from midstream.practice.library import Effect, Library
from midstream.practice.runner import Match

Verdict = Literal["better", "not better", "undecided"]
SHARES = (0.05, 0.1, 0.2, 0.4, 0.8)  # best for means of about 0.02 to 0.4 where the variance is about 0.5
Play = Callable[[str, Sequence[Match]], Awaitable[list[tuple[float, float] | None]]]
Sides = Callable[[random.Random], tuple[Library, Library]]
Z = NormalDist().inv_cdf(0.975)


class Bets:
    """A stake of 1, spread evenly over `SHARES`, after bets on values above -1 / max(SHARES)."""

    def __init__(self) -> None:
        self._logs = [0.0] * len(SHARES)

    def add(self, counts: Mapping[float, int]) -> float:
        """Bet on each of these values as often as it came; the natural log of what the stake has become."""
        for i, share in enumerate(SHARES):
            self._logs[i] += math.fsum(count * math.log1p(share * value) for value, count in counts.items())
        most = max(self._logs)
        return most + math.log(fmean(math.exp(one - most) for one in self._logs))


class Sequential:
    """One test of "the mean difference is above zero", fed a block of differences at a time.

    It says "better" wrongly with a chance of at most `level`, and "not better" of a true mean of `min_effect` or more
    with one of at most `futility`, both over all looks together. Its first verdict other than "undecided" stays.
    `evidence` is the largest natural log of K so far, `needed` what it must reach.
    """

    def __init__(self, *, level: float, min_effect: float, futility: float) -> None:
        self.needed, self.evidence = math.log(1 / level), 0.0
        self.verdict: Verdict = "undecided"
        self._min_effect, self._give_up = min_effect, math.log(1 / futility)
        self._better, self._worse = Bets(), Bets()

    def add(self, values: Sequence[float]) -> Verdict:
        """Take in more differences, and look.

        Raises:
            UsageError: a difference is outside [-1, 1]: a reward was outside [0, 1].
        """
        for value in values:
            if not -1 <= value <= 1:
                raise UsageError(
                    f"two rewards of one task differ by {value}",
                    cause="the gate's test holds for rewards in [0, 1]",
                    fix="scale the reward to [0, 1], or turn the gate off: practice.gate.enabled = false",
                )
        counts = Counter(values)
        evidence = self._better.add(counts)
        against = self._worse.add({self._min_effect - value: count for value, count in counts.items()})
        self.evidence = max(self.evidence, evidence)
        if self.verdict == "undecided":
            self.verdict = _verdict(evidence >= self.needed, against >= self._give_up)
        return self.verdict


def _verdict(better: bool, not_better: bool) -> Verdict:
    return "better" if better else "not better" if not_better else "undecided"


class Pairs:
    """Plays `limit` pairs at most, `size` at a time, under names that begin with `name`.

    `left_out` counts those without a result on a side (a failed endpoint, never a reward of 0): the others stand for
    them, which is right as long as failures have nothing to do with the lessons.
    """

    def __init__(self, tasks: Sequence[Task], play: Play, *, name: str, limit: int, size: int, seed: int) -> None:
        self.tasks, self.play, self.name, self.limit, self.size, self.seed = tasks, play, name, limit, size, seed
        self.drawn = self.left_out = 0

    @property
    def spent(self) -> bool:
        """Whether there are no more."""
        return self.drawn >= self.limit

    async def block(self, sides: Sides) -> list[float | None]:
        """What `other` earned more than `first` in each pair of the next block; None where a side has no result.

        `sides` gives each pair its (first, other) from the pair's own source of random numbers.

        Raises:
            InfrastructureError: not one of them has a result.
        """
        numbers = range(self.drawn, min(self.limit, self.drawn + self.size))
        matches = [self._match(number, sides) for number in numbers]
        played = await self.play(f"{self.name}-{self.drawn // self.size}", matches)
        self.drawn += len(matches)
        found = [None if one is None else one[1] - one[0] for one in played]
        self.left_out += found.count(None)
        if all(one is None for one in found):
            raise InfrastructureError(
                f"none of {len(matches)} pairs of validation rollouts has a result on both sides",
                cause="a server, tool or sandbox is broken: the errors are in the trajectories",
                fix="see to that, then go on where it stopped: what has a result is kept",
            )
        return found

    def _match(self, number: int, sides: Sides) -> Match:
        draw = random.Random(derive_seed(self.seed, self.name, number))
        task = draw.choice(self.tasks)
        first, other = sides(draw)
        return Match(task=task.model_copy(update={"id": f"{task.id}@{self.name}-{number}"}), first=first, other=other)


@dataclass(slots=True)
class Differences:
    """Differences in reward, summed up: their number, sum, sum of squares, and how many were above and below 0."""

    pairs: int = 0
    total: float = 0.0
    squares: float = 0.0
    above: int = 0
    below: int = 0

    def add(self, value: float) -> None:
        """One more."""
        self.pairs += 1
        self.total += value
        self.squares += value * value
        self.above += value > 0
        self.below += value < 0

    @property
    def mean(self) -> float:
        """Their mean; 0 of none."""
        return self.total / self.pairs if self.pairs else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean.

        With two made-up pairs, one won and one lost by the size (root mean square) of the differences that are not 0:
        few pairs would look surer than they are (Bonett and Price 2012; as in `evaluation/pairs.py`, without
        resampling, because there is one for each change after every block).
        """
        apart = self.above + self.below
        square = self.squares / apart if apart else 1.0
        count = self.pairs + 2
        return math.sqrt(max(0.0, (self.squares + 2 * square) / count - (self.total / count) ** 2) / count)

    def effect(self, *, alone: bool) -> Effect:
        """The mean as the effect of whatever one side had and the other had not."""
        return effect(self.mean, self.error, self, alone=alone)


def effect(mean: float, error: float, found: Differences, *, alone: bool) -> Effect:
    """An estimate with its 95 % interval, for people: it decides nothing."""
    interval = max(-1.0, mean - Z * error), min(1.0, mean + Z * error)
    return Effect(mean=mean, interval=interval, pairs=found.pairs, helped=found.above, harmed=found.below, alone=alone)
