"""Trajectory segments: one gzip file of JSON lines per training step or evaluation, which `zcat` reads.

A segment is written whole, atomically, because a step is the unit that a resumed run repeats. Fields at their default
are left out. Measured on 128 trajectories of 3 turns (one CPU core): encoding 7 ms, gzip level 1 3 ms more, for 136 KB
in place of 616 KB; level 6 would take 12 ms for 118 KB.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import BadGzipFile, GzipFile
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from midstream.core.data import problems_of
from midstream.core.errors import RunError
from midstream.core.trajectory import Trajectory
from midstream.runs.files import atomic_file, damaged, encode_record, fsync_directory, open_file, storage_errors

SUFFIX = ".jsonl.gz"
_STEP = re.compile(r"step-(\d{6,})" + re.escape(SUFFIX))
_LONGEST_NAME = 100  # with prefix and suffix well below the 255 bytes that file systems allow
_SHOWN = 8

Candidate = tuple[str, str, Callable[[], Trajectory]]  # a segment, a trajectory's id, and how to read it


def result_name(set_name: str, sampling: str, step: int | None = None) -> str:
    """The name of an evaluation's file of trajectories; `step` if a run evaluates a set at several."""
    return f"{set_name}-{sampling.replace('=', '')}" + ("" if step is None else f"-{step}")


def evaluation_name(name: str) -> str:
    """The name of an evaluation's segment; with a digest where `name` is too long or not fit for a file name."""
    safe = re.sub(r"[^A-Za-z0-9._=+-]+", "-", name)[:_LONGEST_NAME]
    digest = "" if safe == name else f"-{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"
    return f"eval-{safe}{digest}"


@dataclass(frozen=True)
class Segments:
    """The trajectories of one run, in the directory `root`.

    Reading raises `RunError` where a segment is missing or damaged, writing raises `StorageError`.
    """

    root: Path

    def path(self, segment: int | str) -> Path:
        """The file of the segment of a training step, or of the evaluation with this name."""
        name = f"step-{segment:06d}" if isinstance(segment, int) else evaluation_name(segment)
        return self.root / f"{name}{SUFFIX}"

    def steps(self) -> list[int]:
        """The training steps that have a segment, ascending."""
        names = [entry.name for entry in self.root.iterdir()] if self.root.is_dir() else []
        return sorted(int(match[1]) for match in map(_STEP.fullmatch, names) if match)

    def parts(self) -> dict[str, Segment]:
        """Every segment, by name."""
        # Names that begin with a dot are being written.
        paths = sorted(self.root.glob(f"[!.]*{SUFFIX}"))
        return {path.name.removesuffix(SUFFIX): Segment(path) for path in paths}

    @contextmanager
    def writing(self, segment: int | str) -> Iterator[Callable[[Trajectory], None]]:
        """Write a segment (see `path`) one trajectory at a time: the context yields the function that adds one.

        The segment replaces an earlier one when the context ends without an error. Equal trajectories give equal bytes.
        """
        path = self.path(segment)
        with storage_errors(path):
            self.root.mkdir(exist_ok=True)
        with atomic_file(path) as file, GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed:

            def add(trajectory: Trajectory) -> None:
                packed.write(encode_record(trajectory, exclude_defaults=True))

            yield add

    def write(self, segment: int | str, trajectories: Iterable[Trajectory]) -> None:
        """Write a segment, as `writing` does."""
        with self.writing(segment) as add:
            for trajectory in trajectories:
                add(trajectory)

    def open(self, segment: int | str) -> Segment:
        """A segment, whose trajectories are read when they are used."""
        return Segment(self.path(segment))

    def read(self, segment: int | str) -> list[Trajectory]:
        """The trajectories of a segment in order."""
        return list(self.open(segment))

    def find(self, id_or_prefix: str, unfinished: Iterable[Candidate] = ()) -> Trajectory:
        """Find the only trajectory with this id, or else the only one whose id starts with it.

        `<segment>/<id>`, as the error about several matches lists them, searches one segment only. `unfinished` are
        candidates of segments that are not written yet or will be rewritten; they replace the written ones. Raises
        `RunError` if no trajectory matches, or several do.
        """
        parts = self.parts()
        segment, _, rest = id_or_prefix.partition("/")
        written = (
            (name, entry.id, lambda part=part, place=place: next(part.at([place])))
            for name, part in (parts.items() if segment not in parts else [(segment, parts[segment])])
            for place, entry in enumerate(part.entries())
        )
        # By whether the whole id is given.
        found: dict[bool, dict[str, Callable[[], Trajectory]]] = {True: {}, False: {}}
        for name, identifier, load in chain(written, unfinished):
            wanted = rest if name == segment else id_or_prefix
            if identifier.startswith(wanted):
                found[identifier == wanted][f"{name}/{identifier}"] = load
        matches = found[True] or found[False]
        names = list(matches)
        if not names:
            raise RunError(
                f"no trajectory {id_or_prefix!r} in {len(parts)} segments",
                code="trajectory-not-found",
                fix="take an id, or the start of one, from a run's report or from `midstream compare ... --tasks`",
            )
        if len(names) > 1:
            more = " and more" if len(names) > _SHOWN else ""
            raise RunError(
                f"trajectory {id_or_prefix!r} could be {', '.join(names[:_SHOWN])}{more}",
                code="trajectory-ambiguous",
                fix="give one of these names in full",
            )
        return matches[names[0]]()

    def remove_after(self, step: int) -> None:
        """Remove the segments of later steps, and temporary files left by a crash."""
        if not self.root.is_dir():
            return
        with storage_errors(self.root):
            for later in self.steps():
                if later > step:
                    self.path(later).unlink()
            for leftover in self.root.glob(".*.tmp"):
                leftover.unlink()
            fsync_directory(self.root)


