"""The base of everything that goes to disk."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Immutable, strict about unknown keys; compared by value."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
