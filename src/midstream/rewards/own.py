"""A plain function as a reward: `type = "my_rewards.py:exact"`, `--reward my_rewards.py:exact`, or an object in Python.

def exact(answer, gold) -> float:
    return float(answer == gold)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from midstream.components.component import Kind, RewardConfig
from midstream.components.own_settings import OwnFunction, class_or_object
from midstream.core.errors import RewardError
from midstream.core.source import Reward
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.rule import BaseReward

GIVEN = ("question", "answer", "gold", "task", "trajectory")


class FunctionReward(BaseReward):
    """A reward by a function, which receives those of `GIVEN` that it has as parameters, and its settings.

    It returns a number in [0, 1], a bool or a `Score`; it may be `async`, any other runs in a thread. A function that
    takes `answer` and neither `task` nor `trajectory` is not called for a run without an answer, which scores 0.
    """

    def __init__(self, function: OwnFunction, settings: RewardConfig) -> None:
        self.name, self._function, self._settings = function.name, function, settings

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """The function's score. Raises `RewardError` if it raises, or returns anything else than a score."""
        takes = self._function.takes
        if trajectory.answer is None and "answer" in takes and not takes & {"task", "trajectory"}:
            return Score(value=0.0)
        values = (task.question, trajectory.answer, task.answer, task, trajectory)
        value = await self._function.called(self._settings, dict(zip(GIVEN, values, strict=True)))
        # NumPy's and torch's numbers are no subclasses of Python's.
        item = value
        if hasattr(value, "item") and not isinstance(value, Score):
            # An array of several numbers, which is refused below.
            with suppress(ValueError, RuntimeError):
                item = value.item()
        number = item.value if isinstance(item, Score) else item
        if not isinstance(number, int | float) or math.isnan(number) or not 0 <= number <= 1:
            raise RewardError(
                f"reward {self.name!r} returned {value!r:.100} for task {task.id!r}",
                code="reward-out-of-range",
                fix="return a number in [0, 1], a bool, or a Score with such a value",
                retryable=False,
            )
        return item if isinstance(item, Score) else Score(value=float(number))


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def reward(function: FunctionT) -> FunctionT:
    """Check that a function can be a reward, and return it as it is. Raises `RecipeError` if it cannot.

        @reward
        def exact(answer, gold) -> float:
            return float(answer == gold)

    It takes by name any of `question, answer, gold, task, trajectory`, and returns a number in [0, 1], a bool or a
    `Score`; other parameters are settings, with a type and a default.
    """
    own_reward("reward", f"{function.__module__}:{function.__qualname__}", function)
    return function


def own_reward(kind: Kind, reference: str, value: object) -> type[RewardConfig]:
    """The settings of a reward of your own: a function, or a class or object with `score`."""
    if made := class_or_object(kind, RewardConfig, reference, value, Reward, "score"):
        return made
    function = OwnFunction(kind, reference, value, GIVEN, f"a function that takes some of {', '.join(GIVEN)}")
    return function.settings(RewardConfig, build=lambda settings, _: FunctionReward(function, settings))
