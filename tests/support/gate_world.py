"""A world for the gate without any agent: lessons have known effects, and rollouts are direct draws of 0 or 1.

Every rule has a true lesson, which helps on the tasks that the rule matters for, and a false one, which harms there;
every lesson in a prompt costs a little on all tasks. What an agent makes of lessons is not simulated here (that is
`midstream_worlds/workshop/tasks.py`): these are the statistics alone, fast enough for hundreds of runs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from midstream.core.data import Frozen
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.lessons.gate import Decision, decide
from midstream.lessons.lesson_set import LessonSet
from midstream.lessons.operations import Operation, Rules, applied, screened
from midstream.lessons.runner import Match
from midstream.lessons.settings import GateConfig

LEARNING = 500  # rollouts that an update learns from: 100 tasks, 5 each


class World(Frozen):
    """Chances of success, named as in the workshop; without lessons uniform in `base` ± `spread`.

    `coverage` is the chance that an update proposes a lesson about a rule that the lesson set has none of.
    """

    rules: int = 16
    validation: int = 100
    test: int = 2000
    base: float = 0.35
    spread: float = 0.1
    reach: float = 0.5
    help: float = 0.06
    harm: float = 0.05
    clutter: float = 0.004
    share_true: float = 0.5
    coverage: float = 0.75
    updates: int = 3


class Played:
    """One world's validation set and test set, and the rollouts that were drawn."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.draw = world, random.Random(derive_seed(seed, "rollouts"))
        made = random.Random(derive_seed(seed, "tasks"))
        self.validation = [self._task(made) for _ in range(world.validation)]
        self.test = [self._task(made) for _ in range(world.test)]
        self.tasks = [Task(id=str(i), question="", answer="") for i in range(world.validation)]
        self.rollouts = 0

    def _task(self, made: random.Random) -> tuple[float, list[bool]]:
        base = self.world.base + self.world.spread * (2 * made.random() - 1)
        return base, [made.random() < self.world.reach for _ in range(self.world.rules)]

    def chance(self, task: tuple[float, list[bool]], texts: Sequence[str]) -> float:
        """The chance that a rollout of the task succeeds with these lessons in the prompt."""
        base, matters = task
        found = base - self.world.clutter * len(texts)
        for text in texts:
            rule, kind = text.split()
            if matters[int(rule)]:
                found += self.world.help if kind == "true" else -self.world.harm
        return min(0.98, max(0.02, found))

    def gain(self, lesson_set: LessonSet) -> float:
        """What the lesson set adds to the mean chance over the test set."""
        texts = [lesson.text for lesson in lesson_set.rendered]
        return fmean(self.chance(task, texts) - self.chance(task, ()) for task in self.test)

    async def play(self, name: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
        """Every match once with either lesson set."""
        self.rollouts += 2 * len(matches)
        return [(self.reward(match, match.first), self.reward(match, match.other)) for match in matches]

    def reward(self, match: Match, lesson_set: LessonSet) -> float:
        task = self.validation[int(match.task.id.split("@")[0])]
        return float(self.draw.random() < self.chance(task, [lesson.text for lesson in lesson_set.rendered]))

    def proposed(self, lesson_set: LessonSet, pending: Sequence[Operation]) -> list[Operation]:
        """New lessons about rules that no lesson is about."""
        known = {text.split()[0] for text in [one.text for one in (*lesson_set.rendered, *pending)]}
        rules = [i for i in range(self.world.rules) if str(i) not in known and self.draw.random() < self.world.coverage]
        kinds = ["true" if self.draw.random() < self.world.share_true else "false" for _ in rules]
        return [Operation(kind="add", text=f"{i} {kind}") for i, kind in zip(rules, kinds, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a run: its exact gain on the test set, all its rollouts, and each update's decision."""

    gain: float
    rollouts: int
    decisions: tuple[Decision, ...] = ()


def accepted(outcome: Outcome) -> bool:
    """Whether any change was accepted."""
    return any(change.fate == "accepted" for decision in outcome.decisions for change in decision.changes)


Way = Callable[[Played, LessonSet, list[Operation], int], Decision]


def run(world: World, seed: int, way: Way) -> Outcome:
    """`updates` of an empty lesson set, each change decided on by `way` (world, lesson set, changes, update)."""
    played, lesson_set, pending = Played(world, seed), LessonSet(), ()
    decisions: list[Decision] = []
    for update in range(1, world.updates + 1):
        operations = [*pending, *played.proposed(lesson_set, pending)]
        lesson_set, outcomes = screened(lesson_set, operations, Rules(modules=["planner"]), pending=len(pending))
        decision = way(played, lesson_set, [outcome.operation for outcome in outcomes if not outcome.refused], update)
        lesson_set = decision.lesson_set
        pending = [change.operation for change in decision.changes if change.fate == "pending"]
        decisions.append(decision)
    rollouts = played.rollouts + world.updates * LEARNING
    return Outcome(gain=played.gain(lesson_set), rollouts=rollouts, decisions=tuple(decisions))


def gated(config: GateConfig, seed: int) -> Way:
    """The gate of midstream."""

    def way(played: Played, lesson_set: LessonSet, changes: list[Operation], update: int) -> Decision:
        return asyncio.run(
            decide(
                lesson_set,
                changes,
                tasks=played.tasks,
                play=played.play,
                config=config,
                updates=played.world.updates,
                seed=derive_seed(seed, update),
            )
        )

    return way


def ungated(played: Played, lesson_set: LessonSet, changes: list[Operation], update: int) -> Decision:
    """Everything is accepted."""
    return Decision(lesson_set=applied(lesson_set, changes), changes=(), tests=())


def one_by_one(pairs: int) -> Way:
    """The naive gate: each change alone, so many pairs, accepted if the lower end of a 90 % interval is above 0."""

    def way(played: Played, lesson_set: LessonSet, changes: list[Operation], update: int) -> Decision:
        accepted: list[Operation] = []
        for change in changes:
            changed = applied(lesson_set, [change])
            drawn = [played.draw.choice(played.tasks) for _ in range(pairs)]
            matches = [Match(task=task, first=lesson_set, other=changed) for task in drawn]
            found = [one[1] - one[0] for one in asyncio.run(played.play("alone", matches)) if one]
            if fmean(found) > 1.645 * stdev(found) / pairs**0.5:
                accepted.append(change)
        return Decision(lesson_set=applied(lesson_set, accepted), changes=(), tests=())

    return way
