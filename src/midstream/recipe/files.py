"""Recipes as TOML: find a file, read it with what it extends, change its table, write it. Nothing is validated here.

A recipe may `extends = "another"` and change some keys; `--set a.b=c` changes one more from the command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Any

from pydantic_core import to_jsonable_python

from midstream.components.component import Table
from midstream.components.kinds import IN_A_PACKAGE, config_class
from midstream.components.own import anchored, is_reference, name_of
from midstream.core.errors import RecipeError, did_you_mean, shown
from midstream.core.secrets import refuse_secrets
from midstream.core.text_file import parse_toml, read_toml

# Of recipes that extend each other, and of a key of `--set`.
_MAX_DEPTH = 32
_FORM = "it is not of the form a.b=value"


def recipe_directories() -> list[Path]:
    """Return the directories of recipes, those of midstream first.

    A package offers the TOML files of a directory, which is a module of it, as an entry point:

        [project.entry-points."midstream.recipes"]
        my_package = "my_package.recipes"
    """
    own = Path(__file__).parents[1] / "recipes"
    directories = [own if own.is_dir() else Path(__file__).parents[3] / "recipes"]  # of the checkout
    for point in entry_points(group="midstream.recipes"):
        directories += map(Path, import_module(point.value).__path__)
    return directories


@cache
def shipped_recipes() -> dict[str, Path]:
    """The recipes of midstream and of installed packages, by name."""
    # Of two with one name midstream's own is the last, and stays.
    files = {path.stem: path for directory in reversed(recipe_directories()) for path in directory.rglob("*.toml")}
    return dict(sorted(files.items()))


def find_recipe(name: str, extended_by: Path | None = None) -> Path:
    """The file of a recipe given by path or by name. In the recipe `extended_by`, paths are relative to its file."""
    directory, file = extended_by.parent if extended_by else Path(), name if name.endswith(".toml") else f"{name}.toml"
    path = directory / file
    if file != name and not (extended_by and os.path.isfile(path)):
        path = shipped_recipes().get(name, Path(__file__).parent / file)
    if not os.path.exists(path):
        known = shipped_recipes()
        by = f"; {extended_by} extends it, and {directory} has no {file}" if extended_by else ""
        fix = f"{did_you_mean(name, known)}name a .toml file or one of: {', '.join(known)}; {IN_A_PACKAGE}"
        if name.endswith(".py"):
            fix = f"name the agent in it, e.g. {name}:solve"
        raise RecipeError(f"recipe {shown(name)} was not found{by}", code="unknown-recipe", fix=fix)
    return path.resolve()


def read_table(name: str) -> Table:
    """The recipe's table with everything it extends merged in; `name` may be an own agent, "my_agent.py:solve"."""
    if is_reference(name):
        agent = {"type": str(anchored({"type": name}, Path.cwd())["type"])}
        if config_class("agent", agent["type"]).asks != "never":
            agent["engine"] = "model"
        return read_table("own-agent") | {"name": name_of(name), "agent": agent}
    path = find_recipe(name)
    tables: dict[Path, Table] = {}
    while True:
        table = read_toml(path)
        # Before anything can quote its values.
        refuse_secrets(table)
        tables[path] = table = anchored(table, path.parent)
        base = table.pop("extends", None)
        if base is None:
            return reduce(merge, reversed(tables.values()))
        if not isinstance(base, str):
            raise RecipeError(
                f"extends = {shown(base)} in {path} is not the name of a recipe",
                code="extends-invalid",
                fix='e.g. extends = "agentflow-prompted"',
            )
        path = find_recipe(base, path)
        if path in tables or len(tables) == _MAX_DEPTH:
            raise RecipeError(
                f"{path} extends itself" if path in tables else f"{name} extends more than {_MAX_DEPTH} recipes",
                code="extends-invalid",
                fix="remove one `extends`",
            )


