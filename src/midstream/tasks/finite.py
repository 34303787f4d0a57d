"""Tasks that are all there: drawing from the splits of a file or a benchmark."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.task import Task

SPLITS = ("train", "validation", "test")


class Finite:
    """A `core.protocols.TaskSource` over splits that are read once, when first asked for. Subclasses give `load`.

    `left_out` counts, by split and reason, the rows of what was read that are no tasks.

    Args:
        what: what messages call it.
        splits: which splits there are.
    """

    def __init__(self, what: str, splits: Sequence[str]) -> None:
        self.what, self.splits = what, tuple(splits)
        self.left_out: dict[str, Counter[str]] = {}
        self._loaded: dict[str, list[Task]] = {}

    def load(self, split: str) -> list[Task]:
        """All tasks of a split in their own order, ids unique."""
        raise NotImplementedError

    def tasks(self, split: str) -> list[Task]:
        """All tasks of a split.

        Raises:
            RecipeError: there is no such split, or it is empty.
        """
        if split not in self.splits:
            raise RecipeError(
                f"{self.what} has no split {split!r}",
                cause=f"it has {', '.join(self.splits)}",
                fix=self.mend_split(split),
            )
        if split not in self._loaded:
            self._loaded[split] = self.load(split)
        if not self._loaded[split]:
            raise RecipeError(
                f"split {split!r} of {self.what} is empty",
                cause="no question of it falls into this split",
                fix="give more questions, or other `splits`",
            )
        return self._loaded[split]

    def mend_split(self, split: str) -> str:
        """What to do about a split that is not there."""
        return "name one of them as the set's `split`"

    @property
    def families(self) -> Sequence[str]:
        """Those of the split that is trained on, or else of the first there is."""
        return list(dict.fromkeys(task.family for task in self.tasks(self.splits[0])))

    def sample(self, split: str, count: int, seed: int, weights: Mapping[str, float] | None = None) -> list[Task]:
        """`count` different tasks, each as likely as its family's weight (all alike without)."""
        tasks = self.tasks(split)
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
        """All tasks of the split, or those that a draw takes, in the split's order.

        The draw depends on ids and `seed` alone: a question that is added moves at most one other out.
        """
        tasks = self._of_families(split, families)
        if count is not None:
            self._check(count, len(tasks), split, "`count`")
            return _drawn(tasks, count, split, seed)
        if per_family is None:
            return tasks
        for family, there in Counter(task.family for task in tasks).items():
            self._check(per_family, there, f"{split}, family {family!r}", "`per_family`")
        names = dict.fromkeys(task.family for task in tasks)
        parts = [_drawn([task for task in tasks if task.family == name], per_family, split, seed) for name in names]
        return [task for part in parts for task in part]

    def _of_families(self, split: str, families: Sequence[str]) -> list[Task]:
        tasks = self.tasks(split)
        there = dict.fromkeys(task.family for task in tasks)
        for family in families:
            if family not in there:
                raise RecipeError(
                    f"{self.what} has no family {family!r} in its split {split!r}",
                    cause=f"it has {', '.join(map(repr, there))}",
                    fix="correct the evaluation set's `families`",
                )
        return [task for task in tasks if not families or task.family in families]

    def _check(self, wanted: int, there: int, where: str, setting: str) -> None:
        if wanted > there:
            raise RecipeError(
                f"{wanted} tasks of {self.what} ({where}) were asked for, and there are {there}",
                cause="a question is never taken twice",
                fix=f"lower {setting} to {there} or less",
            )


def _drawn(tasks: Sequence[Task], count: int, split: str, seed: int) -> list[Task]:
    """`count` of the tasks, in their own order."""
    ranks = [(derive_seed("fixed", split, seed, task.id), place) for place, task in enumerate(tasks)]
    return [tasks[place] for place in sorted(place for _, place in heapq.nsmallest(count, ranks))]
