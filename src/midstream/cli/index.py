"""`midstream index build`: from a file of documents, one JSON object a line, to an index for `local_search`.

The file is read line by line, whatever its size, and the index appears only once all of it is in. A bad line is named
with its number, and then nothing is written at all.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import rich.progress
from rich.console import Console

from midstream.cli import options as shared
from midstream.core.errors import RecipeError, StorageError, UsageError
from midstream.tools.local_search import Document, build_index, open_index, passages

_BAD_SHOWN = 5  # a file that is wrong throughout needs no list of all its lines
_OVERLAP = 6  # passages share a sixth of their size with the one before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `index build`."""
    build = parser.add_subparsers(dest="action", required=True, metavar="build").add_parser(
        "build", help="index documents for the tool local_search"
    )
    build.add_argument("file", help="documents, one JSON object a line: id, text, title if any; - reads standard input")
    build.add_argument("--out", metavar="FILE.db", help="the index (default: next to the documents, as .db)")
    for name in ("id", "text", "title"):
        build.add_argument(f"--{name}-field", default=name, metavar="NAME", help=f"where a line holds the {name}")
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
    fields = Fields(id=options.id_field, text=options.text_field, title=options.title_field)
    reader, started = Reader(fields, size), time.monotonic()
    with ExitStack() as stack:
        lines: IO[bytes] = sys.stdin.buffer
        if source is not None and sys.stderr.isatty() and not (options.quiet or options.json):
            console = Console(stderr=True)
            lines = stack.enter_context(rich.progress.open(source, "rb", console=console, transient=True))
        elif source is not None:
            lines = stack.enter_context(source.open("rb"))
        try:
            build_index(out, reader.documents(lines)).close()
        except sqlite3.Error as error:
            raise StorageError(
                f"{out} could not be written: {error}",
                code="write-failed",
                cause="the disk is full, or the folder cannot be written to",
                fix=f"df -h {out.parent}, or --out ELSEWHERE.db",
            ) from error
    counts, size_bytes, seconds = reader.counts, out.stat().st_size, time.monotonic() - started
    if options.json:
        print(json.dumps({**asdict(counts), "index": str(out), "bytes": size_bytes, "seconds": seconds}))
        return 0
    as_passages = f", as {counts.passages} passages" if size else ""
    print(f"{counts.documents} documents are in {out}{as_passages} ({size_bytes / 1e6:.1f} MB, {seconds:.1f} s)")
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


@dataclass(frozen=True, kw_only=True)
class Fields:
    """The names under which a line holds its document's parts; without a `title`, it has none."""

    id: str = "id"
    text: str = "text"
    title: str = "title"


@dataclass
class Reader:
    """Reads documents from lines; `bad` describes bad lines, after the first of which no document is given.

    Args:
        fields: the names of a document's parts.
        passage_characters: split longer texts into passages of this many characters, each with its document's title.
    """

    fields: Fields = field(default_factory=Fields)
    passage_characters: int | None = None
    counts: Counts = field(default_factory=Counts)
    bad: list[str] = field(default_factory=list)

    def documents(self, lines: IO[bytes]) -> Iterator[Document]:
        """Read until the lines end, or until `_BAD_SHOWN` of them are bad.

        Raises:
            UsageError: lines are bad, or there is no document.
        """
        with closing(sqlite3.connect("")) as seen:  # on disk, beyond a few megabytes
            seen.execute("CREATE TABLE ids (id TEXT PRIMARY KEY, line INTEGER) WITHOUT ROWID")
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    document = self._parse(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
                    if not seen.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (document.id, number)).rowcount:
                        (first,) = seen.execute("SELECT line FROM ids WHERE id = ?", (document.id,)).fetchone()
                        raise _BadLine(f"id {document.id!r} was on line {first} already")
                except _BadLine as reason:
                    self.bad.append(f"line {number}: {reason}")
                else:
                    if not self.bad:
                        yield from self._passages(document)
                if len(self.bad) == _BAD_SHOWN:
                    break
        if self.bad:
            raise UsageError(
                "; ".join(self.bad),
                code="file-invalid",
                cause='a line must be a JSON object such as {"id": "1", "text": "...", "title": "..."}',
                fix="correct the file, or name other fields by --id-field, --text-field, --title-field",
            )
        if not self.counts.documents:
            empty = f"all {self.counts.without_text} have an empty {self.fields.text!r}"
            raise UsageError(
                "there is no document to index" + (f": {empty}" if self.counts.without_text else ""),
                code="file-invalid",
                fix='give lines such as {"id": "1", "text": "..."}, or name another field by --text-field',
            )

    def _parse(self, line: bytes) -> Document:
        try:
            record = json.loads(line.rstrip(b"\r\n"))
        except UnicodeDecodeError as error:
            raise _BadLine(f"it is not UTF-8: {error.reason} at byte {error.start + 1}") from error
        except json.JSONDecodeError as error:
            raise _BadLine(f"it is not JSON: {error.msg} at character {error.pos + 1}") from error
        except (ValueError, RecursionError) as error:
            raise _BadLine(f"it cannot be read: {error}") from error
        if not isinstance(record, dict):
            raise _BadLine(f"it is not an object but {_shown(record)}")
        identity, text, title = (record.get(name) for name in (self.fields.id, self.fields.text, self.fields.title))
        if isinstance(identity, bool) or not isinstance(identity, str | int):
            raise _BadLine(f"{self.fields.id!r} must be text or a whole number, not {_shown(identity)}")
        if not isinstance(text, str):
            raise _BadLine(f"{self.fields.text!r} must be text, not {_shown(text)}")
        if not isinstance(title, str | None):
            raise _BadLine(f"{self.fields.title!r} must be text, not {_shown(title)}")
        document = Document(id=str(identity), text=text, title=title or "")
        try:
            f"{document.id}{document.text}{document.title}".encode()
        except UnicodeEncodeError as error:
            raise _BadLine("it holds half a surrogate pair, which is not a character") from error
        return document

    def _passages(self, document: Document) -> Iterator[Document]:
        """The document, or its passages, or nothing if it has no text."""
        size, text = self.passage_characters, document.text
        if not text.strip():
            self.counts.without_text += 1
            return
        self.counts.documents += 1
        if size is None or len(text) <= size:
            self.counts.passages += 1
            yield document
            return
        for number, (start, end) in enumerate(passages(text, size, size // _OVERLAP), 1):
            self.counts.passages += 1
            yield Document(id=f"{document.id}#{number}", text=text[start:end].strip(), title=document.title)


class _BadLine(Exception):
    """Why a line is not a document."""


def _shown(value: object) -> str:
    """A value as JSON, shortened."""
    text = "missing or null" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:60] + " ..."
