"""Search in your own documents: a SQLite full-text index (FTS5) ranked by BM25, on disk or in memory."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from pydantic import Field, JsonValue

from midstream.core.data import Frozen
from midstream.core.errors import RecipeError, ToolServerError
from midstream.core.protocols import ToolResult

TERM = re.compile(r"[^\W_]+")  # runs of letters and digits, as FTS5's unicode61 tokenizer cuts text
MAX_TERMS = 64  # of a query: a longer one is cut
SCHEMA = "CREATE VIRTUAL TABLE documents USING fts5(title, text, id UNINDEXED, tokenize = 'unicode61')"
QUERY = "SELECT title, text FROM documents WHERE documents MATCH ? ORDER BY bm25(documents), rowid LIMIT ?"
TITLED = "SELECT title, text FROM documents WHERE documents MATCH ? AND title = ? COLLATE NOCASE ORDER BY rowid LIMIT 1"
Row = tuple[str, str]  # title and text


class Document(Frozen):
    """One document of an index."""

    id: str
    text: str
    title: str = ""


class Config(Frozen):
    """Settings of local search.

    `index` is a file that `midstream index build` wrote. `match` says whether a document must hold every word of the
    query or any of them. `max_characters` bounds each document's text in the result. `coverage` is the share of the
    offline world's facts that are indexed where there is no `index`: below 1 a worse tool, for studies.
    """

    index: Path | None = None
    top_k: int = Field(default=1, ge=1)
    match: Literal["all", "any"] = "all"
    max_characters: int = Field(default=2000, ge=1)
    coverage: float = Field(default=1.0, gt=0, le=1)


def build_index(path: Path | Literal[":memory:"], documents: Iterable[Document]) -> sqlite3.Connection:
    """Index `documents` in their order and give the open connection, which the caller closes.

    A file appears under its name only once it is complete and on the disk, and replaces one that was there. `documents`
    are read one by one: any number of them takes no more memory than a few.

    Raises:
        sqlite3.Error: the index could not be written; `OSError`: nor put in its place.
    """
    if isinstance(path, Path):
        partial = path.with_name(f"{path.name}.{token_hex(4)}.partial")  # so that two builds do not meet
        try:
            with closing(sqlite3.connect(partial)) as connection:
                connection.execute("PRAGMA journal_mode = OFF")  # what fails is thrown away whole
                _fill(connection, documents)
            with partial.open("rb") as written:
                os.fsync(written.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return open_index(path)
    connection = sqlite3.connect(path, check_same_thread=False)
    _fill(connection, documents)
    return connection


def match_expression(query: str, match: Literal["all", "any"]) -> str:
    """The FTS5 expression for untrusted text: its words, each quoted, none an operator; "" if it has no words."""
    words = TERM.findall(unicodedata.normalize("NFC", query))
    terms = list(dict.fromkeys(word.lower() for word in words))[:MAX_TERMS]
    return (" AND " if match == "all" else " OR ").join(f'"{term}"' for term in terms)


class LocalSearch:
    """Finds documents by their words; documents that rank alike come in the order in which they were indexed.

    In memory, where documents are thousands, a query takes a fraction of a millisecond and runs in the event loop
    itself; in a file it may take tens of milliseconds (docs/benchmarks.md) and runs in a thread, one query after the
    other. Words are compared without case and accents; there is no stemming and no notion of meaning.

    Raises:
        RecipeError: `config.index` is missing, not given, or no index.
    """

    name = "local_search"
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "words to look for"}},
        "required": ["query"],
        "additionalProperties": False,
    }
    timeout_s = 30.0
    output_tokens = 8000

    def __init__(self, config: Config, connection: sqlite3.Connection | None = None) -> None:
        self._config = config
        self._connection = connection or open_index(config.index)
        self._thread = None if connection else ThreadPoolExecutor(1, "local-search")
        words = "all words" if config.match == "all" else "any word"
        self.description = (
            f"Searches a local document collection for documents that hold {words} of the query. Give a few words that "
            "the document itself would use, not a question. Returns the best of their texts. It knows nothing beyond "
            "the collection and does not calculate."
        )

    @classmethod
    def from_documents(cls, documents: Iterable[Document], config: Config | None = None) -> LocalSearch:
        """Search in documents held in memory."""
        return cls(config or Config(), build_index(":memory:", documents))

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The best documents for `arguments["query"]`, or `ok=False` if none matches.

        Raises:
            ToolServerError: the index could not be read.
        """
        query = str(arguments["query"])
        rows = await self.find(query, self._config.top_k)
        if not rows:
            return ToolResult(text=f"no document matches {_cut(query, 200)!r}", ok=False)
        found = [self._show(title, text) for title, text in rows]
        if self._config.top_k == 1:
            return ToolResult(text=found[0])
        return ToolResult(text="\n".join(f"{place}. {' '.join(text.split())}" for place, text in enumerate(found, 1)))

    async def find(self, query: str, limit: int) -> list[Row]:
        """Titles and texts of the documents that match best, best first; raises as `call`."""
        expression = match_expression(query, self._config.match)
        return await self._rows(QUERY, (expression, limit)) if expression else []

    async def titled(self, title: str) -> list[Row]:
        """Title and text of the first document of that title, whatever its case; [] if there is none."""
        expression = match_expression(title, "all")
        return await self._rows(TITLED, (f"title : ({expression})", title)) if expression else []

    async def _rows(self, statement: str, parameters: tuple[str | int, ...]) -> list[Row]:
        def rows() -> list[Row]:
            return self._connection.execute(statement, parameters).fetchall()

        try:
            if self._thread is None:
                return rows()
            return await asyncio.get_running_loop().run_in_executor(self._thread, rows)
        except sqlite3.Error as error:
            raise ToolServerError(
                f"the search index {self._config.index or ':memory:'} could not be read: {error}",
                cause="the file was damaged or replaced while it was open, or the tool was closed",
                fix="build it again: midstream index build DOCUMENTS.jsonl",
            ) from error

    def _show(self, title: str, text: str) -> str:
        text = _cut(text, self._config.max_characters)
        return f"{title}: {text}" if title else text

    async def close(self) -> None:
        """Close the index; a query that is under way ends without a result."""
        if self._thread:
            self._connection.interrupt()
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
        self._connection.close()


def _fill(connection: sqlite3.Connection, documents: Iterable[Document]) -> None:
    with connection:
        connection.execute(SCHEMA)
        rows = ((document.title, document.text, document.id) for document in documents)
        connection.executemany("INSERT INTO documents (title, text, id) VALUES (?, ?, ?)", rows)


def open_index(path: Path | None) -> sqlite3.Connection:
    """Open an index for reading; one that cannot be searched is refused now, not in the middle of a run.

    Raises:
        RecipeError: there is none at `path`.
    """
    fix = "midstream index build DOCUMENTS.jsonl, and give the path that it prints as the tool's `index`"
    if path is None or not path.is_file():
        raise RecipeError(f"no search index at {path}", cause="it was not built, or lies elsewhere", fix=fix)
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    except sqlite3.Error as error:
        raise RecipeError(
            f"{path} cannot be opened: {error}",
            cause="you may not read it, or its path is too long",
            fix=f"ls -l {path}",
        ) from error
    try:
        connection.execute(QUERY, ('"probe"', 1)).fetchall()
    except sqlite3.Error as error:
        connection.close()
        raise RecipeError(
            f"{path} is not a search index: {error}", cause="the file is damaged or something else", fix=fix
        ) from error
    return connection


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + " ..."
