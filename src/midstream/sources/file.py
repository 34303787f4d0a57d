"""Questions of your own, from a file or a function: rows with `question` and `answer`.

A file has one JSON object a line, or is a CSV, TSV or parquet table; a function returns a list of dictionaries.

Every bad row is reported by its line with the reason; no row is dropped silently. All rows are a test set unless they
name their `split`, or `splits` says otherwise, so that no question is in both the training and the test set.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from midstream.components.component import Context, Kind, TasksConfig
from midstream.components.own import name_of
from midstream.components.own_settings import (
    class_or_object,
    described,
    not_of_kind,
    own_values,
    settings_of,
    where_raised,
)
from midstream.core.errors import RecipeError, UsageError
from midstream.core.seeds import Seed, derive_seed
from midstream.core.source import TaskSource
from midstream.core.task import Task
from midstream.sources.finite import SPLITS, Finite, Split, check_known
from midstream.sources.questions import Fields, as_text, as_texts, by_letter, from_json, letter_of, make_task
from midstream.sources.records import BadRowError, Faults, Record, json_excerpt, read_records, record_of

Share = Annotated[float, Field(gt=0, le=1)]
# Shares add up to 1 only as far as floats can.
_TOLERANCE = 1e-9


# Other words for the names of splits in a row's own field, which data sets use.
_SAME_SPLIT = {"val": "validation", "valid": "validation", "dev": "validation"}


class RowTasks(Finite):
    """The questions in rows, which `records` yields; with `duplicates = "drop"`, without repeated ones."""

    def __init__(self, config: RowsConfig, what: str, records: Callable[[Faults], Iterable[Record]]) -> None:
        self.config, self._records = config, records
        splits = SPLITS if config.split_field else [name for name in SPLITS if name in config.splits]
        super().__init__(what, splits, config.counts)

    def tasks(self, split: str) -> list[Task]:
        """Return all tasks of a split, of those that the rows have."""
        self._read()
        fix = f'give it a share, e.g. splits = {{ train = 0.8, test = 0.2 }}, or set `split = "{self.splits[0]}"`'
        check_known("split", [split], self.splits, self.what, fix)
        return super().tasks(split)

    @property
    def families(self) -> Sequence[str]:
        """Families of the first split."""
        self._read()
        return super().families

    def _read(self) -> None:
        """Read the rows once for all splits. Raises `UsageError` if rows are bad, or there is no question."""
        if self._loaded:
            return
        found: dict[str, list[Task]] = {name: [] for name in SPLITS}
        faults = Faults(self.what)
        self.left_out = {}
        ids: dict[str, str] = {}
        seen: dict[str, tuple[str, Task]] = {}
        without: list[str] = []  # places of rows that name no split
        for record in self._records(faults):
            try:
                name, task = self._task(record)
                new = self._is_new(record, task, ids, seen)
            except BadRowError as reason:
                faults.add(record.place, reason)
                continue
            if name is None:
                without.append(record.place)
            if new:
                found[name or "test"].append(task)
            else:
                self.left_out.setdefault(name or "test", Counter())["it repeats an earlier question"] += 1
        total = sum(map(len, found.values()))
        if without and len(without) < total + sum(counts.total() for counts in self.left_out.values()):
            faults.add(without[0], "it names no split, and other rows do")
        path = getattr(self.config, "path", "...")
        faults.refuse(
            'a row must be such as {"question": "...", "answer": "..."}',
            "correct them, or change question_field, answer_field or duplicates in the table of these tasks; for an "
            "evaluation, without --tasks, in its recipe: "
            f'[[evaluation.sets]] tasks = {{ type = "file", path = "{path}", duplicates = "drop" }}',
        )
        if not total:
            raise UsageError(f"{self.what} has no question", code="no-questions", fix="add some, one a line")
        self._loaded.update(found)
        if self._by_rows:
            self.splits = tuple(name for name in SPLITS if found[name])

    @property
    def _by_rows(self) -> bool:
        """Whether a row's field `split` decides, if it has one: no setting does."""
        return self.config.split_field is None and self.config.splits == {"test": 1.0}

    def _is_new(self, record: Record, task: Task, ids: dict[str, str], seen: dict[str, tuple[str, Task]]) -> bool:
        """Add a row's id and question to those seen; return whether to keep the row."""
        asked = " ".join(task.question.split())
        place, earlier = seen.setdefault(asked, (record.place, task))
        if earlier is not task:
            if set(earlier.answers) != set(task.answers):
                raise BadRowError(
                    f"its question stands on {place} with another answer: {json_excerpt(earlier.answer)}, here "
                    f"{json_excerpt(task.answer)} (if both are right, give one row with `aliases`)"
                )
            if self.config.duplicates == "error":
                raise BadRowError(f'it repeats {place} (duplicates = "drop" leaves such rows out)')
            return False
        if (place := ids.setdefault(task.id, record.place)) != record.place:
            if self.config.id_field in record.fields:
                raise BadRowError(f"its id {task.id!r} stands on {place} already")
            raise BadRowError(f"it repeats {place} with its options in another order")
        return True

    def _task(self, record: Record) -> tuple[str | None, Task]:
        """The split, None if neither the row nor a setting names one, and the task of a row."""
        config, row = self.config, dict(record.fields)
        for name in (config.question_field, config.answer_field):
            if row.get(name) is None:
                raise BadRowError(f"{name!r} is missing or null; its fields are {json_excerpt(list(row))}")
        question = row.pop(config.question_field)
        if not isinstance(question, str):
            raise BadRowError(f"{config.question_field!r} must be text, not {json_excerpt(question)}")
        question = as_text(question, config.question_field)
        answers = as_texts(row.pop(config.answer_field), config.answer_field)
        if (aliases := row.pop("aliases", None)) not in (None, []):
            answers += as_texts(from_json(aliases), "aliases")
        own_id, family, reward = (row.pop(name, None) for name in (config.id_field, config.family_field, "reward"))
        split = self._split(question, row)
        listed = row.pop("options", None)
        options = {} if listed is None else by_letter(from_json(listed))
        if options and len(answers) > 1:
            raise BadRowError(f"a choice has one answer, and here are {len(answers)}: {json_excerpt(answers)}")
        if "rubric" in row:
            row["rubric"] = as_text(row["rubric"], "rubric")
        name = Path(self.what).name.split(".")[0]
        named = config.reward or ("multiple_choice" if options else "")
        task = make_task(
            Fields(
                question=question,
                answer=letter_of(answers[0], options) if options else answers[0],
                aliases=answers[1:],
                options=options,
                metadata={**row, "row": record.place},
            ),
            prefix=name,
            family=name if family is None else as_text(family, config.family_field),
            reward=named if reward is None else as_text(reward, "reward"),
            instruction=config.instruction,
        )
        return split, task if own_id is None else task.model_copy(update={"id": as_text(own_id, config.id_field)})

    def _split(self, question: str, row: dict[str, Any]) -> str | None:
        """The split that the row names, or the share that a hash of the question falls into."""
        field = self.config.split_field
        if field or (self._by_rows and "split" in row):
            named = row.pop(field or "split", None)
            name = _SAME_SPLIT.get(named, named) if isinstance(named, str) else named
            if name not in SPLITS:
                raise BadRowError(
                    f"{field or 'split'!r} must be one of {', '.join(SPLITS)}, not {json_excerpt(named)}"
                    + ("" if field else ' (split_field = "" keeps the field for rewards)')
                )
            return name
        if self._by_rows:
            return None
        if field is None and "split" in row:
            raise BadRowError('it names its `split`, and `splits` divides the rows again (split_field = "" ignores it)')
        seeded = ["split", *([self.config.split_seed] if self.config.split_seed else []), " ".join(question.split())]
        place, reached = derive_seed(*seeded) / 2**63, 0.0
        shares: Mapping[str, float] = {name: share for name, share in self.config.splits.items()}
        for split in self.splits:
            reached += shares[split]
            if place < reached:
                return split
        return self.splits[-1]


