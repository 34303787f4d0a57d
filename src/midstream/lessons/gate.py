"""The gate: accept a changed lesson set only if fresh validation rollouts support it, at a stated error rate.

1. Test the whole batch of changes against the lesson set as it is, on pairs of rollouts of one task (`betting.py`).
2. Run random halves of the batch against their complements, whether it passed or not. That separates the good changes
   from the bad at the price of one test. A batch that passes is sorted too: good changes carry bad ones along.
3. Test the good ones together once more, on rollouts that had no part in choosing them. If they pass, they are accepted
   and the others rejected; if they do not, a batch that passed is accepted as it is.
4. With a `margin`, the changes that save tokens (removals, texts that are a tenth shorter) and are not accepted get a
   non-inferiority test, with what is accepted on both sides: is the loss of mean reward less than the margin?

What is accepted has passed a test; what seems bad is rejected; the rest is pending and joins the next batch.

The error rate: an update makes at most two tests, or three where a change saves tokens, which is known before. Each may
err with a chance of `error_rate` / (2 `updates`), or / (3 `updates`). So the chance that a run ever accepts a
change of the lessons that does not raise the mean reward over the validation set, or saves tokens and costs `margin`
or more, is at most `error_rate`. It is a statement about what is accepted together: single
lessons have effects with intervals. `benchmarks/gate_power.py` measures both, and what the gate costs.

Why halves: each pair of rollouts runs one random half of the changes against the other half on one task. A change is on
either side equally often, so in the mean of the differences, each with the sign of the change's side, the others cancel
out. Every pair is evidence about every change, and all effects are estimated as precisely as one of them would be from
the same pairs; testing the changes one by one would multiply the cost by their number. The halves are of equal size:
halves of very different quality would say little about single changes, least where a bad half fails at everything.
Halves measure how a change differs from the others; a test measures the sum of its changes, and both together give a
change's effect (`_effects`). For what is accepted that is the test that accepted it, so the effects of a bundle sum to
the bundle's, also where the whole batch held changes that hid them.
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
from midstream.lessons.betting import Differences, Pairs, Play, Sequential, Verdict, unbiased_mean
from midstream.lessons.lesson_set import Bundle, Effect, LessonSet, tokens
from midstream.lessons.operations import Operation, applied
from midstream.lessons.settings import GateConfig

Fate = Literal["accepted", "rejected", "pending", "waiting"]
TestName = Literal["whole", "kept", "not worse"]
TESTS = 2  # of an update at most, and one more where a change saves tokens
_FATES: dict[Verdict, Fate] = {"better": "accepted", "not better": "rejected", "undecided": "pending"}
_NORMAL = NormalDist()


class Test(Frozen):
    """One sequential test of a changed lesson set against the one before it, on pairs of fresh validation rollouts.

    `changes` are the indices of the tested changes in the update's list. `pairs` counts those with a result on both
    sides, `left_out` the others. `evidence` is the largest natural log of the test's e-value for "better", `needed`
    the value that it had to reach: log(1 / its share of the error rate). `mean`, `interval` (95 %) and `error` (of the
    mean) are of the difference in reward, without what stopping early adds to it (`betting.unbiased_mean`). With a
    `margin` the verdict "better" says that the mean is above -margin.
    """

    # pytest would collect it by its name.
    __test__ = False

    name: TestName
    changes: tuple[int, ...]
    pairs: int
    left_out: int = 0
    mean: float = 0.0
    interval: tuple[float, float] = (-1.0, 1.0)
    error: float = 0.0
    evidence: float = 0.0
    needed: float = 0.0
    margin: float = 0.0
    verdict: Verdict


class ChangeRecord(Frozen):
    """One change that was tested, or accepted without a test, with its fate and its measured effect.

    "waiting": it was accepted, and is used once a person approves it (`approval.py`).
    """

    operation: Operation
    fate: Fate
    effect: Effect | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The lesson set after the gate, the tests that were made, and the fate of each change.

    `bisect_pairs` are the pairs of random halves with a result on both sides, `bisect_left_out` those without.
    """

    lesson_set: LessonSet
    changes: tuple[ChangeRecord, ...]
    tests: tuple[Test, ...]
    bisect_pairs: int = 0
    bisect_left_out: int = 0


