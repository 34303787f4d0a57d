"""Errors by their codes: `raises("run-exists", path)`, `pytest.raises(RecipeError, check=coded("unknown-split"))`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from midstream.core.errors import MidstreamError


def coded(code: str, *values: object, fix: str = "") -> Callable[[MidstreamError], bool]:
    """A check that an error has this code, names these values and is fixed by what names `fix`."""

    def check(error: MidstreamError) -> bool:
        assert error.code == code, f"code {error.code!r}, not {code!r}: {error}"
        missing = [str(value) for value in values if str(value) not in error.what]
        assert not missing, f"{missing} not in {error.what!r}"
        assert fix in error.fix, f"{fix!r} not in {error.fix!r}"
        return True

    return check


@contextmanager
def raises(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[MidstreamError]]:
    """Expect an error of this code whose whole text, with cause and fix, names each of the values."""
    with pytest.raises(MidstreamError) as caught:
        yield caught
    assert caught.value.code == code
    for value in values:
        assert str(value) in str(caught.value)


def printed(standard_error: str) -> MidstreamError:
    """The error that a command has printed last, read back."""
    form = r"(?ms)^error\[([a-z0-9-]+)\]: (.*?)(?:\n  cause: (.*?))?(?:\n  fix: (.*))?\n\Z"
    match = re.search(form, standard_error)
    assert match, standard_error
    code, what, cause, fix = match.groups()
    return MidstreamError(what, code=code, cause=cause or "", fix=fix or "")
