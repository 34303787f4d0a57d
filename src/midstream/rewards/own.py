"""A plain function as a reward: `type = "my_rewards.py:exact"`, `--reward my_rewards.py:exact`, or `@reward` in Python.

def exact(answer, gold) -> float:
    return float(answer == gold)
"""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from midstream.core.component import Context, RewardConfig, given, settings_of
from midstream.core.errors import InfrastructureError, RewardError
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.rule import BaseReward

GIVEN = ("question", "answer", "gold", "task", "trajectory")
_SHOWN = 500  # characters of a message


class FunctionReward(BaseReward):
    """A reward by a function, which receives those of `GIVEN` that it has as parameters.

    It returns a number in [0, 1], a bool or a `Score`; it may be `async`, any other runs in a thread. A function that
    takes `answer` and neither `task` nor `trajectory` is not called for a run without an answer, which scores 0.
    """

    def __init__(self, reference: str, function: Callable[..., Any]) -> None:
        self.name = reference.rpartition(":")[2]
        self._function = function
        self._takes = set(inspect.signature(function).parameters)

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
        call = partial(self._function, **given(self._function, values))
        try:
            if inspect.iscoroutinefunction(self._function):
                value = await call()
            else:
                value = await asyncio.to_thread(call)
                if inspect.isawaitable(value):
                    value = await value
        except InfrastructureError:
            raise
        except Exception as error:
            raise self._failed(error, task) from error
        return self._checked(value, task)

    def _failed(self, error: Exception, task: Task) -> RewardError:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return RewardError(
            f"reward {self.name} raised {type(error).__name__} for task {task.id!r}: {str(error)[:_SHOWN]}",
            code="reward-failed",
            cause=f"raised in {Path(last.filename).name}, line {last.lineno}",
            fix="correct the function; a wrong answer is 0.0, not an exception",
        )

    def _checked(self, value: Any, task: Task) -> Score:
        # NumPy's and torch's numbers are no subclasses of Python's.
        item = value.item() if hasattr(value, "item") and not isinstance(value, Score) else value
        score = item if isinstance(item, Score) else None
        number = item.value if isinstance(item, Score) else item
        if not isinstance(number, int | float) or math.isnan(number) or not 0 <= number <= 1:
            raise RewardError(
                f"reward {self.name} returned {value!r:.100} for task {task.id!r}",
                code="reward-out-of-range",
                fix="return a number in [0, 1], a bool, or a Score with such a value",
            )
        return score or Score(value=float(number))


def function_settings(reference: str, function: Callable[..., Any]) -> type[RewardConfig]:
    """The settings of a function as a reward: those of its parameters that are not in `GIVEN`."""

    def build(self: RewardConfig, context: Context) -> FunctionReward:
        return FunctionReward(reference, partial(function, **dict(self)) if dict(self) else function)

    return settings_of(RewardConfig, reference, function, build=build, given=GIVEN)