async def decide(
    lesson_set: LessonSet,
    changes: Sequence[Operation],
    *,
    retested: Sequence[Operation] = (),
    tasks: Sequence[Task],
    play: Play,
    config: GateConfig,
    updates: int,
    seed: int,
) -> Decision:
    """Accept, reject or postpone `changes` of `lesson_set`, which `operations.screened` let through.

    `retested` are removals that nobody suggested: they are in the test of changes that save tokens alone. `tasks` are
    the validation set, and `play` runs the pairs of a block under a name. At most `updates` calls of a run
    share the error rate. `seed` is for the draws of tasks and halves. Raises `InfrastructureError` if no pair of a
    block had a result.
    """
    lean = [i for i, change in enumerate(changes) if config.margin and saves_tokens(lesson_set, change)]
    level = config.error_rate / ((TESTS + bool(lean or retested)) * updates)
    trial = Trial(lesson_set=lesson_set, changes=changes, tasks=tasks, play=play, config=config, level=level, seed=seed)
    tests: list[Test] = []
    fates: list[Fate] = []
    effects: list[Effect] = []
    halves = Halved(effects=(), kept=())
    if changes:
        tests, fates, effects, halves = await _sorted(trial)
    # What is accepted is on both sides of the last test.
    accepted = applied(lesson_set, [change for change, fate in zip(changes, fates, strict=True) if fate == "accepted"])
    left = [i for i in lean if fates[i] != "accepted" and effects[i].interval[1] > -config.margin]
    everything = [*changes, *retested]
    if left := (*left, *range(len(changes), len(everything))):
        leaner = replace(trial, lesson_set=accepted, changes=everything)
        test, found = await leaner.test("not worse", left, margin=config.margin)
        tests.append(test)
        fates.extend("rejected" for _ in retested)
        effects += [found.effect(alone=len(left) == 1, mean=test.mean)] * len(retested)
        if test.verdict == "better":
            effect = found.effect(alone=len(left) == 1, mean=test.mean)
            names = tuple(everything[i].id for i in left)
            bundle = Bundle(changes=names, mean=test.mean, interval=test.interval, pairs=test.pairs)
            for i in left:
                fates[i] = "accepted"
                effects[i] = effect if effect.alone else effect.model_copy(update={"bundle": bundle})
    records = tuple(
        ChangeRecord(operation=change, fate=fate, effect=effect)
        for change, fate, effect in zip(everything, fates, effects, strict=True)
    )
    return Decision(
        lesson_set=applied(lesson_set, [record.operation for record in records if record.fate == "accepted"]),
        changes=records,
        tests=tuple(tests),
        bisect_pairs=halves.pairs,
        bisect_left_out=halves.left_out,
    )


async def _sorted(trial: Trial) -> tuple[list[Test], list[Fate], list[Effect], Halved]:
    """Steps 1 to 3: the tests that were made, and the fate and the effect of each change."""
    changes, (whole, halves) = trial.changes, await trial.measure()
    tests, kept = [whole], halves.kept
    if kept and len(kept) < len(changes):
        tests.append((await trial.test("kept", kept))[0])

    # Accept the changes of the last test that passed. If none passed, the kept changes get the last test's verdict.
    passed = [test for test in tests if test.verdict == "better"]
    chosen, fate = (passed[-1].changes, "accepted") if passed else (kept, _FATES[tests[-1].verdict])
    effects = list(halves.effects)
    if passed and len(chosen) > 1:
        accepted = passed[-1]
        names = tuple(changes[i].id for i in chosen)
        bundle = Bundle(changes=names, mean=accepted.mean, interval=accepted.interval, pairs=accepted.pairs)
        measured = _effects(halves.signed, accepted) if halves.signed else effects
        for i in chosen:
            effects[i] = measured[i].model_copy(update={"bundle": bundle})
    return tests, [fate if i in chosen else "rejected" for i in range(len(changes))], effects, halves


