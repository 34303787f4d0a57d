"""What options of the command line change in a recipe: server, tools, seed, evaluation, and last of all `--set`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from midstream.cli.commands import has_weights
from midstream.cli.results import table_of
from midstream.core.component import config_class, parse_component, registered
from midstream.core.errors import UsageError
from midstream.recipe.check import check
from midstream.recipe.library import with_library
from midstream.recipe.schema import Table, modules_of, parse_recipe, read_table, with_overrides
from midstream.runs import RunDirectory

RECIPE = "agentflow-prompted"


def recipe_table(options: argparse.Namespace, run: RunDirectory | None) -> Table:
    """The recipe's table with what the command line changes: server, tools, seed, and last of all `--set`."""
    table = _changed(options, run, options.recipe or RECIPE)
    for engine in table.get("engines", {}).values():
        _set_stream(engine, resolved=run is not None)
    return _learned(with_overrides(table, options.overrides), run)


def evaluation_table(options: argparse.Namespace, run: RunDirectory | None) -> Table:
    """The table of what is evaluated: the recipe's, or the run's, with the sets and settings of the command line."""
    table = _changed(options, run, options.target)
    set_evaluation(table, options)
    return _learned(with_overrides(table, options.overrides), run)


def validation_table(options: argparse.Namespace, run: RunDirectory | None) -> Table:
    """The table of an agent whose library is tested, with what [practice] says of tests."""
    return with_overrides(_changed(options, run, options.recipe or RECIPE), options.overrides)


def _learned(table: Table, run: RunDirectory | None) -> Table:
    """The table of an agent that learns no lessons here; that of a run which has practised brings its own."""
    practised = table.pop("practice", None) is not None
    return with_library(table, str(run.root)) if practised and run and "library" not in table["agent"] else table


def _changed(options: argparse.Namespace, run: RunDirectory | None, name: str) -> Table:
    # What options change must be there already, and what both change is as `--set` says.
    table = with_overrides(table_of(run) if run else read_table(name), options.overrides)
    table = with_library(table, options.library)
    set_server(table, options, planner_from_run=run is not None and has_weights(run))
    if options.tools is not None:
        known = list(table.get("tools", ()))
        set_tools(table, options.tools)
        _check_vocabulary(table, known, options.tools)
    if options.seed is not None:
        table["seed"] = options.seed
    return table


def set_evaluation(table: Table, options: argparse.Namespace) -> None:
    """Put the sets, trials, temperature and reward of the command line in [evaluation].

    Sets other than the recipe's own are tried at the planner's own temperature where none is given.
    """
    parse_recipe(table)  # what follows relies on its shape
    settings = table["evaluation"] = dict(table.get("evaluation", {}))
    chosen = [_benchmark(text) for text in options.benchmark]
    for path in options.tasks:
        chosen.append(_task_file(path, chosen))
    if chosen:
        settings["temperatures"] = [planner_temperature(table)]
    sets = chosen or [dict(one) for one in settings.get("sets", ())]
    for one in sets:
        if options.count is not None:
            one.pop("per_family", None)
            one["count"] = options.count
        if options.reward is not None:
            one["reward"] = _reward(table, options.reward)
    settings["sets"] = sets
    if options.trials is not None:
        settings["trials"] = options.trials
    if options.temperature is not None:
        settings["temperatures"] = [options.temperature]


def planner_temperature(table: Table) -> float:
    """The temperature that planner or policy samples at by its own settings; 0 for one that is a program."""
    name = modules_of(table["agent"])[0]
    config: Any = parse_component(name, table["agent"][name], f"agent.{name}").config
    return 0.0 if config.asks == "never" else config.sampling.temperature


def _benchmark(text: str) -> Table:
    """The set that `--benchmark NAME` or `--benchmark NAME=FILE` asks for."""
    name, sign, path = text.partition("=")
    if not name.strip() or (sign and not path.strip()):
        raise UsageError(
            f"--benchmark {text!r} names no benchmark" if not name.strip() else f"--benchmark {text!r} names no file",
            cause="the variable that it came from is not set",
            fix="e.g. --benchmark bamboogle, or --benchmark bamboogle=bamboogle.json; midstream benchmarks lists them",
        )
    source = {"type": "benchmark", "name": name}
    return {"name": name, "tasks": {**source, "file": os.path.abspath(path)} if sign else source}


def _task_file(path: str, others: Sequence[Table]) -> Table:
    """The set that `--tasks FILE` asks for, called after its file: by as much of the path as tells it from `others`."""
    tasks = {"type": "file", "path": os.path.abspath(path)}
    # The same file again keeps its name, and is refused for it.
    taken = {"validation", *(one["name"].casefold() for one in others if one["tasks"] != tasks)}
    names = (Path(path).stem, Path(path).name, path)
    return {"name": next((name for name in names if name.casefold() not in taken), path), "tasks": tasks}


def _reward(table: Table, named: str) -> Table:
    """The recipe's own reward if it is of that type, else one with its defaults, and an engine where it asks one."""
    if table["reward"].get("type") == named:
        return table["reward"]
    if named not in registered("reward") or config_class("reward", named).asks == "never":
        return {"type": named}
    return {"type": named, "engine": "judge" if "judge" in table.get("engines", {}) else "model"}


