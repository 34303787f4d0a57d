"""Does a whole library help this agent? Tested against no lessons at all, and lesson by lesson, on fresh rollouts.

1. Pairs of rollouts of one validation task (`pairs.py`), with the library and without: a sequential test that may look
   after every block and stops early where the case is clear (`sequential.py`).
2. Random halves of the lessons against their complements, which tells what each of them does (`halves.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from midstream.core.data import Frozen
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.practice.gate import Test, halved, tested
from midstream.practice.library import Effect, Library, counted, proven, with_effect, with_lessons
from midstream.practice.operations import Operation
from midstream.practice.paired_test import Pairs, Play
from midstream.practice.settings import GateConfig


class Validation(Frozen):
    """What a validation found: the test of all lessons together, and each lesson's own effect, by its id.

    `halves_pairs` of rollouts told the effects apart, `halves_left_out` had no result.
    """

    test: Test
    effects: dict[str, Effect]
    halves_pairs: int = 0
    halves_left_out: int = 0

    def applied(self, library: Library, agent: str) -> Library:
        """The library with its measured effects, proven for `agent` or, if it was before, no more."""
        for lesson, effect in self.effects.items():
            library = with_effect(library, lesson, effect)
        library = counted(
            library,
            # On one side of every pair, so far as both sides ended.
            used={one.id: self.test.pairs + self.halves_pairs for one in library.rendered},
            helped={name: effect.helped for name, effect in self.effects.items()},
            harmed={name: effect.harmed for name, effect in self.effects.items()},
        )
        held = "" if library.proven_for == agent else library.proven_for
        return proven(library, agent if self.test.verdict == "better" else held)


async def validate(library: Library, *, tasks: Sequence[Task], play: Play, config: GateConfig, seed: int) -> Validation:
    """Test `library` at the whole `error_rate`; `play` runs the pairs of one block, under a name.

    Raises:
        InfrastructureError: no pair of a block had a result on both sides.
    """

    def pairs(name: str, limit: int) -> Pairs:
        return Pairs(tasks, play, name=name, limit=limit, size=config.block, seed=derive_seed(seed, name))

    lessons, without = library.rendered, with_lessons(library, ())
    test, found = await tested(
        without,
        library,
        changes=tuple(range(len(lessons))),
        name="whole",
        pairs=pairs("whole", config.test_pairs),
        config=config,
        level=config.error_rate,
    )
    if len(lessons) == 1 or not config.bisect_pairs:
        alone = found.effect(alone=len(lessons) == 1)
        return Validation(test=test, effects=dict.fromkeys((one.id for one in lessons), alone))
    adds = [Operation(kind="add", id=one.id, text=one.text, module=one.module, origin=one.origin) for one in lessons]
    told = await halved(
        without,
        adds,
        total=found,
        pairs=pairs("halves", config.bisect_pairs),
        enough=config.min_effect,
    )
    return Validation(
        test=test,
        effects={one.id: effect for one, effect in zip(lessons, told.effects, strict=True)},
        halves_pairs=told.pairs,
        halves_left_out=told.left_out,
    )
