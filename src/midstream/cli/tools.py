"""`midstream tools`: which tools there are and what each needs; one in full; one called by hand.

The list makes no tool: it works without keys, network and extras. A tool is made once it is asked for by name.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from pydantic import JsonValue
from rich.console import Console

from midstream.agents.formats import schema_error
from midstream.cli.commands import build_of
from midstream.cli.tool_needs import needs_of
from midstream.core.component import ToolConfig, config_class, parse_component, registered
from midstream.core.data import Frozen, unfit
from midstream.core.errors import UsageError
from midstream.core.protocols import Tool
from midstream.core.tool_calls import call_tool
from midstream.recipe.build import Build
from midstream.recipe.overrides import needs_settings, recipe_table, set_tools
from midstream.recipe.schema import Table, parse_recipe
from midstream.report.numbers import visible
from midstream.report.timeline import Screen
from midstream.report.tools import Called, Need, Setting, ToolView, called_screen, tool_screen, tools_screen


def tools(options: argparse.Namespace) -> int:
    """List the tools, show one, or call it."""
    options.tools = options.seed = None  # which `solve` has
    table = recipe_table(options, None)
    parse_recipe(table)  # what follows relies on its shape
    if options.name is None:
        views = _with_recipe(_listed(table, every=options.recipe is None), options)
        _print_views(views, options, tools_screen(views))
        return 0
    unset = options.name in registered("tool") and options.name not in table["tools"] and needs_settings(options.name)
    if unset and not options.arguments:
        views = [_unset_view(options.name)]
        _print_views(views, options, tool_screen(views[0]))
        return 0
    with _build_of(table, options) as build:
        if options.arguments:
            _print_called(_by_hand(build, options), options)
        else:
            views = _with_recipe(_shown(build, options.name), options)
            _print_views(views, options, *(tool_screen(view) for view in views))
    return 0


def _build_of(table: Table, options: argparse.Namespace) -> Build:
    """The build of the one tool that is named: by its table, its type, its file, or as one of a server's."""
    name, known = options.name, table["tools"]
    servers = [server for server, one in known.items() if one.get("type", server) == "mcp"]
    tables = servers if servers and name not in {*known, *registered("tool")} and ":" not in name else [name]
    if "," in name:
        raise UsageError(f"{name!r} are several tools", cause="one is shown or called at a time", fix="name one")
    for one in tables:
        narrowed = dict(table)
        set_tools(narrowed, one)
        with ExitStack() as closing:
            build = closing.enter_context(build_of(parse_recipe(narrowed), None, options))
            if one == name or ":" in name or any(tool.name == name for tool in build.tools):
                closing.pop_all()
                return build
    set_tools(table, name)  # says that there is none of that name
    raise AssertionError(name)


# --- looking ----------------------------------------------------------------------------------------------------------


def _listed(table: Table, *, every: bool) -> list[ToolView]:
    """The tools of the recipe, or every type of tool there is, with the recipe's settings where it has some."""
    known: Table = table["tools"]
    rest = [name for name in registered("tool") if every and name not in known and needs_settings(name)]
    if every:
        set_tools(table, ",".join(name for name in dict.fromkeys([*known, *registered("tool")]) if name not in rest))
    recipe = parse_recipe(table)
    views = [_view(table, name, tool.table()) for name, tool in recipe.tools.items()]
    return views + [_unset_view(name) for name in rest]


def _view(table: Table, name: str, tool: Table, named: str = "") -> ToolView:
    """A tool as its class and settings tell, without making it; `named` is how it was asked for."""
    config = parse_component("tool", tool, f"tools.{name}").config
    component = type(config)
    face = component.tool if issubclass(component, ToolConfig) else None
    return ToolView(
        name=name,
        type=str(tool["type"]),
        table=name,
        named=named or name,
        description=_description(component),
        # With a model of its own, `python` takes a request instead of code.
        parameters=None if "engine" in tool and tool["type"] == "python" else _plain(getattr(face, "parameters", None)),
        timeout_s=_number(config, face, "timeout_s"),
        output_tokens=_number(config, face, "output_tokens"),
        needs=tuple(needs_of(table.get("engines", {}), tool, component, config)),
        settings=tuple(_settings(component, tool)),
    )


def _unset_view(name: str) -> ToolView:
    """A type of tool that cannot be named without settings of its own."""
    component = config_class("tool", name)
    state = f'a table in a recipe with type = "{name}", and: {needs_settings(name)}'
    settings = Need(what="settings", state=state, there=None)
    return ToolView(
        name=name,
        type=name,
        table="NAME",  # the user's choice, as is what it is asked for by
        named="NAME",
        description=_description(component),
        needs=(*needs_of({}, {"type": name}, component, None), settings),
    )


def _with_recipe(views: Sequence[ToolView], options: argparse.Namespace) -> list[ToolView]:
    """The tools as they must be asked for where their recipe is one of the command line's."""
    said = f" --recipe {shlex.quote(options.recipe)}" if options.recipe is not None else ""
    return [view.model_copy(update={"named": view.named + said}) for view in views]


def _description(component: Any) -> str:
    """What the class tells a model, or else what it, or its module, tells a reader."""
    said = getattr(component.tool, "description", None)
    if isinstance(said, str):
        return said
    written = inspect.getdoc(component.tool or inspect.getmodule(component)) or ""
    return " ".join(written.partition("\n\n")[0].split())


