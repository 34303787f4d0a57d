"""Choose the trajectories of a run and write them in one format.

Rows for trainers are what one module was asked and replied. A conversation is the messages of a call and its reply. A
call that a later one continues is a part of that one's conversation: `sft` has whole conversations, `trl` a row for
each reply.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from typing import Any

from midstream.components.kinds import MODULES, agent_type
from midstream.core.errors import UsageError, needs_extra
from midstream.core.metrics import tools_of
from midstream.core.trajectory import Call, Message, Trajectory, usage_of
from midstream.runs import RunDirectory, results
from midstream.runs.files import atomic_file, encode_record
from midstream.runs.segments import evaluation_name

OF_A_STRATEGY = "of a strategy: the reward is that of a vote, not of each reply"  # why a trajectory is left out
_AT_ONCE = 1000  # rows of a table in memory
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What rows are of, besides a trajectory: the run, its recipe, the trajectory's part, and `module` of `export`."""

    run: str
    recipe: str
    part: str
    module: str


@dataclass(frozen=True, slots=True)
class Format:
    """A format: the ending of its file, the rows of a trajectory, and what writes the rows of a run to a path.

    `learns`: models are trained on it, so it has neither evaluations of a run that learned nor failed trajectories.
    `combine` makes the file's rows of those of all trajectories.

    A package offers a format as an entry point:

        [project.entry-points."midstream.exports"]
        mine = "my_package.formats:MINE"
    """

    ending: str
    rows: Callable[[Origin, Trajectory], Iterable[Row]]
    write: Callable[[Path, Iterable[Row]], None]
    learns: bool = False
    combine: Callable[[Iterable[Row]], Iterable[Row]] = iter


@cache
def formats() -> dict[str, Format]:
    """The formats of midstream and of installed packages, by name."""
    points = entry_points(group="midstream.exports")
    return _FORMATS | {point.name: point.load() for point in points if point.name not in _FORMATS}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: `rows` counts those of the file, `left_out` trajectories by the reason."""

    path: Path
    rows: int
    left_out: Mapping[str, int]


def export(
    run: RunDirectory | str | Path,
    format: str,
    out: str | Path,
    *,
    module: str | None = None,
    part: str = "",
    everything: bool = False,
) -> Exported:
    """Write trajectories of a run in the format of another tool (docs/tracking.md).

    Args:
        run: the run directory, or its path.
        format: "trl", "sft", "parquet", or one of an installed package.
        out: the new file.
        module: of "trl" and "sft", whose replies; by default the module that learns, of an agent of your own all.
        part: a pattern of parts of the run, as "step-*" and "eval-test*"; by default all, but evaluations of a run
            that learned are not for learning.
        everything: of "sft", failures too.

    Raises:
        UsageError: nothing is left to write, or `out` is there.
    """
    run, path = run if isinstance(run, RunDirectory) else RunDirectory.open(Path(run)), Path(out)
    if module is None:
        [module, *_] = MODULES.get(agent_type(run.info().resolved.get("agent")), ("",))
    if (chosen := formats().get(format)) is None:
        raise UsageError(f"there is no format {format!r}", code="unknown-name", fix=f"use {', '.join(formats())}")
    new_file(path, chosen.ending)
    info, left_out = run.info(), Counter[str]()
    origin = partial(Origin, run=run.root.resolve().name, recipe=info.recipe_name, module=module)
    parts = part or ("step-*" if chosen.learns and info.kind != "evaluation" else "*")

    def made() -> Iterator[Row]:
        for part, trajectory in trajectories_of(run, parts, left_out):
            if chosen.learns and trajectory.status == "error":
                left_out["ended in an error"] += 1
            elif format in ("trl", "sft") and trajectory.refinement is not None:
                left_out[OF_A_STRATEGY] += 1
            elif format == "trl" and trajectory.reward is None:
                left_out["without a reward"] += 1
            elif format == "sft" and not everything and (not trajectory.reward or trajectory.reward.value < SUCCESS):
                left_out["not successful"] += 1
            elif rows := list(chosen.rows(origin(part=part), trajectory)):
                yield from rows
            else:
                missing = f"reply of {module or 'a model'}" if format in ("trl", "sft") else "row"
                left_out[f"without a {missing}"] += 1

    count = 0

    def counted(rows: Iterable[Row]) -> Iterator[Row]:
        nonlocal count
        for row in rows:
            count += 1
            yield row
        # An error while the file is written leaves none behind.
        if not count:
            reasons = "; ".join(f"{number:,} left out: {reason}" for reason, number in left_out.items())
            raise UsageError(
                f"{run.root} has nothing to export in {parts}",
                code="nothing-to-export",
                cause=reasons or "it has no trajectories: `midstream show` counts them",
                fix="take other parts (--part 'eval-*'), another --module, or failures too (--all)",
            )

    chosen.write(path, counted(chosen.combine(made())))
    return Exported(path, count, dict(left_out))


def new_file(path: Path, ending: str) -> None:
    """Refuse a path that exists, or whose name has another ending."""
    if not path.name.endswith(ending):
        raise UsageError(f"{path} must end in {ending}", code="file-format", fix=f"name it {path.stem}{ending}")
    if path.exists():
        raise UsageError(f"{path} is there already", code="file-exists", fix="give another --out")


def trajectories_of(run: RunDirectory, parts: str, left_out: Counter[str]) -> Iterator[tuple[str, Trajectory]]:
    """The trajectories of the parts that match, with their part's name."""
    segments = run.trajectories.parts()
    for name, segment in sorted(segments.items()):
        if fnmatchcase(name, parts):
            yield from ((name, trajectory) for trajectory in segment)
        else:
            left_out["from other parts of the run"] += len(segment)
    for result in results.read(run.results_path):  # of an evaluation under way
        name = evaluation_name(result.set)
        if name not in segments and fnmatchcase(name, parts):
            yield name, result.trajectory


