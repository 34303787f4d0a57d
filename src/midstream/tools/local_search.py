"""Search in your own documents: a SQLite full-text index (FTS5) ranked by BM25, on disk or in memory.

Also the passages of one long text (`passages`), for building an index.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from typing import Literal

from pydantic import Field, JsonValue

from midstream.components.component import Context, ToolConfig
from midstream.core.data import Frozen
from midstream.core.errors import RecipeError, ToolServerError
from midstream.core.seeds import derive_seed
from midstream.core.source import World
from midstream.core.tool import ToolResult
from midstream.core.tool_calls import text_arguments

_MAX_TERMS = 64  # of a query; a longer one is cut
SCHEMA = "CREATE VIRTUAL TABLE documents USING fts5(title, text, id UNINDEXED, tokenize = 'unicode61')"
QUERY = "SELECT title, text FROM documents WHERE documents MATCH ? ORDER BY bm25(documents), rowid LIMIT ?"
Row = tuple[str, str]  # title and text
Span = tuple[int, int]  # of characters: start, end


class Document(Frozen):
    """One document of an index."""

    id: str
    text: str
    title: str = ""


def build_index(path: Path | Literal[":memory:"], documents: Iterable[Document]) -> sqlite3.Connection:
    """Index `documents` in their order and return the open connection, which the caller closes.

    A file appears under its name, or replaces an older one, only when it is complete and synced to disk. `documents`
    are read one by one, so memory does not grow with their number. Raises `sqlite3.Error` or `OSError` if the file
    could not be written.
    """

    def fill(connection: sqlite3.Connection) -> None:
        with connection:
            connection.execute(SCHEMA)
            rows = ((document.title, document.text, document.id) for document in documents)
            connection.executemany("INSERT INTO documents (title, text, id) VALUES (?, ?, ?)", rows)

    if isinstance(path, Path):
        # A name for each build: two may run at once.
        partial = path.with_name(f"{path.name}.{token_hex(4)}.partial")
        try:
            with closing(sqlite3.connect(partial)) as connection:
                # A failed build is discarded as a whole.
                connection.execute("PRAGMA journal_mode = OFF")
                fill(connection)
            with partial.open("rb") as written:
                os.fsync(written.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return open_index(path)
    connection = sqlite3.connect(path, check_same_thread=False)
    fill(connection)
    return connection


def match_expression(query: str, match: Literal["all", "any"]) -> str:
    """The FTS5 expression for untrusted text: its words, each quoted, so none is an operator; "" without words."""
    # Runs of letters and digits, as FTS5's unicode61 tokenizer splits text.
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFC", query))
    terms = list(dict.fromkeys(word.lower() for word in words))[:_MAX_TERMS]
    return (" AND " if match == "all" else " OR ").join(f'"{term}"' for term in terms)


class LocalSearch:
    """Finds documents by their words; documents of equal rank keep the order in which they were indexed.

    With thousands of documents in memory a query takes a fraction of a millisecond and runs in the event loop; in a
    file it may take tens of milliseconds (benchmarks/README.md) and runs in a thread, one query after another. Words
    are compared without case and accents; there is no stemming and no semantic similarity.

    Raises `RecipeError` if `config.index` is missing, not given, or not an index.
    """

    name = "local_search"
    parameters: Mapping[str, JsonValue] = text_arguments(query="words to look for")
    timeout_s = 30.0
    output_tokens = 8000

    def __init__(self, config: LocalSearchConfig, connection: sqlite3.Connection | None = None) -> None:
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
    def from_documents(cls, documents: Iterable[Document], config: LocalSearchConfig | None = None) -> LocalSearch:
        """Search in documents held in memory."""
        return cls(config or LocalSearchConfig(), build_index(":memory:", documents))

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The best documents for `arguments["query"]`, or `ok=False`; raises `ToolServerError` if reading fails."""
        query = str(arguments["query"])
        rows = await self.find(query, self._config.top_k)
        if not rows:
            return ToolResult(text=f"no document matches {_cut(query, 200)!r}", ok=False)
        found = []
        for title, text in rows:
            text = _cut(text, self._config.max_characters)
            found.append(f"{title}: {text}" if title else text)
        if self._config.top_k == 1:
            return ToolResult(text=found[0])
        return ToolResult(text="\n".join(f"{place}. {' '.join(text.split())}" for place, text in enumerate(found, 1)))

    async def find(self, query: str, limit: int) -> list[Row]:
        """Titles and texts of the documents that match best, best first; raises as `call`."""
        expression = match_expression(query, self._config.match)
        return await self.rows(QUERY, (expression, limit)) if expression else []

    async def rows(self, statement: str, parameters: tuple[str | int, ...]) -> list[Row]:
        """What an SQL statement finds in the index. Raises `ToolServerError` if reading fails."""

        def rows() -> list[Row]:
            return self._connection.execute(statement, parameters).fetchall()

        try:
            if self._thread is None:
                return rows()
            return await asyncio.get_running_loop().run_in_executor(self._thread, rows)
        except sqlite3.Error as error:
            raise ToolServerError(
                f"the search index {self._config.index or ':memory:'} could not be read: {error}",
                code="storage",
                fix="build it again, with midstream-extra: midstream index build DOCUMENTS.jsonl",
            ) from error

    async def close(self) -> None:
        """Close the index; a query in progress ends without a result."""
        if self._thread:
            self._connection.interrupt()
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
        self._connection.close()


