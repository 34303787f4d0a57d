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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.practice.halves import halved
from midstream.practice.library import Effect, Library
from midstream.practice.operations import Operation, applied
from midstream.practice.pairs import Differences, Pairs, Play
from midstream.practice.records import ChangeRecord, Fate, Test, Verdict
from midstream.practice.sequential import Sequential
from midstream.practice.settings import GateConfig

TestName = Literal["whole", "kept"]

TESTS = 2  # of an update at most

_FATES: dict[Verdict, Fate] = {"better": "accepted", "not better": "rejected", "undecided": "pending"}


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
