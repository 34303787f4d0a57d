"""A tool and what it answered, on the terminal: `midstream call`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from midstream.report.draw import fields
from midstream.report.numbers import counted

_INDENT = (0, 0, 1, 2)


def tools_screen(tools: Sequence[Mapping[str, Any]]) -> Group:
    """What each tool does and takes, its limits, and how to call it."""
    parts: list[RenderableType] = []
    for tool in tools:
        known = rows_of(tool["parameters"])
        arguments = fields(
            ((Text(name), Text(words, "dim").append(f"  {text}", "not dim")) for name, words, text in known), style=""
        )
        limits = f"{tool['timeout_s']:g} s, {tool['output_tokens']:,} tokens of output"
        rows = [("arguments", arguments if arguments.row_count else Text("none")), ("limits", Text(limits))]
        parts += [Text(tool["name"], "bold cyan"), Padding(Text(tool["description"]), (0, 0, 0, 2))]
        parts.append(Padding(fields([*rows, ("call it", Text(tool["example"]))]), _INDENT))
    return Group(*parts)


def called_screen(called: Mapping[str, Any]) -> Group:
    """The tool's answer, and below it whether the call worked and what it took."""
    answer = Text(called["text"]) if called["text"] else Text("(empty)", "dim")
    words = [f"{called['duration_s']:.2f} s"]
    words += [f"{counted(called['requests'], 'request')} to a model"] if called["requests"] else []
    words += [f"sandbox {called['sandbox']}"] if called["sandbox"] else []
    foot = Text("ok", "green") if called["ok"] else Text("not ok", "red")
    return Group(answer, Text(), foot.append("  " + "  ".join(words), "dim"))


def rows_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, type with its default in words, description) of every argument."""
    for name, argument in schema.get("properties", {}).items():
        argument = argument if isinstance(argument, Mapping) else {}
        words = words_of(argument, schema)
        if "default" in argument:
            words += f" = {json.dumps(argument['default'], ensure_ascii=False)}"
        elif name not in schema.get("required", ()):
            words += " (optional)"
        yield name, words, str(argument.get("description", ""))


def words_of(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """A schema's type in a few words: "integer", "list of string", '"m" or "km"', "Point"."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        meant = whole.get("$defs", {}).get(name, {})
        return words_of(meant, {}) if "enum" in meant else name
    if "enum" in schema or "const" in schema:
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in schema.get("enum", [schema.get("const")]))
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return " or ".join(dict.fromkeys(words_of(part, whole) for part in schema[key]))
    kind = schema.get("type", "anything")
    if kind == "array" and isinstance(schema.get("items"), Mapping) and schema["items"]:
        return f"list of {words_of(schema['items'], whole)}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
