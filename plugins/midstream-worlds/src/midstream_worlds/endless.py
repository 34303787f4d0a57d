"""Base of task sources whose tasks are made from a seed, as many as are requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.sources.finite import SPLIT_FIX, check_known

PER_FAMILY = 60  # default number of tasks of a family in an evaluation set
_ATTEMPTS = 100  # for each task of a set without repeats


class Endless:
    """A `core.source.TaskSource` whose tasks are made. Subclasses implement `make`, and have `splits` by name.

    Raises `RecipeError` for an unknown family.
    """

    splits: Mapping[str, Sequence[Any]]

    def __init__(
        self,
        what: str,  # its name in messages
        *,
        known: Sequence[str],  # all families that it can make
        families: Sequence[str],  # those of this source
        sampled: Sequence[int | str],  # first parts of the seed of `sample`
        fixed: Sequence[int | str],  # first parts of the seed of `fixed`
    ) -> None:
        self.what, self._known, self._sampled, self._fixed = what, known, sampled, fixed
        check_known("family", families, known, what)
        self.families = families

    def make(self, split: str, family: str, draws: Random, task_id: str) -> Task:
        """Draw one task of a known split and family."""
        raise NotImplementedError

    def sample(self, split: str, count: int, seed: int, weights: Mapping[str, float] | None = None) -> list[Task]:
        """Draw `count` tasks, families in proportion to `weights` (uniformly without)."""
        check_known("split", [split], self.splits, self.what, SPLIT_FIX)
        draws = Random(derive_seed(*self._sampled, split, seed))
        shares = [weights.get(family, 1.0) for family in self.families] if weights else None
        families = draws.choices(self.families, shares, k=count)
        return [self.make(split, family, draws, f"{split}-{seed}-{i}") for i, family in enumerate(families)]

    def fixed(
        self,
        split: str,
        *,
        seed: int,
        families: Sequence[str] = (),
        per_family: int | None = None,
        count: int | None = None,
    ) -> list[Task]:
        """Return `per_family` tasks of each family (or `count`, shared out evenly), all questions different."""
        check_known("split", [split], self.splits, self.what, SPLIT_FIX)
        check_known("family", families, self._known, self.what)
        chosen = tuple(dict.fromkeys(families or self.families))
        total = count if count is not None else len(chosen) * (PER_FAMILY if per_family is None else per_family)
        draws = Random(derive_seed(*self._fixed, split, seed))
        tasks: list[Task] = []
        seen: set[str] = set()
        for place, family in enumerate(chosen):
            wanted = len(range(place, total, len(chosen)))  # dealt out in turn
            made = attempts = 0
            while made < wanted:
                attempts += 1
                if attempts > _ATTEMPTS * wanted:
                    raise RecipeError(
                        f"{self.what} has {made} different {family!r} tasks of {wanted} in the {split} split",
                        code="too-few-tasks",
                        fix="lower `per_family`, or make the world of [tasks] larger",
                    )
                task = self.make(split, family, draws, f"{split}-{family}-{made}")
                if task.question not in seen:
                    seen.add(task.question)
                    tasks.append(task)
                    made += 1
        return tasks
