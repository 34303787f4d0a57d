"""Tasks as an object: the `[tasks]` table of a recipe, and one of its splits."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from midstream.components.component import Table
from midstream.components.kinds import registered
from midstream.components.own import is_reference, reference_of
from midstream.components.tables import parse_component
from midstream.core.errors import UsageError, did_you_mean
from midstream.core.source import TaskSource
from midstream.core.task import Task
from midstream.core.text import html_table
from midstream.sources.benchmarks import BENCHMARKS
from midstream.sources.finite import DRAW_SEED

_SHOWN = 20


@dataclass(frozen=True)
class Tasks:
    """The tasks of a source. `train`, `validation` and `test` are its splits; without one, `test` is meant.

    questions = tasks("questions.jsonl").split(train=0.8, seed=0)
    len(questions.train), questions.test[0].question
    """

    source: Table
    chosen: str = "test"
    count: int | None = None

    @property
    def train(self) -> Tasks:
        """The tasks to learn from."""
        return replace(self, chosen="train")

    @property
    def validation(self) -> Tasks:
        """The tasks to decide on while learning."""
        return replace(self, chosen="validation")

    @property
    def test(self) -> Tasks:
        """The tasks to measure on."""
        return replace(self, chosen="test")

    def split(self, train: float = 0.8, validation: float = 0.0, *, seed: int = 0) -> Tasks:
        """Divide tasks whose rows name no split: a hash of each question decides, so that more rows move none.

        Args:
            train: the share to learn from.
            validation: the share to decide on; the rest is `test`.
            seed: another seed draws others.
        """
        shares = {"train": train, "validation": validation, "test": round(1 - train - validation, 9)}
        return replace(
            self, source={**self.source, "splits": {k: v for k, v in shares.items() if v}, "split_seed": seed}
        )

    def sample(self, count: int) -> Tasks:
        """A fixed draw of `count` tasks of the split."""
        return replace(self, count=count)

    @property
    def drawn(self) -> Table:
        """The source whose split holds these tasks alone. Raises `UsageError` for one that cannot be drawn from."""
        if self.count is None:
            return self.source
        if "counts" not in type(parse_component("tasks", self.source, "tasks").config).model_fields:
            what = f"tasks.{self.chosen}.sample({self.count}) of {self.source['type']!r} cannot be learned from"
            fix = f"give tasks.{self.chosen} as it is, or draw in the source itself"
            raise UsageError(what, code="setting-conflict", fix=fix)
        return {**self.source, "counts": {self.chosen: self.count}}

    @cached_property
    def _tasks(self) -> Sequence[Task]:
        component = parse_component("tasks", self.source, "tasks")
        source: TaskSource = component.config.build(None)  # type: ignore[arg-type]
        return source.fixed(self.chosen, seed=DRAW_SEED, count=self.count)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, place: int) -> Task:
        return self._tasks[place]

    def _repr_html_(self) -> str:
        return html_table(
            [{"id": task.id, "question": task.question, "answer": task.answer} for task in self._tasks[:_SHOWN]]
        )


def tasks(source: str | os.PathLike[str] | Callable[..., Iterable[Any]] | Iterable[Any], **settings: Any) -> Tasks:
    """Tasks from a file, a benchmark, rows, or a function that returns rows.

        tasks("questions.jsonl")                                   # rows with `question` and `answer`
        tasks("bamboogle")                                         # a name that `midstream list benchmarks` lists
        tasks([{"question": "What is 2 + 2?", "answer": "4"}])
        tasks(my_function), tasks("my_tasks.py:my_function", difficulty=3)

    Args:
        source: see above; a row's field `split` is "train", "validation" or "test", and without it all rows are "test".
        settings: settings of the source (docs/recipes.md), such as `question_field="problem"`.

    Raises:
        UsageError: nothing of this name exists.
    """
    if callable(source):
        return Tasks({"type": reference_of(source), **settings})
    if not isinstance(source, str | os.PathLike):
        rows = [row.model_dump(mode="json") if isinstance(row, Task) else dict(row) for row in source]

        def given() -> list[dict[str, object]]:
            return rows

        # By this name, equal rows that are handed over again are the same source.
        text = json.dumps(rows, sort_keys=True, default=str)
        given.__qualname__ = f"rows-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
        return Tasks({"type": reference_of(given), **settings})
    text = os.fspath(source)
    if is_reference(text) or text in registered("tasks"):
        return Tasks({"type": text, **settings})
    if Path(text).suffix:
        return Tasks({"type": "file", "path": os.path.abspath(text), **settings})
    if text in BENCHMARKS:
        return Tasks({"type": "benchmark", "name": text, **settings})
    known = [*BENCHMARKS, *registered("tasks")]
    raise UsageError(
        f"there are no tasks {text!r}",
        code="unknown-name",
        fix=f"{did_you_mean(text, known)}name a file such as questions.jsonl, or one of: {', '.join(known)}",
    )
