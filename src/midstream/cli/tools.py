"""`midstream tools`: the tools there are and what each needs; one in full; one called by hand.

The list makes no tool: it works without keys, network and extras. A tool is made once it is asked for by name. A key is
only checked for being set, and nothing is asked over the network.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

from midstream.cli import options as shared
from midstream.core.component import Component, ComponentConfig
from midstream.core.data import unfit
from midstream.core.errors import UsageError
from midstream.core.json_schema import schema_error
from midstream.core.kinds import config_class, registered
from midstream.core.protocols import Tool
from midstream.core.terminal import Terminal
from midstream.core.tool_calls import call_tool
from midstream.engines.openai.providers import is_own
from midstream.process import event_loop
from midstream.recipe.build import Build
from midstream.recipe.overrides import RECIPE, AgentChanges, agent_recipe, chosen_tools, needs_settings
from midstream.recipe.schema import Recipe, parse_recipe
from midstream.report.tools import Called, Need, Setting, ToolView, called_screen, tool_screen, tools_screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `tools`."""
    parser.add_argument("name", nargs="?", help="a tool, or your own function: my_tools.py:word_count")
    parser.add_argument(
        "arguments", nargs="*", help="""call it: '{"query": "..."}', or query=..., or "..." where it wants one"""
    )
    parser.add_argument("--recipe", default=None, help="with the tools and settings of this recipe")
    shared.add(parser, *shared.SERVER, "--unsafe")
    shared.add_recording(parser)
    shared.add(parser, "--set", "--trust", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """List the tools, show one, or call it."""
    recipe = agent_recipe(options.recipe or RECIPE, **shared.changes(AgentChanges, options))
    types = registered("tool")
    if options.name is None:
        unset: list[str] = []
        if options.recipe is None:  # every type there is, with the recipe's settings where it has some
            unset = [name for name in types if name not in recipe.tools and needs_settings(name)]
            names = [name for name in dict.fromkeys([*recipe.tools, *types]) if name not in unset]
            recipe = _with_tools(recipe, ",".join(names))
        views = [*(_view(recipe, name) for name in recipe.tools), *map(_unset_view, unset)]
        _print_views(views, options, one_table=True)
        return 0
    is_type = options.name in types and options.name not in recipe.tools
    if is_type and needs_settings(options.name) and not options.arguments:
        _print_views([_unset_view(options.name)], options)
    else:
        _show_or_call(recipe, options)
    return 0


def _show_or_call(recipe: Recipe, options: argparse.Namespace) -> None:
    """Make the named tool by its table, its type, its file, or as one of a server's; show it, or call it."""
    name = options.name
    if "," in name:
        raise UsageError(f"{name!r} are several tools", code="too-many", fix="name one")
    servers = [table for table, tool in recipe.tools.items() if tool.type == "mcp"]
    is_table = name in {*recipe.tools, *registered("tool")} or ":" in name
    for table in [name] if is_table or not servers else servers:
        chosen = _with_tools(recipe, table)
        build = Build(chosen, unsafe=options.unsafe, record=options.record, replay=options.replay)
        with event_loop(build) as run_coroutine:
            if not is_table and not any(tool.name == name for tool in build.tools):
                continue
            if options.arguments:
                called = _call(build, options, run_coroutine)
                if options.json:
                    print(called.model_dump_json())
                elif options.quiet:
                    print(called.text)
                else:
                    Terminal().print(called_screen(called))
            else:
                _print_views(_made_views(build, name), options)
            return
    _with_tools(recipe, name)  # raises: there is no tool of that name


def _with_tools(recipe: Recipe, names: str) -> Recipe:
    table = recipe.table()
    return parse_recipe({**table, "tools": chosen_tools(table["tools"], names)})


# --- looking ----------------------------------------------------------------------------------------------------------


def _view(recipe: Recipe, name: str, named: str = "") -> ToolView:
    """A tool by its class and settings, without making it; `named` is how it was asked for."""
    tool = recipe.tools[name]
    face = getattr(tool.config, "component", None)
    # With its own model, `python` takes a request instead of code.
    schema = None if tool.engine and tool.type == "python" else getattr(face, "parameters", None)

    def limit(key: str) -> Any:
        found = getattr(tool.config, key, getattr(face, key, None))
        return found if isinstance(found, int | float) else None

    return ToolView(
        name=name,
        type=tool.type,
        table=name,
        named=named or name,
        description=description_of(type(tool.config)),
        parameters=dict(schema) if isinstance(schema, Mapping) else None,
        timeout_s=limit("timeout_s"),
        output_tokens=limit("output_tokens"),
        needs=tuple(_needs(type(tool.config), tool, recipe.engines)),
        settings=tuple(_settings(tool)),
    )


def _unset_view(name: str) -> ToolView:
    """A type of tool that requires settings."""
    config: Any = config_class("tool", name)
    state = f'a table in a recipe with type = "{name}", and: {needs_settings(name)}'
    return ToolView(
        name=name,
        type=name,
        table="NAME",  # the user's choice
        named="NAME",
        description=description_of(config),
        needs=(*_needs(config, None, {}), Need(what="settings", state=state, there=None)),
    )


def description_of(config: Any) -> str:
    """What the tool's class shows to a model, or else its docstring, or its module's."""
    tool = getattr(config, "component", None)
    description = getattr(tool, "description", None)
    if isinstance(description, str):
        return description
    docstring = inspect.getdoc(tool or inspect.getmodule(config)) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def _settings(tool: Component) -> Iterator[Setting]:
    """Every setting of a tool's table with its default."""
    config = type(tool.config)
    values = tool.config.model_dump(mode="json")
    if tool.engine is not None:
        yield Setting(name="engine", value=tool.engine, required=True)
    for name, field in config.model_fields.items():
        default = None
        if not field.is_required():
            made = config.model_construct(**{name: field.get_default(call_default_factory=True)})
            default = made.model_dump(mode="json", include={name}, warnings=False)[name]
        yield Setting(name=name, value=values[name], default=default, required=field.is_required())


def _needs(config: type[ComponentConfig], tool: Component | None, engines: Mapping[str, Component]) -> Iterator[Need]:
    """What a type of tool needs, or a `tool` of it with settings: an extra, keys, a model, a sandbox."""
    settings = tool.config if tool else None
    keyless = getattr(settings, "provider", "") == "ddgs"  # the one provider that needs an extra, and no key
    if config.extra and (keyless or not hasattr(settings, "provider")):
        missing = [f"{package} is not installed" for package in config.packages if find_spec(package) is None]
        state, fix = ", ".join(missing) or "installed", f"pip install 'midstream[{config.extra}]'"
        yield Need(what=f"extra {config.extra}", state=state, there=not missing, fix=fix)
    variables = [] if keyless else [getattr(settings, "api_key_env", "")]
    if config.asks == "always" or (tool and tool.engine):
        yield _engine(engines, tool.engine if tool else None)
    elif config.asks == "optional":
        yield Need(what="a model", state='engine = "model" in its table gives it one', there=None, optional=True)
    if config.sandboxed:
        yield Need(what="a sandbox", state="midstream doctor tries it", there=None)
    variables += [*getattr(settings, "env_pass", ()), *getattr(settings, "headers_env", {}).values()]
    for variable in filter(None, variables):
        there = _is_set(variable)
        state = f"{variable} is {'set' if there else 'not set'}"
        yield Need(what="a key", state=state, there=there, fix=f"export {variable}=<your key>")


def _engine(engines: Mapping[str, Component], name: str | None) -> Need:
    """The model that a tool asks: which, where, and whether its key is there."""
    if name is None or name not in engines:
        fix = "name one: --model NAME with --provider NAME or --base-url URL"
        return Need(what="a model", state=f"the recipe has no engine {name!r}", there=False, fix=fix)
    need = partial(Need, what=f"a model ({name})")
    config: Any = engines[name].config
    if config.in_process:
        state, fix = "it samples in process, where a tool cannot ask it", "give the tool an engine that is a server"
        return need(state=state, there=False, fix=fix)
    state = f"{config.model} at {config.base_url}"
    if is_own(config) and config.api_key_env and not _is_set(config.api_key_env):
        fix = f"export {config.api_key_env}=<your key>, or --provider ollama --model NAME"
        return need(state=f"{state}; {config.api_key_env} is not set", there=False, fix=fix)
    return need(state=state, there=True)


def _is_set(variable: str) -> bool:
    return bool(os.environ.get(variable, "").strip())


def _made_views(build: Build, name: str) -> list[ToolView]:
    """Everything about a tool, or the tools of a server. A tool that cannot be made here is shown without them."""
    [table] = build.recipe.tools
    view = _view(build.recipe, table, name)
    try:
        tools = _of_name(build.tools, name)
    except UsageError as error:
        if view.parameters is None:
            raise
        return [view.model_copy(update={"problem": f"It cannot be made here: {error}"})]
    views = []
    for tool in tools:
        made = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
        limits = {"output_tokens": tool.output_tokens, "timeout_s": view.timeout_s or tool.timeout_s}
        named = {"named": tool.name} if view.type == "mcp" else {}
        views.append(view.model_copy(update={**made, **limits, **named}))
    return views


def _of_name(tools: Sequence[Tool], name: str) -> list[Tool]:
    return [tool for tool in tools if tool.name == name] or list(tools)


def _print_views(views: Sequence[ToolView], options: argparse.Namespace, *, one_table: bool = False) -> None:
    if options.recipe is not None:  # a tool of a recipe must be asked for with it
        recipe = f" --recipe {shlex.quote(options.recipe)}"
        views = [view.model_copy(update={"named": view.named + recipe * (view.table != "NAME")}) for view in views]
    if options.json:
        print(json.dumps([view.model_dump() for view in views]))
    elif options.quiet:
        print("\n".join(view.name for view in views))
    else:
        for place, screen in enumerate([tools_screen(views)] if one_table else map(tool_screen, views)):
            if place:
                print()
            Terminal().print(screen, crop=False)


# --- calling ----------------------------------------------------------------------------------------------------------


def _call(build: Build, options: argparse.Namespace, run_coroutine: Callable[..., Any]) -> Called:
    """Check the arguments as an agent's would be, and call the tool once."""
    tools = _of_name(build.tools, options.name)
    if len(tools) != 1:
        names = ", ".join(tool.name for tool in tools)
        raise UsageError(
            f"{options.name!r} is a server of {len(tools)} tools", code="too-many", fix=f"name one: {names}"
        )
    [tool] = tools
    arguments = _arguments(options.arguments, tool, options.name)
    if problem := unfit(arguments) or schema_error(arguments, tool.parameters):
        raise _refused(tool, problem, options.name)
    quiet = options.quiet or options.json or not sys.stderr.isatty()
    started = time.monotonic()
    with shared.spinner(f"calling {tool.name}", silent=quiet):
        result = run_coroutine(call_tool(tool, arguments))
    return Called(
        tool=tool.name,
        arguments=arguments,
        ok=result.ok,
        text=result.text,
        duration_s=round(time.monotonic() - started, 3),
        sandbox=build.sandbox_line or (build.tier if build.replay else ""),
        requests=len(result.calls),
    )


def _arguments(words: Sequence[str], tool: Tool, named: str) -> dict[str, Any]:
    """Arguments from one JSON object, from `name=value` words, or from one word for a tool that wants one argument."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return json.loads(words[0])
        except (ValueError, RecursionError) as error:
            raise _refused(tool, f"{words[0]!r:.200} is not JSON: {error}", named) from error
    known: Mapping[str, Any] = tool.parameters.get("properties", {})
    wanted = list(tool.parameters.get("required", ())) or list(known)
    pairs = [(name, text) for name, sign, text in (word.partition("=") for word in words) if sign and name in known]
    if len(words) == 1 and not pairs and len(wanted) == 1:
        pairs = [(wanted[0], words[0])]
    if len(dict(pairs)) < len(words):
        raise _refused(tool, f"{' '.join(words)!r} does not name each of its arguments once", named)
    arguments: dict[str, Any] = {}
    for name, text in pairs:
        arguments[name], schema = text, known[name]
        if isinstance(schema, Mapping) and "string" in json.dumps([schema.get("type"), schema.get("anyOf")]):
            continue  # a text as it is written, even if it looks like JSON
        with suppress(ValueError, RecursionError):
            arguments[name] = json.loads(text)
    return arguments


def _refused(tool: Tool, problem: str, named: str) -> UsageError:
    required = tool.parameters.get("required", ())
    names = ", ".join(name + " (required)" * (name in required) for name in tool.parameters.get("properties", {}))
    return UsageError(
        f"{tool.name} cannot be called with that: {problem}",
        code="invalid-arguments",
        cause=f"its arguments are {names or 'none'}; they are checked as a model's are",
        fix=f"midstream tools {named} shows the schema and an example",
    )
