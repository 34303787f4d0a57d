"""The tables of a recipe: which component each names, and whether its settings are valid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from midstream.components.component import Component, Kind, RewardConfig, StrategyConfig, TasksConfig
from midstream.components.kinds import IN_A_PACKAGE, config_class, installed_reference, registered
from midstream.components.own import anchored, is_reference, load
from midstream.core.data import Settings, classes_in
from midstream.core.errors import RecipeError, did_you_mean, shown

ModelT = TypeVar("ModelT", bound=BaseModel)

# A bare key of TOML: "." and ":" join the names of nested parts.
_PART_NAME = re.compile(r"[A-Za-z0-9_-]+")


def parse_component(kind: Kind, table: Mapping[str, object], where: str, *, weight: float | None = None) -> Component:
    """Validate the table of a component at `where`. Raises `RecipeError` for a wrong type, engine or setting.

    `weight` is that of a part of another component, where its table has none.
    """
    settings = dict(anchored(table, Path.cwd()))
    named = settings.pop("type", None)
    keys = ["engine", *["alias"] * (kind == "tool"), *["weight"] * (weight is not None)]
    given = {key: settings.pop(key) for key in keys if key in settings}
    if kind == "tool" and is_reference(named) and not settings and "engine" not in given:
        # It is imported when the tool is made, as with its long form.
        named, settings["function"] = "function", named
    named = located(kind, named, where)
    config = config_class(kind, named)
    if given.get("engine") is not None and config.asks == "never":
        raise RecipeError(
            f"{where}.engine = {given['engine']!r} would never be used, because {named!r} is a program",
            code="engine-not-used",
            fix="remove `engine`, or choose a type that asks a model",
        )
    parts = settings.get("parts")
    if "parts" in config.model_fields and issubclass(config, TasksConfig | RewardConfig) and isinstance(parts, Mapping):
        # Of a mixture or a composite: each is a component with a weight.
        wrong = [
            name for name, part in parts.items() if not isinstance(part, Mapping) or not _PART_NAME.fullmatch(name)
        ]
        if wrong or not parts:
            raise RecipeError(
                f"{where}.parts = {shown(parts)} has "
                + (f"{wrong[0]!r}, which is not a part" if wrong else "no parts"),
                code="parts-invalid",
                fix="give each part a name of letters, digits, _ and -, and a table with a `type`",
            )
        settings["parts"] = {
            name: parse_component(config.parts_kind, part, f"{where}.parts.{name}", weight=1.0)
            for name, part in parts.items()
        }
    about = {"kind": kind, "type": named, "config": validate(config, settings, where), "weight": weight, **given}
    return validate(Component, about, where)


def located(kind: Kind, named: object, where: str) -> str:
    """The `type` of the table at `where`, as a run records and finds it again. Raises `RecipeError` for an unknown one.

    A file's path is absolute. A package's function or object is its place, and a class of settings keeps its name.
    """
    named = anchored(named, Path.cwd())
    if isinstance(named, str) and (reference := installed_reference(kind, named)):
        offered = load(reference)
        return named if isinstance(offered, type) and issubclass(offered, Settings) else reference
    if not isinstance(named, str) or (named not in registered(kind) and not is_reference(named)):
        own = f'your own, e.g. type = "my_file.py:name"; {IN_A_PACKAGE}'
        raise RecipeError(
            f"{where} has no type" if named is None else f"no installed package has {where}.type = {shown(named)}",
            code="unknown-type",
            fix=did_you_mean(named, registered(kind))
            + (f"name one of: {', '.join(registered(kind))}; or {own}" if registered(kind) else f"name {own}"),
        )
    return named


def parse_strategy(text: str) -> StrategyConfig:
    """The strategy that a text such as "dser:K=8,T=4" names, with its settings. Raises `RecipeError`."""
    name, _, listed = text.partition(":")
    name, known = name.strip(), registered("strategy")
    what, fix = f"evaluation.strategy = {text!r} is not a strategy", "leave out the strategy"
    if name not in known:
        there = f"installed are: {', '.join(known)}" if known else "no installed package has one"
        raise RecipeError(what, code="strategy-invalid", fix=f"{did_you_mean(name, known)}{there}; or {fix}")
    config = config_class("strategy", name)
    assert issubclass(config, StrategyConfig)
    given = [part.partition("=")[::2] for part in listed.split(",")] if listed else []
    settings = {key.strip(): value.strip() for key, value in given}
    try:
        if len(settings) < len(given):
            raise ValueError("a setting is given twice")
        return config.model_validate(settings)
    except ValueError as error:
        raise RecipeError(what, code="strategy-invalid", fix=f"write {config.example}; or {fix}") from error


def validate(model: type[ModelT], table: object, where: str, *, of: str = "recipe") -> ModelT:
    """Build `model` from a table of a recipe, or of the file that `of` names for errors; of any other value an error.

    Raises `RecipeError`, which names every wrong key with its place and value.
    """
    try:
        return model.model_validate(dict(table) if isinstance(table, Mapping) else table)
    except ValidationError as failure:
        # A default that depends on another key is missing only because that key is wrong.
        errors = [error for error in failure.errors() if error["type"] != "default_factory_not_called"]
        # A list without its invalid items may seem too short.
        wrong = {error["loc"][:length] for error in errors for length in range(len(error["loc"]))}
        errors = [error for error in errors if error["type"] != "too_short" or error["loc"] not in wrong]
        problems = [
            ".".join(filter(None, [where, *map(str, error["loc"])]))
            # The input of a missing key is the whole table.
            + (f" = {shown(error['input'])}" if error["type"] != "missing" else "")
            + f": {error['msg'].removeprefix('Value error, ')}"
            for error in errors
        ]
        raise RecipeError(
            f"the {of} is invalid: " + "; ".join(problems),
            code="recipe-invalid",
            fix="".join(dict.fromkeys(_did_you_mean(model, error) for error in errors))
            + f"correct it in {'the recipe or with --set' if of == 'recipe' else 'that file'}; known keys here: "
            + ", ".join(_fields_around(model, errors[0]["loc"])),
        ) from failure


def _did_you_mean(model: type[BaseModel], error: ErrorDetails) -> str:
    """What a misspelt key, or value of a setting with few values, may mean."""
    if error["type"] == "extra_forbidden":
        *above, key = error["loc"]
        inner = ((name, cls) for name, field in model.model_fields.items() for cls in classes_in(field.annotation))
        found = [f"{name}.{key}" for name, cls in inner if key in getattr(cls, "model_fields", ())]
        if found and not above:
            return f"did you mean {' or '.join(found)}? "
        return did_you_mean(key, _fields_around(model, error["loc"]))
    if error["type"] == "literal_error":
        return did_you_mean(error["input"], re.findall("'([^']+)'", error.get("ctx", {}).get("expected", "")))
    return ""


def _fields_around(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys of the table that holds the last key of `location`."""
    for key in location[:-1]:
        field = model.model_fields.get(str(key))
        if field is None:
            # A place in a list.
            continue
        inner = [cls for cls in classes_in(field.annotation) if issubclass(cls, BaseModel)]
        if not inner:
            break
        model = inner[0]
    return list(model.model_fields)