def _number(config: Frozen, face: type | None, name: str) -> Any:
    """A limit by its setting, or by the class."""
    found = getattr(config, name, getattr(face, name, None))
    return found if isinstance(found, int | float) else None


def _plain(schema: Any) -> dict[str, JsonValue] | None:
    return dict(schema) if isinstance(schema, Mapping) else None


def _settings(config: type[Frozen], tool: Table) -> list[Setting]:
    """Every setting of a tool's table with its default."""
    given = config.model_validate({key: tool[key] for key in tool if key not in ("type", "engine")})
    values = given.model_dump(mode="json")
    found = [Setting(name="engine", value=tool["engine"], required=True)] if "engine" in tool else []
    for name, field in config.model_fields.items():
        default = None if field.is_required() else _as_json(config, name, field.get_default(call_default_factory=True))
        found.append(Setting(name=name, value=values[name], default=default, required=field.is_required()))
    return found


def _as_json(config: type[Frozen], name: str, value: Any) -> JsonValue:
    return config.model_construct(**{name: value}).model_dump(mode="json", include={name}, warnings=False)[name]


def _shown(build: Build, name: str) -> list[ToolView]:
    """Everything about a tool, or the tools of a server. What cannot be made here is shown as far as it is known."""
    [(table, one)] = build.recipe.tools.items()
    view = _view(build.recipe.table(), table, one.table(), name)
    try:
        return [_made(view, tool) for tool in _of_name(build.tools, name)]
    except UsageError as error:
        if view.parameters is None:
            raise
        return [view.model_copy(update={"problem": f"It cannot be made here: {error}"})]


def _made(view: ToolView, tool: Tool) -> ToolView:
    """What the tool says of itself, now that it is there."""
    said = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    if view.type == "mcp":
        said["named"] = tool.name
    limits = {"output_tokens": tool.output_tokens, "timeout_s": view.timeout_s or tool.timeout_s}
    return view.model_copy(update={**said, **limits})


def _of_name(made: Sequence[Tool], name: str) -> list[Tool]:
    return [tool for tool in made if tool.name == name] or list(made)


def _print_views(views: Sequence[ToolView], options: argparse.Namespace, *screens: Any) -> None:
    if options.json:
        print(json.dumps([view.model_dump() for view in views]))
    elif options.quiet:
        print("\n".join(visible(view.name) for view in views))
    else:
        for place, screen in enumerate(screens):
            if place:
                print()
            Screen().print(screen, crop=False)


# --- calling ----------------------------------------------------------------------------------------------------------


def _by_hand(build: Build, options: argparse.Namespace) -> Called:
    """Make the tool, check the arguments as an agent's would be, call it once."""
    made = _of_name(build.tools, options.name)
    if len(made) != 1:
        raise UsageError(
            f"{options.name!r} has {len(made)} tools",
            cause="it is a server",
            fix=f"name one of: {', '.join(tool.name for tool in made)}",
        )
    [tool] = made
    arguments = _arguments(options, tool)
    problem = unfit(arguments) or schema_error(arguments, tool.parameters)
    if problem is not None:
        raise _refused(tool, problem, options.name)
    quiet = options.quiet or options.json or not sys.stderr.isatty()
    clock = time.monotonic()
    with nullcontext() if quiet else Console(stderr=True).status(f"calling {visible(tool.name)}"):
        result = asyncio.run(call_tool(tool, arguments))
    return Called(
        tool=tool.name,
        arguments=arguments,
        ok=result.ok,
        text=result.text,
        duration_s=round(time.monotonic() - clock, 3),
        sandbox=build.sandbox_line or (build.tier if build.replay else ""),
        requests=len(result.calls),
    )


def _arguments(options: argparse.Namespace, tool: Tool) -> dict[str, Any]:
    """Arguments from one JSON object, from `name=value` words, or from one word for a tool that wants one argument."""
    words: list[str] = options.arguments
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return json.loads(words[0])
        except (ValueError, RecursionError) as error:
            raise _refused(tool, f"{words[0]!r:.200} is no JSON: {error}", options.name) from error
    known: Mapping[str, Any] = tool.parameters.get("properties", {})
    wanted = list(tool.parameters.get("required", ())) or list(known)
    pairs = [(name, text) for name, sign, text in (word.partition("=") for word in words) if sign and name in known]
    if len(words) == 1 and not pairs and len(wanted) == 1:
        pairs = [(wanted[0], words[0])]
    if len(dict(pairs)) < len(words):
        raise _refused(tool, f"{' '.join(words)!r} does not name each of its arguments once", options.name)
    return {name: _value(text, known[name]) for name, text in pairs}


def _value(text: str, schema: Any) -> Any:
    """A word as the schema wants it: text where that is a text, otherwise JSON if it is some."""
    if isinstance(schema, Mapping) and "string" in json.dumps([schema.get("type"), schema.get("anyOf")]):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _refused(tool: Tool, problem: str, named: str) -> UsageError:
    required = tool.parameters.get("required", ())
    names = ", ".join(name + " (required)" * (name in required) for name in tool.parameters.get("properties", {}))
    return UsageError(
        f"{tool.name} cannot be called with that: {problem}",
        cause=f"its arguments are {names or 'none'}; they are checked as a model's are",
        fix=f"midstream tools {named} shows the schema and an example",
    )


def _print_called(called: Called, options: argparse.Namespace) -> None:
    if options.json:
        print(called.model_dump_json())
    elif options.quiet:
        print(visible(called.text))
    else:
        Screen().print(called_screen(called))