class LocalSearchConfig(ToolConfig):
    """Searches documents of your own, or of the tasks, by their words.

    Attributes:
        index: a file that `midstream index build` wrote; without it, the facts of `[tasks]`
        top_k: documents in a result
        match: a document must contain `all` words of the query or `any`
        max_characters: the most characters of a document's text in a result
        coverage: without `index`, the share of the world's facts in it
    """

    component = LocalSearch

    index: Path | None = None
    top_k: int = Field(default=1, ge=1)
    match: Literal["all", "any"] = "all"
    max_characters: int = Field(default=2000, ge=1)
    coverage: float = Field(default=1.0, gt=0, le=1)

    @property
    def needs_world(self) -> bool:
        """Without an index it searches the facts of the recipe's world."""
        return self.index is None

    def build(self, context: Context) -> LocalSearch:
        """Build it."""
        if self.index is not None:
            return LocalSearch(self)
        # The facts of the recipe's world, a share of them, the same in every run. Other tasks were refused by
        # `recipe/check.py`.
        assert isinstance(context.source, World)
        documents = (
            Document(id=name, text=text)
            for name, text in context.source.documents()
            if derive_seed("coverage", text) < self.coverage * 2**63
        )
        return LocalSearch.from_documents(documents, self)


def open_index(path: Path | None) -> sqlite3.Connection:
    """Open an index for reading; raises `RecipeError` if `path` is not an index that can be searched."""
    fix = "with midstream-extra: midstream index build DOCUMENTS.jsonl; give the path that it prints as `index`"
    if path is None or not path.is_file():
        raise RecipeError(f"no search index at {path}", code="file-not-found", fix=fix)
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    except sqlite3.Error as error:
        raise RecipeError(f"{path} cannot be opened: {error}", code="file-unreadable", fix=f"ls -l {path}") from error
    try:
        connection.execute(QUERY, ('"probe"', 1)).fetchall()
    except sqlite3.Error as error:
        connection.close()
        raise RecipeError(f"{path} is not a search index: {error}", code="file-invalid", fix=fix) from error
    return connection


# --- passages of one text ---------------------------------------------------------------------------------------------


def passages(text: str, size: int, overlap: int) -> Iterator[Span]:
    """Spans of at most `size` characters that together cover `text`, each repeating about `overlap` of the last one.

    A passage ends after a line, a sentence or a word if its second half has such an end. `overlap` must be below half
    of `size`.
    """
    start = 0
    while start + size < len(text):
        end = start + size
        # The best end first.
        for mark in ("\n", ". ", " "):
            found = text.rfind(mark, start + size // 2, start + size)
            if found >= 0:
                end = found + len(mark)
                break
        yield start, end
        space = text.find(" ", end - overlap, end)
        start = space + 1 if space >= 0 else end - overlap
    yield start, len(text)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + " ..."
