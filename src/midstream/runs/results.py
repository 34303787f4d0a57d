"""The journal of an unfinished evaluation: every trajectory that has ended, with the name of its set.

When a set is done, its trajectories are written as a segment and its numbers to `evaluations.jsonl`; only then its
records are removed here. A crash in between leaves records of a finished set, which the next start removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from midstream.core.data import problems_of
from midstream.core.trajectory import Trajectory
from midstream.runs.files import damaged, open_file
from midstream.runs.journal import Journal, OnDamage, Report, filter_records, raise_damage, read_records, warn


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
    _record: object

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
