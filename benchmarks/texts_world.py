"""The world of `texts_offline.py`: simulated tasks, changes of a text with known effects, and how they are proposed.

A helpful (harmful) change raises (lowers) the chance of success on half of all tasks; a neutral one changes nothing; a
leaking one gives away the answers of the tasks that it was made from, and distracts a little on all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

from midstream.core.seeds import derive_seed

Text = frozenset[str]
EMPTY: Text = frozenset()
KINDS = ("helpful", "harmful", "neutral", "leaking")


@dataclass(frozen=True)
class Scenario:
    """What is proposed: the shares of `KINDS` in percent, and the effects of changes.

    There are `pool` different changes of each kind but leaking ones, which are as many as groups of tasks. A helpful or
    harmful change moves the chance of success by `effect` on half of the tasks.
    """

    shares: tuple[int, int, int, int]
    pool: int = 10
    effect: float = 0.08
    shuffled: bool = False

    @property
    def best(self) -> Text:
        """The best text: all helpful changes, if there are any."""
        return frozenset(f"helpful {i}" for i in range(self.pool)) if self.shares[0] else EMPTY


SCENARIOS = {
    "mostly helpful": Scenario((60, 10, 20, 10)),
    "mostly harmful": Scenario((10, 60, 20, 10)),
    "mostly neutral": Scenario((10, 10, 70, 10)),
    "many leaking": Scenario((20, 10, 10, 60)),
    "few strong": Scenario((15, 15, 60, 10), pool=3, effect=0.25),
    "nothing helps": Scenario((0, 40, 40, 20)),
    # A proposer that sees shuffled rewards knows nothing: helpful changes are as frequent as harmful ones.
    "shuffled rewards": Scenario((25, 25, 25, 25), shuffled=True),
}

BASE, SPREAD = 0.4, 0.25  # the chance of success without changes is uniform in BASE ± SPREAD
GIVEN_AWAY, DISTRACTION = 0.6, 0.005  # of a leaking change: on its tasks, and on all
ROOM = 40  # changes in a text: midstream's 2,000 tokens, for lessons of 50
MINIBATCH = 3  # GEPA's default
TASKS = {"training": 60, "gepa": 50, "validation": 100, "test": 1000}


class BudgetSpent(Exception):
    """The next rollouts would exceed the budget."""


class World:
    """The tasks of a seed and the changes that are proposed, with a count of the rollouts."""

    def __init__(self, seed: int, scenario: str, way: str, budget: int) -> None:
        self.seed, self.budget, self.used = seed, budget, 0
        self.scenario = SCENARIOS[scenario]
        # Ways have the same tasks and changes, and rollouts of their own.
        self._draw = random.Random(derive_seed(seed, scenario, way, "rollouts"))
        made = random.Random(derive_seed(seed, "tasks"))
        self.ids = {role: [f"{role}-{i}" for i in range(size)] for role, size in TASKS.items()}
        self._tasks = {task: self._task(made) for ids in self.ids.values() for task in ids}
        self._success: dict[Text, float] = {}

    def _task(self, made: random.Random) -> tuple[float, Text, Text]:
        """Draw a task: its chance without changes, the changes that help on it, and those that harm."""
        base = BASE + SPREAD * (2 * made.random() - 1)
        helps, harms = (
            frozenset(f"{kind} {i}" for i in range(self.scenario.pool) if made.random() < 0.5) for kind in KINDS[:2]
        )
        return base, helps, harms

    def chance(self, task: str, text: Text) -> float:
        """The chance that a rollout of the task succeeds with this text."""
        base, helps, harms = self._tasks[task]
        leaks, given_away = _leaks(text)
        found = base + self.scenario.effect * (len(text & helps) - len(text & harms)) - DISTRACTION * leaks
        return min(0.98, max(0.02, found + GIVEN_AWAY * (task in given_away)))

    def success(self, text: Text) -> float:
        """The mean chance of success over the test tasks."""
        if text not in self._success:
            self._success[text] = fmean(self.chance(task, text) for task in self.ids["test"])
        return self._success[text]

    def rewards(self, rollouts: Sequence[tuple[str, Text]]) -> list[float]:
        """Roll out each task with its text. Shuffled rewards are those of other tasks, without any change."""
        if self.used + len(rollouts) > self.budget:
            raise BudgetSpent
        self.used += len(rollouts)
        if self.scenario.shuffled:
            rollouts = [(self._draw.choice(self.ids["training"]), EMPTY) for _ in rollouts]
        return [float(self._draw.random() < self.chance(task, text)) for task, text in rollouts]

    def study(self, number: int, text: Text) -> tuple[list[str], list[float], str]:
        """Roll out the training tasks for change `number`; returns them, their rewards, and the change."""
        epoch, place = divmod(number * MINIBATCH, TASKS["training"])
        order = random.Random(derive_seed(self.seed, "epoch", epoch)).sample(self.ids["training"], TASKS["training"])
        tasks = order[place : place + MINIBATCH]
        return tasks, self.rewards([(task, text) for task in tasks]), self.change(number, tasks)

    def change(self, number: int, tasks: Sequence[str]) -> str:
        """Change `number`, made from these tasks."""
        draw = random.Random(derive_seed(self.seed, "change", number))
        [kind] = draw.choices(KINDS, self.scenario.shares)
        if kind == "leaking":
            return f"leaking {' '.join(sorted(tasks))}"
        return f"{kind} {draw.randrange(self.scenario.pool)}"


@lru_cache(1000)
def _leaks(text: Text) -> tuple[int, frozenset[str]]:
    """The number of leaking changes, and the tasks that they give away."""
    leaks = [change.split()[1:] for change in text if change.startswith("leaking")]
    return len(leaks), frozenset(task for tasks in leaks for task in tasks)


def sound(change: str, text: Text) -> bool:
    """Whether the change is new to the text and has room in it."""
    return change not in text and len(text) < ROOM