def with_overrides(table: Table, overrides: Sequence[str]) -> Table:
    """The table with every `a.b=value` of `--set` applied; values are TOML, bare words are strings."""
    return with_settings(table, map(parse_override, overrides))


def parse_override(override: str) -> tuple[str, object]:
    """The name and the value in `a.b=value`. Raises `RecipeError`."""
    key, sign, text = override.partition("=")
    problem, values = "" if sign else _FORM, {}
    try:
        values = parse_toml(f"value = {text}")
    except TOMLDecodeError:
        # Bare words.
        values = {"value": text} if text.isprintable() else {}
    except ValueError as failure:
        problem = str(failure)
    if not problem and values.keys() != {"value"}:
        problem = "a line break or control character outside of quotes"
    if problem:
        raise _unfit(override, problem)
    return key, values["value"]


def _unfit(setting: str, problem: str) -> RecipeError:
    refuse_secrets({"--set": setting})
    return RecipeError(
        f"--set {shown(setting)}: {problem}",
        code="recipe-invalid",
        fix="e.g. --set training.steps=50 or --set 'description=\"one\\ntwo\"'",
    )


def with_settings(table: Table, settings: Iterable[tuple[str, object]]) -> Table:
    """The table with settings applied in order, each a name such as "training.steps" and a value; None is left out.

    A table's first `type` comes before the table's other keys, because it replaces a table of another type. A table as
    a value counts as its keys.
    """
    changes: list[tuple[list[str], Table]] = []
    for key, given in settings:
        if given is None:
            continue
        parts = key.split(".")
        value = to_jsonable_python(given, fallback=repr)  # paths, tuples
        if not all(parts) or len(parts) > _MAX_DEPTH or not key.isprintable():
            raise _unfit(f"{key}={value}", _FORM)
        for path, change in each_setting(parts, value):
            place, (*inside, last) = len(changes), path
            if last == "type" and all(other != path for other, _ in changes):
                within = (other[:-1][: len(inside)] == inside for other, _ in changes)
                place = next((number for number, found in enumerate(within) if found), place)
            for part in reversed(path):
                change = {part: change}
            refuse_secrets(change)
            changes.insert(place, (path, change))
    for path, change in changes:
        at: Any = table
        for depth, part in enumerate(path[:-1], 1):
            at = at.get(part) if isinstance(at, Mapping) else None
            if isinstance(at, list):
                raise _unfit(".".join(path), f"{'.'.join(path[:depth])} is a list here: set all of it")
        table = merge(table, change)
    return table


def each_setting(path: list[str], value: object) -> Iterator[tuple[list[str], Any]]:
    """The settings of a value with their paths: those of an inline table, its type first, or the value itself."""
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for key in sorted(value, key=lambda key: key != "type"):
        yield from each_setting([*path, key], value[key])


def merge(base: Table, changes: Table) -> Table:
    """`base` with `changes` laid over it, table by table.

    A table of another `type` replaces the base's whole; `false` in place of a table takes the base's out.
    """
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, dict) and value is False:
            del merged[key]
        elif isinstance(old, dict) and isinstance(value, dict) and value.get("type", same := old.get("type")) == same:
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def to_toml(table: Mapping[str, object]) -> str:
    """Write a resolved recipe as TOML: plain values first, then tables; None is left out."""
    lines: list[str] = []
    _write_table(lines, table, ())
    return "\n".join(lines).strip() + "\n"


def _write_table(lines: list[str], table: Mapping[str, object], path: tuple[str, ...]) -> None:
    plain = {k: v for k, v in table.items() if not isinstance(v, Mapping) and v is not None}
    if path and (plain or not table):
        lines.append(f"\n[{'.'.join(map(_toml_key, path))}]")
    lines += [f"{_toml_key(key)} = {toml_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            _write_table(lines, value, (*path, key))


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | os.PathLike):
        value = os.fspath(value)
        escaped = "".join(c if c >= " " and c not in '"\\\x7f' else f"\\u{ord(c):04x}" for c in value)
        return f'"{escaped}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    return repr(value)