@dataclass(frozen=True, slots=True)
class Entry:
    """Fields of a trajectory that lists show; of a line that is no trajectory an empty id."""

    id: str
    task_id: str
    score: float | None  # None without a reward
    status: str


def entry_of(record: Any) -> Entry:
    """What lists show of a trajectory's record, which is not validated."""
    try:
        reward = record.get("reward")
        return Entry(record["id"], record["task_id"], reward and reward["value"], record.get("status", "ok"))
    except (AttributeError, KeyError, TypeError):
        return Entry("", "", None, "error")


class Segment:
    """The trajectories of one segment, in order; each use reads the file again, and memory holds one of them.

    Raises `RunError` as `Segments` does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return sum(1 for _ in self._lines())

    def __iter__(self) -> Iterator[Trajectory]:
        return (_parse(self.path, line) for line in self._lines())

    def at(self, places: Iterable[int]) -> Iterator[Trajectory]:
        """The trajectories at `places`, which count from 0, in the order of the segment."""
        return (_parse(self.path, line) for line in self.lines(places))

    def lines(self, places: Iterable[int]) -> Iterator[bytes]:
        """The lines at `places`, as `at` reads them; they are not validated."""
        wanted = set(places)
        first = islice(self._lines(), max(wanted, default=-1) + 1)
        return (line for place, line in enumerate(first) if place in wanted)

    def entries(self) -> Iterator[Entry]:
        """Yield what lists show of each trajectory; they are not validated."""
        for line in self._lines():
            try:
                yield entry_of(from_json(line))
            except ValueError:
                yield entry_of(None)

    def _lines(self) -> Iterator[bytes]:
        path = self.path
        try:
            with open_file(path) as file, GzipFile(fileobj=file) as text:
                yield from text
        except FileNotFoundError as error:
            raise RunError(
                f"there is no segment {path.name} in {path.parent}",
                code="file-not-found",
                fix=f"see what there is: `ls {path.parent}`",
            ) from error
        except (EOFError, BadGzipFile, zlib.error) as error:
            raise _damaged_segment(path, str(error)) from error


def _parse(path: Path, line: bytes) -> Trajectory:
    try:
        return Trajectory.model_validate_json(line)
    except ValidationError as error:
        raise _damaged_segment(path, problems_of(error)[0]) from error


def _damaged_segment(path: Path, problem: str) -> RunError:
    fix = "restore it from a copy, or delete it: training does not need it, only reports do"
    return damaged(path, problem, fix=fix)
