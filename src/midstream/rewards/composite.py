"""Several rewards as one: their weighted mean, with each in its own named part."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import field_validator

from midstream.core.component import Context, Parts, RewardConfig
from midstream.core.protocols import Reward
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory


class Config(RewardConfig):
    """`parts`: a table for each reward by a name of yours: its `type`, that type's settings, and its `weight` (1)."""

    parts: Parts

    @field_validator("parts")
    @classmethod
    def _named(cls, parts: Parts) -> Parts:
        if "rule" in parts:
            raise ValueError('no part may be called "rule": that is the score beside a judge\'s')
        return parts

    def build(self, context: Context) -> Composite:
        """Build it."""
        return Composite({name: (part.weight or 1.0, context.reward(part)) for name, part in self.parts.items()})


class Composite:
    """The mean of its parts' values, each weighted by its share of all weights; judged if one of them is.

    `parts` holds each value by its name, and what a part itself tells by both names ("math.timed_out"). Whoever made
    the rewards closes them. A part that fails fails the whole.
    """

    def __init__(self, parts: Mapping[str, tuple[float, Reward]]) -> None:
        self._parts = dict(parts)
        self._total = math.fsum(weight for weight, _ in self._parts.values())
        shares = (f"{weight / self._total:.3g} {reward.name}" for weight, reward in self._parts.values())
        self.name = f"composite ({' + '.join(shares)})"
        self.judged = any(reward.judged for _, reward in self._parts.values())

    def check(self, task: Task) -> None:
        """Every part must be able to score it."""
        for _, reward in self._parts.values():
            reward.check(task)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Score by every part, one after the other."""
        scores = {name: await reward.score(task, trajectory) for name, (_, reward) in self._parts.items()}
        value = math.fsum(self._parts[name][0] * score.value for name, score in scores.items()) / self._total
        inner = {f"{name}.{key}": part for name, score in scores.items() for key, part in score.parts.items()}
        return Score(
            value=min(value, 1.0),  # thrice 0.1 of 0.3 may round above
            parts={name: score.value for name, score in scores.items()} | inner,
            calls=tuple(call for score in scores.values() for call in score.calls),
        )

    async def close(self) -> None:
        """Nothing of its own to release."""
