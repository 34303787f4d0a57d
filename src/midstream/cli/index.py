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
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from midstream.cli import options as shared
from midstream.core.errors import RecipeError, StorageError, UsageError
from midstream.tools.local_search import Document, build_index, open_index, passages

_BAD_SHOWN = 5  # a file that is wrong throughout needs no list of all its lines
_OVERLAP = 6  # passages share a sixth of their size with the one before


@dataclass(kw_only=True)
class Counts:
    """What was read: `documents` with text, the `passages` they were indexed as, those left out for want of text."""

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
    """Documents out of lines; `bad` says what is wrong with lines, after the first of which no document is given.

    Args:
        passage_characters: split longer texts into passages of so many characters, each with its document's title.
    """

    fields: Fields = field(default_factory=Fields)
    passage_characters: int | None = None
    counts: Counts = field(default_factory=Counts)
    bad: list[str] = field(default_factory=list)

    def documents(self, lines: IO[bytes]) -> Iterator[Document]:
        """Read until the lines end, or until so many are bad that it is clear that the file is.

        Raises:
            UsageError: lines are bad, or there is no document.
        """
        with closing(sqlite3.connect("")) as seen:  # on disk, beyond a few megabytes
            seen.execute("CREATE TABLE ids (id TEXT PRIMARY KEY, line INTEGER) WITHOUT ROWID")
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    document = self._document(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
                    _remember(seen, document.id, number)
                except _BadLine as reason:
                    self.bad.append(f"line {number}: {reason}")
                    if len(self.bad) == _BAD_SHOWN:
                        break
                    continue
                if not self.bad:
                    yield from self._counted(document)
        if self.bad:
            raise UsageError(
                "; ".join(self.bad),
                cause='a line must be a JSON object such as {"id": "1", "text": "...", "title": "..."}',
                fix="correct the file, or name other fields by --id-field, --text-field, --title-field",
            )
        if not self.counts.documents:
            left_out = self.counts.without_text
            raise UsageError(
                "there is no document to index",
                cause=f"all {left_out} have an empty {self.fields.text!r}"
                if left_out
                else "no line has anything in it",
                fix='give lines such as {"id": "1", "text": "..."}, or name another field by --text-field',
            )

    def _document(self, line: bytes) -> Document:
        try:
            value = json.loads(line.rstrip(b"\r\n"))
        except UnicodeDecodeError as error:
            raise _BadLine(f"it is no UTF-8: {error.reason} at byte {error.start + 1}") from error
        except json.JSONDecodeError as error:
            raise _BadLine(f"it is no JSON: {error.msg} at character {error.pos + 1}") from error
        except (ValueError, RecursionError) as error:
            raise _BadLine(f"it cannot be read: {error}") from error
        if not isinstance(value, dict):
            raise _BadLine(f"it is no object but {_shown(value)}")
        names = self.fields
        identity = value.get(names.id)
        if isinstance(identity, bool) or not isinstance(identity, str | int):
            raise _BadLine(f"{names.id!r} must be text or a whole number, not {_shown(identity)}")
        text, title = value.get(names.text), value.get(names.title)
        if not isinstance(text, str):
            raise _BadLine(f"{names.text!r} must be text, not {_shown(text)}")
        if not isinstance(title, str | None):
            raise _BadLine(f"{names.title!r} must be text, not {_shown(title)}")
        for part in (str(identity), text, title or ""):
            _check_unicode(part)
        return Document(id=str(identity), text=text, title=title or "")

    def _counted(self, document: Document) -> Iterator[Document]:
        """A document, or its passages, or nothing if it has no text."""
        if not document.text.strip():
            self.counts.without_text += 1
            return
        self.counts.documents += 1
        size = self.passage_characters
        if size is None or len(document.text) <= size:
            self.counts.passages += 1
            yield document
            return
        for number, (start, end) in enumerate(passages(document.text, size, size // _OVERLAP), 1):
            self.counts.passages += 1
            yield Document(id=f"{document.id}#{number}", text=document.text[start:end].strip(), title=document.title)


class _BadLine(Exception):
    """Why a line is no document."""


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
    shared.add_output(build)


def run(options: argparse.Namespace) -> int:
    """Build an index; print where it is and what is in it."""
    source = None if options.file == "-" else Path(options.file)
    out = _target(source, options.out)
    size = options.passage_characters
    if size is not None and size < 100:
        raise UsageError(f"--passage-characters {size}", cause="that is hardly a sentence", fix="give 100 or more")
    reader = Reader(Fields(id=options.id_field, text=options.text_field, title=options.title_field), size)
    begun = time.monotonic()
    with ExitStack() as stack:
        lines: IO[bytes] = stack.enter_context(source.open("rb")) if source else sys.stdin.buffer
        total = source.stat().st_size if source else None
        progress = stack.enter_context(_progress(shown=not (options.quiet or options.json)))
        documents = reader.documents(lines)
        try:
            build_index(out, _watched(documents, lines, reader.counts, progress, total)).close()
        except sqlite3.Error as error:
            raise StorageError(
                f"{out} could not be written: {error}",
                cause="the disk is full, or the folder cannot be written to",
                fix=f"df -h {out.parent}, or --out ELSEWHERE.db",
            ) from error
    result = {
        **asdict(reader.counts),
        "index": str(out),
        "bytes": out.stat().st_size,
        "seconds": time.monotonic() - begun,
    }
    print(json.dumps(result) if options.json else _told(result, reader))
    return 0


def _target(source: Path | None, out: str | None) -> Path:
    """Where the index goes; never over a file that is no index."""
    if source and not source.is_file():
        raise UsageError(f"there is no file {source}", cause="it is misspelt, or a folder", fix="give a .jsonl file")
    if out is None and source is None:
        raise UsageError("where to? the documents come from standard input", fix="add --out FILE.db")
    target = Path(out) if out else (source or Path()).with_suffix(".db")
    if target.exists():
        try:
            open_index(target).close()
        except RecipeError as error:
            raise UsageError(
                f"{target} is there already and is no search index", cause="it would be lost", fix="give another --out"
            ) from error
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}", fix=f"mkdir -p {target.parent}")
    return target


def _remember(seen: sqlite3.Connection, identity: str, number: int) -> None:
    try:
        seen.execute("INSERT INTO ids VALUES (?, ?)", (identity, number))
    except sqlite3.IntegrityError as error:
        (first,) = seen.execute("SELECT line FROM ids WHERE id = ?", (identity,)).fetchone()
        raise _BadLine(f"id {identity!r} was on line {first} already") from error


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _BadLine("it holds half a surrogate pair, which is no character") from error


def _shown(value: Any) -> str:
    """A value as JSON, shortened."""
    if value is None:
        return "missing or null"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + " ..."


def _progress(*, shown: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not (shown and sys.stderr.isatty()))


def _watched(
    documents: Iterator[Document], lines: IO[bytes], counts: Counts, progress: Progress, total: int | None
) -> Iterator[Document]:
    """`documents`, with progress by the bytes that were read of `lines`."""
    task = progress.add_task("reading", total=total)
    for place, document in enumerate(documents):
        if place % 500 == 0:
            done = lines.tell() if total else 0
            progress.update(task, completed=done, description=f"{counts.documents} documents")
        yield document


def _told(result: dict[str, Any], reader: Reader) -> str:
    lines = [f"{result['documents']} documents are in {result['index']}"]
    if reader.passage_characters:
        lines[0] += f", as {result['passages']} passages"
    lines[0] += f" ({result['bytes'] / 1e6:.1f} MB, {result['seconds']:.1f} s)"
    if result["without_text"]:
        lines.append(f"{result['without_text']} had no text and were left out")
    lines.append(f"to search them: --set tools.local_search.index={result['index']}")
    return "\n".join(lines)
