"""Rows of a file of questions: a JSON list, JSON lines, CSV, TSV or parquet, each of them gzipped too.

Rows come one by one, with the number that a person finds them by. What is wrong with one is collected in `Faults`, so
that a file's mistakes are told together; nothing is ever left out without a word.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from midstream.core.data import unfit
from midstream.core.errors import UnsupportedError, UsageError

SHOWN = 10  # faults that are told one by one
MAX_LINE = 1 << 24  # bytes; a small file can unpack to a line that fills the memory
_MARK = b"\xef\xbb\xbf"


class BadRowError(ValueError):
    """Why a row is no task."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row: `place` is where it stands ("line 3", "entry 3", "row 3"), `fields` what it holds."""

    place: str
    fields: dict[str, Any]


@dataclass
class Faults:
    """What is wrong with the rows of `source`, in order; `total` counts those beyond the first `SHOWN` too."""

    source: str
    told: list[str] = field(default_factory=list)
    total: int = 0

    def add(self, place: str, reason: object) -> None:
        """Note one more."""
        self.total += 1
        if len(self.told) < SHOWN:
            self.told.append(f"{place}: {reason}")

    def refuse(self, cause: str, fix: str) -> None:
        """Raise `UsageError` if there were any."""
        if self.total:
            rows = f"{self.total} bad {'row' if self.total == 1 else 'rows'}"
            more = [f"and {self.total - SHOWN} more"] * (self.total > SHOWN)
            raise UsageError(
                f"{self.source} has {rows}:" + "".join(f"\n    {one}" for one in [*self.told, *more]),
                cause=cause,
                fix=fix,
            )


def read_records(path: Path, faults: Faults, columns: Sequence[str] = ()) -> Iterator[Record]:
    """The rows of a file in order; what cannot be read is added to `faults` instead.

    `columns` are those that are wanted, where the format can leave others unread (parquet).

    Raises:
        UsageError: there is no such file, its ending is unknown, or it is broken as a whole.
        UnsupportedError: parquet without the extra `data`.
    """
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    reader = {"json": _json, "jsonl": _lines, "ndjson": _lines, "csv": _csv, "tsv": _tsv, "parquet": _parquet}.get(
        ending
    )
    if reader is None:
        raise UsageError(
            f"{path} is of no known format",
            cause=f"its name ends in {path.suffix!r}" if path.suffix else "its name has no ending",
            fix="give a .jsonl, .json, .csv, .tsv or .parquet file, with .gz after it if it is gzipped",
        )
    try:
        if not path.is_file():
            raise UsageError(
                f"there is no file {path}",
                cause="it is misspelt, a folder, or not downloaded",
                fix=f"ls -l {path.parent}",
            )
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            yield from reader(file, faults, columns)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UsageError(
            f"{path} cannot be unpacked: {error}", cause="it is cut off, or not gzipped", fix=f"gzip -t {path}"
        ) from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}",
            cause="you may not read it, or it is damaged",
            fix=f"ls -l {path}",
        ) from error


def _json(file: IO[bytes], faults: Faults, columns: Sequence[str]) -> Iterator[Record]:
    """A list of objects; a file that begins otherwise holds one object a line, as many `.json` files do."""
    data = file.read().removeprefix(_MARK)
    if data.lstrip()[:1] != b"[":
        yield from _lines(io.BytesIO(data), faults, columns)
        return
    try:
        entries = _load(data)
    except BadRowError as error:
        faults.add("the whole file", error)
        return
    for number, value in enumerate(entries, 1):
        yield from _object(f"entry {number}", value, faults)


def _lines(file: IO[bytes], faults: Faults, columns: Sequence[str]) -> Iterator[Record]:
    """One JSON object a line; empty lines are none."""
    for number, line in _numbered(file, faults):
        text = line.strip()
        if not text:
            continue
        if number == 1 and text in (b"[", b"{", b"[{"):
            faults.add("the whole file", "it is one value over many lines, not one object a line (a list may be .json)")
            return
        try:
            value = _load(text)
        except BadRowError as error:
            faults.add(f"line {number}", error)
        else:
            yield from _object(f"line {number}", value, faults)


def _numbered(file: IO[bytes], faults: Faults) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, the byte order mark taken off; none after one that is too long."""
    for number in itertools.count(1):
        line = file.readline(MAX_LINE + 1)
        if len(line) > MAX_LINE:
            faults.add(f"line {number}", f"it is longer than {MAX_LINE:,} bytes; nothing after it was read")
            return
        if not line:
            return
        yield number, line.removeprefix(_MARK) if number == 1 else line


def _load(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise BadRowError(f"it is no UTF-8: {error.reason} at byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise BadRowError(f"it is no JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise BadRowError("it is nested too deeply") from error
    except BadRowError:
        raise
    except ValueError as error:  # a whole number of thousands of digits
        raise BadRowError(f"it cannot be read: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise BadRowError(f"{twice!r} stands in it twice")
    return found


def _no_number(name: str) -> Any:
    raise BadRowError(f"{name} is no JSON")


def _object(place: str, value: Any, faults: Faults) -> Iterator[Record]:
    if not isinstance(value, dict):
        faults.add(place, f"it is no object but {shown(value)}")
    elif reason := unfit(value):
        faults.add(place, f"it cannot be kept: {reason}")
    else:
        yield Record(place, value)


def _csv(file: IO[bytes], faults: Faults, columns: Sequence[str], separator: str = ",") -> Iterator[Record]:
    """The first row names the columns; an empty cell is a missing value."""
    rows = csv.reader(_decoded(file, faults), delimiter=separator, strict=True)
    header, first = None, 1
    try:
        for cells in rows:
            place, first = f"line {first}", rows.line_num + 1
            if not any(cells):
                continue
            if header is None:
                header = cells
                if len(set(header)) < len(header):
                    faults.add(place, "two columns have the same name")
                    return
            elif len(cells) != len(header):
                faults.add(place, f"it has {len(cells)} cells, and the first line names {len(header)} columns")
            else:
                yield Record(place, {name: cell for name, cell in zip(header, cells, strict=True) if cell})
    except csv.Error as error:
        faults.add(f"line {first}", f"it is no CSV: {error}")


def _tsv(file: IO[bytes], faults: Faults, columns: Sequence[str]) -> Iterator[Record]:
    return _csv(file, faults, columns, "\t")


def _decoded(file: IO[bytes], faults: Faults) -> Iterator[str]:
    for number, line in _numbered(file, faults):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            faults.add(f"line {number}", f"it is no UTF-8: {error.reason} at byte {error.start + 1}")
            yield line.decode(errors="replace")


def _parquet(file: IO[bytes], faults: Faults, columns: Sequence[str]) -> Iterator[Record]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UnsupportedError(
            "parquet files cannot be read here", cause="pyarrow is not installed", fix="pip install 'midstream[data]'"
        ) from error
    try:
        table = ParquetFile(file)
        wanted = [name for name in table.schema_arrow.names if name in columns] or None
        batches = table.iter_batches(batch_size=1000, columns=wanted)
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            try:
                yield from _object(f"row {number}", row, faults)
            except TypeError as error:  # a date, bytes, a decimal number
                faults.add(f"row {number}", f"it cannot be kept: {error}")
    except ArrowException as error:
        raise UsageError(
            f"{faults.source} is no parquet file: {error}", cause="it is cut off, or of another format",
            fix="download it again",
        ) from error  # fmt: skip


def shown(value: Any) -> str:
    """A value as JSON, shortened."""
    text = "null" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:60] + " ..."
