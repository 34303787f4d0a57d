"""Append-only JSON lines that survive crashes.

A record is a line that ends in a newline and holds a JSON object, whose last field is a checksum (`checksums.py`). Each
append is one write to the system, so a killed process leaves whole records, and a power cut at most a torn last line.
Opening a journal cuts such a tail off and reports it; reading skips it. Damage anywhere else is an error, because no
crash causes it: the chain of checksums names a changed line, and the place where records are missing.

A journal of an older midstream has no checksums. It is read as it is, and what is appended to it gets them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, Self, TypeVar
from zlib import crc32

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from midstream.core.data import problems_of
from midstream.core.errors import RunError
from midstream.runs import checksums
from midstream.runs.files import atomic_write, damaged, encode_record, fsync_directory, storage_errors

Record = BaseModel | Mapping[str, Any]
Report = Callable[[str], None]
OnDamage = Callable[[RunError], None]
ModelT = TypeVar("ModelT", bound=BaseModel)

warn = logging.getLogger("midstream.runs").warning
_BLOCK = 1 << 16
_PROBLEMS = {
    "changed": "is not as it was written",
    "misplaced": "does not follow the line before it: records are missing there, or were moved",
}


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
            is_new = not path.exists()
            self._file = path.open("ab", buffering=0)
            try:
                if is_new:
                    fsync_directory(path.parent)
                self._crc = 0 if is_new else _repair_tail(path, report)
            except OSError:
                self._file.close()
                raise

    def append(self, record: Record) -> None:
        """Append one record with one write. Raises `StorageError`; the journal then ends with the record before."""
        self.append_many([record])

    def append_many(self, records: Sequence[Record]) -> None:
        """Append all records with one write, or none of them; raises as `append`."""
        lines, crc = [], self._crc
        for record in records:
            lines.append(checksums.add(encode_record(record), crc))
            crc = crc32(lines[-1], crc)
        rest = memoryview(b"".join(lines))
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
        self._crc = crc

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
        """All records in order; empty if the file does not exist yet. Damage: as `read_records`."""
        return read_models(self.path, self.model, on_damage)

    def append(self, record: ModelT) -> None:
        """Add a record, safe on disk on return. Raises `StorageError`."""
        with Journal(self.path) as journal:
            journal.append(record)


def read_models(path: Path, model: type[ModelT], on_damage: OnDamage = raise_damage) -> list[ModelT]:
    """The records of a journal as `model`s; raises as `read_records`, also for a record that is not a valid `model`."""
    found: list[ModelT] = []
    for number, _, record in read_records(path, on_damage):
        try:
            found.append(model.model_validate(record))
        except ValidationError as error:
            on_damage(_damaged_line(path, number, f"is no {model.__name__}: {problems_of(error)[0]}"))
    return found


def filter_records(path: Path, keep: Callable[[dict[str, Any]], bool], on_damage: OnDamage = raise_damage) -> int:
    """Atomically remove the records for which `keep` is false; of the others only checksums change.

    Damaged ones are removed, too, if `on_damage` does not raise. Returns how many were removed, and damaged.
    """
    damage: list[RunError] = []

    def note(error: RunError) -> None:
        on_damage(error)
        damage.append(error)

    removed = sum(not keep(record) for _, _, record in read_records(path, note))

    def kept() -> Iterator[bytes]:
        crc = 0
        for _, line, record in read_records(path, skip_damage):
            if keep(record):
                if checksums.crc_after(line) is not None:
                    line = checksums.add(checksums.remove(line), crc)
                crc = crc32(line, crc)
                yield line

    if removed or damage:
        atomic_write(path, kept())
    return removed + len(damage)


def cut_at_damage(path: Path) -> None:
    """Remove the first damaged record and all after it. Raises `StorageError`."""
    intact = 0
    try:
        for _, line, _ in read_records(path):
            intact += len(line)
    except RunError:
        with storage_errors(path):
            os.truncate(path, intact)


def read_records(path: Path, on_damage: OnDamage = raise_damage) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """The line number (from 1), raw line and record, without its checksum, of each record; none without a file.

    A torn last line is skipped. Other damage is an error that names file and line: `RunError` is raised, or given to
    `on_damage` and the next whole record yielded. Memory use does not depend on the number of records.
    """
    if not path.exists():
        return
    start, done, crc = 0, 0, 0  # bytes, lines, and the CRC-32 of what is read
    with path.open("rb") as file:
        while lines := file.readlines(_BLOCK):
            block, found = b"".join(lines), list(map(_parse, lines))
            # An older midstream may have left damaged lines, which the checksums after them cover.
            if None in found or not checksums.covers(block, crc):
                break
            for number, (line, record) in enumerate(zip(lines, found, strict=True), start=done + 1):
                assert record is not None
                record.pop(checksums.FIELD, None)
                yield number, line, record
            start, done, crc = start + len(block), done + len(lines), crc32(block, crc)
        file.seek(start)
        yield from _read_each(path, file, done, crc, on_damage)


def _read_each(
    path: Path, file: BinaryIO, done: int, crc: int | None, on_damage: OnDamage
) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """Continue `read_records` after `done` lines, checking each line; `crc` is that of the file so far."""
    torn, has_checksums = 0, done > 0
    for number, line in enumerate(file, start=done + 1):
        if torn:
            on_damage(_damaged_line(path, torn, "is not a JSON object"))
            torn = 0
        record = _parse(line)
        if record is None:
            torn, crc = number, None  # torn if no other line follows
            continue
        if has_checksums or checksums.FIELD in record:
            has_checksums = True
            problem = checksums.problem_of(line, crc)
            if problem:
                on_damage(_damaged_line(path, number, _PROBLEMS[problem]))
            crc = None if problem == "changed" else checksums.crc_after(line)
            if problem == "changed":
                continue
        elif crc is not None:  # of an older midstream
            crc = crc32(line, crc)
        record.pop(checksums.FIELD, None)
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
    return damaged(path, f"line {line} {problem}", fix="restore the file from a copy")


def _repair_tail(path: Path, report: Report) -> int:
    """Cut off a torn last line; returns the CRC-32 of the file."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        # Read backwards in blocks until the newline before the last line: a journal may be large.
        line, start = b"", size
        while start > 0 and b"\n" not in line[:-1]:
            block = min(_BLOCK, start)
            start -= block
            file.seek(start)
            line = file.read(block) + line
        cut = line.rfind(b"\n", 0, -1) + 1  # 0 if the file is one line
        start, line, end = start + cut, line[cut:], size
        if line and _parse(line) is None:
            file.truncate(start)
            os.fsync(file.fileno())
            report(f"{path}: cut off a torn last record ({size - start} bytes) left by a crash")
            end = start
        file.seek(max(0, end - checksums.LENGTH))
        crc = checksums.crc_after(file.read(checksums.LENGTH))
    return checksums.crc_of(path, end) if crc is None else crc  # None: of an older midstream, or empty
