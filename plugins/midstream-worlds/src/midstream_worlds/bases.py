"""Base of worlds in which an untrained model can learn: the check after a warm start, and nothing else to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midstream.core.errors import TrainingError
from midstream.core.task import Task
from midstream.core.texts import Lessons
from midstream.rollout import Environment


class WarmStartWorld:
    """Base of a `training.protocols.TrainableWorld`: subclasses measure `warm_rate`."""

    async def warm_rate(self, environment: Environment, tasks: Sequence[Task], seed: int) -> tuple[float, str]:
        """Measure what reinforcement cannot teach a warm-started model: a share in [0, 1], and its name."""
        raise NotImplementedError

    def attach(self, model: Any) -> None:
        """Add no hooks."""

    def readable(self, question: str) -> str:
        """Return the question: a model of open text reads any."""
        return question

    def lessons(self, task_ids: Sequence[str], share: float, seed: int) -> Mapping[str, Lessons]:
        """Return no lessons."""
        return {}

    def check_validation(self, tasks: Sequence[Task], least: float) -> None:
        """Accept any validation tasks."""

    async def check_warm_start(self, environment: Environment, tasks: Sequence[Task], least: float, seed: int) -> str:
        """Refuse a warm model whose `warm_rate` is too low: reinforcement would find nothing to reward."""
        rate, what = await self.warm_rate(environment, tasks, seed)
        if rate < least:
            raise TrainingError(
                f"after the warm start the {what} is {rate:.2f}, below {least}",
                code="warm-start-failed",
                fix="start a new run with a higher warm_start.steps, or with a lower warm_start.min_copy_rate",
            )
        return f"{what} {rate:.2f}"
