"""Tasks of a library: rows that its adapter gives, by split.

A row is a table: `case` (a text by which the adapter finds it again), `question`, `answer` ("" for none), `split` (""
for none), `family`, and `metadata` for reports. Rows without a split are shared out by a hash of their question; where
there is a training split and no validation split, a tenth of it becomes that. A question of one split is in no other.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, JsonValue

from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.task import Task, same_question
from midstream.sources.file import Share
from midstream.sources.finite import SPLITS, Finite, Split
from midstream_environments.library import Library


def _whole(shares: dict[Split, float]) -> dict[Split, float]:
    if abs(sum(shares.values()) - 1) > 1e-9:
        raise ValueError(f"the shares in splits add up to {sum(shares.values()):g}, not to 1")
    return shares


# How a setting shares tasks out over the splits.
Shares = Annotated[dict[Split, Share], AfterValidator(_whole)]
# Of rows without a split.
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
# Where a question occurs in several splits, it stays in the first of these.
_KEPT = ("test", "validation", "train")


class Cases(Finite):
    """The rows of a library as tasks (`core.source.TaskSource`), read when first used."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._read = False
        super().__init__(library.config.library, SPLITS)

    def load(self, split: str) -> list[Task]:
        """Return the tasks of a split."""
        if not self._read:
            self._share_out(self.library.call("rows"))
            self._read = True
        return self._loaded.get(split, [])

    def _share_out(self, rows: list[Mapping[str, Any]]) -> None:
        """Make a task of each row, and put it into its split."""
        found: dict[str, list[Task]] = {name: [] for name in SPLITS}
        named = {row.get("split") or "" for row in rows}
        if wrong := named - {"", *SPLITS}:
            raise RecipeError(
                f"{self.what} has a split {min(wrong)!r}", code="unknown-split", fix="correct the adapter"
            )
        for row in rows:
            task = task_of(self.library, row)
            split = row.get("split") or share_of(task.question, SHARES)
            if split == "train" and "validation" not in named and "" not in named:
                split = share_of(task.question, {"train": 0.9, "validation": 0.1})
            found[split].append(task)
        seen: set[str] = set()
        for split in _KEPT:
            kept: list[Task] = []
            for task in found[split]:
                if (question := same_question(task.question)) not in seen:
                    seen.add(question)
                    kept.append(task)
            if left := len(found[split]) - len(kept):
                self.left_out[split] = Counter({"it repeats another question": left})
            self._loaded[split] = kept


def task_of(library: Library, row: Mapping[str, Any]) -> Task:
    """The task of a row. Its id is a hash of its question, so that runs with other settings pair the same questions."""
    metadata: dict[str, JsonValue] = {**row.get("metadata", {}), "case": f"{library.key}/{row['case']}"}
    question = str(row["question"])
    digest = hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return Task(
        id=f"{row.get('family') or library.config.adapter}-{digest}",
        question=question,
        answer=str(row.get("answer") or ""),
        family=str(row.get("family") or ""),
        metadata=metadata,
    )


def case_of(task: Task) -> tuple[str, str]:
    """The key of the library that made a task, and its case there. Raises `RecipeError` for another task."""
    key, _, case = str(task.metadata.get("case", "")).partition("/")
    if not case:
        raise RecipeError(
            f"task {task.id!r} is of no environment", code="task-unfit", fix="choose the tasks of a library in [tasks]"
        )
    return key, case


def share_of(question: str, shares: Mapping[Any, float]) -> str:
    """The split that a hash of the question falls into."""
    place, reached = derive_seed("split", same_question(question)) / 2**63, 0.0
    for split, share in shares.items():
        reached += share
        if place < reached:
            return split
    return next(iter(shares))
