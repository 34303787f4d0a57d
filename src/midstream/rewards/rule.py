"""Parts that rewards share: defaults, comparison of answers by rule, and deduplication of concurrent jobs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.statement import answer_text

T = TypeVar("T")


class BaseReward:
    """Defaults of a `core.source.Reward`: decided by a program, any task accepted, no resources."""

    name = ""
    judged = False

    def check(self, task: Task) -> None:
        """Accept any task; subclasses that need more refuse a task without it."""

    async def close(self) -> None:
        """Does nothing: there is nothing to release."""


class Rule(BaseReward):
    """A reward that compares texts: subclasses set `name` and define `value`."""

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """0 without an answer, else the value of its text, out of a box. Agents have extracted it; own ones may not."""
        if trajectory.answer is None:
            return Score(value=0.0)
        return Score(value=await self.value(task, answer_text(trajectory.answer)))

    async def value(self, task: Task, answer: str) -> float:
        """How right the answer is, in [0, 1]."""
        raise NotImplementedError


def unfit_task(task: Task, what: str, fix: str) -> RecipeError:
    """The error for a task that a reward cannot score."""
    return RecipeError(f"task {task.id!r} {what}", code="task-unfit", fix=fix)


class SingleFlight(Generic[T]):
    """Deduplicate identical jobs, and cache the results of the latest `size` of them by key.

    One object serves any number of event loops one after the other.
    """

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._results: OrderedDict[Hashable, T] = OrderedDict()
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def get(self, key: Hashable, job: Callable[[], Awaitable[T]]) -> T:
        """The result for `key`. A job that raises is not cached: the next caller runs it again."""
        lock = self._locks.get(key) or self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if key in self._results:
                self._results.move_to_end(key)
                return self._results[key]
            result = self._results[key] = await job()
            if len(self._results) > self._size:
                self._results.popitem(last=False)
            return result
