"""`midstream index build`: from a file of documents to an index for `local_search`.

The file is read row by row, whatever its size, and the index appears only once all of it is in. A bad row is named
with its place, and then nothing is written at all.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from midstream.cli import options as shared
from midstream.core.errors import RecipeError, StorageError, UsageError
from midstream.report.blocks import code
from midstream.report.numbers import counted
from midstream.sources.records import Faults, json_excerpt, read_records
from midstream.tools.local_search import Document, build_index, open_index, passages

# Passages share a sixth of their size with the one before.
_OVERLAP = 6

HELP = "make a search index of your own documents"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `index build`."""
    build = parser.add_subparsers(dest="action", required=True, metavar="build").add_parser(
        "build", help="index documents for the tool local_search"
    )
    build.add_argument("file", type=Path, help="documents as .jsonl, .json, .csv, .tsv or .parquet, or these with .gz")
    build.add_argument("--out", type=Path, metavar="FILE.db", help="the index (default: next to the documents, as .db)")
    text = "the fields of a document that hold these (default: id,text,title); the title may be missing"
    build.add_argument("--fields", default="id,text,title", metavar="ID,TEXT,TITLE", help=text)
    build.add_argument(
        "--passage-characters",
        type=int,
        metavar="N",
        help="split longer texts into passages of N characters (100 or more)",
    )
    shared.add(build, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Build an index; print where it is and what is in it."""
    size, fields = options.passage_characters, [name.strip() for name in options.fields.split(",")]
    if options.file.is_dir():
        raise UsageError(f"{options.file} is a folder", code="file-unreadable", fix="name a file of documents")
    out = options.out or options.file.with_suffix(".db")
    if size is not None and size < 100:
        raise UsageError(f"--passage-characters {size} is too small", code="setting-range", fix="give 100 or more")
    if len(fields) != 3:
        fix = "name three, e.g. --fields id,text,title"
        raise UsageError(f"--fields {options.fields!r} are not three names", code="setting-range", fix=fix)
    if out.exists():
        try:
            open_index(out).close()
        except RecipeError as error:
            what = f"{out} is there already and is not a search index"
            raise UsageError(what, code="file-exists", fix="give another --out") from error
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", code="file-not-found", fix=f"mkdir -p {out.parent}")
    counts, started = Counter(documents=0, passages=0, without_text=0), time.monotonic()
    with shared.spinner("indexing", silent=options.quiet or options.json):
        try:
            build_index(out, read_documents(options.file, counts, fields, size)).close()
        except sqlite3.Error as error:
            fix = f"df -h {out.parent}, or --out ELSEWHERE.db"
            raise StorageError(f"{out} could not be written: {error}", code="write-failed", fix=fix) from error
    size_bytes, seconds = out.stat().st_size, time.monotonic() - started
    documents, passages, empty = counts.values()
    as_passages = f", as {passages} passages" if size else ""
    lines = [f"{counted(documents, 'document')} in {out}{as_passages} ({size_bytes / 1e6:.1f} MB, {seconds:.1f} s)"]
    lines += [f"{empty} had no text and were left out"] if empty else []
    lines.append(f"to search them: --set tools.local_search.index={out}")
    record = {**counts, "index": str(out), "bytes": size_bytes, "seconds": seconds}
    return shared.show(options, record, [code("\n".join(lines))])


def read_documents(
    path: Path, counts: Counter[str], fields: Sequence[str] = ("id", "text", "title"), size: int | None = None
) -> Iterator[Document]:
    """Yield the documents of a file, none after the first fault; split those of more than `size` characters.

    `fields` are the names under which a row holds its document's id, text and title (if any). `counts` gets the
    documents with text, the passages that they are, and the documents without text.
    Raises `UsageError` if rows are bad, or there is no document.
    """
    faults = Faults(str(path))
    # A temporary database is on disk beyond a few megabytes.
    with closing(sqlite3.connect("")) as seen:
        seen.execute("CREATE TABLE ids (id TEXT PRIMARY KEY, place TEXT) WITHOUT ROWID")
        for record in read_records(path, faults, fields):
            identity, text, title = map(record.fields.get, fields)
            wanted = ((str | int, "text or a whole number"), (str, "text"), (str | None, "text"))
            values = zip(fields, (identity, text, title), wanted, strict=True)
            wrong = [
                f"{name!r} must be {words}, not {json_excerpt(value)}"
                for name, value, (kind, words) in values
                if isinstance(value, bool) or not isinstance(value, kind)
            ]
            if wrong:
                faults.add(record.place, wrong[0])
            elif not seen.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (str(identity), record.place)).rowcount:
                (first,) = seen.execute("SELECT place FROM ids WHERE id = ?", (str(identity),)).fetchone()
                faults.add(record.place, f"id {str(identity)!r} was on {first} already")
            elif not str(text).strip():
                counts["without_text"] += 1
            elif not faults.total:
                text, limit = str(text), size or len(str(text))
                whole = len(text) <= limit
                spans = [(0, len(text))] if whole else passages(text, limit, limit // _OVERLAP)
                counts["documents"] += 1
                for number, (start, end) in enumerate(spans, 1):
                    counts["passages"] += 1
                    name, part = (identity, text) if whole else (f"{identity}#{number}", text[start:end].strip())
                    yield Document(id=str(name), text=part, title=title or "")
    faults.refuse(
        cause='a row must be an object such as {"id": "1", "text": "...", "title": "..."}',
        fix="correct these rows, or name other fields by --fields",
    )
    if not counts["documents"]:
        raise UsageError(
            "there is no document to index" + f": every row has an empty {fields[1]!r}" * bool(counts["without_text"]),
            code="file-invalid",
            fix='give rows such as {"id": "1", "text": "..."}, or name other fields by --fields',
        )
