"""Base of task sources that make their tasks from a seed, as many as are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.task import Task

PER_FAMILY = 60  # default number of tasks of a family in an evaluation set
_ATTEMPTS = 100  # for each task of a set without repeats


class Endless:
    """A `core.protocols.TaskSource` whose tasks are made. Subclasses implement `make`.

    Args:
        what: its name in messages, a plural.
        known: all families that it can make.
        families: the families of this source.
        sampled: first parts of the seed of `sample`.
        fixed: first parts of the seed of `fixed`.

    Raises:
        RecipeError: a family is not known.
    """

    def __init__(
        self,
        what: str,
        *,
        known: Sequence[str],
        families: Sequence[str],
        sampled: Sequence[int | str],
        fixed: Sequence[int | str],
    ) -> None:
        self.what, self._known, self._sampled, self._fixed = what, known, sampled, fixed
        self.families = self._checked(families)

    def make(self, split: str, family: str, draws: Random, task_id: str) -> Task:
        """Draw one task. Raises `RecipeError` for an unknown split."""
        raise NotImplementedError

    def sample(self, split: str, count: int, seed: int, weights: Mapping[str, float] | None = None) -> list[Task]:
        """Draw `count` tasks, families in proportion to `weights` (uniformly without)."""
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
        chosen = self._checked(families or self.families)
        if count is not None:
            per_family = -(-count // len(chosen))
        elif per_family is None:
            per_family = PER_FAMILY
        draws = Random(derive_seed(*self._fixed, split, seed))
        tasks: list[Task] = []
        seen: set[str] = set()
        for family in chosen:
            made = attempts = 0
            while made < per_family:
                attempts += 1
                if attempts > _ATTEMPTS * per_family:
                    raise RecipeError(
                        f"only {made} different {family!r} tasks of {self.what} were found in the {split} split",
                        code="too-few-tasks",
                        cause=f"{per_family} were asked for",
                        fix="lower `per_family`, or make the world of [tasks] larger",
                    )
                task = self.make(split, family, draws, f"{split}-{family}-{made}")
                if task.question not in seen:
                    seen.add(task.question)
                    tasks.append(task)
                    made += 1
        return tasks if count is None else tasks[:count]

    def unknown_split(self, split: str, splits: Sequence[str]) -> RecipeError:
        """The error for a split that does not exist."""
        return RecipeError(
            f"{self.what} have no split {split!r}; they have {', '.join(splits)}",
            code="unknown-split",
            fix="name one of them as the set's `split`",
        )

    def _checked(self, families: Sequence[str]) -> Sequence[str]:
        for family in families:
            if family not in self._known:
                raise RecipeError(
                    f"{self.what} have no family {family!r}; they have {', '.join(self._known)}",
                    code="unknown-family",
                    fix="correct `families` in [tasks] or in the evaluation set",
                )
        return families
