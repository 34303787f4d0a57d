"""The gate: a changed library is accepted only if fresh validation rollouts say so, at a stated error rate.

1. The whole batch of changes against the library as it is: pairs of rollouts of one task (`pairs.py`), a sequential
   test that looks after every block and stops early where the case is clear (`sequential.py`).
2. Random halves of the batch against their complements, whether it passed or not: that tells the good changes from the
   bad at the price of one test (`halves.py`). A batch that passes is no less worth sorting: good changes carry bad ones
   along.
3. The good ones together are tested once more, on rollouts that had no part in choosing them. If they pass, they are
   accepted and the others rejected; if they do not, a batch that passed is accepted as it is.

What is accepted has passed a test; what seems bad is rejected; the rest is pending and joins the next batch.

The error rate: an update makes two tests at most, the run `updates` times that, and each may err with a chance of
`error_rate` / (2 `updates`). So the chance that a run ever accepts a change of the library that does not raise the mean
reward over the validation set is at most `error_rate`. It is a statement about what is accepted together: single
lessons have effects with intervals. `benchmarks/gate_power.py` measures both, and what the gate costs.


Which changes of a batch are good? Random halves of it, each against its complement.

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
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from midstream.core.data import Frozen
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.practice.library import Effect, Library
from midstream.practice.operations import Operation, applied
from midstream.practice.paired_test import Differences, Pairs, Play, Sequential, Verdict, effect
from midstream.practice.settings import GateConfig

Fate = Literal["accepted", "rejected", "pending", "unchanged"]
TestName = Literal["whole", "kept"]
TESTS = 2  # of an update at most
_FATES: dict[Verdict, Fate] = {"better": "accepted", "not better": "rejected", "undecided": "pending"}
_NORMAL = NormalDist()


class Test(Frozen):
    """One sequential test of a changed library against the one before it, on pairs of fresh validation rollouts.

    `changes` are the places of the changes it holds in the update's list. `pairs` counts those with a result on both
    sides, `left_out` the others. `evidence` is the largest natural log of the test's e-value for "better", `needed`
    what it had to reach: log(1 / its share of the error rate). `mean` and `interval` (95 %) are the difference in
    reward.
    """

    __test__ = False  # for pytest, which collects what is called so

    name: Literal["whole", "kept"]
    changes: tuple[int, ...]
    pairs: int
    left_out: int = 0
    mean: float = 0.0
    interval: tuple[float, float] = (-1.0, 1.0)
    evidence: float = 0.0
    needed: float = 0.0
    verdict: Verdict


class ChangeRecord(Frozen):
    """One change that was tested, or accepted without a test: what became of it, and its measured effect."""

    operation: Operation
    fate: Fate
    effect: Effect | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The library that goes on, and why: the tests that were made, and what became of each change.

    `bisect_pairs` are the pairs of random halves with a result on both sides, `bisect_left_out` those without.
    """

    library: Library
    changes: tuple[ChangeRecord, ...]
    tests: tuple[Test, ...]
    bisect_pairs: int = 0
    bisect_left_out: int = 0

    @property
    def pending(self) -> tuple[Operation, ...]:
        """The changes that the next batch takes up again."""
        return tuple(one.operation for one in self.changes if one.fate == "pending")


async def decide(
    library: Library,
    changes: Sequence[Operation],
    *,
    tasks: Sequence[Task],
    play: Play,
    config: GateConfig,
    updates: int,
    seed: int,
) -> Decision:
    """Accept, reject or put off `changes` (sound ones, `operations.screened`).

    `tasks` is the validation set, `updates` how many updates the run has at most. `play` runs a block's pairs under a
    name, and says None of those without a result on a side.

    Raises:
        InfrastructureError: no pair of a block had a result.
    """
    if not changes:
        return Decision(library=library, changes=(), tests=())
    gate = _Gate(library, tuple(changes), tasks=tasks, play=play, config=config, seed=seed)
    return await gate.decide(config.error_rate / (TESTS * updates))


class _Gate:
    """The decision on one batch."""

    def __init__(
        self,
        library: Library,
        changes: tuple[Operation, ...],
        *,
        tasks: Sequence[Task],
        play: Play,
        config: GateConfig,
        seed: int,
    ) -> None:
        self.library, self.changes, self.config = library, changes, config
        self.tasks, self.play, self.seed = tasks, play, seed

    async def decide(self, level: float) -> Decision:
        everything = tuple(range(len(self.changes)))
        whole, differences = await self._test("whole", everything, level)
        if len(self.changes) == 1 or not self.config.bisect_pairs:
            effect = differences.effect(alone=len(self.changes) == 1)
            return self._decision([whole], everything, [effect] * len(self.changes))
        pairs, enough = self._pairs("halves", self.config.bisect_pairs), self.config.min_effect
        found = await halved(self.library, self.changes, total=differences, pairs=pairs, enough=enough)
        tests = [whole]
        if found.kept and found.kept != everything:
            tests.append((await self._test("kept", found.kept, level))[0])
        decision = self._decision(tests, found.kept, found.effects)
        return replace(decision, bisect_pairs=found.pairs, bisect_left_out=found.left_out)

    def _decision(self, tests: Sequence[Test], kept: tuple[int, ...], effects: Sequence[Effect]) -> Decision:
        """Accepted is what passed a test, the later one if both did; else the last verdict is on what was kept."""
        passed = [one.changes for one in tests if one.verdict == "better"]
        chosen, fate = (passed[-1], _FATES["better"]) if passed else (kept, _FATES[tests[-1].verdict])
        records = tuple(
            ChangeRecord(operation=one, fate=fate if i in chosen else "rejected", effect=effects[i])
            for i, one in enumerate(self.changes)
        )
        accepted = [one.operation for one in records if one.fate == "accepted"]
        return Decision(library=applied(self.library, accepted), changes=records, tests=tuple(tests))

    def _pairs(self, name: str, limit: int) -> Pairs:
        seed = derive_seed(self.seed, name)
        return Pairs(self.tasks, self.play, name=name, limit=limit, size=self.config.block, seed=seed)

    async def _test(self, name: TestName, places: tuple[int, ...], level: float) -> tuple[Test, Differences]:
        changed = applied(self.library, [self.changes[i] for i in places])
        pairs = self._pairs(name, self.config.test_pairs)
        return await tested(
            self.library, changed, changes=places, name=name, pairs=pairs, config=self.config, level=level
        )


async def tested(
    first: Library,
    other: Library,
    *,
    changes: tuple[int, ...],
    name: TestName,
    pairs: Pairs,
    config: GateConfig,
    level: float,
) -> tuple[Test, Differences]:
    """Is `other`, which holds these `changes`, better than `first`? At error rate `level`; with all differences."""
    test = Sequential(level=level, min_effect=config.min_effect, futility=config.futility_rate)
    found = Differences()
    while test.verdict == "undecided" and not pairs.spent:
        values = [one for one in await pairs.block(lambda _: (first, other)) if one is not None]
        for value in values:
            found.add(value)
        test.add(values)
    measured = found.effect(alone=False)
    return Test(
        name=name,
        changes=changes,
        pairs=found.pairs,
        left_out=pairs.left_out,
        mean=measured.mean,
        interval=measured.interval,
        evidence=test.evidence,
        needed=test.needed,
        verdict=test.verdict,
    ), found


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
