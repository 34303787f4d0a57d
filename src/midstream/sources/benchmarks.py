"""Benchmarks and training sets by name: the table (benchmarks.toml), and reading one from a file or from the Hub.

The Hugging Face Hub is read by its own library (the extra `data`), which also caches the downloads.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt

from midstream.components.component import Context, TasksConfig
from midstream.components.tables import parse_component
from midstream.core.data import Frozen
from midstream.core.errors import RecipeError, UsageError, needs_extra
from midstream.core.source import TaskSource
from midstream.core.task import Task
from midstream.sources import conversions
from midstream.sources.finite import Finite, Split, check_known
from midstream.sources.questions import Fields, make_task
from midstream.sources.records import BadRowError, Faults, LeftOutError, Record, read_records

# Training proceeds with one bad row for this many good ones.
_TOLERATED = 100
_GROUPS = tomllib.loads(Path(__file__).with_name("benchmarks.toml").read_text(encoding="utf-8"))


class Benchmark(Frozen):
    """One benchmark, as an entry of benchmarks.toml; `group` is the entry's heading.

    `repository` on the Hugging Face Hub, with its `configs` read one after the other; `splits` map our names to theirs,
    `sizes` count our questions. `convert` names the function in `conversions` that reads a row, `columns` the fields it
    reads; without it, the only published files have AgentFlow's form. `reward` scores it by rule. `paper` says how the
    papers took their questions. `licence` is its authors', `copy_licence` the repository's; `republish` says whether
    its questions may be redistributed. `instruction` ends every question. `merge` drops repeated questions. `tasks` is
    a `[tasks]` table that makes its questions where no file is given. `unverified` could not be checked at the source.
    """

    name: str
    group: str
    title: str
    use: Literal["evaluation", "training", "world"]
    asks: str
    reward: str
    convert: str = ""
    repository: str = ""
    configs: tuple[str, ...] = ("",)
    splits: dict[str, str] = {}
    sizes: dict[str, int] = {}
    columns: tuple[str, ...] = ()
    licence: str = ""
    copy_licence: str = ""
    gated: bool = False
    republish: str = "yes"
    paper: str = ""
    instruction: str = ""
    merge: bool = False
    tasks: dict[str, Any] = {}
    notes: str = ""
    unverified: str = ""

    @property
    def address(self) -> str:
        """Its page, "" without a repository."""
        return f"https://huggingface.co/datasets/{self.repository}" if self.repository else ""

    @property
    def main_split(self) -> str:
        """The split that it is used for, which is also the split of a file."""
        return "train" if self.use == "training" else "test"


BENCHMARKS = {
    name: Benchmark(name=name, group=group, **entry)
    for group, named in _GROUPS.items()
    for name, entry in named.items()
}


class BenchmarkConfig(TasksConfig):
    """A published benchmark, by name: from the Hugging Face Hub, or a file of its questions.

    Attributes:
        name: the benchmark, such as `bamboogle`
        file: a file of its questions, in its owner's form or AgentFlow's, in place of the Hub
        revision: a commit of the Hub's repository
        instruction: replaces the sentence on the answer's form that ends every question; `""` leaves it out
        counts: a fixed draw of this many tasks replaces the whole split, e.g. `{ train = 100 }`
    """

    extra = "data"
    packages = ("datasets",)

    name: str
    file: Path | None = None
    revision: str | None = None
    instruction: str | None = None
    counts: dict[Split, PositiveInt] | None = None

    def check_machine(self, where: str) -> None:
        """Only data on the Hub needs a package."""
        if self.file is None and not find(self.name).tasks:
            super().check_machine(where)

    def check_recipe(self, where: str, recipe: object) -> None:
        """Check the name, and that every setting is used. Raises `RecipeError`."""
        benchmark = find(self.name)
        made = bool(benchmark.tasks) and self.file is None
        unused = {"file": benchmark.use == "world", "revision": bool(benchmark.tasks or self.file), "instruction": made}
        if names := [name for name, refused in unused.items() if refused and getattr(self, name) is not None]:
            raise RecipeError(
                f"benchmark {benchmark.name} has no use for {' and '.join(names)}",
                code="setting-conflict",
                fix=f"leave out {' and '.join(names)}",
            )

    def build(self, context: Context) -> TaskSource:
        """Build the source, which reads nothing yet."""
        benchmark = find(self.name)
        if benchmark.tasks and self.file is None:
            return context.tasks(parse_component("tasks", benchmark.tasks, "tasks"))
        return BenchmarkTasks(benchmark, self)


def find(name: str) -> Benchmark:
    """Return the benchmark of that name. Raises `RecipeError` if it does not exist."""
    check_known(
        "benchmark", [name], BENCHMARKS, "midstream", 'name one of them, or read your own questions by type = "file"'
    )
    return BENCHMARKS[name]


class BenchmarkTasks(Finite):
    """A benchmark's questions, from the user's file or from the Hub."""

    def __init__(self, benchmark: Benchmark, config: BenchmarkConfig) -> None:
        self.benchmark, self.config = benchmark, config
        splits = [benchmark.main_split] if config.file else list(benchmark.splits)
        super().__init__(f"benchmark {benchmark.name}", splits, config.counts)

    def load(self, split: str) -> list[Task]:
        """Convert every row; a few bad ones in a large training set are left out and counted.

        Raises `UsageError` if the questions are not there, or are not what the benchmark's are.
        """
        benchmark = self.benchmark
        source = f"{self.what} in {self.config.file}" if self.config.file else self.what
        faults, left_out = Faults(source), Counter[str]()
        self.left_out[split] = left_out
        seen: Counter[str] = Counter()
        tasks: list[Task] = []
        for family, record in self._records(split, faults):
            try:
                task = self._task(record, family)
            except LeftOutError as reason:
                left_out[str(reason)] += 1
                continue
            except BadRowError as reason:
                faults.add(record.place, reason)
                continue
            seen[task.id] += 1
            if seen[task.id] == 1:
                tasks.append(task)
            elif benchmark.merge:
                left_out["it repeats an earlier question"] += 1
            else:
                # A repeated question is another task, with an id of its own.
                tasks.append(task.model_copy(update={"id": f"{task.id}-{seen[task.id]}"}))
        if benchmark.use == "training" and 0 < faults.total <= len(tasks) // _TOLERATED:
            left_out[f"bad rows, the first: {faults.shown[0]}"] = faults.total
            faults = Faults(source)
        faults.refuse(
            f"{benchmark.name} has the fields {', '.join(benchmark.columns)}",
            f'take it from {benchmark.address or "its authors"}, or read your own questions by type = "file"'
            if self.config.file
            else "pin an earlier `revision`, or download it and name it as `file`",
        )
        if not tasks:
            what = f"{source} has no question; left out: {dict(left_out)}"
            raise UsageError(what, code="no-questions", fix="give another file")
        return tasks

    def _task(self, record: Record, family: str) -> Task:
        """The task of a row. Raises `BadRowError` for a row of another benchmark."""
        benchmark, instruction = self.benchmark, self.config.instruction
        if "query" in record.fields and "pid" in record.fields:
            fields = conversions.released(record.fields)
        elif benchmark.convert:
            convert: Callable[[Mapping[str, Any]], Fields] = getattr(conversions, benchmark.convert)
            fields = convert(record.fields)
        else:
            raise BadRowError("it has no 'query' and 'pid', as rows of AgentFlow's file have")
        for what, reward, given in (
            ("options", "multiple_choice", fields.options),
            ("numbers", "game24", fields.metadata.get("numbers")),
        ):
            if bool(given) != (benchmark.reward == reward):
                raise BadRowError(f"it has {'' if given else 'no '}{what}, so it is of another benchmark")
        return make_task(
            fields,
            prefix=benchmark.name,
            reward=benchmark.reward,
            family=family or benchmark.name,
            instruction=benchmark.instruction if instruction is None else instruction,
        )

    def _records(self, split: str, faults: Faults) -> Iterator[tuple[str, Record]]:
        """Yield (family, row); each of several configs on the Hub is a family."""
        benchmark = self.benchmark
        if self.config.file:
            columns = (*benchmark.columns, *conversions.RELEASED_COLUMNS)
            yield from (("", record) for record in read_records(self.config.file, faults, columns))
            return
        for name in benchmark.configs:
            family = name if len(benchmark.configs) > 1 else ""
            data = _from_hub(benchmark, name, benchmark.splits[split], self.config.revision)
            chosen = [column for column in data.column_names if column in benchmark.columns]
            for number, row in enumerate(data.select_columns(chosen) if chosen else data, 1):
                yield family, Record(f"row {number}", row)


def is_downloaded(repository: str) -> bool:
    """Whether anything of a repository was downloaded before."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return False
    return any(Path(constants.HF_HUB_CACHE).glob(f"datasets--{repository.replace('/', '--')}/snapshots/*/*"))


