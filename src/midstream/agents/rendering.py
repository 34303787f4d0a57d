"""Memory as prompt text, and back: pure functions, `parse_memory(render_memory(m, style), style) == m`.

Three styles hold the same records. Fields at their default are left out, so a short turn is a short text.

    json    {"turn":1,"action":{"sub_goal":"find height","tool":"search"},"result":"height 105"}

    toon    - turn: 1                       token-oriented object notation: one `key: value` a line, two spaces a level,
              action:                       a record starts with "- "; text stands bare where it cannot be mistaken,
                sub_goal: find height       otherwise as a JSON string; lists and empty objects are JSON
                tool: search
              result: height 105

    table   turn | sub_goal | tool | context | command | result | error | more
            1 | find height | search |  | null | height 105 | null | {}

Two properties hold for any text a tool or model may have produced:
- Append-only: the text of n records is a prefix of the text of n + 1, so turns of one trajectory share their prompt.
- No forgery: line breaks, control characters and whatever opens a chat-template token or a tag (`<|im_start|>`,
  `</s>`, `[INST]`, `<think>`) come out as JSON unicode escapes, so no text can start a record or a chat turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import JsonValue

from midstream.core.memory import Memory, MemoryRecord

MemoryStyle = Literal["json", "toon", "table"]

# Line breaks of any kind and lone surrogates that JSON leaves as they are; `<` that opens a tag or a token (not the
# less-than of "a < b" or "x<3"); `[` that opens a token in capitals ([INST], [/INST], [gMASK]).
_UNSAFE = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]|<(?![\s\d=])|\[(?=/?\w{0,40}[A-Z]{2}\w{0,40}\])")
_BARE_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f]")
_COLUMNS = ("turn", "sub_goal", "tool", "context", "command", "result", "error", "more")
_TABLE_HEADER = " | ".join(_COLUMNS) + "\n"


def render_memory(memory: Memory, style: MemoryStyle) -> str:
    """The records as text; every record ends with a line break. The empty memory is "" (table: the header)."""
    if style == "json":
        return "".join(to_json(_dump(record)) + "\n" for record in memory.records)
    if style == "toon":
        return "".join(_toon_record(_dump(record)) for record in memory.records)
    return _TABLE_HEADER + "".join(_table_row(_dump(record)) for record in memory.records)


def parse_memory(text: str, style: MemoryStyle) -> Memory:
    """The memory that `render_memory` wrote; any other text raises `ValueError`."""
    lines = text.split("\n")[:-1]
    if style == "json":
        records = [json.loads(line) for line in lines]
    elif style == "toon":
        records = _toon_parse(lines)
    else:
        records = [_table_parse(line) for line in lines[1:]]
    return Memory(records=tuple(MemoryRecord.model_validate(record) for record in records))


def to_json(value: object) -> str:
    """One line of JSON that is safe inside a prompt: equal to `value` when parsed, unable to forge anything."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Structural brackets are never followed by a bare word and "]", so the pattern only ever hits string contents.
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _dump(record: MemoryRecord) -> dict[str, Any]:
    return record.model_dump(exclude_defaults=True)


def _is_bare(text: str) -> bool:
    """Whether `text` may stand without quotes: no JSON reader would take it, nothing in it is unsafe."""
    if not text or text != text.strip() or text[0] in '"[{' or _CONTROL.search(text) or _UNSAFE.search(text):
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


# --- toon ---------------------------------------------------------------------------------------------------------


def _toon_record(record: dict[str, Any]) -> str:
    lines = list(_toon_lines(record, "  "))
    return "- " + lines[0][2:] + "\n" + "".join(line + "\n" for line in lines[1:])


def _toon_lines(value: dict[str, Any], indent: str) -> Iterator[str]:
    for key, item in value.items():
        name = key if _BARE_KEY.fullmatch(key) else to_json(key)
        if isinstance(item, dict) and item:
            yield f"{indent}{name}:"
            yield from _toon_lines(item, indent + "  ")
        else:
            yield f"{indent}{name}: {_scalar(item)}"


def _toon_parse(lines: list[str]) -> list[dict[str, Any]]:
    """Read lines into records; `path` holds the open object of each level."""
    records: list[dict[str, Any]] = []
    path: list[dict[str, Any]] = []
    for line in lines:
        if line.startswith("- "):
            records.append({})
            path = [records[-1]]
            line = "  " + line[2:]
        body = line.lstrip(" ")
        level = (len(line) - len(body)) // 2 - 1
        if not 0 <= level < len(path):
            raise ValueError(f"toon: unexpected indentation in {line!r}")
        del path[level + 1 :]
        name, rest = _toon_key(body)
        if rest.startswith(": "):
            path[level][name] = _parse_scalar(rest[2:])
        else:
            path.append(path[level].setdefault(name, {}))
    return records


def _toon_key(body: str) -> tuple[str, str]:
    """Split a line's key from what follows, which starts with the colon."""
    if body.startswith('"'):
        name, end = json.JSONDecoder().raw_decode(body)
        return name, body[end:]
    name, colon, rest = body.partition(":")
    if not colon:
        raise ValueError(f"toon: no key in {body!r}")
    return name, colon + rest


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
