"""Choose the trajectories of a run and write them in one format."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from midstream.core.errors import UnsupportedError, UsageError
from midstream.core.metrics import tools_of
from midstream.core.trajectory import Trajectory
from midstream.exports.learning import SUCCESS, VerlTasks, sft_rows, trl_rows
from midstream.exports.traces import atif, otel
from midstream.runs import RunDirectory, results
from midstream.runs.files import atomic_file, encode_record, storage_errors
from midstream.runs.segments import SUFFIX, Segment, evaluation_name

Format = Literal["trl", "verl", "sft", "parquet", "atif", "otel"]
FORMATS: tuple[Format, ...] = get_args(Format)
# The ending of the file, by which its readers know what it is.
_ENDINGS = {"trl": ".jsonl", "sft": ".jsonl", "otel": ".jsonl", "verl": ".parquet", "parquet": ".parquet", "atif": ""}
_LEARNING = ("trl", "verl", "sft")  # what a model may be trained on
_AT_ONCE = 1000  # rows of a table in memory
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: `rows` counts those of the file, `left_out` trajectories by the reason."""

    path: Path
    rows: int
    left_out: Mapping[str, int]


def export(
    run: RunDirectory, format: Format, path: Path, *, module: str, parts: str = "", everything: bool = False
) -> Exported:
    """Write trajectories of a run to `path`, a new file, or directory for "atif".

    `module` is the one whose replies "trl" and "sft" hold, "" for all. `parts` is a pattern of parts of the run, as
    "step-*" and "eval-test*"; by default all, but evaluations of a run that learned are not for learning. `everything`
    adds to "sft" what is no success. Raises `UsageError` if nothing is left to write.
    """
    if format not in FORMATS:
        raise UsageError(f"there is no format {format!r}", code="unknown-name", fix=f"use {', '.join(FORMATS)}")
    if not path.name.endswith(_ENDINGS[format]):
        fix = f"name it {path.stem}{_ENDINGS[format]}"
        raise UsageError(f"a file of {format} ends in {_ENDINGS[format]}, not {path}", code="file-format", fix=fix)
    if path.exists():
        raise UsageError(f"{path} is there already", code="file-exists", fix="give another --out")
    info, left_out = run.info(), Counter[str]()
    learns = format in _LEARNING
    default = "step-*" if learns and info.kind != "evaluation" else "*"
    chosen = _chosen(run, parts or default, left_out, whole=not learns)
    rows: Iterator[Row]
    match format:
        case "trl":
            rows = _replies(chosen, partial(trl_rows, module=module), left_out, module)
        case "sft":
            good = chosen if everything else _successes(chosen, left_out)
            rows = _replies(good, partial(sft_rows, module=module), left_out, module)
        case "verl":
            rows = _verl_rows(chosen, VerlTasks(info.recipe_name), left_out)
        case "parquet":
            rows = (_table_row(run, part, trajectory) for part, trajectory in chosen)
        case "atif":
            rows = (atif(part, trajectory) for part, trajectory in chosen)
        case "otel":
            rows = (otel(run.root.resolve().name, part, trajectory) for part, trajectory in chosen)
    counted = _Counted(rows, left_out, parts or default)
    if format == "atif":
        _write_documents(path, counted)
    else:
        with atomic_file(path) as file:
            if format in ("verl", "parquet"):
                _write_parquet(file, counted, format)
            else:
                file.writelines(encode_record(row) for row in counted)
    return Exported(path, counted.rows, dict(left_out))


class _Counted:
    """Rows, counted as they pass; having none is an error, which leaves no file behind."""

    def __init__(self, rows: Iterable[Row], left_out: Mapping[str, int], parts: str) -> None:
        self._given, self._left_out, self._parts, self.rows = rows, left_out, parts, 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._given:
            self.rows += 1
            yield row
        if not self.rows:
            reasons = "; ".join(f"{count:,} left out: {reason}" for reason, count in self._left_out.items())
            raise UsageError(
                f"there is nothing to export in {self._parts}",
                code="nothing-to-export",
                cause=reasons or "the run has no such part",
                fix="take other parts (--part 'eval-*'), another --module, or failures too (--all)",
            )


