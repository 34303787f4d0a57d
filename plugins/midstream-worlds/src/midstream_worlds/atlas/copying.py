"""Exact copying as a metric of its own: whether the first search has the name of a place, letter by letter.

A policy that cannot copy a name that it was never trained on cannot be rewarded for looking it up.
"""

from __future__ import annotations

from midstream.components.component import Context, RewardConfig
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.rule import BaseReward
from midstream_worlds.atlas.tasks import Atlas


class AtlasCopying(BaseReward):
    """1 if the trajectory's first call searches for the exact name of a place of its question, else 0."""

    name = "name copied"

    def __init__(self, world: Atlas) -> None:
        self.world = world

    def check(self, task: Task) -> None:
        """Refuse a question without a place."""
        if not self.world.places(task):
            raise RecipeError(
                f"reward atlas_copying cannot score the question {task.question!r}",
                code="foreign-task",
                cause="it names no place of the atlas",
                fix="leave arith out of tasks.families and out of the families of the evaluation sets",
            )

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """0 as well where nothing was searched."""
        return Score(value=float(bool(self.world.copied(task, trajectory))))


class AtlasCopyingConfig(RewardConfig):
    """Copying apart from planning and calculating: 1 if the first call searches for a place's exact name, else 0."""

    def build(self, context: Context) -> AtlasCopying:
        """Build it."""
        if not isinstance(context.source, Atlas):
            raise RecipeError(
                "reward atlas_copying scores questions of the atlas alone",
                code="world-missing",
                fix='set tasks.type = "atlas", or take another reward',
            )
        return AtlasCopying(context.source)
