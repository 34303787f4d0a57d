"""`midstream index build`: from a file of documents, one JSON object a line, to an index for `local_search`.

The file is read line by line, whatever its size, and the index appears only once all of it is in. A bad line is named
with its number, and then nothing is written at all.
"""

from __future__ import annotations

import argparse
import codecs
import json
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from midstream.cli import options as shared
from midstream.core.data import unfit
from midstream.core.errors import RecipeError, StorageError, UsageError
from midstream.report.numbers import counted
from midstream.sources.records import Faults, json_excerpt
from midstream.tools.local_search import Document, build_index, open_index, passages

_OVERLAP = 6  # passages share a sixth of their size with the one before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `index build`."""
    build = parser.add_subparsers(dest="action", required=True, metavar="build").add_parser(
        "build", help="index documents for the tool local_search"
    )
    build.add_argument("file", help="documents, one JSON object a line: id, text, title if any; - reads standard input")
    build.add_argument("--out", metavar="FILE.db", help="the index (default: next to the documents, as .db)")
    text = "the fields of a line that hold these (default: id,text,title)"
    build.add_argument("--fields", default="id,text,title", metavar="ID,TEXT,TITLE", help=text)
    build.add_argument(
        "--passage-characters", type=int, metavar="N", help="split longer texts into passages of N characters"
    )
    shared.add(build, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Build an index; print where it is and what is in it."""
    source = None if options.file == "-" else Path(options.file)
    out, size = _target(source, options.out), options.passage_characters
    if size is not None and size < 100:
        raise UsageError(f"--passage-characters {size} is too small", code="setting-range", fix="give 100 or more")
    fields = tuple(options.fields.split(","))
    if len(fields) != 3:
        fix = "name three, e.g. --fields id,text,title"
        raise UsageError(f"--fields {options.fields!r} are not three names", code="setting-range", fix=fix)
    counts, started = Counts(), time.monotonic()
    faults = Faults("standard input" if source is None else str(source))
    file = nullcontext(sys.stdin.buffer) if source is None else source.open("rb")
    with shared.spinner("indexing", silent=options.quiet or options.json), file as lines:
        try:
            build_index(out, read_documents(lines, faults, counts, fields, size)).close()
        except sqlite3.Error as error:
            fix = f"df -h {out.parent}, or --out ELSEWHERE.db"
            raise StorageError(f"{out} could not be written: {error}", code="write-failed", fix=fix) from error
    size_bytes, seconds = out.stat().st_size, time.monotonic() - started
    if options.json:
        print(json.dumps({**asdict(counts), "index": str(out), "bytes": size_bytes, "seconds": seconds}))
        return 0
    as_passages = f", as {counts.passages} passages" if size else ""
    print(f"{counted(counts.documents, 'document')} in {out}{as_passages} ({size_bytes / 1e6:.1f} MB, {seconds:.1f} s)")
    if counts.without_text:
        print(f"{counts.without_text} had no text and were left out")
    print(f"to search them: --set tools.local_search.index={out}")
    return 0


def _target(source: Path | None, out: str | None) -> Path:
    """The path of the index, which holds nothing else."""
    if source and not source.is_file():
        raise UsageError(f"there is no file {source}", code="file-not-found", fix="give a .jsonl file")
    if out is None and source is None:
        raise UsageError("documents from standard input name no index", code="missing-option", fix="add --out FILE.db")
    target = Path(out) if out else (source or Path()).with_suffix(".db")
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}", code="file-not-found", fix=f"mkdir -p {target.parent}")
    if target.exists():
        try:
            open_index(target).close()
        except RecipeError as error:
            raise UsageError(
                f"{target} is there already and is not a search index", code="file-exists", fix="give another --out"
            ) from error
    return target


@dataclass(kw_only=True)
class Counts:
    """What was read: documents with text, passages that they were indexed as, and documents without text."""

    documents: int = 0
    passages: int = 0
    without_text: int = 0


def read_documents(
    lines: IO[bytes],
    faults: Faults,
    counts: Counts,
    fields: Sequence[str] = ("id", "text", "title"),
    passage_characters: int | None = None,
) -> Iterator[Document]:
    """Yield the documents of JSON lines, none after the first fault; split longer texts into passages.

    `fields` are the names under which a line holds its document's id, text and title (if any).
    Raises `UsageError` if lines are bad, or there is no document.
    """
    with closing(sqlite3.connect("")) as seen:  # on disk, beyond a few megabytes
        seen.execute("CREATE TABLE ids (id TEXT PRIMARY KEY, place TEXT) WITHOUT ROWID")
        for number, line in enumerate(lines, 1):
            place, data = f"line {number}", (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip()
            if not data:
                continue
            try:
                document = _document(data, fields)
            except ValueError as error:
                faults.add(place, error)
                continue
            if not seen.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (document.id, place)).rowcount:
                (first,) = seen.execute("SELECT place FROM ids WHERE id = ?", (document.id,)).fetchone()
                faults.add(place, f"id {document.id!r} was on {first} already")
            elif not document.text.strip():
                counts.without_text += 1
            elif not faults.total:
                pieces = _pieces(document, passage_characters)
                counts.documents += 1
                counts.passages += len(pieces)
                yield from pieces
    faults.refuse(
        cause='a line must be a JSON object such as {"id": "1", "text": "...", "title": "..."}',
        fix="correct these lines, or name other fields by --fields",
    )
    if not counts.documents:
        raise UsageError(
            "there is no document to index" + f": every line has an empty {fields[1]!r}" * bool(counts.without_text),
            code="file-invalid",
            fix='give lines such as {"id": "1", "text": "..."}, or name other fields by --fields',
        )


def _document(data: bytes, fields: Sequence[str]) -> Document:
    """The document of a line. Raises `ValueError` with what is wrong with it."""
    try:
        # Not as strict as for tasks: a corpus may hold NaN, long lines, and anything in fields of its own.
        record: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"it is no object but {json_excerpt(record)}")
    values: list[Any] = [record.get(name) for name in fields]
    identity, text, title = values
    for name, value, kinds, wanted in (
        (fields[0], identity, str | int, "text or a whole number"),
        (fields[1], text, str, "text"),
        (fields[2], title, str | None, "text"),
    ):
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ValueError(f"{name!r} must be {wanted}, not {json_excerpt(value)}")
    if reason := unfit([identity, text, title]):
        raise ValueError(f"it cannot be kept: {reason}")
    return Document(id=str(identity), text=text, title=title or "")


def _pieces(document: Document, size: int | None) -> list[Document]:
    """A document, or its passages if it is longer than `size` characters."""
    if size is None or len(document.text) <= size:
        return [document]
    return [
        Document(id=f"{document.id}#{number}", text=document.text[start:end].strip(), title=document.title)
        for number, (start, end) in enumerate(passages(document.text, size, size // _OVERLAP), 1)
    ]
