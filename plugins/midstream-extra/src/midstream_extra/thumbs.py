"""What people said of answers in the viewer, as a reward: their thumbs, and other rewards for all other answers."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from statistics import fmean

from pydantic import field_validator

from midstream.components.component import Context
from midstream.core.errors import RecipeError
from midstream.core.source import Reward
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.composite import CompositeConfig
from midstream.rewards.rule import BaseReward
from midstream.rewards.votes import answer_key
from midstream.runs.feedback import read_feedback

_VALUES = {"up": 1.0, "down": 0.0}
Judged = Mapping[Hashable, float]  # (question, answer's key) -> mean of the thumbs


class ThumbsConfig(CompositeConfig):
    """People's thumbs on answers, and the weighted mean of other rewards for the rest.

    Attributes:
        runs: runs whose trajectories people judged (`midstream view`)
    """

    runs: tuple[Path, ...]

    @field_validator("runs")
    @classmethod
    def _from_anywhere(cls, runs: tuple[Path, ...]) -> tuple[Path, ...]:
        # A run may be resumed in another directory.
        return tuple(Path(os.path.abspath(run)) for run in runs)

    def build(self, context: Context) -> Thumbs:
        """Build it with the thumbs that there are now. Raises `RecipeError` without any."""
        judged = thumbs_of(self.runs)
        if not judged:
            raise RecipeError(
                f"nobody has judged an answer in {', '.join(map(str, self.runs)) or 'no runs'}",
                code="no-thumbs",
                fix="midstream view RUN, and give thumbs to trajectories; or name other runs in reward.runs",
            )
        return Thumbs(judged, super().build(context))


class Thumbs(BaseReward):
    """1 for an answer that people called good, 0 for one that they called bad, a mean where they disagree.

    What was judged is an answer to a question: `rewards.votes.answer_key` says which answers are the same. Any other
    answer, and a run without one, has the score of `otherwise`, whose `check` and errors are this reward's.
    """

    def __init__(self, judged: Judged, otherwise: Reward) -> None:
        self._judged, self._otherwise = judged, otherwise
        self.name, self.judged = f"thumbs, else {otherwise.name}", otherwise.judged

    def check(self, task: Task) -> None:
        """The other rewards must be able to score it: no answer is known beforehand."""
        self._otherwise.check(task)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """The thumbs of an answer that has some, else the other rewards' score; "thumbs" names them in the parts."""
        key = task.question, answer_key(task.question, trajectory.answer)
        if key[1] is None or key not in self._judged:
            return await self._otherwise.score(task, trajectory)
        value = self._judged[key]
        return Score(value=value, parts={"thumbs": value}, feedback="people judged this answer")


def thumbs_of(runs: tuple[Path, ...]) -> Judged:
    """The mean of the thumbs on each answer in some runs; damaged entries are left out."""
    found: dict[Hashable, list[float]] = {}
    for run in runs:
        for entry in read_feedback(run).values():
            # A choice between two answers calls neither of them good.
            if entry.against is None and entry.vote and (key := answer_key(entry.question, entry.answer)) is not None:
                found.setdefault((entry.question, key), []).append(_VALUES[entry.vote])
    return {key: fmean(values) for key, values in found.items()}
