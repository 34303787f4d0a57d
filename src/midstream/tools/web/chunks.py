"""Long texts in passages, and the passages that say most about a query, by BM25 (SQLite FTS5, English word stems)."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing

from midstream.tools.local_search import match_expression

Span = tuple[int, int]  # of characters: from, to

# Chinese, Japanese and Korean write no spaces: there each character counts as a word.
_WITHOUT_SPACES = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af])")
_BREAKS = ("\n", ". ", " ")  # where a passage had best end, best first
_SCHEMA = "CREATE VIRTUAL TABLE passages USING fts5(text, tokenize = 'porter unicode61')"
_QUERY = "SELECT rowid FROM passages WHERE passages MATCH ? ORDER BY bm25(passages), rowid"


def passages(text: str, size: int, overlap: int) -> Iterator[Span]:
    """Spans of at most `size` characters that together cover `text`, each repeating some `overlap` of the one before.

    A passage ends after a line, a sentence or a word where its second half has such an end. `overlap` must be below
    half of `size`.
    """
    start = 0
    while start + size < len(text):
        end = _end(text, start, size)
        yield start, end
        space = text.find(" ", end - overlap, end)
        start = space + 1 if space >= 0 else end - overlap
    yield start, len(text)


def best_spans(text: str, spans: list[Span], query: str, limit: int) -> list[Span]:
    """Those of `spans` that match `query` best, at most `limit` characters, in the text's order, neighbours joined.

    All of a text that fits; where nothing matches, the first spans. At least one is given, even beyond `limit`.
    """
    if len(text) <= limit:
        return [(0, len(text))]
    chosen: list[Span] = []
    for place in _ranked(text, spans, query) or range(len(spans)):
        longer = _joined([*chosen, spans[place]])
        if chosen and sum(end - start for start, end in longer) > limit:
            break
        chosen = longer
    return chosen


def _end(text: str, start: int, size: int) -> int:
    """Where the passage that begins at `start` ends."""
    for mark in _BREAKS:
        found = text.rfind(mark, start + size // 2, start + size)
        if found >= 0:
            return found + len(mark)
    return start + size


def _ranked(text: str, spans: list[Span], query: str) -> list[int]:
    """Places of the spans that hold a word of `query`, best first."""
    expression = match_expression(_spaced(query), "any")
    if not expression:
        return []
    with closing(sqlite3.connect(":memory:")) as index:
        index.execute(_SCHEMA)
        index.executemany("INSERT INTO passages VALUES (?)", ((_spaced(text[start:end]),) for start, end in spans))
        return [rowid - 1 for (rowid,) in index.execute(_QUERY, (expression,))]


def _spaced(text: str) -> str:
    return _WITHOUT_SPACES.sub(r" \1 ", text)


def _joined(spans: list[Span]) -> list[Span]:
    """Spans in order, those that touch or overlap as one."""
    whole: list[Span] = []
    for start, end in sorted(spans):
        if whole and start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
        else:
            whole.append((start, end))
    return whole
