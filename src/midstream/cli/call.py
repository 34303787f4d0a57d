"""`midstream call TOOL ...`: call a tool by hand; without arguments, what it takes.

`midstream list tools` has the tools, and what each needs. Here one is made, by its table in a recipe, its type, its
file, or as one of a server's, and its arguments are checked as a model's are.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from midstream.cli import options as shared
from midstream.components.kinds import registered
from midstream.core.data import JsonSchema, unfit
from midstream.core.errors import UsageError
from midstream.core.json_schema import schema_error
from midstream.core.tool import Tool
from midstream.core.tool_calls import call_tool
from midstream.process import RunCoroutine, event_loop
from midstream.recipe.build import Build
from midstream.recipe.overrides import RECIPE, AgentChanges, agent_recipe, chosen_tools
from midstream.recipe.schema import Recipe, parse_recipe
from midstream.report import blocks
from midstream.report.blocks import Block
from midstream.report.numbers import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `call`."""
    parser.add_argument("name", help="a tool, or your own function: my_tools.py:word_count")
    parser.add_argument(
        "arguments", nargs="*", help="""'{"query": "..."}', or query=..., or "..." where it wants one; none: show it"""
    )
    parser.add_argument("--recipe", default=RECIPE, help="with the tools and settings of this recipe")
    shared.add(parser, *shared.SERVER, "--unsafe")
    shared.add_recording(parser)
    shared.add(parser, "--set", "--trust", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Call the tool, or show what it takes."""
    recipe = agent_recipe(options.recipe, **shared.changes(AgentChanges, options))
    name = options.name
    if "," in name:
        raise UsageError(f"{name!r} are several tools", code="too-many", fix="name one")
    servers = recipe.tool_servers
    is_table = name in {*recipe.tools, *registered("tool")} or ":" in name
    for table in [name] if is_table or not servers else servers:
        build = Build(_with_tool(recipe, table), unsafe=options.unsafe, record=options.record, replay=options.replay)
        with event_loop(build) as run_coroutine:
            tools = [tool for tool in build.tools if tool.name == name] or list(build.tools if is_table else ())
            if not tools:
                continue
            if options.arguments:
                called = _call(build, tools, options, run_coroutine)
                words = ["ok" if called["ok"] else "not ok", f"{called['duration_s']:.2f} s"]
                words += [f"{counted(called['requests'], 'request')} to a model"] if called["requests"] else []
                words += [f"sandbox {called['sandbox']}"] if called["sandbox"] else []
                answer = blocks.code(called["text"]) or blocks.text("(empty)", "soft")
                worked = blocks.text("  ".join(words), "up" if called["ok"] else "bad")
                return shared.show(options, called, [answer, worked], [called["text"]])
            records = [_record(tool, tool.name if table in servers else name, options.recipe) for tool in tools]
            shown = [part for record in records for part in _described(record)]
            return shared.show(options, records, shown, [tool.name for tool in tools])
    # Raises: there is no tool of that name.
    _with_tool(recipe, name)
    return 2


def _with_tool(recipe: Recipe, name: str) -> Recipe:
    table = recipe.table()
    return parse_recipe({**table, "tools": chosen_tools(table["tools"], name)})


def _record(tool: Tool, named: str, recipe: str) -> Block:
    """A tool as a model sees it, its limits, and a command that calls it."""
    known, required = list(tool.parameters.get("properties", {})), tool.parameters.get("required", ())
    words = ["midstream call", named] + [f"--recipe {shlex.quote(recipe)}"] * (recipe != RECIPE)
    words += ['"..."'] if len(required or known) == 1 else [f'{name}="..."' for name in required or known[:1]]
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
        "timeout_s": tool.timeout_s,
        "output_tokens": tool.output_tokens,
        "example": " ".join(words),
    }


def _described(record: Block) -> list[Block | None]:
    """What a tool does and takes, its limits, and how to call it."""
    schema, rows = record["parameters"], []
    for name, argument in schema.get("properties", {}).items():
        argument = argument if isinstance(argument, Mapping) else {}
        words = type_in_words(argument, schema)
        if "default" in argument:
            words += f" = {json.dumps(argument['default'], ensure_ascii=False)}"
        elif name not in schema.get("required", ()):
            words += " (optional)"
        rows.append((name, words, str(argument.get("description", ""))))
    limits = f"{record['timeout_s']:g} s, {record['output_tokens']:,} tokens of output"
    return [
        blocks.heading(record["name"]),
        blocks.text(record["description"]),
        blocks.table("", ("argument", "type", "meaning"), rows, left=3),
        blocks.facts({"limits": limits, "call it": record["example"]}),
    ]


def type_in_words(schema: JsonSchema, whole: JsonSchema) -> str:
    """A JSON schema's type in a few words: "integer", "list of string", '"m" or "km"', "Point"."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        meant = whole.get("$defs", {}).get(name, {})
        return type_in_words(meant, {}) if "enum" in meant else name
    if "enum" in schema or "const" in schema:
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in schema.get("enum", [schema.get("const")]))
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return " or ".join(dict.fromkeys(type_in_words(part, whole) for part in schema[key]))
    kind = schema.get("type", "anything")
    if kind == "array" and isinstance(schema.get("items"), Mapping) and schema["items"]:
        return f"list of {type_in_words(schema['items'], whole)}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _call(build: Build, tools: Sequence[Tool], options: argparse.Namespace, run: RunCoroutine) -> Block:
    """Check the arguments as an agent's would be, and call the tool once."""
    if len(tools) != 1:
        what, names = f"{options.name!r} is a server of {len(tools)} tools", ", ".join(tool.name for tool in tools)
        raise UsageError(what, code="too-many", fix=f"name one: {names}")
    [tool] = tools
    arguments = _arguments(options.arguments, tool, options.name)
    if problem := unfit(arguments) or schema_error(arguments, tool.parameters):
        raise _refused(tool, problem, options.name)
    started = time.monotonic()
    with shared.spinner(f"calling {tool.name}", silent=options.quiet or options.json or not sys.stderr.isatty()):
        result = run(call_tool(tool, arguments))
    return {
        "tool": tool.name,
        "arguments": arguments,
        "ok": result.ok,
        "text": result.text,
        "duration_s": round(time.monotonic() - started, 3),
        "sandbox": build.sandbox_line or (build.tier if build.replay else ""),
        "requests": len(result.calls),
    }


