"""Memory as prompt text, and back: pure functions, `parse_memory(render_memory(m, style), style) == m`.

Three styles hold the same records. Fields at their default are left out, so a short turn is a short text.

    json    {"turn":1,"action":{"sub_goal":"find height","tool":"search"},"result":"height 105"}

    toon    turn: 1                         token-oriented object notation, by the library toon-format: each record is a
            action:                         document of its own, an empty line between two
              sub_goal: find height
              tool: search
            result: height 105

    table   turn | sub_goal | tool | context | command | result | error | more
            1 | find height | search |  | null | height 105 | null | {}

Two properties hold for any text a tool or model may have produced:
- Append-only: the text of n records is a prefix of the text of n + 1, so turns of one trajectory share their prompt.
- No forgery: line breaks, control characters and whatever opens a chat-template token or a tag (`<|im_start|>`,
  `</s>`, `[INST]`, `<div>`) come out as unicode escapes, so no text can start a record or a chat turn.
"""

from __future__ import annotations

import json
import re
from types import ModuleType
from typing import Any, Literal

from pydantic import JsonValue

from midstream.core.errors import UnsupportedError
from midstream.core.memory import Memory, MemoryRecord
from midstream.core.prompt_text import BRACKETS, BREAKS, UNSAFE, to_json, unicode_escape

MemoryStyle = Literal["json", "toon", "table"]

# TOON knows no escape for `<` and the like: theirs are put on top of it, and where they stand already, on themselves.
_ESCAPE = "u(003c|005[bc]|007f|00[89][0-9a-f]|202[89])"
_ESCAPED = re.compile(rf"\\{_ESCAPE}")
_UNSAFE_IN_TOON = re.compile(rf"[{BREAKS}<\[\\](?:(?<![<\[\\])|{BRACKETS}|(?<=\\)(?={_ESCAPE}))")
_CONTROL = re.compile(r"[\x00-\x1f]")
_COLUMNS = ("turn", "sub_goal", "tool", "context", "command", "result", "error", "more")
_TABLE_HEADER = " | ".join(_COLUMNS) + "\n"


def render_memory(memory: Memory, style: MemoryStyle) -> str:
    """The records as text; every record ends with a line break. The empty memory is "" (table: the header).

    Raises `UnsupportedError` for the style toon without its library.
    """
    if style == "json":
        return "".join(to_json(record.model_dump(exclude_defaults=True)) + "\n" for record in memory.records)
    if style == "toon":
        encode = toon_library().encode
        documents = (
            _UNSAFE_IN_TOON.sub(unicode_escape, encode(record.model_dump(exclude_defaults=True)))
            for record in memory.records
        )
        return "\n".join(document + "\n" for document in documents)
    return _TABLE_HEADER + "".join(_table_row(record.model_dump(exclude_defaults=True)) for record in memory.records)


def parse_memory(text: str, style: MemoryStyle) -> Memory:
    """The memory that `render_memory` wrote; any other text raises `ValueError`."""
    if style == "toon":
        decode = toon_library().decode
        documents = text.split("\n\n") if text else []
        records = [decode(_ESCAPED.sub(_unescape, document)) for document in documents]
    elif style == "json":
        records = [json.loads(line) for line in text.split("\n")[:-1]]
    else:
        records = [_table_parse(line) for line in text.split("\n")[1:-1]]
    return Memory(records=tuple(MemoryRecord.model_validate(record) for record in records))


def toon_library() -> ModuleType:
    """The library `toon_format`, or `UnsupportedError` where it is not installed."""
    try:
        import toon_format
    except ImportError as failure:
        raise UnsupportedError(
            'memory_style = "toon" cannot be written',
            cause="the library toon-format is not installed",
            fix="pip install 'midstream[toon]', or set another memory_style",
        ) from failure
    return toon_format


def _unescape(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))


def _is_bare(text: str) -> bool:
    """Whether `text` may stand without quotes: no JSON reader would take it, nothing in it is unsafe."""
    if not text or text != text.strip() or text[0] in '"[{' or _CONTROL.search(text) or UNSAFE.search(text):
        return False
    try:
        json.loads(text)
    except ValueError:
        return True
    return False


def _scalar(value: object) -> str:
    return value if isinstance(value, str) and _is_bare(value) else to_json(value)


def _parse_scalar(text: str) -> JsonValue:
    try:
        return json.loads(text)
    except ValueError:
        return text


# --- table --------------------------------------------------------------------------------------------------------


def _table_row(record: dict[str, Any]) -> str:
    """One line. A cell holds no "|": it is escaped in quoted text. `more` gathers what has no column of its own."""
    action = record["action"]
    cells = {name: action.get(name, "") for name in ("sub_goal", "tool", "context")}
    cells |= {"turn": record["turn"], "command": record.get("command"), "error": record.get("error")}
    cells["result"] = record.get("result", "")
    more = {name: record[name] for name in ("verdict", "elapsed_s") if name in record}
    if "error" in action:
        more["action_error"] = action["error"]
    cells["more"] = more
    return " | ".join(_cell(cells[name]) for name in _COLUMNS) + "\n"


def _cell(value: object) -> str:
    if value == "":
        return ""
    text = _scalar(value)
    if "|" not in text:
        return text
    return to_json(value).replace("|", "\\u007c")


def _table_parse(line: str) -> dict[str, Any]:
    texts = line.split(" | ")
    if len(texts) != len(_COLUMNS):
        raise ValueError(f"table: {len(texts)} cells instead of {len(_COLUMNS)} in {line!r}")
    cells: dict[str, Any] = {
        name: _parse_scalar(text) if text else "" for name, text in zip(_COLUMNS, texts, strict=True)
    }
    more = cells.pop("more")
    action = {name: cells.pop(name) for name in ("sub_goal", "tool", "context")}
    action["error"] = more.pop("action_error", None)
    return {"action": action, **cells, **more}
