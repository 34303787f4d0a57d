"""A plain function as a reward: `type = "my_rewards.py:exact"`, `--reward my_rewards.py:exact`, or an object in Python.

def exact(answer, gold) -> float:
    return float(answer == gold)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from midstream.core.component import Context, Kind, RewardConfig
from midstream.core.errors import InfrastructureError, RewardError
from midstream.core.own import name_of
from midstream.core.own_settings import (
    called,
    class_or_object,
    described,
    own_values,
    parameters_of,
    plain_function,
    settings_of,
    where_raised,
)
from midstream.core.protocols import Reward
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.rule import BaseReward

GIVEN = ("question", "answer", "gold", "task", "trajectory")


class FunctionReward(BaseReward):
    """A reward by a function, which receives those of `GIVEN` that it has as parameters, and its `settings`.

    It returns a number in [0, 1], a bool or a `Score`; it may be `async`, any other runs in a thread. A function that
    takes `answer` and neither `task` nor `trajectory` is not called for a run without an answer, which scores 0.
    """

    def __init__(self, reference: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
        self.name = name_of(reference)
        self._function, self._settings = function, settings
        self._takes = parameters_of(reference, function).keys() & GIVEN

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """The function's score. Raises `RewardError` if it raises, or returns anything else than a score."""
        if trajectory.answer is None and "answer" in self._takes and not self._takes & {"task", "trajectory"}:
            return Score(value=0.0)
        values = {
            "question": task.question,
            "answer": trajectory.answer,
            "gold": task.answer,
            "task": task,
            "trajectory": trajectory,
        }
        try:
            value = await called(self._function, {name: values[name] for name in self._takes} | dict(self._settings))
        except InfrastructureError:
            raise
        except Exception as error:  # what a user's function raises can be anything
            raise RewardError(
                f"reward {self.name} raised {described(error)}, for task {task.id!r}",
                code="reward-failed",
                cause=where_raised(error),
                fix="correct the function; a wrong answer is 0.0, not an exception",
            ) from error
        return self._checked(value, task)

    def _checked(self, value: Any, task: Task) -> Score:
        # NumPy's and torch's numbers are no subclasses of Python's.
        item = value.item() if hasattr(value, "item") and not isinstance(value, Score) else value
        number = item.value if isinstance(item, Score) else item
        if not isinstance(number, int | float) or math.isnan(number) or not 0 <= number <= 1:
            raise RewardError(
                f"reward {self.name} returned {value!r:.100} for task {task.id!r}",
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


def own_reward(kind: Kind, reference: str, value: Any) -> type[RewardConfig]:
    """The settings of a reward of your own: a function, or a class or object with `score`."""
    if made := class_or_object(kind, RewardConfig, reference, value, Reward, "score"):
        return made
    function = plain_function(kind, reference, value, f"a function that takes some of {', '.join(GIVEN)}")

    def build(self: RewardConfig, context: Context) -> FunctionReward:
        return FunctionReward(reference, function, own_values(self))

    return settings_of(RewardConfig, reference, function, build=build, given=GIVEN)
