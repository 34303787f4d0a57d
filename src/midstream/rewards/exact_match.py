"""Exact match of the answer with the gold answer."""

from __future__ import annotations

from midstream.core.data import Frozen
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory


class Config(Frozen):
    """No settings."""


class ExactMatch:
    """1 if answer and gold are equal after lower-casing and folding white space, else 0; no answer is 0.

    Not normalised: punctuation, articles, number formats ("1,000" is not "1000"), units.
    """

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Compare `trajectory.answer` with `task.answer`."""
        answer = trajectory.answer
        return Score(value=float(answer is not None and _normalise(answer) == _normalise(task.answer)))


def _normalise(text: str) -> str:
    return " ".join(text.lower().split())
