"""What the tests of pages look for in their JSON."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from midstream.report import blocks
from midstream.report.blocks import Section


def documents_of(page: Path) -> dict[str, Any]:
    """The documents that a one-file page holds."""
    (data,) = re.findall(r'<script[^>]* id="data">([^<]*)</script>', page.read_text(encoding="utf-8"))
    return json.loads(gzip.decompress(base64.b64decode(data)))


def made(page: tuple[str, list[Section]]) -> dict[str, Any]:
    """The page of a lead and sections, as its reader gets it."""
    return json.loads(json.dumps(blocks.page("a run", *page), allow_nan=False))


def texts(value: Any) -> str:
    """Every text of a JSON value, a line each."""
    if isinstance(value, str):
        return value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return "\n".join(filter(None, map(texts, parts)))


def found(value: Any, kind: str, name: str = "") -> list[dict[str, Any]]:
    """The blocks of a kind, in order; with a `name`, those whose title, caption or task begins with it."""
    named = ("title", "caption", "task")
    return [
        block
        for block in _blocks(value)
        if block["kind"] == kind and (not name or any(str(block.get(key, "")).startswith(name) for key in named))
    ]


def _blocks(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("kind"), str):
            yield value
        for part in value.values():
            yield from _blocks(part)
    elif isinstance(value, list):
        for part in value:
            yield from _blocks(part)


def rows(table: dict[str, Any]) -> list[list[str]]:
    """The texts of a table's cells."""
    return [[cell if isinstance(cell, str) else cell["text"] for cell in row["cells"]] for row in table["rows"]]


def keys(page: dict[str, Any]) -> Sequence[str]:
    """The sections of a page."""
    return [section["key"] for section in page["sections"]]