def _arguments(words: Sequence[str], tool: Tool, named: str) -> Block:
    """Arguments from one JSON object, from `name=value` words, or from one word for a tool that wants one argument."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return json.loads(words[0])
        except (ValueError, RecursionError) as error:
            raise _refused(tool, f"{words[0]!r:.200} is not JSON: {error}", named) from error
    known: JsonSchema = tool.parameters.get("properties", {})
    wanted = list(tool.parameters.get("required", ())) or list(known)
    pairs = [(name, text) for name, sign, text in (word.partition("=") for word in words) if sign and name in known]
    if len(words) == 1 and not pairs and len(wanted) == 1:
        pairs = [(wanted[0], words[0])]
    if len(dict(pairs)) < len(words):
        raise _refused(tool, f"{' '.join(words)!r} does not name each of its arguments once", named)
    arguments: Block = {}
    for name, text in pairs:
        arguments[name], schema = text, known[name]
        if isinstance(schema, Mapping) and "string" in json.dumps([schema.get("type"), schema.get("anyOf")]):
            # A text as it is written, even if it looks like JSON.
            continue
        with suppress(ValueError, RecursionError):
            arguments[name] = json.loads(text)
    return arguments


def _refused(tool: Tool, problem: str, named: str) -> UsageError:
    required = tool.parameters.get("required", ())
    names = ", ".join(name + " (required)" * (name in required) for name in tool.parameters.get("properties", {}))
    return UsageError(
        f"{tool.name} cannot be called with that: {problem}",
        code="invalid-arguments",
        cause=f"its arguments are {names or 'none'}",
        fix=f"midstream call {named} shows them, with an example",
    )