def _chosen(run: RunDirectory, parts: str, left_out: Counter[str], *, whole: bool) -> Iterator[tuple[str, Trajectory]]:
    """The trajectories of the parts that match, with their part's name; with `whole` also those lost to an error."""
    names = sorted(path.name.removesuffix(SUFFIX) for path in run.trajectories.root.glob(f"[!.]*{SUFFIX}"))
    for name in names:
        segment = Segment(run.trajectories.root / f"{name}{SUFFIX}")
        if not fnmatchcase(name, parts):
            left_out["it is of another part of the run"] += len(segment)
            continue
        for trajectory in segment:
            if whole or trajectory.status == "ok":
                yield name, trajectory
            else:
                left_out["it ended in an error"] += 1
    for result in results.read(run.results_path):  # of an evaluation under way
        name = evaluation_name(result.set)
        if name not in names and fnmatchcase(name, parts) and (whole or not result.failed):
            yield name, result.trajectory


def _successes(chosen: Iterable[tuple[str, Trajectory]], left_out: Counter[str]) -> Iterator[tuple[str, Trajectory]]:
    for part, trajectory in chosen:
        if trajectory.reward is not None and trajectory.reward.value >= SUCCESS:
            yield part, trajectory
        else:
            left_out["it is no success"] += 1


def _replies(
    chosen: Iterable[tuple[str, Trajectory]],
    rows_of: Callable[[str, Trajectory], Iterator[Row]],
    left_out: Counter[str],
    module: str,
) -> Iterator[Row]:
    for part, trajectory in chosen:
        found = False
        for row in rows_of(part, trajectory):
            found = True
            yield row
        if not found:
            left_out[f"it has no reply of {module or 'a model'}"] += 1


def _verl_rows(chosen: Iterable[tuple[str, Trajectory]], tasks: VerlTasks, left_out: Counter[str]) -> Iterator[Row]:
    for part, trajectory in chosen:
        if not tasks.add(part, trajectory):
            left_out["its task has no question or no answer"] += 1
    yield from tasks.rows()


def _table_row(run: RunDirectory, part: str, trajectory: Trajectory) -> Row:
    """A trajectory as a row: its numbers as columns, and all of it as JSON."""
    calls, score = trajectory.calls, trajectory.reward
    return {
        "run": run.root.resolve().name,
        "part": part,
        "id": trajectory.id,
        "task_id": trajectory.task_id,
        "family": trajectory.family,
        "question": trajectory.question,
        "answer": trajectory.answer,
        "gold": trajectory.gold,
        "reward": score.value if score else None,
        "reward_parts": json.dumps(score.parts if score else {}),
        "stop_reason": trajectory.stop_reason,
        "status": trajectory.status,
        "error": trajectory.error.message if trajectory.error else None,
        "turns": len(trajectory.turns),
        "tools": list(tools_of(trajectory)),
        "calls": len(calls),
        "prompt_tokens": sum(call.usage.prompt_tokens for call in calls),
        "completion_tokens": sum(call.usage.completion_tokens for call in calls),
        "cost_usd": trajectory.cost_usd,
        "started_at": trajectory.started_at,
        "duration_s": trajectory.duration_s,
        "trajectory": trajectory.model_dump_json(exclude_defaults=True),
    }


def _write_parquet(file: BinaryIO, rows: Iterable[Row], format: Format) -> None:
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    except ImportError as error:
        raise UnsupportedError(
            "parquet files cannot be written without pyarrow", code="missing-extra", fix="pip install 'midstream[data]'"
        ) from error
    text, real, whole = pa.string(), pa.float64(), pa.int64()
    if format == "verl":
        info = {"index": whole, "split": text, "task_id": text, "question": text, "answer": text, "attempts": whole}
        types = {
            "data_source": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "ability": text,
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": pa.struct({**info, "reward_mean": real}),
        }
    else:
        texts = ("run", "part", "id", "task_id", "family", "question", "answer", "gold")
        types = {
            **dict.fromkeys(texts, text),
            "reward": real,
            **dict.fromkeys(("reward_parts", "stop_reason", "status", "error"), text),
            "turns": whole,
            "tools": pa.list_(text),
            **dict.fromkeys(("calls", "prompt_tokens", "completion_tokens"), whole),
            **dict.fromkeys(("cost_usd", "started_at", "duration_s"), real),
            "trajectory": text,
        }
    schema, waiting = pa.schema(types), iter(rows)
    with ParquetWriter(file, schema) as writer:
        while batch := list(islice(waiting, _AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(batch, schema))


def _write_documents(path: Path, documents: Iterable[Row]) -> None:
    """A JSON file for each document, in a directory for each part."""
    for document in documents:
        part, _, name = document["session_id"].partition("/")
        file = path / part / f"{re.sub(r'[^A-Za-z0-9._#=+-]', '_', name)}.json"
        with storage_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encode_record(document))
