"""Append-only JSON lines that survive crashes.

A record is a line that ends in a newline and holds a JSON object. Each append is one write to the system, so a killed
process leaves whole records, and a power cut at most a torn last line. Opening a journal cuts such a tail off and
reports it; reading skips it. An unreadable line anywhere else is an error, because no crash causes it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from midstream.core.data import problems_of
from midstream.core.errors import RunError
from midstream.runs.files import atomic_write, damaged, encode_record, fsync_directory, open_file, storage_errors

if sys.platform != "win32":
    import fcntl

Record = BaseModel | Mapping[str, object]
Report = Callable[[str], None]
OnDamage = Callable[[RunError], None]
ModelT = TypeVar("ModelT", bound=BaseModel)

warn = logging.getLogger("midstream.runs").warning


def raise_damage(error: RunError) -> None:
    """Raise it: the default of everything that reads records."""
    raise error


def skip_damage(error: RunError) -> None:
    """Ignore damage that was reported before (`RunDirectory.open` does)."""


def warn_of_damage(error: RunError) -> None:
    """Warn, and continue after it."""
    warn(f"{error.what}; {error.fix}")


class Journal:
    """An open journal to append to, created if missing; a context manager. Raises `StorageError`.

    Appended records survive the death of this process at once; they survive a power cut once `close` has returned.
    `report` receives a line of text if a torn tail had to be cut off.
    """

    def __init__(self, path: Path, *, report: Report = warn) -> None:
        self.path = path
        with storage_errors(path):
            if path.exists():
                _repair_tail(path, report)
            else:
                open_file(path, "ab").close()
                fsync_directory(path.parent)
            self._file = open_file(path, "ab", buffering=0)

    def append(self, record: Record) -> None:
        """Append one record with one write. Raises `StorageError`; the journal then ends with the record before."""
        self.append_many([record])

    def append_many(self, records: Sequence[Record]) -> None:
        """Append all records with one write, or none of them; raises as `append`."""
        rest = memoryview(b"".join(map(encode_record, records)))
        with storage_errors(self.path):
            start = self._file.seek(0, os.SEEK_END)
            try:
                # One write, and further ones only if the system took a part (a nearly full disk, a signal).
                while rest:
                    rest = rest[self._file.write(rest) or 0 :]
            except OSError:
                # If even the cut fails, the torn tail is repaired when the journal is opened next.
                with suppress(OSError):
                    self._file.truncate(start)
                raise

    def close(self) -> None:
        """Flush to the disk and close."""
        if self._file.closed:
            return
        with storage_errors(self.path):
            try:
                os.fsync(self._file.fileno())
            finally:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(frozen=True)
class Records(Generic[ModelT]):
    """A journal whose records are all of one model; opened for each append."""

    path: Path
    model: type[ModelT]

    def read(self, on_damage: OnDamage = raise_damage) -> list[ModelT]:
        """All records in order; empty if the file does not exist yet.

        Damage, also a record that is not a valid `model`: as `read_records`.
        """
        found: list[ModelT] = []
        for number, _, record in read_records(self.path, on_damage):
            try:
                found.append(self.model.model_validate(record))
            except ValidationError as error:
                problem = f"is no {self.model.__name__}: {problems_of(error)[0]}"
                on_damage(_damaged_line(self.path, number, problem))
        return found

    def append(self, record: ModelT) -> None:
        """Add a record, safe on disk on return. Raises `StorageError`."""
        with Journal(self.path) as journal:
            journal.append(record)


@contextmanager
def appending(path: Path) -> Iterator[None]:
    """Be the only one of several processes that appends to a journal, until the context ends. Raises `StorageError`."""
    with storage_errors(path), open_file(path, "ab") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def filter_records(path: Path, keep: Callable[[dict[str, Any]], bool], on_damage: OnDamage = raise_damage) -> None:
    """Atomically remove the records for which `keep` is false, and damaged ones, if `on_damage` does not raise."""
    damage: list[RunError] = []

    def note(error: RunError) -> None:
        on_damage(error)
        damage.append(error)

    removed = sum(not keep(record) for _, _, record in read_records(path, note))
    if removed or damage:
        atomic_write(path, (line for _, line, record in read_records(path, skip_damage) if keep(record)))


def read_records(path: Path, on_damage: OnDamage = raise_damage) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """The line number (from 1), raw line and record of each record; none without a file.

    A torn last line is skipped. Any other unreadable line is an error that names file and line: `RunError` is raised,
    or given to `on_damage` and the next whole record yielded. Memory use does not depend on the number of records.
    """
    if not path.exists():
        return
    # The number of an unreadable line, which is torn if no other follows.
    unreadable = 0
    with open_file(path) as file:
        for number, line in enumerate(file, start=1):
            if unreadable:
                on_damage(_damaged_line(path, unreadable, "is not a JSON object"))
                unreadable = 0
            record = _parse(line)
            if record is None:
                unreadable = number
            else:
                yield number, line, record


def _parse(line: bytes) -> dict[str, Any] | None:
    """The record of a whole line, or None if the line is torn or damaged."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = from_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _damaged_line(path: Path, line: int, problem: str) -> RunError:
    return damaged(path, f"line {line} {problem}", fix="restore the file from a copy, or delete the line")


def _repair_tail(path: Path, report: Report) -> None:
    with open_file(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return
        with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            start = content.rfind(b"\n", 0, size - 1) + 1
            torn = _parse(content[start:]) is None
        if torn:
            file.truncate(start)
            os.fsync(file.fileno())
            report(f"{path}: cut off a torn last record ({size - start} bytes) left by a crash")
