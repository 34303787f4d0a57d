"""The journal of an unfinished evaluation: every trajectory that has ended, with the name of its set.

When a set is done, its trajectories are written as a segment and its numbers to `evaluations.jsonl`; only then its
records are removed here. A crash in between leaves records of a finished set, which the next start removes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from midstream.core.data import Frozen
from midstream.core.trajectory import Trajectory
from midstream.runs.journal import Journal, filter_records, read_models


class Result(Frozen):
    """One record: a trajectory, and the name of its set as segments have it."""

    set: str
    trajectory: Trajectory


def read(path: Path) -> list[Result]:
    """All records in order. Raises `RunError` if the journal is damaged before its last line."""
    return read_models(path, Result)


def append(journal: Journal, name: str, trajectories: Sequence[Trajectory]) -> None:
    """Add trajectories of one set with one write: all of them are kept, or none. Raises `StorageError`."""
    # Fields at their default are left out, as in segments: a fifth of the bytes.
    journal.append_many(
        [{"set": name, "trajectory": ended.model_dump(exclude_defaults=True)} for ended in trajectories]
    )


def keep(path: Path, wanted: Callable[[str, bool], bool]) -> None:
    """Remove the records for which `wanted(set name, ended in an error)` is false."""
    filter_records(path, lambda record: wanted(record["set"], record["trajectory"].get("status") == "error"))
