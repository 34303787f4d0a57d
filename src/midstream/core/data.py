"""The base classes of settings and of everything that is written to disk, and checks of a model's JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, ValidationInfo, field_validator

JsonObject = dict[str, JsonValue]
JsonSchema = Mapping[str, Any]
_MAX_DEPTH = 32


class Frozen(BaseModel):
    """Immutable, compared by value; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Settings(Frozen):
    """Settings that a user writes: numbers are finite and no booleans; required texts and all paths are not empty."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_meant(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[info.field_name or ""]
        types = classes_in(field.annotation)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        if {int, float} & set(types) and bool not in types and any(isinstance(item, bool) for item in inner):
            raise ValueError("a number is needed, not true or false")
        if isinstance(value, str) and not value.strip() and (field.is_required() or Path in types):
            raise ValueError("it is empty")
        return value


def object_schema(**properties: JsonValue) -> JsonObject:
    """The JSON schema of an object with exactly these properties, by the schema of each."""
    schema: JsonObject = {"type": "object", "properties": properties, "required": [*properties]}
    return schema | {"additionalProperties": False}


def classes_in(annotation: object) -> list[type]:
    """The classes in an annotation such as `tuple[X, ...]` or `X | None`."""
    parts = get_args(annotation)
    if not parts:
        return [annotation] if isinstance(annotation, type) else []
    return [cls for part in parts for cls in classes_in(part)]


def problems_of(failure: ValidationError) -> list[str]:
    """Return the problem of each invalid value, with its place: "messages.0.role: Field required"."""
    found = []
    for error in failure.errors(include_url=False):
        place, reason = ".".join(map(str, error["loc"])), error["msg"].removeprefix("Value error, ")
        found.append(f"{place}: {reason}" if place else reason)
    return found


def unfit(value: object) -> str | None:
    """Return why a value from `json.loads` cannot be kept in a trajectory; None if it can."""
    if _deeper(value, _MAX_DEPTH):
        return f"more than {_MAX_DEPTH} levels"
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        # A number beyond floats, or half a surrogate pair.
        return str(error)
    return None


def _deeper(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(item, levels - 1) for item in inner)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A JSON value in which every text, number, truth value and null is changed."""
    if isinstance(value, Mapping):
        return {key: mapped(inner, change) for key, inner in value.items()}
    return [mapped(inner, change) for inner in value] if isinstance(value, list | tuple) else change(value)


def leaves(value: object) -> Iterator[Any]:
    """Every key of a JSON value, and every text, number, truth value and null in it."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if not isinstance(value, list):
        yield value
        return
    for inner in value:
        yield from leaves(inner)


def whole(value: Any) -> Any:
    """The same JSON with 3.0 as 3, which is an integer to JSON schema but not to Python."""
    return mapped(value, lambda leaf: int(leaf) if isinstance(leaf, float) and leaf.is_integer() else leaf)
