"""What tools there are and what each wants, on the terminal: `midstream tools`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.core.data import Frozen
from midstream.report.numbers import visible

_INDENT = (0, 0, 0, 2)
_FIRST_SENTENCE = re.compile(r"(?<=[.!?])\s")
_SHORT = 74  # characters of JSON that need no lines of their own


class Need(Frozen):
    """What a tool cannot work without, or (`optional`) can use. `there` is None where only a try would tell."""

    what: str
    state: str
    there: bool | None
    fix: str = ""
    optional: bool = False


class Setting(Frozen):
    """One setting as the recipe has it, beside its default."""

    name: str
    value: JsonValue
    default: JsonValue = None
    required: bool = False


class ToolView(Frozen):
    """A tool as people see it. `parameters` and limits are None where only the tool, once made, can tell.

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
    """One call by hand and what came of it; `sandbox` is the tier that code ran in."""

    tool: str
    arguments: dict[str, JsonValue]
    ok: bool
    text: str
    duration_s: float
    sandbox: str = ""
    requests: int = 0


def tools_screen(tools: Sequence[ToolView]) -> RenderableType:
    """A short block for each tool, then how to see more of one and how to call it."""
    blocks = [part for tool in tools for part in (_block(_brief(tool)), Text())]
    first = next((tool for tool in tools if tool.parameters), None)
    more = Table.grid(padding=(0, 4))
    more.add_column(no_wrap=True)
    more.add_row(f"  midstream tools {first.named if first else 'NAME'}", "its limits, settings and schema")
    if first:
        more.add_row(f"  {_example(first)}", "call it")
    return Group(*blocks, more)


def tool_screen(tool: ToolView) -> RenderableType:
    """Everything about one tool: arguments, limits, needs, settings, its schema."""
    parts: list[RenderableType] = [_block(tool, _argument_table(tool.parameters) if tool.parameters else None)]
    if tool.problem:
        parts += [Text(), Text(visible(tool.problem), "red")]
    if tool.settings:
        parts += [Text(f"\nSettings, in [tools.{tool.table}]", "bold"), Padding(_setting_table(tool.settings), _INDENT)]
    if tool.parameters is not None:
        schema = Text(visible(_json(tool.parameters)))
        parts += [Text("\nJSON schema of its arguments", "bold"), Padding(schema, _INDENT)]
        parts += [Text("\nCall it", "bold"), _whole(f"  {_example(tool)}")]
    return Group(*parts)


def called_screen(called: Called) -> RenderableType:
    """What the tool answered, and below it how it went."""
    answer = Text(visible(called.text)) if called.text else Text("(empty)", "dim")
    foot = Text("ok" if called.ok else "not ok", "green" if called.ok else "red")
    said = [f"{called.duration_s:.2f} s"]
    said += [f"{called.requests} request{'s' * (called.requests != 1)} to a model"] if called.requests else []
    said += [f"sandbox {called.sandbox}"] if called.sandbox else []
    return Group(answer, Text(), foot.append(visible("  " + "  ".join(said)), "dim"))


def _brief(tool: ToolView) -> ToolView:
    """What a list says of a tool: what it does, what it takes, what it cannot do without."""
    needs = tuple(need for need in tool.needs if not need.optional)
    said = {"description": _FIRST_SENTENCE.split(tool.description, maxsplit=1)[0], "needs": needs}
    return tool.model_copy(update={**said, "timeout_s": None, "output_tokens": None})


def _block(tool: ToolView, arguments: RenderableType | None = None) -> RenderableType:
    head = Text(visible(tool.name), "bold cyan")
    if tool.type != tool.name:
        head.append(f"  {tool.type}", "dim")
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_row("arguments", arguments or Text(visible(_signature(tool))))
    if limits := _limits(tool):
        rows.add_row("limits", limits)
    for label, optional in (("needs", False), ("may use", True)):
        for place, need in enumerate(need for need in tool.needs if need.optional == optional):
            rows.add_row("" if place else label, _need(need))
    return Group(head, Padding(Text(visible(tool.description)), _INDENT), Padding(rows, _INDENT))


def _limits(tool: ToolView) -> str:
    found = [f"{tool.timeout_s:g} s"] if tool.timeout_s is not None else []
    found += [f"{tool.output_tokens:,} tokens of output"] if tool.output_tokens is not None else []
    return ", ".join(found)


def _need(need: Need) -> Text:
    color = {True: "green", False: "yellow" if need.optional else "red", None: "dim"}[need.there]
    text = Text(f"{visible(need.what)}: ")
    text.append(visible(need.state), color)
    if need.fix and need.there is not True:
        text.append(f"\n{visible(need.fix)}", "bold" if need.there is False and not need.optional else "dim")
    return text


def _signature(tool: ToolView) -> str:
    if tool.parameters is None:
        return f"known once it is made: midstream tools {tool.named}"
    return ", ".join(f"{name}: {words}" for name, words, _ in rows_of(tool.parameters)) or "none"


def _argument_table(schema: Mapping[str, Any]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in range(2):
        table.add_column(overflow="fold")
    for name, words, description in rows_of(schema):
        table.add_row(Text(visible(name)), Text(visible(words), "dim"), Text(visible(description)))
    return table


def rows_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, type with its default in words, description) of every argument."""
    for name, one in schema.get("properties", {}).items():
        one = one if isinstance(one, Mapping) else {}
        words = words_of(one, schema)
        if "default" in one:
            words += f" = {json.dumps(one['default'], ensure_ascii=False)}"
        elif name not in schema.get("required", ()):
            words += " (optional)"
        yield name, words, str(one.get("description", ""))


def words_of(one: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """A schema's type in a few words: "integer", "list of string", '"m" or "km"', "Point"."""
    if "$ref" in one:
        name = str(one["$ref"]).rpartition("/")[2]
        meant = whole.get("$defs", {}).get(name, {})
        return words_of(meant, {}) if "enum" in meant else name
    if "enum" in one or "const" in one:
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in one.get("enum", [one.get("const")]))
    for key in ("anyOf", "oneOf"):
        if isinstance(one.get(key), list):
            return " or ".join(dict.fromkeys(words_of(part, whole) for part in one[key]))
    kind = one.get("type", "anything")
    if kind == "array" and isinstance(one.get("items"), Mapping) and one["items"]:
        return f"list of {words_of(one['items'], whole)}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _setting_table(settings: Sequence[Setting]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(overflow="fold")
    for one in settings:
        value = Text(visible(_shown(one.value)))
        if one.required:
            value.append("  (required)", "dim")
        elif one.value != one.default:
            value.append(f"  (default {visible(_shown(one.default))})", "dim")
        table.add_row(Text(one.name), value)
    return table


def _shown(value: JsonValue) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _json(value: JsonValue, indent: int = 0) -> str:
    """JSON with what is short on one line."""
    short = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or indent + len(short) <= _SHORT:
        return short
    inner = " " * (indent + 2)
    rows = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_json(one, indent + 2)}" for key, one in value.items()]
    return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"


def _example(tool: ToolView) -> str:
    """A command that calls the tool, with a place for every argument that it must have."""
    schema: dict[str, Any] = dict(tool.parameters or {})
    known, required = list(schema.get("properties", {})), list(schema.get("required", ()))
    if len(required or known) == 1:
        return f'midstream tools {tool.named} "..."'
    return " ".join([f"midstream tools {tool.named}", *(f'{name}="..."' for name in required or known[:1])])


def _whole(line: str) -> Text:
    return Text(line, no_wrap=True, overflow="ignore")
