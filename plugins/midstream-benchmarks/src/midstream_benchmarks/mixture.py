"""Several sources as one, each drawn from by its weight: search questions and mathematics in one training run.

A part's name is the family of all its tasks, so that tables and family sampling distinguish parts; a task's own family
is kept in its metadata.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from midstream.components.component import Context, Parts, TasksConfig
from midstream.core.seeds import derive_seed
from midstream.core.source import TaskSource
from midstream.core.task import Task
from midstream.sources.finite import check_known


class MixtureConfig(TasksConfig):
    """Several task sources, drawn from by weight.

    Attributes:
        parts: `[tasks.parts.NAME]`: a table such as `[tasks]`, with a `weight` (default 1)
    """

    parts: Parts

    def build(self, context: Context) -> Mixture:
        """Build it."""
        return Mixture(
            {name: context.tasks(part) for name, part in self.parts.items()},
            {name: part.weight or 1.0 for name, part in self.parts.items()},
        )


class Mixture:
    """A `core.source.TaskSource` over other sources, each drawn from by its weight."""

    def __init__(self, parts: Mapping[str, TaskSource], weights: Mapping[str, float]) -> None:
        self.parts, self.weights = dict(parts), dict(weights)
        self.families: Sequence[str] = tuple(self.parts)

    def sample(self, split: str, count: int, seed: int, weights: Mapping[str, float] | None = None) -> list[Task]:
        """Draw `count` tasks, the part of each in proportion to its weight, times its weight in `weights`."""
        rng = random.Random(derive_seed("mixture", split, seed))
        shares = [self.weights[name] * (weights or {}).get(name, 1.0) for name in self.parts]
        names = rng.choices(list(self.parts), shares, k=count)
        # Sample `count` tasks of every part: a part that is too small fails at once, not by chance in a later step.
        tasks = {
            name: iter(part.sample(split, count, derive_seed("part", name, seed))) for name, part in self.parts.items()
        }
        return [_part_task(name, next(tasks[name])) for name in names]

    def fixed(
        self,
        split: str,
        *,
        seed: int,
        families: Sequence[str] = (),
        per_family: int | None = None,
        count: int | None = None,
    ) -> list[Task]:
        """Return all tasks of every part, or `per_family` of each, or `count` shared out by weight."""
        check_known("family", families, self.parts, "the mixture")
        names = [name for name in self.parts if not families or name in families]
        counts = dict.fromkeys(names, per_family)
        if count is not None:
            # Whole numbers that add up to `count`, as near to the weights as can be (largest remainders).
            total = sum(self.weights[name] for name in names)
            exact = {name: count * self.weights[name] / total for name in names}
            shares = {name: int(exact[name]) for name in names}
            short = sorted(names, key=lambda name: shares[name] - exact[name])[: count - sum(shares.values())]
            counts = {name: shares[name] + (name in short) for name in names}
        return [
            _part_task(name, task)
            for name, wanted in counts.items()
            if wanted != 0
            for task in self.parts[name].fixed(split, seed=seed, count=wanted)
        ]


def _part_task(name: str, task: Task) -> Task:
    """A part's task with the part as family, and an id that is unique in the mixture."""
    own = {"own_family": task.family} if task.family not in ("", name) else {}
    return task.model_copy(update={"id": f"{name}:{task.id}", "family": name, "metadata": {**task.metadata, **own}})
