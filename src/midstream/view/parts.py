"""The parts of a run, each a list of trajectories: training steps, evaluations, and what is unfinished.

A list is read from a segment's index or, of what is unfinished, from its journal, from which only new lines are read
again. A trajectory is read whole, by its place in its part, which counts from 0.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from midstream.core.data import problems_of
from midstream.core.errors import RunError, UsageError
from midstream.core.text import visible
from midstream.core.trajectory import Trajectory
from midstream.report.blocks import Block
from midstream.runs.files import damaged, open_file
from midstream.runs.segments import Entry, Segment, entry_of

RESTORE = "restore it from a copy; training does not need it, only reports do"
LARGEST = 50 << 20  # bytes of a trajectory that is shown
_CACHED = 8  # parts, journals and trajectories: those of the pages that are open


class SegmentPart:
    """The trajectories of a file that is finished.

    `damage` is what is wrong with the file, "" if nothing was found yet; `entries` what is known of each trajectory
    without reading it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.damage, self._segment = path, "", Segment(path)
        self.entries: list[Entry] = []
        try:
            for entry in self._segment.entries():
                self.entries.append(_listed(entry))
        except RunError as error:
            self.damage = error.what

    def lines(self, places: Iterable[int]) -> Generator[bytes]:
        """The lines at places that ascend. Raises `RunError` where the file is damaged."""
        yield from self._segment.lines(places)


class JournalPart:
    """The trajectories of one set in a journal of results, as `SegmentPart` has them."""

    def __init__(self, path: Path) -> None:
        self.path, self.damage = path, ""
        self.entries: list[Entry] = []
        self.starts: list[int] = []

    def lines(self, places: Iterable[int]) -> Generator[bytes]:
        """The lines at places that ascend, without the name of the set."""
        with open_file(self.path) as file:
            for place in places:
                file.seek(self.starts[place])
                # The trajectory is the last field of the record.
                yield file.readline().partition(b',"trajectory":')[2].rstrip()[:-1]


Part = SegmentPart | JournalPart


class JournalIndex:
    """The sets in a journal of results (`runs/results.py`), each a part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sets: dict[str, JournalPart] = {}
        self._end, self._reading = 0, threading.Lock()

    def update(self) -> None:
        """Read the lines that are new; a last line without its end is still being written."""
        with self._reading, open_file(self.path) as file:
            file.seek(self._end)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                record = _record(line)
                trajectory = record.get("trajectory")
                if isinstance(record.get("set"), str) and isinstance(trajectory, dict):
                    part = self.sets.setdefault(record["set"], JournalPart(self.path))
                    part.starts.append(self._end)
                    part.entries.append(_listed(entry_of(trajectory)))
                self._end += len(line)


# What is known of a file is kept while it is the same file, a segment also only while it does not change.
_segments = lru_cache(_CACHED)(lambda path, *state: SegmentPart(path))
_journals = lru_cache(_CACHED)(lambda path, inode: JournalIndex(path))


def segment_part(path: Path) -> SegmentPart:
    """The part of a finished file."""
    found = path.stat()
    return _segments(path, found.st_ino, found.st_size, found.st_mtime_ns)


def journal_sets(path: Path) -> dict[str, JournalPart]:
    """The sets of a journal, with what was appended since the last call."""
    # A journal from which records are removed is written again as another file.
    journal = _journals(path, path.stat().st_ino)
    journal.update()
    return journal.sets


def records(part: Part, places: Iterable[int]) -> Iterator[Block]:
    """The trajectories at places that ascend as JSON values, {} for one that is damaged or too large."""
    with closing(part.lines(places)) as lines:
        yield from map(_record, lines)


@lru_cache(_CACHED)
def trajectory_at(part: Part, place: int) -> Trajectory:
    """The trajectory at a place. Raises `UsageError` without it, `RunError` if it is damaged."""
    if place >= len(part.entries):
        if part.damage:
            raise damaged(part.path, part.damage, RESTORE)
        raise UsageError(f"there is no trajectory {place}", code="unknown-name", fix="the list has those there are")
    line = next(part.lines([place]))
    if len(line) > LARGEST:
        raise UsageError(
            f"the trajectory {part.entries[place].id} has {len(line) / 1e6:,.0f} MB",
            code="too-large",
            fix=f"midstream show RUN {part.entries[place].id} --json",
        )
    try:
        return Trajectory.model_validate_json(line)
    except ValidationError as error:
        raise damaged(part.path, problems_of(error)[0], RESTORE) from error


def of_task(part: Part, task: str) -> list[tuple[int, Entry]]:
    """The trajectories of a task, with their places."""
    return [(place, entry) for place, entry in enumerate(part.entries) if entry.task_id == task]


def _listed(entry: Entry) -> Entry:
    # As the page shows both, and has them in addresses.
    return Entry(visible(entry.id), visible(entry.task_id), entry.score, entry.status)


def _record(line: bytes) -> Block:
    """The record of a line, {} of a damaged or a very large one."""
    try:
        found = from_json(line) if len(line) <= LARGEST else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
