"""Questions of your own, from a file: one object a line with `question` and `answer`, or a CSV, TSV or parquet table.

Every bad row is reported by its line with the reason; no row is dropped silently. A file is a test set unless `splits`
or `split_field` says otherwise, so that no question is in both the training and the test set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from midstream.core.component import TasksConfig
from midstream.core.errors import UsageError
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.tasks.finite import SPLITS, Finite
from midstream.tasks.questions import Fields, as_text, as_texts, by_letter, from_json, letter_of, make_task
from midstream.tasks.records import BadRowError, Faults, Record, json_excerpt, read_records

Split = Literal["train", "validation", "test"]
Share = Annotated[float, Field(gt=0, le=1)]
_TOLERANCE = 1e-9  # shares that add up to 1, as far as floats can


class FileTasks(Finite):
    """The questions of a file; with `duplicates = "drop"`, without repeated ones."""

    def __init__(self, config: FileTasksConfig) -> None:
        self.config = config
        splits = SPLITS if config.split_field else [split for split in SPLITS if split in config.splits]
        super().__init__(str(config.path), splits)

    def split_fix(self, split: str) -> str:
        """A file serves the splits that its settings name."""
        return f'give it a share, e.g. splits = {{ train = 0.8, test = 0.2 }}, or set `split = "{self.splits[0]}"`'

    def load(self, split: str) -> list[Task]:
        """Read the file once for all splits. Raises `UsageError` if rows are bad, or there is no question."""
        found: dict[str, list[Task]] = {name: [] for name in SPLITS}
        faults = Faults(str(self.config.path))
        self.left_out = {}
        ids: dict[str, str] = {}
        seen: dict[str, tuple[str, Task]] = {}
        for record in read_records(self.config.path, faults):
            try:
                name, task = self._task(record)
                new = self._is_new(record, task, ids, seen)
            except BadRowError as reason:
                faults.add(record.place, reason)
                continue
            if new:
                found[name].append(task)
            else:
                self.left_out.setdefault(name, Counter())["it repeats an earlier question"] += 1
        faults.refuse(
            'a row must be such as {"question": "...", "answer": "..."}',
            "correct them, or name other fields by question_field and answer_field",
        )
        if not any(found.values()):
            raise UsageError(f"{self.config.path} has no question", code="no-questions", fix="add some, one a line")
        self._loaded.update(found)
        return found[split]

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

    def _task(self, record: Record) -> tuple[str, Task]:
        """The split and the task of a row."""
        config, row = self.config, dict(record.fields)
        for name in (config.question_field, config.answer_field):
            if row.get(name) is None:
                raise BadRowError(f"{name!r} is missing or null; its fields are {json_excerpt(list(row))}")
        question = row.pop(config.question_field)
        if not isinstance(question, str):
            raise BadRowError(f"{config.question_field!r} must be text, not {json_excerpt(question)}")
        question = as_text(question, config.question_field)
        gold = row.pop(config.answer_field)
        answers = as_texts(gold, config.answer_field)
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
        name = config.path.name.split(".")[0]
        # A gold answer that JSON has as a number is meant as one: compared as text with 215.0, "215" would be wrong.
        number = {type(value) for value in (gold if isinstance(gold, list | tuple) else [gold])} <= {int, float}
        by_gold = "multiple_choice" if options else "numeric" if number else "exact_match"
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
            reward=(config.reward or by_gold) if reward is None else as_text(reward, "reward"),
            instruction=config.instruction,
        )
        return split, task if own_id is None else task.model_copy(update={"id": as_text(own_id, config.id_field)})

    def _split(self, question: str, row: dict[str, Any]) -> str:
        """The split that the row names, or the share that a hash of the question falls into."""
        if self.config.split_field is not None:
            named = row.pop(self.config.split_field, None)
            if named not in SPLITS:
                raise BadRowError(
                    f"{self.config.split_field!r} must be one of {', '.join(SPLITS)}, not {json_excerpt(named)}"
                )
            return named
        place, reached = derive_seed("split", " ".join(question.split())) / 2**63, 0.0
        shares: Mapping[str, float] = {name: share for name, share in self.config.splits.items()}
        for split in self.splits:
            reached += shares[split]
            if place < reached:
                return split
        return self.splits[-1]


class FileTasksConfig(TasksConfig):
    """Path of the questions and names of their fields.

    Attributes:
        path: a `.jsonl`, `.json`, `.csv`, `.tsv` or `.parquet` file, or one of these with `.gz`
        question_field: the field with the question
        answer_field: the field with the answer, or a list of accepted answers
        id_field: the field with the id, if there is one
        family_field: the field with the family, if there is one
        split_field: the field with the split; not with `splits`
        splits: shares of the splits, which sum to 1, such as `{ train = 0.8, test = 0.2 }`; a question's text decides
            its split
        reward: the reward of rows that name none; `""`: `multiple_choice` with options, `numeric` where the answer is a
            JSON number, else `exact_match`
        instruction: ends every question
        duplicates: `error`, or `drop`: leave out a row that repeats question and answer of an earlier one
    """

    component = FileTasks

    path: Path
    question_field: str = "question"
    answer_field: str = "answer"
    id_field: str = "id"
    family_field: str = "family"
    split_field: str | None = None
    splits: dict[Split, Share] = {"test": 1.0}
    reward: str = ""
    instruction: str = ""
    duplicates: Literal["error", "drop"] = "error"

    @model_validator(mode="after")
    def _one_way_to_split(self) -> FileTasksConfig:
        if self.split_field is not None and self.splits != {"test": 1.0}:
            raise ValueError("both split_field and splits say which split a row is in: leave one out")
        if abs(sum(self.splits.values()) - 1) > _TOLERANCE:
            raise ValueError(f"the shares in splits add up to {sum(self.splits.values()):g}, not to 1")
        return self

    @model_validator(mode="after")
    def _one_field_for_each(self) -> FileTasksConfig:
        names = [self.question_field, self.answer_field, self.id_field, self.family_field, self.split_field]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two settings name the field {twice[0]!r}")
        return self
