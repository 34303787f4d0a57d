"""No tasks: the default of a recipe whose agent answers questions, or whose tasks a command names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from midstream.components.component import Context, TasksConfig
from midstream.core.errors import UsageError


class NoTasksConfig(TasksConfig):
    """No tasks."""

    def build(self, context: Context) -> NoTasks:
        """Build it."""
        return NoTasks()


class NoTasks:
    """A `core.protocols.TaskSource` that has none. Each draw raises `UsageError`."""

    families: Sequence[str] = ()

    def sample(self, split: str, count: int, seed: int, weights: Mapping[str, float] | None = None) -> NoReturn:
        """Draw nothing."""
        raise UsageError("the recipe names no tasks", code="no-tasks", fix="add [tasks] to the recipe, or --tasks FILE")

    def fixed(self, split: str, **_: Any) -> NoReturn:
        """Draw nothing."""
        self.sample(split, 0, 0)