def saves_tokens(lesson_set: LessonSet, change: Operation) -> bool:
    """Whether a change removes a text, or makes it shorter by a tenth."""
    before = lesson_set.find(change.id)
    if change.kind == "delete" or before is None:
        return before is not None
    return change.kind == "modify" and tokens(change.text) <= 0.9 * tokens(before.text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Halved:
    """The effect of each change, in their order, and which of them are worth keeping.

    `signed` are the differences of each change, with the sign of its side; empty where no halves were run.
    """

    effects: tuple[Effect, ...]
    kept: tuple[int, ...]
    signed: tuple[Differences, ...] = ()
    pairs: int = 0
    left_out: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Measurements of `changes` of a lesson set; each test has the error rate `level`, the rest is as in `decide`."""

    lesson_set: LessonSet
    changes: Sequence[Operation]
    tasks: Sequence[Task]
    play: Play
    config: GateConfig
    level: float
    seed: int

    async def measure(self) -> tuple[Test, Halved]:
        """Test all changes together, then measure each by random halves, unless there is one or `bisect_pairs` is 0."""
        everything, config = tuple(range(len(self.changes))), self.config
        whole, total = await self.test("whole", everything)
        if len(everything) == 1 or not config.bisect_pairs:
            effect = total.effect(alone=len(everything) == 1, mean=whole.mean)
            return whole, Halved(effects=(effect,) * len(everything), kept=everything)
        pairs = self._pairs("halves", config.bisect_pairs)
        return whole, await halved(
            self.lesson_set, self.changes, whole=whole, total=total, pairs=pairs, enough=config.min_effect
        )

    async def test(self, name: TestName, places: tuple[int, ...], margin: float = 0.0) -> tuple[Test, Differences]:
        """Test the lessons with the changes at these places against those without; returns all differences, too."""
        pairs, found, seen = self._pairs(name, self.config.test_pairs), Differences(), list[float]()
        changed = applied(self.lesson_set, [self.changes[i] for i in places])

        def begin() -> Sequential:
            return Sequential(level=self.level, min_effect=self.config.min_effect, margin=margin)

        test = begin()
        while test.verdict == "undecided" and not pairs.spent:
            values = [value for value in await pairs.block(lambda _: (self.lesson_set, changed)) if value is not None]
            for value in values:
                found.add(value)
            seen += values
            test.add(values)
        mean = unbiased_mean(seen, begin, limit=pairs.limit, size=pairs.size, seed=derive_seed(self.seed, name, "mean"))
        measured = found.effect(alone=False, mean=mean)
        return Test(
            name=name,
            changes=places,
            pairs=found.pairs,
            left_out=pairs.left_out,
            mean=measured.mean,
            interval=measured.interval,
            evidence=test.evidence,
            error=found.error,
            needed=test.needed,
            margin=margin,
            verdict=test.verdict,
        ), found

    def _pairs(self, name: str, limit: int) -> Pairs:
        seed = derive_seed(self.seed, name)
        return Pairs(self.tasks, self.play, name=name, limit=limit, size=self.config.block, seed=seed)


async def halved(
    lesson_set: LessonSet,
    changes: Sequence[Operation],
    *,
    whole: Test,
    total: Differences,
    pairs: Pairs,
    enough: float,
) -> Halved:
    """Run `pairs` until wrong choices are expected to cost less than `enough` of mean reward, or all are used.

    `whole` is the test of all changes together, on the differences `total`. Kept is what helps; of a batch that does
    harm as a whole, what is better than its average, which is as good a guess as there is: a change that bad company
    hides shows when the kept ones are tested together.
    """
    signed = tuple(Differences() for _ in changes)
    threshold = min(0.0, total.mean / len(changes))  # the effect that a change must exceed to be kept
    chosen: list[frozenset[int]] = []  # the halves of the block under way

    def sides(draw: random.Random) -> tuple[LessonSet, LessonSet]:
        half = random_half(len(changes), draw)
        chosen.append(half)
        first = [change for i, change in enumerate(changes) if i not in half]
        other = [change for i, change in enumerate(changes) if i in half]
        return applied(lesson_set, first), applied(lesson_set, other)

    expected_loss = math.inf
    while not pairs.spent and expected_loss >= enough:
        chosen.clear()
        values = await pairs.block(sides)
        for half, value in zip(chosen, values, strict=True):
            if value is not None:
                # The difference counts for the changes of `other`, and against the changes of `first`.
                for i, differences in enumerate(signed):
                    differences.add(value if i in half else -value)
        # The cost of a choice: the mean distance by which a normal truth lies on the other side of the threshold.
        expected_loss = 0.0
        for mean, error in _estimates(signed, total):
            # It is 0 where the squares of all differences underflow.
            if error:
                z = abs(mean - threshold) / error
                expected_loss += error * (_NORMAL.pdf(z) - z * _NORMAL.cdf(-z))
    return Halved(
        effects=tuple(_effects(signed, whole)),
        kept=tuple(i for i, (mean, _) in enumerate(_estimates(signed, total)) if mean > threshold),
        signed=signed,
        pairs=signed[0].pairs,
        left_out=pairs.left_out,
    )


def _estimates(signed: Sequence[Differences], total: Differences) -> list[tuple[float, float]]:
    """The effect of each change and its standard error.

    A change's signed mean m is below its effect e because the other changes are more often on the other side:
    m = e + r (T - e), r the correlation of two changes' sides and T the effect of all. Of n changes, n even, n/2
    are on each side, so r = -1/(n - 1); r = -1/n if n is odd.
    """
    r = _correlation(len(signed))
    means = [(change.mean - r * total.mean) / (1 - r) for change in signed]
    errors = [math.hypot(change.error, r * total.error) / (1 - r) for change in signed]
    return list(zip(means, errors, strict=True))


def _correlation(count: int) -> float:
    return -1 / (count - 1 + count % 2)


def _effects(signed: Sequence[Differences], test: Test) -> list[Effect]:
    """The effect of each change, with a sum over the changes of `test` that is the test's.

    As in `_estimates`, e = m / (1 - r) + c with one c for all changes. Here c is what the test leaves for it.
    """
    share = 1 / (1 - _correlation(len(signed)))
    count = len(test.changes)
    rest = (test.mean - sum(signed[i].mean * share for i in test.changes)) / count
    return [
        change.effect(
            alone=True, mean=change.mean * share + rest, error=math.hypot(change.error * share, test.error / count)
        )
        for change in signed
    ]


def random_half(count: int, draw: random.Random) -> frozenset[int]:
    """Draw a random half of 0 .. count - 1; of an odd number the smaller or the larger half, by chance."""
    order = draw.sample(range(count), count)
    return frozenset(order[: (count + draw.getrandbits(1)) // 2])