def _from_hub(benchmark: Benchmark, config: str, split: str, revision: str | None) -> Any:
    """Load one split of one config ("": the only one) as a `datasets.Dataset`.

    Raises `UnsupportedError` without the extra, `UsageError` if the machine is offline, the licence is not accepted, or
    the repository has changed.
    """
    what, page, repository = f"benchmark {benchmark.name}", benchmark.address, benchmark.repository
    file = f'name a file of it: file = "{benchmark.name}.jsonl", or --benchmark {benchmark.name}={benchmark.name}.jsonl'
    with needs_extra(f"{what} is on the Hugging Face Hub, and its library is not installed", "data", f"; or {file}"):
        import datasets
        from datasets.exceptions import DatasetsError
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        # Its progress bars are carriage returns, which midstream's own streams clean away.
        with redirect_stderr(sys.__stderr__):
            return datasets.load_dataset(repository, config or None, split=split, revision=revision)
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        code, fix = "hub-changed", f"look at {page}; pin a `revision` that works, or {file}"
        if isinstance(error, ConnectionError):
            code = "hub-unreachable"
            fix = f"connect this machine, and unset HF_HUB_OFFLINE; or download {page} elsewhere and {file}"
        elif benchmark.gated and isinstance(error, DatasetsError | OSError):
            code, fix = "hub-access", f"accept the conditions of its owners at {page}, then hf auth login; or {file}"
        raise UsageError(f"{what} could not be downloaded: {reason}", code=code, fix=fix) from error
