"""Which changes of a batch are good? Random halves of it, each against its complement.

Every pair of rollouts runs one random half of the changes against the other half on one task. A change is on either
side equally often, so in the mean of the differences, each with the sign of the change's side, the others cancel out:
every pair says something about every change, and all effects are known as well as a test of one of them would tell from
the same pairs. Testing them one by one would cost as many times more as there are changes.

The halves are of equal size: halves of very different quality would say little about single changes, least where a bad
half fails at everything. They tell how a change differs from the others; how good the batch is as a whole, its test
has told (`total`), and both together give a change's own effect. If effects add up, that is its effect in the new
library; if they do not, its mean effect in the company of random others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from midstream.practice.library import Effect, Library
from midstream.practice.operations import Operation, applied
from midstream.practice.pairs import Differences, Pairs, effect

_NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True, slots=True)
class Halved:
    """What each change does, in their order, and which of them are worth keeping."""

    effects: tuple[Effect, ...]
    kept: tuple[int, ...]
    pairs: int
    left_out: int


async def halved(
    library: Library, changes: Sequence[Operation], *, total: Differences, pairs: Pairs, enough: float
) -> Halved:
    """Play `pairs` until wrong choices are expected to cost less than `enough` of mean reward, or all are played.

    `total` are the differences of all changes together to `library`. Kept is what helps; of a batch that does harm on
    the whole, what is better than its average, which is not 0 but as good a guess as there is: what stays in the shadow
    of bad company comes out when the kept ones are tested together.
    """
    measured = _Measured(library, changes, total)
    while not pairs.spent:
        await measured.block(pairs)
        if measured.expected_loss < enough:
            break
    return Halved(effects=measured.effects, kept=measured.kept, pairs=measured.pairs, left_out=pairs.left_out)


class _Measured:
    """The differences so far, for each change with the sign of its side."""

    def __init__(self, library: Library, changes: Sequence[Operation], total: Differences) -> None:
        self.library, self.changes, self.total = library, changes, total
        self.signed = [Differences() for _ in changes]

    @property
    def pairs(self) -> int:
        return self.signed[0].pairs

    async def block(self, pairs: Pairs) -> None:
        chosen: list[frozenset[int]] = []

        def sides(draw: random.Random) -> tuple[Library, Library]:
            half = random_half(len(self.changes), draw)
            chosen.append(half)
            first, other = ([one for i, one in enumerate(self.changes) if (i in half) == with_it] for with_it in (0, 1))
            return applied(self.library, first), applied(self.library, other)

        for half, value in zip(chosen, await pairs.block(sides), strict=True):
            if value is not None:
                for i, one in enumerate(self.signed):
                    one.add(value if i in half else -value)

    @property
    def likeness(self) -> float:
        """The correlation of two changes' sides: of n, an even number, n/2 are with each; -1/n if n is odd."""
        count = len(self.changes)
        return -1 / (count - 1 + count % 2)

    def estimate(self, i: int) -> tuple[float, float]:
        """The effect of change i and its standard error.

        Its signed mean m is short of its effect e because the others, with sum T - e, are rather on the other side:
        m = e + r (T - e), r their correlation and T the effect of all.
        """
        r, total, one = self.likeness, self.total, self.signed[i]
        return (one.mean - r * total.mean) / (1 - r), math.hypot(one.error, r * total.error) / (1 - r)

    @property
    def threshold(self) -> float:
        """Kept is what has more effect than that."""
        return min(0.0, self.total.mean / len(self.changes))

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.changes)) if self.estimate(i)[0] > self.threshold)

    @property
    def effects(self) -> tuple[Effect, ...]:
        return tuple(effect(*self.estimate(i), one, alone=True) for i, one in enumerate(self.signed))

    @property
    def expected_loss(self) -> float:
        """What choices on the wrong side of the threshold cost together, on average."""
        return sum(_loss(mean - self.threshold, error) for mean, error in map(self.estimate, range(len(self.changes))))


def random_half(count: int, draw: random.Random) -> frozenset[int]:
    """A random half of 0 .. count - 1; of an odd number the smaller or the larger half, by chance."""
    order = draw.sample(range(count), count)
    return frozenset(order[: (count + draw.getrandbits(1)) // 2])


def _loss(mean: float, error: float) -> float:
    """How much, on average, the truth lies on the other side of 0 than its estimate, which has a normal error."""
    if not error:  # differences whose squares are too small for a number
        return 0.0
    z = abs(mean) / error
    return error * (_NORMAL.pdf(z) - z * _NORMAL.cdf(-z))
