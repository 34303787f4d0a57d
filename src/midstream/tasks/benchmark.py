"""What a benchmark is: where its questions lie, what its rows hold, how it is scored; and reading it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from midstream.core.data import Frozen
from midstream.core.errors import RecipeError, UsageError
from midstream.core.protocols import TaskSource
from midstream.core.task import Task
from midstream.tasks import hub, released
from midstream.tasks.finite import Finite
from midstream.tasks.making import Fields, make_task
from midstream.tasks.records import BadRowError, Faults, Record, read_records

Row = Mapping[str, Any]
_TOLERATED = 100  # one bad row to so many good ones stops no training
Use = Literal["evaluation", "training", "world"]


class LeftOutError(ValueError):
    """Why a row is no question of this benchmark; such rows are counted."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark.

    `repository` on the Hugging Face Hub, with its `configs` read one after the other; `splits` map our names to theirs,
    `sizes` are the questions of ours. `columns` are the fields that `convert` reads; without it, the only files that
    there are have AgentFlow's form. `reward` scores it by rule. `paper` says how the papers took their questions.
    `licence` is its authors', `copy_licence` the repository's; `republish`: may its questions be passed on.
    `instruction` ends every question. `merge`: equal questions are one. `world` makes its questions where no file is
    given. `unverified` is what could not be checked against the source.
    """

    name: str
    title: str
    use: Use
    asks: str
    reward: str
    convert: Callable[[Row], Fields] | None = None
    repository: str = ""
    configs: tuple[str, ...] = ("",)
    splits: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    licence: str = ""
    copy_licence: str = ""
    gated: bool = False
    republish: str = "yes"
    paper: str = ""
    instruction: str = ""
    merge: bool = False
    world: Callable[[], TaskSource] | None = None
    notes: str = ""
    unverified: str = ""

    @property
    def address(self) -> str:
        """Its page, "" for one that is made here."""
        return f"https://huggingface.co/datasets/{self.repository}" if self.repository else ""

    @property
    def main_split(self) -> str:
        """The split that it is used for, and that a file of it holds."""
        return "train" if self.use == "training" else "test"


class Config(Frozen):
    """Settings of a benchmark: which, and where its questions are if not on the Hugging Face Hub.

    `revision` pins a commit of the Hub's repository. `instruction` replaces the sentence on the form of the answer that
    ends every question; "" leaves it out.
    """

    name: str
    file: Path | None = None
    revision: str | None = None
    instruction: str | None = None


class BenchmarkTasks(Finite):
    """A benchmark's questions, from the user's file or from the Hub."""

    def __init__(self, benchmark: Benchmark, config: Config) -> None:
        self.benchmark, self.config = benchmark, config
        splits = [benchmark.main_split] if config.file else list(benchmark.splits)
        super().__init__(f"benchmark {benchmark.name}", splits)

    def mend_split(self, split: str) -> str:
        """A file of a benchmark holds one split."""
        if self.config.file is None:
            return super().mend_split(split)
        return f"""set `split = "{self.benchmark.main_split}"`, or read the file by `type = "file"` with `splits`"""

    def load(self, split: str) -> list[Task]:
        """Convert every row; bad ones are told together. A few in a large training set are left out and counted.

        Raises:
            UsageError: the questions are not there, or are not what the benchmark's are.
        """
        source = f"{self.what} in {self.config.file}" if self.config.file else self.what
        faults, left_out = Faults(source), Counter[str]()
        self.left_out[split] = left_out
        tasks = _told_apart(self._converted(split, faults, left_out), self.benchmark.merge, left_out)
        if self.benchmark.use == "training" and 0 < faults.total <= len(tasks) // _TOLERATED:
            left_out[f"bad rows, the first: {faults.told[0]}"] = faults.total
            faults = Faults(source)
        faults.refuse(
            f"{self.benchmark.name} has the fields {', '.join(self.benchmark.columns)}",
            f'take it from {self.benchmark.address or "its authors"}, or read your own questions by type = "file"'
            if self.config.file
            else "pin an earlier `revision`, or download it and name it as `file`",
        )
        if not tasks:
            raise UsageError(f"{source} has no question", cause=f"left out: {dict(left_out)}", fix="give another file")
        return tasks

    def _converted(self, split: str, faults: Faults, left_out: Counter[str]) -> Iterator[Task]:
        benchmark, instruction = self.benchmark, self.config.instruction
        for config, record in self._records(split, faults):
            try:
                fields = _fields(benchmark, record.fields)
            except LeftOutError as reason:
                left_out[str(reason)] += 1
            except BadRowError as reason:
                faults.add(record.place, reason)
            else:
                yield make_task(
                    fields,
                    prefix=benchmark.name,
                    reward=benchmark.reward,
                    family=config or benchmark.name,
                    instruction=benchmark.instruction if instruction is None else instruction,
                )

    def _records(self, split: str, faults: Faults) -> Iterator[tuple[str, Record]]:
        """Rows with the family that their part of the benchmark makes."""
        benchmark = self.benchmark
        if self.config.file:
            for record in read_records(self.config.file, faults, (*benchmark.columns, *released.COLUMNS)):
                yield "", record
            return
        for name in benchmark.configs:
            family = name if len(benchmark.configs) > 1 else ""
            rows = hub.rows(
                benchmark.repository,
                name,
                benchmark.splits[split],
                columns=benchmark.columns,
                revision=self.config.revision,
                gated=benchmark.gated,
                known_as=benchmark.name,
            )
            yield from ((family, record) for record in rows)


def _fields(benchmark: Benchmark, row: Row) -> Fields:
    """What a row says, if that is a question of the benchmark: another one's file must not pass for it."""
    fields = _read(benchmark, row)
    for what, reward, given in (
        ("options", "multiple_choice", fields.options),
        ("numbers", "game24", fields.metadata.get("numbers")),
    ):
        if bool(given) != (benchmark.reward == reward):
            raise BadRowError(f"it has {'' if given else 'no '}{what}, so it is of another benchmark")
    return fields


def _read(benchmark: Benchmark, row: Row) -> Fields:
    """A row of the benchmark's own form, or of the form in which AgentFlow's repository holds it."""
    if released.is_one(row):
        if row.get("file_name"):
            raise LeftOutError("it comes with a file")
        return released.convert(row)
    if benchmark.convert is None:
        raise BadRowError("it has no 'query' and 'pid', as rows of AgentFlow's file have")
    return benchmark.convert(row)


def _told_apart(tasks: Iterator[Task], merge: bool, left_out: Counter[str]) -> list[Task]:
    """A question that comes again gets an id of its own, or is left out where equal rows are one."""
    seen: dict[str, int] = {}
    kept: list[Task] = []
    for task in tasks:
        times = seen[task.id] = seen.get(task.id, 0) + 1
        if times == 1:
            kept.append(task)
        elif merge:
            left_out["it repeats an earlier question"] += 1
        else:
            kept.append(task.model_copy(update={"id": f"{task.id}-{times}"}))
    return kept


def find(name: str, known: Mapping[str, Benchmark]) -> Benchmark:
    """The benchmark of that name.

    Raises:
        RecipeError: there is none.
    """
    if name not in known:
        raise RecipeError(
            f"benchmark {name!r} does not exist",
            cause="it is misspelt, or midstream does not know it",
            fix=f'name one of: {", ".join(known)}; or read your own questions by type = "file"',
        )
    return known[name]
