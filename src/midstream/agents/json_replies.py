"""JSON objects in a model's reply: as they stand, or, when nothing else is left, repaired.

A repair (by the library json-repair) may change white space, quotation marks, commas, colons, escapes and the spelling
of true, false and null, and nothing else: every word, number and bracket of the object must stand in the reply in the
same order. So neither a reply that breaks off nor prose becomes an object, and no value appears that nobody wrote.

    {'query': 'height', "top_k": 3,}                    {"query": "height", "top_k": 3}
    {"query": "height of Am                             none: the brace that closes it is not there
    {"query": "height", "top_k": }                      none: a value would have to be made up
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from midstream.core.data import unfit

_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)```", re.DOTALL)
# What a repair may change: white space, quotation marks, commas, colons, and escapes.
_PUNCTUATION = re.compile(r"\\.|[\s\"'“”‘’`,:]+", re.DOTALL)
_QUOTES = "\"'“”‘’`"
_MAX_REPAIRED = 8_000  # characters: a repair may take a second for as many brackets, and nobody else runs meanwhile
_MAX_OBJECTS = 16


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects in a reply: those of fenced blocks first, then bare ones, outermost, in order."""
    for block in islice(_FENCED.findall(text), _MAX_OBJECTS):
        found, _ = _read_object(block.strip(), 0)
        if found is not None:
            yield found
    start = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if start < 0:
            return
        found, end = _read_object(text, start)
        if found is not None:
            yield found
        start = text.find("{", end)


def _read_object(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    """The object that starts at `start` and where to read on; None for anything a `Command` could not hold."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start + 1
    return (value if isinstance(value, dict) and unfit(value) is None else None), end


def repaired_objects(text: str) -> Iterator[dict[str, Any]]:
    """The one object of a reply that is almost JSON: its first fenced block, or all from its first brace on."""
    from json_repair import repair_json  # 40 ms, for what few runs need

    fenced = _FENCED.search(text)
    written = (fenced[1] if fenced else text[max(text.find("{"), 0) :]).strip()
    if len(written) > _MAX_REPAIRED:
        return
    try:
        value = repair_json(written, return_objects=True)
    except (ValueError, RecursionError):
        return
    if not isinstance(value, dict) or unfit(value):
        return
    if _words(json.dumps(value, ensure_ascii=False)) != _words(written):
        return
    # An empty text may fill a gap, and a quotation mark at the edge of one ('it's here') was none of its own.
    if all(text and text == text.strip(_QUOTES) for text in _texts(value)):
        yield value


def _words(text: str) -> str:
    """What a repair must leave as it was."""
    return _PUNCTUATION.sub("", re.sub(r"\bNone\b", "null", text)).casefold()


def _texts(value: object) -> Iterator[str]:
    """Every text and key in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _texts(item)
