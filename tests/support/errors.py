"""Errors by their codes: `pytest.raises(RecipeError, check=coded("unknown-split"))`."""

from __future__ import annotations

from collections.abc import Callable

from midstream.core.errors import MidstreamError


def coded(code: str, value: str = "") -> Callable[[MidstreamError], bool]:
    """A check that an error has this code and names this value."""
    return lambda error: error.code == code and value in error.what