def function_records(
    faults: Faults, *, config: RowsConfig, reference: str, function: Callable[..., Iterable[Any]]
) -> Iterator[Record]:
    """Yield every row that a function returns, as a list or an iterator.

    One with a parameter `split` is called for each split and returns its rows, or none; `seed` receives the setting
    `split_seed`. Raises `RecipeError` if it raises, or returns no rows.
    """
    takes = inspect.signature(function).parameters
    example = 'return a list of rows such as {"question": "...", "answer": "..."}'
    for split in SPLITS if "split" in takes else [None]:
        passed = {"split": split, "seed": config.split_seed}
        try:
            returned = function(**{name: passed[name] for name in passed.keys() & takes.keys()})
            rows = None if isinstance(returned, str | bytes | Mapping | None) else list(returned)
        # What a user's function raises can be anything.
        except (Exception, SystemExit) as error:
            raise RecipeError(
                f"{reference} gave no tasks: {described(error)}",
                code="tasks-failed",
                cause=where_raised(error),
                fix=example,
            ) from error
        if rows is None:
            raise RecipeError(
                f"{reference} returned {'None' if returned is None else json_excerpt(returned)}, no rows",
                code="tasks-failed",
                cause=f"{name_of(reference)} ends without `return`" if returned is None else "",
                fix=example,
            )
        for number, row in enumerate(rows, 1):
            place = f"row {number}" + (f" of {split}" if split else "")
            for record in record_of(place, row, faults):
                yield record if split is None else Record(place, {**record.fields, "split": split})


