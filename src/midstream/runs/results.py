"""The journal of an unfinished evaluation: every trajectory that has ended, with the name of its set.

When a set is done, its trajectories are written as a segment and its numbers to `evaluations.jsonl`; only then its
records are removed here. A crash in between leaves records of a finished set, which the next start removes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from midstream.core.data import problems_of
from midstream.core.trajectory import Trajectory
from midstream.runs.files import damaged, open_file, storage_errors
from midstream.runs.journal import (
    Journal,
    OnDamage,
    Report,
    filter_records,
    raise_damage,
    read_records,
    warn,
    warn_of_damage,
)
from midstream.runs.segments import Candidate, evaluation_name


@dataclass(frozen=True, slots=True)
class Result:
    """One record: a trajectory, and the name of its set as segments have it.

    `place` is the trajectory's task id and number, `start` the offset of its line in the journal. The trajectory itself
    is validated when it is used.
    """

    set: str
    id: str
    place: tuple[str, int]
    failed: bool
    start: int
    _line: tuple[Path, int]
    _record: Any

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory. Raises `RunError` if it is damaged."""
        try:
            return Trajectory.model_validate(self._record)
        except ValidationError as error:
            path, number = self._line
            raise damaged(path, f"line {number} has no trajectory: {problems_of(error)[0]}") from error


def read(path: Path, on_damage: OnDamage = raise_damage) -> Iterator[Result]:
    """All records in order, one at a time. Damage: as `read_records`; after a damaged one `start` is not known."""
    start = 0
    for number, line, record in read_records(path, on_damage):
        match record:
            case {"set": str(name), "trajectory": {"id": str(found), "task_id": str(task), **rest} as trajectory}:
                place, failed = (task, rest.get("rollout_index", 0)), rest.get("status") == "error"
                yield Result(name, found, place, failed, start, (path, number), trajectory)
            case _:
                raise damaged(path, f"line {number} is no result of an evaluation")
        start += len(line)


def at(path: Path, starts: Iterable[int]) -> Iterator[Trajectory]:
    """The trajectories of the lines that begin at these offsets. Raises `RunError` if one has none."""
    with open_file(path) as file:
        for start in starts:
            file.seek(start)
            try:
                yield Trajectory.model_validate(from_json(file.readline())["trajectory"])
            except (ValueError, KeyError, TypeError) as error:
                raise damaged(path, f"byte {start} begins no trajectory") from error


def candidates(path: Path) -> Iterator[Candidate]:
    """The records as `Segments.find` takes them."""
    for result in read(path, warn_of_damage):
        yield evaluation_name(result.set), result.id, lambda result=result: result.trajectory


def append(journal: Journal, name: str, trajectories: Sequence[Trajectory]) -> None:
    """Add trajectories of one set with one write: all of them are kept, or none. Raises `StorageError`."""
    # Fields at their default are left out, as in segments: a fifth of the bytes.
    journal.append_many(
        [{"set": name, "trajectory": ended.model_dump(exclude_defaults=True)} for ended in trajectories]
    )


def keep(path: Path, wanted: Callable[[str, bool], bool], report: Report = warn) -> None:
    """Remove the records for which `wanted(set name, ended in an error)` is false, and damaged ones, with a report."""
    filter_records(
        path,
        lambda record: wanted(record["set"], record["trajectory"].get("status") == "error"),
        lambda error: report(f"{error.what}; that trajectory is run again"),
    )


AGENT_RUNS = "agent-runs.jsonl"  # in the run directory


class AgentRuns:
    """The agent runs inside the trajectories of a strategy, so that a resumed evaluation does not repeat them.

    They are kept by what determines them, in a journal in `directory`, which is opened when it is first needed.
    Memory holds the keys and where their lines begin. Without a directory nothing is kept. Methods raise
    `StorageError`, and `RunError` where the journal is damaged.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._journal: Journal | None = None
        self._starts: dict[str, int] = {}
        self._end = 0

    def find(self, *key: str | int) -> Trajectory | None:
        """The agent run under a key, if it is kept."""
        journal = self._opened()
        start = self._starts.get(json.dumps(key))
        if journal is None or start is None:
            return None
        with storage_errors(journal.path):
            return next(at(journal.path, [start]))

    def keep(self, ended: Trajectory, *key: str | int) -> None:
        """Keep an agent run: on return it survives the death of this process."""
        if (journal := self._opened()) is not None:
            journal.append({"key": key, "trajectory": ended.model_dump(exclude_defaults=True)})
            self._starts[json.dumps(key)] = self._end
            self._end = journal.path.stat().st_size

    def forget(self) -> None:
        """Remove the journal: the trajectories that the runs are part of are written down."""
        self._close()
        if self._directory is not None:
            path = self._directory / AGENT_RUNS
            with storage_errors(path):
                path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Close the journal; it opens again when it is needed."""
        self._close()

    def _close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _opened(self) -> Journal | None:
        if self._journal is None and self._directory is not None:
            path = self._directory / AGENT_RUNS
            # Opening it cuts off what a kill has left of a record.
            Journal(path).close()
            self._starts, self._end = {}, 0
            for _, line, record in read_records(path):
                self._starts[json.dumps(record["key"])] = self._end
                self._end += len(line)
            self._journal = Journal(path)
        return self._journal
