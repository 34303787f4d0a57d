"""The reward of an environment: what its own scorer, its loop or its last step says, on the scale from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from midstream.components.component import RewardConfig
from midstream.core.errors import InfrastructureError, RecipeError, RewardError
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.recipe.check import reward_components, with_parts
from midstream.rewards.rule import BaseReward
from midstream_environments.cases import case_of
from midstream_environments.library import LibraryConfig, library_at

# Of a share of the range.
_ROUNDING = 1e-6


class EnvironmentRewardConfig(RewardConfig):
    """What the environment of the task says, with `tasks.range` as 0 to 1."""

    def check_recipe(self, where: str, recipe: Any) -> None:
        """An environment with a loop of its own scores only that loop's runs."""
        for place, config in environments_of(recipe):
            if config.scores == "own loop" and recipe.agent.type != "environment":
                raise RecipeError(
                    f"{place} of {config.library} are scored by its own loop, and agent.type = {recipe.agent.type!r}",
                    code="reward-does-not-fit",
                    fix='set agent = { type = "environment", engine = "NAME" }',
                )

    def build(self, context: object) -> EnvironmentReward:
        """Build it."""
        return EnvironmentReward()


def environments_of(recipe: Any) -> Iterator[tuple[str, LibraryConfig]]:
    """The tasks of a recipe and of its evaluation sets that are environments of a library, with their places."""
    for _, _, tasks in reward_components(recipe):
        for place, component in with_parts("tasks", tasks):
            if isinstance(component.config, LibraryConfig):
                yield place, component.config


class EnvironmentReward(BaseReward):
    """Reads the outcome of an episode; an answer goes to the library's scorer.

    The environment's own loop brings its reward itself (`midstream_environments.agent`). Without one, its run met a
    limit, and has no answer.
    """

    name = "environment"

    def check(self, task: Task) -> None:
        """Accept the tasks of a library."""
        case_of(task)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """The score. Raises `RewardError` where the scorer raises, hangs, or returns no number."""
        if "reward" in trajectory.outcome:
            scale: Any = trajectory.outcome["range"]
            return score_of(trajectory.outcome, scale)
        if trajectory.answer is None:
            return Score(0.0)
        key, case = case_of(task)
        library = library_at(key)
        try:
            said = await library.ask("score", case=case, answer=trajectory.answer)
        except InfrastructureError as failure:
            raise failure.of(RewardError, "the environment's scorer failed", code="reward-failed") from failure
        return score_of(said, library.config.range)


def score_of(said: Mapping[str, Any], scale: tuple[float, float]) -> Score:
    """A `Score` of what an adapter returns: `reward`, and maybe `parts` and `feedback`. Raises `RewardError`."""
    low, high = scale
    value: Any = said.get("reward")
    if not _is_number(value):
        raise RewardError(
            f"the environment gave {value!r} as its reward, which is no number",
            code="reward-not-finite",
            fix="correct its scorer",
            retryable=False,
        )
    share = (value - low) / (high - low)
    # A sum of parts may miss its bound by its last bit.
    if not -_ROUNDING <= share <= 1 + _ROUNDING:
        raise RewardError(
            f"the environment gave a reward of {value:g}, outside of {low:g} to {high:g}",
            code="reward-out-of-range",
            fix="set tasks.range to the environment's lowest and highest reward",
            retryable=False,
        )
    parts = {name: float(part) for name, part in (said.get("parts") or {}).items() if _is_number(part)}
    return Score(min(1.0, max(0.0, share)), parts=parts, feedback=str(said.get("feedback") or ""))


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number. True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