def set_server(table: Table, options: argparse.Namespace, *, planner_from_run: bool = False) -> None:
    """Put the server in [engines.model]; with a run's planner, the other three modules ask it instead of the run's."""
    server = {key: value for key in ("base_url", "model", "provider") if (value := getattr(options, key)) is not None}
    for key, value in server.items():
        if not value.strip():
            raise UsageError(
                f"--{key.replace('_', '-')} is empty: {value!r}",
                cause="the variable that it came from is not set",
                fix="name it, or leave the option out for the recipe's own",
            )
    if not server:
        return
    if "model" not in server and (planner_from_run or "provider" in server):
        raise UsageError(
            "no model is named",
            cause=f"--{next(iter(server)).replace('_', '-')} says where to ask, not which model",
            fix="add --model NAME",
        )
    parse_recipe(table)  # what follows relies on its shape
    agent, name = table["agent"], "model"
    trained, *others = modules_of(agent)
    if planner_from_run and others:
        taken = (agent[trained].get("engine"), (table.get("training") or {}).get("weights"))
        name = "model" if "model" not in taken else "frozen"
        for module in others:
            settings = agent[module] if agent[module].get("type") == "prompted" else {"type": "prompted"}
            agent[module] = {**settings, "engine": name}
    elif all(one.get("engine") != name for one in (*map(agent.get, (trained, *others)), *table["tools"].values())):
        check(parse_recipe(table))  # a misspelt type or engine is refused as what it is
        fix = f'choose a recipe that does, e.g. {RECIPE}, or give a module engine = "model"'
        raise UsageError(
            f"--{next(iter(server)).replace('_', '-')} does nothing with this recipe",
            cause="no module or tool of it asks [engines.model]",
            fix="leave it out: the whole agent comes from the run" if planner_from_run else fix,
        )
    engines = table.setdefault("engines", {})
    kept = engines.get(name, {})
    if "provider" in server:  # whose address and key are its own
        kept = {key: value for key, value in kept.items() if key not in ("base_url", "api_key_env")}
    engines[name] = {"type": "openai_compatible", **kept, **server}


def set_tools(table: Table, names: str) -> None:
    """Exactly these tools, with the recipe's settings where it has them; `my_tools.py:word_count` is a function."""
    parse_recipe(table)
    wanted = list(dict.fromkeys(name for part in names.split(",") if (name := part.strip())))
    known = table["tools"]
    nameable = [*known, *(name for name in registered("tool") if name not in known and not needs_settings(name))]
    unknown = [name for name in wanted if name not in nameable and ":" not in name]
    if unknown and unknown[0] in registered("tool"):
        raise UsageError(
            f"no table of the recipe makes a tool {unknown[0]!r}",
            cause=f"a tool of this type needs settings: {needs_settings(unknown[0])}",
            fix=f"midstream tools {unknown[0]} shows them; give [tools.NAME] in a recipe, then --recipe FILE.toml",
        )
    if unknown or not wanted:
        raise UsageError(
            f"no tool is called {unknown[0]!r}" if unknown else f"no tool is named: {names!r}",
            cause="it is misspelt, or its table is missing in the recipe",
            fix=f"name some of: {', '.join(nameable)}; or a function of yours: my_tools.py:word_count",
        )
    chosen = [_tool_table(name, known) for name in wanted]
    table["tools"] = dict(chosen)
    if len(table["tools"]) < len(chosen):
        raise UsageError(
            f"two of the tools in {names!r} would have one name",
            cause="a function of yours is called by its name alone, whatever its file",
            fix="rename one of them, or name it in a recipe as [tools.ANOTHER_NAME]",
        )


def _check_vocabulary(table: Table, known: list[str], said: str) -> None:
    """A tiny planner knows the tools that it was trained with, and no other."""
    agent = table["agent"]
    planner = table.get("engines", {}).get(agent[modules_of(agent)[0]].get("engine"), {})
    if planner.get("type") == "tiny" and set(table["tools"]) != set(known):
        raise UsageError(
            f"--tools {said!r} does not fit this planner",
            cause=f"the tools it was trained with are words of its vocabulary: {', '.join(known)}",
            fix='leave out --tools, or choose a planner that reads the list of tools (type = "prompted")',
        )


def _tool_table(name: str, known: Table) -> tuple[str, Table]:
    """A tool's name and table: the recipe's, or one with every default."""
    if ":" in name:
        return name.rpartition(":")[2].rpartition(".")[2], {"type": "function", "function": name}
    table = known.get(name, {})
    kind = table.get("type", name)
    asks = kind in registered("tool") and config_class("tool", kind).asks == "always"
    return name, {"engine": "model", **table} if asks else table


def needs_settings(name: str) -> str:
    """Which settings a type of tool cannot do without, in words; "" if its table may be empty."""
    try:
        config_class("tool", name)()
    except ValidationError as error:
        found = [".".join(map(str, one["loc"])) or one["msg"].removeprefix("Value error, ") for one in error.errors()]
        return ", ".join(found)
    return ""


def _set_stream(engine: Table, *, resolved: bool) -> None:
    """Have a server stream its replies, so that they can be watched, unless the recipe says otherwise."""
    if engine.get("type") == "openai_compatible":
        # A run's recipe holds every default, and so says nothing.
        engine["stream"] = True if resolved else engine.get("stream", True)
