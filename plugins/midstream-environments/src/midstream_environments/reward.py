"""The reward of an environment: what its own scorer, its loop or its last step says, on the scale from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from midstream.components.component import RewardConfig
from midstream.core.errors import InfrastructureError, RewardError
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.rule import BaseReward
from midstream_environments.cases import case_of
from midstream_environments.library import library_at


class EnvironmentRewardConfig(RewardConfig):
    """What the environment of the task says.

    Attributes:
        range: the environment's lowest and highest reward, which become 0 and 1
    """

    range: tuple[float, float] = Field(default=(0.0, 1.0))

    def build(self, context: object) -> EnvironmentReward:
        """Build it."""
        return EnvironmentReward(self)


class EnvironmentReward(BaseReward):
    """Reads the outcome of an episode or of an environment's own loop; an answer goes to the library's scorer."""

    name = "environment"

    def __init__(self, config: EnvironmentRewardConfig) -> None:
        self._range = config.range

    def check(self, task: Task) -> None:
        """Accept the tasks of a library."""
        case_of(task)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """The score. Raises `RewardError` where the scorer raises, hangs, or returns no number."""
        if trajectory.outcome:
            return score_of(trajectory.outcome, self._range)
        if trajectory.answer is None:
            return Score(0.0)
        key, case = case_of(task)
        try:
            library = library_at(key)
            said = await library.ask("score", limit_s=library.config.call_s, case=case, answer=trajectory.answer)
        except InfrastructureError as failure:
            raise failure.of(RewardError, "the environment's scorer failed", code="reward-failed") from failure
        return score_of(said, self._range)


def score_of(said: Mapping[str, Any], scale: tuple[float, float] = (0.0, 1.0)) -> Score:
    """A `Score` of what an adapter returns: `reward`, and maybe `parts` and `feedback`. Raises `RewardError`."""
    low, high = scale
    value = said.get("reward")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RewardError(
            f"the environment gave {value!r} as its reward, which is no number",
            code="reward-not-finite",
            fix="correct its scorer",
            retryable=False,
        )
    if not low <= value <= high:
        raise RewardError(
            f"the environment gave a reward of {value:g}, outside of {low:g} to {high:g}",
            code="reward-out-of-range",
            fix="set its lowest and highest reward: reward.range, of an environment's own loop agent.range",
            retryable=False,
        )
    parts = {name: float(part) for name, part in (said.get("parts") or {}).items() if _is_number(part)}
    return Score((value - low) / (high - low), parts=parts, feedback=str(said.get("feedback") or ""))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
