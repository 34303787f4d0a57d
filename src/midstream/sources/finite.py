"""Base of task sources whose tasks are all known: drawing from the splits of a file or a benchmark; no tasks at all."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NoReturn, get_args

from midstream.components.component import Context, TasksConfig
from midstream.core.errors import RecipeError, UsageError, did_you_mean
from midstream.core.seeds import derive_seed
from midstream.core.task import Task

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
DRAW_SEED = 99  # of a set whose table names none
SPLIT_FIX = "name one of them as the set's `split`"


class Finite:
    """A `core.source.TaskSource` over splits that are read once, when first used. Subclasses implement `load`.

    `left_out` counts, by split and reason, the rows that are not tasks. `what` is its name in messages. Of a split in
    `counts`, a fixed draw of so many tasks is the whole split.
    """

    def __init__(self, what: str, splits: Sequence[str], counts: Mapping[Split, int] | None = None) -> None:
        self.what, self.splits = what, tuple(splits)
        self._counts: dict[str, int] = dict(counts.items()) if counts else {}
        self.left_out: dict[str, Counter[str]] = {}
        self._loaded: dict[str, list[Task]] = {}

    def load(self, split: str) -> list[Task]:
        """Return all tasks of a split in their own order, ids unique."""
        raise NotImplementedError

    def tasks(self, split: str) -> list[Task]:
        """Return all tasks of a split. Raises `RecipeError` if it does not exist, or is empty."""
        check_known("split", [split], self.splits, self.what, SPLIT_FIX)
        if split not in self._loaded:
            self._loaded[split] = self.load(split)
        if not self._loaded[split]:
            raise RecipeError(
                f"split {split!r} of {self.what} is empty",
                code="no-questions",
                fix="give more questions, or other `splits`",
            )
        if (count := self._counts.pop(split, None)) is not None:
            self._check(count, len(self._loaded[split]), split, "`counts`")
            self._loaded[split] = _draw(self._loaded[split], count, split, DRAW_SEED)
        return self._loaded[split]

    @property
    def families(self) -> Sequence[str]:
        """Families of the first split, which is the training split if there is one."""
        return list(dict.fromkeys(task.family for task in self.tasks(self.splits[0])))

    def sample(self, split: str, count: int, seed: int, weights: Mapping[str, float] | None = None) -> list[Task]:
        """Draw `count` different tasks in proportion to their families' `weights` (uniformly without)."""
        tasks = [task for task in self.tasks(split) if not weights or weights.get(task.family, 1.0)]
        self._check(count, len(tasks), split, "`training.tasks_per_step` or `transcripts`")
        rng = random.Random(derive_seed("tasks", split, seed))
        if weights is None:
            return rng.sample(tasks, count)
        # The largest of u ** (1 / weight) are a weighted draw without replacement (Efraimidis and Spirakis, 2006).
        keys = [(rng.random() ** (1 / weights.get(task.family, 1.0)), place) for place, task in enumerate(tasks)]
        return [tasks[place] for _, place in heapq.nlargest(count, keys)]

    def fixed(
        self,
        split: str,
        *,
        seed: int,
        families: Sequence[str] = (),
        per_family: int | None = None,
        count: int | None = None,
    ) -> list[Task]:
        """Return all tasks of the split, or a draw of `count` or of `per_family` each, in the split's order.

        The draw depends on ids and `seed` alone: an added question displaces at most one other.
        """
        tasks = self.tasks(split)
        known = dict.fromkeys(task.family for task in tasks)
        check_known("family", families, known, f"split {split!r} of {self.what}")
        tasks = [task for task in tasks if not families or task.family in families]
        if count is not None:
            self._check(count, len(tasks), split, "`count`")
            return _draw(tasks, count, split, seed)
        if per_family is None:
            return tasks
        by_family: dict[str, list[Task]] = {}
        for task in tasks:
            by_family.setdefault(task.family, []).append(task)
        for family, part in by_family.items():
            self._check(per_family, len(part), f"{split}, family {family!r}", "`per_family`")
        return [task for part in by_family.values() for task in _draw(part, per_family, split, seed)]

    def _check(self, wanted: int, available: int, where: str, setting: str) -> None:
        if wanted > available:
            raise RecipeError(
                f"{wanted} tasks of {self.what} ({where}) were asked for, and there are {available}",
                code="too-few-tasks",
                fix=f"lower {setting} to {available} or less",
            )


_UNKNOWN = {  # codes
    "family": "unknown-family", "split": "unknown-split", "benchmark": "unknown-benchmark", "desk": "unknown-desk",
}  # fmt: skip


def check_known(
    kind: str,
    names: Iterable[str],
    known: Collection[str],
    what: str,
    fix: str = "correct `families` in [tasks] or in the evaluation set",
) -> None:
    """Raise `RecipeError` for a family or split (`kind`) that the source of tasks `what` does not have."""
    for name in names:
        if name not in known:
            raise RecipeError(
                f"{what} has no {kind} {name!r}; it has {', '.join(known)}",
                code=_UNKNOWN[kind],
                fix=did_you_mean(name, known) + fix,
            )


def _draw(tasks: Sequence[Task], count: int, split: str, seed: int) -> list[Task]:
    """Draw `count` of the tasks, in their own order."""
    ranks = [(derive_seed("fixed", split, seed, task.id), place) for place, task in enumerate(tasks)]
    return [tasks[place] for place in sorted(place for _, place in heapq.nsmallest(count, ranks))]


class NoTasksConfig(TasksConfig):
    """No tasks: the default of a recipe whose agent answers questions, or whose tasks a command names."""

    def build(self, context: Context) -> NoTasks:
        """Build it."""
        return NoTasks()


class NoTasks:
    """A `core.source.TaskSource` that has none. Each draw raises `UsageError`."""

    families: Sequence[str] = ()

    def sample(self, split: str, count: int, seed: int, weights: Mapping[str, float] | None = None) -> NoReturn:
        """Draw nothing."""
        raise UsageError("the recipe names no tasks", code="no-tasks", fix="add [tasks] to the recipe, or --tasks FILE")

    def fixed(self, split: str, **_: object) -> NoReturn:
        """Draw nothing."""
        self.sample(split, 0, 0)
