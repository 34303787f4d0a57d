"""What a task source offers that trains a model of its own from nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from midstream.core.lessons import Lessons
from midstream.core.task import Task


@runtime_checkable
class TrainableWorld(Protocol):
    """A task source in which an untrained model can learn; its settings name a `teacher`."""

    def attach(self, model: Any) -> None:
        """Add the hooks that training in this world needs to a model; adding them again does nothing.

        A learner calls `model.before_step(seed)` before each step if the model has this method.
        """
        ...

    def readable(self, question: str) -> str:
        """Return a user's question as a model of this world reads it.

        Raises:
            UsageError: it has words that the model does not know.
        """
        ...

    def lessons(self, task_ids: Sequence[str], share: float, seed: int) -> Mapping[str, Lessons]:
        """Lessons for the prompts of a `share` of the warm-start transcripts, by task id; the teacher follows them."""
        ...

    def check_validation(self, tasks: Sequence[Task], least: float) -> None:
        """Check, before any work, that `check_warm_start` can use these validation tasks.

        Raises:
            RecipeError: it cannot.
        """
        ...

    async def check_warm_start(self, environment: Any, tasks: Sequence[Task], least: float, seed: int) -> str:
        """Check a warm-started model before reinforcement; returns a line for the log.

        Args:
            environment: a `rollout.Environment` around the model.
            tasks: the validation tasks.
            least: the lowest result that passes, in [0, 1] (`warm_start.min_copy_rate`).
            seed: seed of the rollouts.

        Raises:
            TrainingError: the model learned too little to continue.
        """
        ...
