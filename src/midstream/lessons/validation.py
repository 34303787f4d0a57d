"""Does a lesson set help this agent? Test it against no lessons, and measure each lesson, on fresh rollouts.

1. A sequential test on pairs of rollouts of one validation task, with the lesson set and without (`betting.py`).
2. Random halves of the lessons against their complements, which measure each lesson (`gate.halved`).
"""

from __future__ import annotations

from collections.abc import Sequence

from midstream.core.data import Frozen
from midstream.core.errors import InfrastructureError
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.lessons.betting import Play
from midstream.lessons.gate import Test, Trial
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import Effect, LessonSet, measured, proven, with_lessons
from midstream.lessons.operations import Operation
from midstream.lessons.runner import Match, Runner
from midstream.lessons.settings import GateConfig
from midstream.rollout import Environment
from midstream.runs.journal import Report


class Validation(Frozen):
    """Result of a validation: the test of all lessons together, and each lesson's effect by its id.

    `halves_pairs` pairs of random halves had a result on both sides, `halves_left_out` had not.
    """

    test: Test
    effects: dict[str, Effect]
    halves_pairs: int = 0
    halves_left_out: int = 0

    def applied(self, lesson_set: LessonSet, agent: str) -> LessonSet:
        """The lesson set with its measured effects; proven for `agent` if the test says "better", and not otherwise."""
        # Each lesson was on one side of every pair.
        used = {lesson.id: self.test.pairs + self.halves_pairs for lesson in lesson_set.rendered}
        held = "" if lesson_set.proven_for == agent else lesson_set.proven_for
        return proven(measured(lesson_set, used, self.effects), agent if self.test.verdict == "better" else held)


async def validate(
    lesson_set: LessonSet,
    *,
    tasks: Sequence[Task],
    environment: Environment,
    ledger: Ledger,
    agent: str,
    config: GateConfig,
    seed: int,
    report: Report,
) -> Validation:
    """Test `lessons` on the validation `tasks`, with the identity `agent` as the `environment`'s.

    `ledger` keeps each rollout as it ends, and supplies what an interrupted test of the same `agent` and `seed` kept.
    `config` has the sizes and the error rate of the test; `report` receives the progress. Raises `InfrastructureError`
    if no pair of a block had a result on both sides.
    """
    runner = Runner(environment, ledger, derive_seed(seed, "validation"))
    pairs = 0

    async def play(name: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
        nonlocal pairs
        pairs += len(matches)
        report(f"validating: pair {pairs}")
        found = await runner.pairs(f"{agent}, seed {seed}: {name}", matches)
        if not any(found):
            errors = [trajectory.error.message for trajectory in ledger.gathered(agent) if trajectory.error]
            raise InfrastructureError(
                f"none of {len(matches)} pairs of rollouts has a result on both sides; the first error:\n"
                + (errors[0] if errors else ""),
                code="no-results",
                fix="fix that, then give the command again: what has a result is kept",
            )
        return found

    return await measure(lesson_set, tasks=tasks, play=play, config=config, seed=derive_seed(seed, "validation tasks"))


async def measure(
    lesson_set: LessonSet, *, tasks: Sequence[Task], play: Play, config: GateConfig, seed: int
) -> Validation:
    """Test `lessons` at the whole `error_rate`; `play` runs the pairs of a block under a name. Raises as `validate`."""
    lessons, empty = lesson_set.rendered, with_lessons(lesson_set, ())
    adds = [
        Operation(kind="add", id=lesson.id, text=lesson.text, module=lesson.module, origin=lesson.origin)
        for lesson in lessons
    ]
    level = config.error_rate
    trial = Trial(lesson_set=empty, changes=adds, tasks=tasks, play=play, config=config, level=level, seed=seed)
    test, halves = await trial.measure()
    return Validation(
        test=test,
        effects={lesson.id: effect for lesson, effect in zip(lessons, halves.effects, strict=True)},
        halves_pairs=halves.pairs,
        halves_left_out=halves.left_out,
    )
