"""The parts of a run, each a list of trajectories: training steps, evaluations, and what is unfinished.

A list is read once from its segment or, of what is unfinished, from its journal, from which only new lines are read
again. A trajectory is read alone, by its place in its part, from 0.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic_core import from_json

from midstream.core.errors import UsageError
from midstream.core.text import visible
from midstream.runs.files import damaged
from midstream.runs.segments import Entry
from midstream.view.lines import HeldText, OpenFile, PackedText, PlainText, Text, lines
from midstream.view.turns import TROUBLES, Recorded

T = TypeVar("T")
RESTORE = "restore it from a copy; training does not need it, only reports do"
_UNREADABLE = Entry("", "", None, "error")
_RESULT = re.compile(rb'\{"set":("(?:[^"\\]|\\.)*"),"trajectory":')
_LONGEST_NAME = 1 << 16  # bytes before a result's trajectory


class Line(NamedTuple):
    """A trajectory's line: where it begins in a text, and the record, None of a large one."""

    place: int
    text: Text
    start: int
    record: dict[str, Any] | None


class Part(Protocol):
    """A list of trajectories; reading goes as far as the files are whole."""

    @property
    def identity(self) -> Hashable:
        """A value that differs where the content does."""
        ...

    @property
    def path(self) -> Path:
        """Its file."""
        ...

    @property
    def damage(self) -> str:
        """What is wrong with the file, "" if nothing was found yet."""
        ...

    def entries(self, start: int = 0) -> Iterator[tuple[int, Entry]]:
        """Place and index entry of each trajectory from `start` on."""
        ...

    def lines(self, start: int = 0) -> Iterator[Line]:
        """The lines from `start` on."""
        ...


class SegmentPart:
    """The trajectories of a file that is finished."""

    def __init__(self, path: Path) -> None:
        self.path, self.damage = path, ""
        file = OpenFile(path)
        self.identity = (str(path), *identity(file.stat()))
        self._text = PackedText(file)
        self._known: list[tuple[int, Entry]] = []  # once all are read: where each line begins, and its entry

    def entries(self, start: int = 0) -> Iterator[tuple[int, Entry]]:
        """Place and index entry of each trajectory from `start` on."""
        if not self._known:
            self._known = [(begin, entry_of(line)) for begin, line in self._read(0, 0)]
        for place, (_, entry) in enumerate(self._known[start:], start):
            yield place, entry

    def lines(self, start: int = 0) -> Iterator[Line]:
        """The lines from `start` on."""
        known = start < len(self._known)
        first, begin = (start, self._known[start][0]) if known else (0, 0)
        for _, line in self._read(first, begin):
            if line.place >= start:
                yield line

    def _read(self, first: int, start: int) -> Iterator[tuple[int, Line]]:
        """Where each line from byte `start` on begins, and the line; `first` is the place of the first."""
        try:
            for place, (at, _, line) in enumerate(lines(self._text, start, early=True), first):
                if line is None:
                    yield at, Line(place, self._text, at, None)
                else:  # it is read again from memory: its calls are asked for one by one
                    yield at, Line(place, HeldText(line), 0, _record(line))
        except TROUBLES as error:
            self.damage = str(error)


class JournalPart:
    """The trajectories of one set in a journal of results."""

    def __init__(self, journal: JournalIndex, name: str) -> None:
        self.path, self._journal, self._name = journal.path, journal, name
        self.identity, self.damage = (*journal.identity, name), ""

    def entries(self, start: int = 0) -> Iterator[tuple[int, Entry]]:
        """Place and index entry of each trajectory from `start` on."""
        for place, (_, entry) in enumerate(self._journal.sets[self._name][start:], start):
            yield place, entry

    def lines(self, start: int = 0) -> Iterator[Line]:
        """The lines from `start` on."""
        known = self._journal.sets[self._name][start:]
        found = self._journal.results(known[0][0]) if known else ()
        ours = (line for _, _, name, line in found if line is not None and name == self._name)
        for place, line in zip(range(start, start + len(known)), ours, strict=False):
            yield line._replace(place=place)


class JournalIndex:
    """Where the trajectories of each set begin in a journal of results (`runs/results.py`); it reads what is new."""

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, OpenFile(path)
        self.identity = (str(path), identity(self._file.stat())[0])
        self._text = PlainText(self._file)
        self.sets: dict[str, list[tuple[int, Entry]]] = {}  # by set: where the line begins, and the entry
        self._end, self._reading = 0, threading.Lock()

    def update(self) -> None:
        """Read the lines that are new."""
        with self._reading:
            for begin, end, name, line in self.results(self._end):
                if line is not None:
                    self.sets.setdefault(name, []).append((begin, entry_of(line)))
                self._end = end

    def results(self, start: int) -> Iterator[tuple[int, int, str, Line | None]]:
        """Where each line from `start` on begins and ends, its set and its trajectory; None if it is no result."""
        for begin, end, line in lines(self._text, start):
            head = line or self._file.read(_LONGEST_NAME, begin)
            if found := _RESULT.match(head):
                record = _record(line[found.end() :], trailing=True) if line else None
                yield begin, end, from_json(found[1]), Line(0, self._text, begin + found.end(), record)
            else:
                yield begin, end, "", None


def entry_of(line: Line) -> Entry:
    """What a list shows of a trajectory, read from its line."""
    try:
        if line.record is None:
            recorded = Recorded(line.text, line.start)
            recorded.scan(None, 60.0)
            frame = recorded.frame()
            return _listed(frame.id, frame.task_id, frame.reward and frame.reward.value, frame.status)
        reward = line.record.get("reward")
        return _listed(
            line.record["id"], line.record["task_id"], reward and reward["value"], line.record.get("status", "ok")
        )
    except (AttributeError, KeyError, TypeError, *TROUBLES):
        return _UNREADABLE


def _listed(name: str, task: str, score: float | None, status: str) -> Entry:
    # As the page shows both, and has them in addresses.
    return Entry(visible(name), visible(task), score, status)


def recorded_at(part: Part, place: int) -> Recorded:
    """The trajectory at a place. Raises `UsageError` without it, `RunError` if the file is damaged before it."""
    line = next(part.lines(place), None)
    if line is not None and line.place == place:
        return Recorded(line.text, line.start)
    if part.damage:
        raise damaged(part.path, part.damage, RESTORE)
    raise UsageError(f"there is no trajectory {place}", code="unknown-name", fix="the list has those there are")


def identity(found: os.stat_result) -> tuple[int, int, int]:
    """Values of which one changes when a file is replaced or grows."""
    return found.st_ino, found.st_size, found.st_mtime_ns


class Kept:
    """The values that were used last, by key; threads may share it."""

    def __init__(self, most: int) -> None:
        self._most, self._values = most, OrderedDict[Hashable, Any]()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, which `make` makes if it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        made = make()
        with self._lock:
            made = self._values.setdefault(key, made)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return made


def _record(line: bytes | None, *, trailing: bool = False) -> dict[str, Any] | None:
    """The record of a line, {} of a damaged one; `trailing`: the brace of a result follows it."""
    if line is None:
        return None
    if trailing:
        line = line.rstrip()[:-1]
    try:
        found = from_json(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
