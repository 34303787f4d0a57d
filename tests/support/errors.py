"""Errors by their codes: `raises("run-exists", path)`, `pytest.raises(RecipeError, check=coded("unknown-split"))`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from midstream.core.errors import MidstreamError


def coded(code: str, value: str = "") -> Callable[[MidstreamError], bool]:
    """A check that an error has this code and names this value."""
    return lambda error: error.code == code and value in error.what


@contextmanager
def raises(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[MidstreamError]]:
    """Expect an error of this code whose whole text, with cause and fix, names each of the values."""
    with pytest.raises(MidstreamError) as caught:
        yield caught
    assert caught.value.code == code
    for value in values:
        assert str(value) in str(caught.value)
