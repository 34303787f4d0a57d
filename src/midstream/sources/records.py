"""Rows of a file of questions: a JSON list, JSON lines, CSV, TSV or parquet, each of them optionally gzipped.

Rows are yielded one by one, with the number that a person finds them by. What is wrong with a row is collected in
`Faults`, so that all mistakes of a file are reported together; no row is dropped silently.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from midstream.core.data import unfit
from midstream.core.errors import UsageError, needs_extra
from midstream.core.text_file import check_regular

SHOWN = 10  # faults that are reported one by one
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BadRowError(ValueError):
    """Why a row is not a task."""


class LeftOutError(ValueError):
    """Why a row is not a question of this benchmark; such rows are counted, and are no fault."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row: `place` is its position ("line 3", "entry 3", "row 3"), `fields` its values."""

    place: str
    fields: dict[str, Any]


@dataclass
class Faults:
    """What is wrong with the rows of `source`: the first `SHOWN` faults in order, and the `total` number."""

    source: str
    shown: list[str] = field(default_factory=list)
    total: int = 0

    def add(self, place: str, reason: object) -> None:
        """Record one more fault."""
        self.total += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"{place}: {reason}")

    def refuse(self, cause: str, fix: str) -> None:
        """Raise `UsageError` if there are any faults."""
        if self.total:
            rows = f"{self.total} bad {'row' if self.total == 1 else 'rows'}"
            more = [f"and {self.total - SHOWN} more"] * (self.total > SHOWN)
            lines = "".join(f"\n    {line}" for line in [*self.shown, *more])
            raise UsageError(f"{self.source} has {rows}:{lines}", code="bad-rows", cause=cause, fix=fix)


def read_records(path: Path, faults: Faults, columns: Sequence[str] = ()) -> Iterator[Record]:
    """Yield the rows of a file in order; add those that cannot be read to `faults`.

    `columns` are the wanted fields, for the format that can skip the others (parquet). Raises `UsageError` if the file
    does not exist, its ending is unknown, or it is broken as a whole, and `UnsupportedError` for parquet without the
    extra `data`.
    """
    readers = {"json": _json, "jsonl": _lines, "ndjson": _lines, "csv": partial(_csv, separator=",")}
    readers |= {"tsv": partial(_csv, separator="\t"), "parquet": partial(_parquet, columns=columns)}
    reader = readers.get(path.name.lower().removesuffix(".gz").rpartition(".")[2])
    try:
        check_regular(path)
        if reader is None:
            raise UsageError(
                f"{path} has no known format",
                code="file-format",
                fix="give a .jsonl, .json, .csv, .tsv or .parquet file, with .gz after it if it is gzipped",
            )
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            yield from reader(file, faults)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UsageError(f"{path} cannot be unpacked: {error}", code="file-invalid", fix=f"gzip -t {path}") from error
    except OSError as error:
        code = "file-not-found" if isinstance(error, FileNotFoundError) else "file-unreadable"
        what = f"{path} cannot be read: {error.strerror or error}"
        raise UsageError(what, code=code, fix=f"ls -l {path.parent}") from error


def _json(file: IO[bytes], faults: Faults) -> Iterator[Record]:
    """Read a list of objects; a file that begins otherwise holds one object a line, as many `.json` files do."""
    data = file.read().removeprefix(_BYTE_ORDER_MARK)
    if data.lstrip()[:1] != b"[":
        yield from _lines(io.BytesIO(data), faults)
        return
    try:
        entries = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        faults.add("the whole file", f"it is no JSON: {error}")
        return
    for number, value in enumerate(entries, 1):
        yield from record_of(f"entry {number}", value, faults)


def _lines(file: IO[bytes], faults: Faults) -> Iterator[Record]:
    """Read one JSON object a line, skipping empty lines."""
    for number, line in enumerate(file, 1):
        text = line.removeprefix(_BYTE_ORDER_MARK if number == 1 else b"").strip()
        if not text:
            continue
        if number == 1 and text in (b"[", b"{", b"[{"):
            faults.add("the whole file", "it is one value over many lines, not one object a line (a list may be .json)")
            return
        try:
            value = from_json(text, allow_inf_nan=False)
        except ValueError as error:
            faults.add(f"line {number}", f"it is no JSON: {error}")
        else:
            yield from record_of(f"line {number}", value, faults)


def _csv(file: IO[bytes], faults: Faults, *, separator: str) -> Iterator[Record]:
    """Read a table whose first row names the columns; an empty cell is a missing value."""
    # Bytes that are no UTF-8 become surrogates, which no record can hold, so that their row is a fault.
    lines = (line.decode("utf-8" if place else "utf-8-sig", "surrogateescape") for place, line in enumerate(file))
    rows = csv.reader(lines, delimiter=separator, strict=True)
    # A row may span several lines; its place is the first of them.
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
                row = {name: cell for name, cell in zip(header, cells, strict=True) if cell}
                yield from record_of(place, row, faults)
    except csv.Error as error:
        faults.add(f"line {first}", f"it is no CSV: {error}")


def _parquet(file: IO[bytes], faults: Faults, *, columns: Sequence[str]) -> Iterator[Record]:
    with needs_extra("parquet files cannot be read without pyarrow", "data"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        table = ParquetFile(file)
        wanted = [name for name in table.schema_arrow.names if name in columns] or None
        batches = table.iter_batches(batch_size=1000, columns=wanted)
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            try:
                yield from record_of(f"row {number}", row, faults)
            except TypeError as error:
                # A date, bytes, a decimal number.
                faults.add(f"row {number}", f"it cannot be kept: {error}")
    except ArrowException as error:
        raise UsageError(
            f"{faults.source} is no parquet file: {error}", code="file-invalid", fix="download it again"
        ) from error


def record_of(place: str, value: Any, faults: Faults) -> Iterator[Record]:
    """The record of a JSON object; anything else is a fault, and gives none."""
    if not isinstance(value, dict):
        faults.add(place, f"it is no object but {json_excerpt(value)}")
    elif reason := unfit(value):
        faults.add(place, f"it cannot be kept: {reason}")
    else:
        yield Record(place, value)


def json_excerpt(value: Any) -> str:
    """A value as JSON, shortened for messages."""
    text = "null" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:60] + " ..."
