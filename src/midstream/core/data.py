"""The base class of everything that is written to disk, and the check of a model's JSON before it is kept."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict

_MAX_DEPTH = 32


class Frozen(BaseModel):
    """Immutable, compared by value; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


def unfit(value: object) -> str | None:
    """Why a value from `json.loads` cannot be kept in a trajectory; None if it can."""
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
