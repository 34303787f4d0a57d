"""The base of everything that goes to disk, and what of a model's JSON may go there."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict

_MAX_DEPTH = 32


class Frozen(BaseModel):
    """Immutable, strict about unknown keys; compared by value."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


def unfit(value: object) -> str | None:
    """Why a value that `json.loads` gave cannot be kept in a trajectory, or None."""
    if _deeper(value, _MAX_DEPTH):
        return f"more than {_MAX_DEPTH} levels"
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # a number beyond floats, or half a surrogate pair
        return str(error)
    return None


def _deeper(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(item, levels - 1) for item in inner)
