"""What tools there are and what each wants, on the terminal: `midstream tools`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from midstream.core.data import Frozen
from midstream.report.numbers import counted
from midstream.report.turn_rows import fields, hints

_INDENT = (0, 0, 0, 2)
_FIRST_SENTENCE = re.compile(r"(?<=[.!?])\s")
_SHORT = 74  # characters of JSON that need no lines of their own


class Need(Frozen):
    """What a tool cannot work without, or (`optional`) can use. `there` is None if only a call would show it."""

    what: str
    state: str
    there: bool | None
    fix: str = ""
    optional: bool = False


class Setting(Frozen):
    """One setting as the recipe has it, with its default."""

    name: str
    value: JsonValue
    default: JsonValue = None
    required: bool = False


class ToolView(Frozen):
    """A tool as people see it. `parameters` and limits are None if only the tool has them, once it is made.

    `table` is the one of the recipe that it comes from, `named` how `midstream tools` is asked for it, with the recipe
    where it needs that; `problem` says why it could not be made here.
    """

    name: str
    type: str
    table: str
    named: str
    description: str
    parameters: dict[str, JsonValue] | None = None
    timeout_s: float | None = None
    output_tokens: int | None = None
    needs: tuple[Need, ...] = ()
    settings: tuple[Setting, ...] = ()
    problem: str = ""


class Called(Frozen):
    """One call by hand and its result; `sandbox` is the tier that code ran in."""

    tool: str
    arguments: dict[str, JsonValue]
    ok: bool
    text: str
    duration_s: float
    sandbox: str = ""
    requests: int = 0


def tools_screen(tools: Sequence[ToolView]) -> RenderableType:
    """A short block for each tool, then how to see more of one and how to call it."""
    blocks: list[RenderableType] = []
    for tool in tools:  # what it does, what it takes, what it cannot do without
        needs = tuple(need for need in tool.needs if not need.optional)
        first_sentence = _FIRST_SENTENCE.split(tool.description, maxsplit=1)[0]
        brief = {"description": first_sentence, "needs": needs, "timeout_s": None, "output_tokens": None}
        blocks += [_block(tool.model_copy(update=brief)), Text()]
    first = next((tool for tool in tools if tool.parameters), None)
    commands = {f"midstream tools {first.named if first else 'NAME'}": "its limits, settings and schema"}
    return Group(*blocks, hints(commands | ({_example(first): "call it"} if first else {})))


def tool_screen(tool: ToolView) -> RenderableType:
    """Everything about one tool: arguments, limits, needs, settings, its schema."""
    arguments = fields(style="")
    arguments.add_column(overflow="fold")
    for name, words, description in rows_of(tool.parameters or {}):
        arguments.add_row(Text(name), Text(words, "dim"), Text(description))
    parts: list[RenderableType] = [_block(tool, arguments if tool.parameters else None)]
    if tool.problem:
        parts += [Text(), Text(tool.problem, "red")]
    if tool.settings:
        settings: list[tuple[str, Text]] = []
        for setting in tool.settings:
            value = Text(_shown(setting.value))
            if setting.required:
                value.append("  (required)", "dim")
            elif setting.value != setting.default:
                value.append(f"  (default {_shown(setting.default)})", "dim")
            settings.append((setting.name, value))
        parts.append(Text(f"\nSettings, in [tools.{tool.table}]", "bold"))
        parts.append(Padding(fields(settings, style=""), _INDENT))
    if tool.parameters is not None:
        schema = Padding(Text(_json(tool.parameters)), _INDENT)
        example = Text(f"  {_example(tool)}", no_wrap=True, overflow="ignore")
        parts += [Text("\nJSON schema of its arguments", "bold"), schema, Text("\nCall it", "bold"), example]
    return Group(*parts)


def called_screen(called: Called) -> RenderableType:
    """The tool's answer, and below it whether the call worked and what it took."""
    answer = Text(called.text) if called.text else Text("(empty)", "dim")
    foot = Text("ok" if called.ok else "not ok", "green" if called.ok else "red")
    words = [f"{called.duration_s:.2f} s"]
    words += [f"{counted(called.requests, 'request')} to a model"] if called.requests else []
    words += [f"sandbox {called.sandbox}"] if called.sandbox else []
    return Group(answer, Text(), foot.append("  " + "  ".join(words), "dim"))


def _block(tool: ToolView, arguments: RenderableType | None = None) -> RenderableType:
    head = Text(tool.name, "bold cyan")
    if tool.type != tool.name:
        head.append(f"  {tool.type}", "dim")
    known = ", ".join(f"{name}: {words}" for name, words, _ in rows_of(tool.parameters or {})) or "none"
    if tool.parameters is None:
        known = f"known once it is made: midstream tools {tool.named}"
    rows: list[tuple[str, RenderableType]] = [("arguments", arguments or Text(known))]
    limits = [f"{tool.timeout_s:g} s"] if tool.timeout_s is not None else []
    limits += [f"{tool.output_tokens:,} tokens of output"] if tool.output_tokens is not None else []
    if limits:
        rows.append(("limits", ", ".join(limits)))
    for label, optional in (("needs", False), ("may use", True)):
        colors = {True: "green", False: "yellow" if optional else "red", None: "dim"}
        for place, need in enumerate(need for need in tool.needs if need.optional == optional):
            text = Text(f"{need.what}: ").append(need.state, colors[need.there])
            if need.fix and need.there is not True:
                text.append(f"\n{need.fix}", "bold" if need.there is False and not optional else "dim")
            rows.append(("" if place else label, text))
    return Group(head, Padding(Text(tool.description), _INDENT), Padding(fields(rows), _INDENT))


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


def _shown(value: JsonValue) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _json(value: JsonValue, indent: int = 0) -> str:
    """JSON with what is short on one line."""
    short = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or indent + len(short) <= _SHORT:
        return short
    margin = " " * indent
    rows = [f"{margin}  {json.dumps(key, ensure_ascii=False)}: {_json(value[key], indent + 2)}" for key in value]
    return "{\n" + ",\n".join(rows) + f"\n{margin}}}"


def _example(tool: ToolView) -> str:
    """A command that calls the tool, with a place for every argument that it must have."""
    schema: dict[str, Any] = dict(tool.parameters or {})
    known, required = list(schema.get("properties", {})), list(schema.get("required", ()))
    if len(required or known) == 1:
        return f'midstream tools {tool.named} "..."'
    return " ".join([f"midstream tools {tool.named}", *(f'{name}="..."' for name in required or known[:1])])
