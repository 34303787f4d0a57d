"""The reward that each task names: what its benchmark is scored by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from midstream.core.component import Context, RewardConfig, parse_component, rules
from midstream.core.errors import RecipeError
from midstream.core.protocols import Reward
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory

DEFAULT = "exact_match"


class Config(RewardConfig):
    """No settings."""

    def build(self, context: Context) -> PerTask:
        """Build it."""
        return PerTask(lambda name: context.reward(parse_component("reward", {"type": name}, "reward")), rules())


class PerTask:
    """Scores a task by the reward type it names (exact match where it names none); each is made once.

    `make` makes a reward of one of the types `rules` with default settings, and whoever gave it closes what it made.
    Only rule-based rewards can be named, so no model ever decides here.
    """

    name = "benchmark"
    judged = False

    def __init__(self, make: Callable[[str], Reward], rules: Collection[str]) -> None:
        self._make, self._rules, self._made = make, rules, dict[str, Reward]()

    def check(self, task: Task) -> None:
        """Refuse a task that names no rule-based reward, or one that cannot score it."""
        self._of(task).check(task)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """The score by the task's own reward, which `parts` names.

        Raises:
            RecipeError: the task names a reward that is none, or one that asks a model.
        """
        named = task.reward or DEFAULT
        score = await self._of(task).score(task, trajectory)
        return score.model_copy(update={"parts": {named: score.value, **score.parts}})

    def names(self, tasks: Iterable[Task]) -> str:
        """What scores these tasks, by name; raises as `score`."""
        return ", ".join(sorted({self._of(task).name for task in tasks})) or self.name

    def _of(self, task: Task) -> Reward:
        named = task.reward or DEFAULT
        if named not in self._rules:
            raise RecipeError(
                f"task {task.id!r} names the reward {named!r}, which is no rule-based one",
                cause="it is misspelt, or it asks a model: judged and rule-based scores are never mixed",
                fix=f"name one of: {', '.join(self._rules)}; or score the whole set by a judge: its own `reward`, or "
                '[reward] type = "judge"',
            )
        if named not in self._made:
            self._made[named] = self._make(named)
        return self._made[named]

    async def close(self) -> None:
        """Nothing of its own to release."""
