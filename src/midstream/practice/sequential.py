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
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from midstream.core.errors import UsageError
from midstream.practice.records import Verdict

SHARES = (0.05, 0.1, 0.2, 0.4, 0.8)  # best for means of about 0.02 to 0.4 where the variance is about 0.5


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