def table_rows(origin: Origin, trajectory: Trajectory) -> Iterator[Row]:
    """The trajectory as a row: its numbers as columns, and all of it as JSON."""
    score, used = trajectory.reward, usage_of(trajectory.calls)
    same = ("id", "task_id", "family", "question", "answer", "gold", "stop_reason", "status")
    yield {
        "run": origin.run,
        "part": origin.part,
        **{name: getattr(trajectory, name) for name in same},
        "error": trajectory.error.message if trajectory.error else None,
        "reward": score.value if score else None,
        "reward_parts": json.dumps(score.parts if score else {}),
        "tools": list(tools_of(trajectory)),
        "turns": len(trajectory.turns),
        "calls": len(trajectory.calls),
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        **{name: getattr(trajectory, name) for name in ("cost_usd", "started_at", "duration_s")},
        "trajectory": trajectory.model_dump_json(exclude_defaults=True),
    }


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """Write each row as a line of JSON."""
    with atomic_file(path) as file:
        file.writelines(map(encode_record, rows))


def write_parquet(path: Path, rows: Iterable[Row], schema_of: Callable[[Any], Any]) -> None:
    """Write the rows as a table; `schema_of` gets the module `pyarrow`."""
    with needs_extra("parquet files cannot be written without pyarrow", "data"):
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    schema, waiting = schema_of(pa), iter(rows)
    with atomic_file(path) as file, ParquetWriter(file, schema) as writer:
        while batch := list(islice(waiting, _AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(batch, schema))


def _table_schema(pa: Any) -> Any:
    text, real, whole = pa.string(), pa.float64(), pa.int64()
    types = {
        **dict.fromkeys(("run", "part", "id", "task_id", "family", "question", "answer", "gold"), text),
        **dict.fromkeys(("stop_reason", "status", "error"), text),
        **{"reward": real, "reward_parts": text, "tools": pa.list_(text)},
        **dict.fromkeys(("turns", "calls", "prompt_tokens", "completion_tokens"), whole),
        **dict.fromkeys(("cost_usd", "started_at", "duration_s"), real),
        "trajectory": text,
    }
    return pa.schema(types)


SUCCESS = 1.0  # the reward of a task that is solved


def trainer_rows(origin: Origin, trajectory: Trajectory, *, whole: bool) -> Iterator[Row]:
    """A row for each reply, as TRL has them, or for each `whole` conversation.

    A reply's row has TRL's prompt and completion, whether the run was a success, and its reward; a conversation is
    `messages`. Models without a chat have prompt and completion as text. A stream that a chat model continued inside
    its reply (the prompt ends with what it wrote so far) is one row, with the tool output in its completion.
    """
    about: Row = {"part": origin.part, "task_id": trajectory.task_id, "trajectory": trajectory.id}
    if not whole:
        reward = trajectory.reward.value if trajectory.reward else 0.0
        about = {"label": reward >= SUCCESS, "reward": reward, "answer": trajectory.gold or "", **about}
    # Of every module for "", and only what the agent received.
    asked = [call for call in trajectory.calls if origin.module in ("", call.role)]
    calls = [call for call in asked if call.error is None and call.delivered]
    for number, call in enumerate(calls):
        if not call.messages:
            yield {"prompt": call.prompt, "completion": call.completion, **about}
        elif not (whole or call.messages[-1].role == "assistant") or not _is_continued(call, calls[number + 1 :]):
            *prompt, reply = [message.wire() for message in _conversation(call)]
            row = {"messages": [*prompt, reply]} if whole else {"prompt": prompt, "completion": [reply]}
            yield {**row, **about}


def _conversation(call: Call) -> list[Message]:
    """The messages of a call and its reply, which may continue what the model wrote before."""
    *before, last = call.messages
    if last.role == "assistant":
        return [*before, Message(role="assistant", content=last.content + call.completion)]
    return [*before, last, Message(role="assistant", content=call.completion)]


def _is_continued(call: Call, later: Sequence[Call]) -> bool:
    """Whether the conversation of a later call begins with this one."""
    *before, reply = _conversation(call)
    return any(
        list(messages) == before and continued.role == "assistant" and continued.content.startswith(reply.content)
        for other in later
        for *messages, continued in [other.messages[: len(before) + 1]]
    )


_FORMATS = {
    "trl": Format(".jsonl", partial(trainer_rows, whole=False), write_lines, learns=True),
    "sft": Format(".jsonl", partial(trainer_rows, whole=True), write_lines, learns=True),
    "parquet": Format(".parquet", table_rows, partial(write_parquet, schema_of=_table_schema)),
}