class RowsConfig(TasksConfig):
    """Names of the fields of rows, and their splits.

    Attributes:
        question_field: the field with the question
        answer_field: the field with the answer, or a list of accepted answers
        id_field: the field with the id, if there is one
        family_field: the field with the family, if there is one
        split_field: the field with the split; by default `split` where rows have it
        splits: shares of the splits, such as `{ train = 0.8, test = 0.2 }`; a question's text decides its split
        split_seed: another seed draws other shares
        counts: a fixed draw of so many tasks stands for the whole split, e.g. `{ train = 100 }`
        reward: the reward of rows that name none; `""`: `multiple_choice` with options, else that of the recipe
        instruction: ends every question
        duplicates: `error`, or `drop`: leave out a row that repeats question and answer of an earlier one
    """

    question_field: str = "question"
    answer_field: str = "answer"
    id_field: str = "id"
    family_field: str = "family"
    split_field: str | None = None
    splits: dict[Split, Share] = {"test": 1.0}
    split_seed: Seed = 0
    counts: dict[Split, PositiveInt] | None = None
    reward: str = ""
    instruction: str = ""
    duplicates: Literal["error", "drop"] = "error"

    @model_validator(mode="after")
    def _one_meaning(self) -> RowsConfig:
        if self.split_field and self.splits != {"test": 1.0}:
            raise ValueError("both split_field and splits say which split a row is in: leave one out")
        if abs(sum(self.splits.values()) - 1) > _TOLERANCE:
            raise ValueError(f"the shares in splits add up to {sum(self.splits.values()):g}, not to 1")
        names = [self.question_field, self.answer_field, self.id_field, self.family_field, self.split_field]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two settings name the field {twice[0]!r}")
        return self


class FileTasksConfig(RowsConfig):
    """Questions of your own, from a JSON lines, JSON or CSV file.

    Attributes:
        path: a `.jsonl`, `.json`, `.csv`, `.tsv` or `.parquet` file, or one of these with `.gz`
    """

    path: Path

    def build(self, context: Context | None = None) -> RowTasks:
        """Build the source, which reads nothing yet."""
        return RowTasks(self, str(self.path), partial(read_records, self.path))


def own_tasks(kind: Kind, reference: str, value: Any) -> type[TasksConfig]:
    """The settings of a task source of your own: a function of rows, or a class or object with `sample`."""
    if made := class_or_object(kind, TasksConfig, reference, value, TaskSource, "sample"):
        return made
    what = "a function without parameters, or of `split`, that returns rows"
    is_async = inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)
    if is_async or not callable(value) or isinstance(value, type):
        raise not_of_kind(kind, reference, value, what)

    def build(self: RowsConfig, context: Context) -> RowTasks:
        function: Any = partial(value, **own_values(self))
        records = partial(function_records, config=self, reference=reference, function=function)
        return RowTasks(self, name_of(reference), records)

    return settings_of(RowsConfig, reference, value, build=build, given=("split", "seed"))
