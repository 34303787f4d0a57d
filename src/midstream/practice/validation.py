"""Does a whole library help this agent? Tested against no lessons at all, and lesson by lesson, on fresh rollouts.

1. Pairs of rollouts of one validation task, with the library and without: a sequential test that may look after every
   block and stops early where the case is clear (`sequential.py`).
2. Random halves of the lessons against their complements: every pair says something about every lesson, at the price of
   one test. In the mean of these differences, each with the sign of a lesson's side, the other lessons cancel out.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from midstream.core.data import Frozen
from midstream.core.errors import InfrastructureError
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.evaluation.pairs import difference_interval
from midstream.practice.library import Effect, Library, counted, with_effect, with_lessons
from midstream.practice.playing import Match
from midstream.practice.records import Verdict
from midstream.practice.sequential import Sequential
from midstream.practice.settings import GateConfig

Play = Callable[[str, Sequence[Match]], Awaitable[list[tuple[float, float] | None]]]


class Validation(Frozen):
    """What a validation found: the test of all lessons together, and each lesson's own effect.

    `pairs` of rollouts had a result on both sides, `left_out` had not. `evidence` and `needed` are as in
    `records.Test`; `mean` and `interval` (95 %) the difference in reward to no lessons.
    """

    verdict: Verdict
    pairs: int
    left_out: int
    mean: float
    interval: tuple[float, float]
    evidence: float
    needed: float
    effects: dict[str, Effect]

    def applied(self, library: Library, agent: str) -> Library:
        """The library with its measured effects, proven for `agent` or, if it was before, no more."""
        for lesson, effect in self.effects.items():
            library = with_effect(library, lesson, effect)
        library = counted(
            library,
            used={one.id: self.pairs for one in library.rendered},
            helped={name: effect.helped for name, effect in self.effects.items()},
            harmed={name: effect.harmed for name, effect in self.effects.items()},
        )
        held = "" if library.proven_for == agent else library.proven_for
        return library.model_copy(update={"proven_for": agent if self.verdict == "better" else held})


async def validate(library: Library, *, tasks: Sequence[Task], play: Play, config: GateConfig, seed: int) -> Validation:
    """Test `library` at the whole `error_rate`; `play` runs the pairs of one block, under a name.

    Raises:
        InfrastructureError: no pair of a block had a result on both sides.
    """
    pairs = _Pairs(tasks, play, config, seed)
    test = Sequential(level=config.error_rate, min_effect=config.min_effect, futility=config.futility_rate)
    without = with_lessons(library, ())
    found: list[float] = []
    while test.verdict == "undecided" and pairs.drawn < config.test_pairs:
        block = await pairs.block("whole", config.test_pairs, lambda _: (library, without))
        found += (one.value for one in block)
        test.add([one.value for one in block])
    return Validation(
        verdict=test.verdict,
        pairs=len(found),
        left_out=pairs.left_out,
        mean=fmean(found),
        interval=difference_interval(found),
        evidence=test.evidence,
        needed=test.needed,
        effects=await _effects(library, _Pairs(tasks, play, config, seed), found),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Difference:
    """What one side of a pair earned more than the other, and which side that was."""

    first: Library
    value: float


class _Pairs:
    """Draws tasks with replacement, so that differences are independent, and plays them a block at a time."""

    def __init__(self, tasks: Sequence[Task], play: Play, config: GateConfig, seed: int) -> None:
        self.tasks, self.play, self.config, self.seed = tasks, play, config, seed
        self.drawn = self.left_out = 0

    async def block(
        self, name: str, limit: int, sides: Callable[[random.Random], tuple[Library, Library]]
    ) -> list[_Difference]:
        """The differences of the next block, `limit` pairs in all at most."""
        matches = []
        for number in range(self.drawn, min(limit, self.drawn + self.config.block)):
            draw = random.Random(derive_seed(self.seed, name, number))
            task = draw.choice(self.tasks)
            first, other = sides(draw)
            own = task.model_copy(update={"id": f"{task.id}@{name}-{number}"})
            matches.append(Match(task=own, first=first, other=other))
        self.drawn += len(matches)
        played = await self.play(f"{name}-{self.drawn}", matches)
        found = [
            _Difference(first=match.first, value=one[0] - one[1])
            for match, one in zip(matches, played, strict=True)
            if one is not None
        ]
        self.left_out += len(matches) - len(found)
        if not found:
            raise InfrastructureError(
                f"none of {len(matches)} pairs of rollouts has a result on both sides",
                cause="a server, tool or sandbox is broken",
                mend="see to that, then run the command again: what has a result is kept",
            )
        return found


async def _effects(library: Library, pairs: _Pairs, whole: Sequence[float]) -> dict[str, Effect]:
    """What each lesson does, by random halves; of a single lesson the test has told it."""
    ids = [one.id for one in library.rendered]
    if len(ids) == 1:
        return {ids[0]: _effect(whole)}

    def halves(draw: random.Random) -> tuple[Library, Library]:
        taken = {one for one in ids if draw.random() < 0.5}
        sides = ([one for one in library.lessons if (one.id in taken) == side] for side in (True, False))
        first, other = (with_lessons(library, lessons) for lessons in sides)
        return first, other

    found: list[_Difference] = []
    while pairs.drawn < pairs.config.bisect_pairs:
        found += await pairs.block("halves", pairs.config.bisect_pairs, halves)
    signed = {name: [one.value if one.first.find(name) else -one.value for one in found] for name in ids}
    return {name: _effect(values) for name, values in signed.items() if values}


def _effect(values: Sequence[float]) -> Effect:
    return Effect(
        mean=fmean(values),
        interval=difference_interval(values),
        pairs=len(values),
        helped=sum(one > 0 for one in values),
        harmed=sum(one < 0 for one in values),
    )
