"""What both benchmarks share: errors of what the user has installed, and the comparison of calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from midstream.core.errors import RecipeError
from midstream_worlds.functions import Invocation


def matched_calls(made: Sequence[Invocation], expected: Sequence[Invocation]) -> int:
    """Count the `expected` calls that were made, by name and arguments, in any order; each counts once."""
    left = list(made)
    count = 0
    for call in expected:
        if call in left:
            left.remove(call)
            count += 1
    return count


@contextmanager
def reading(what: str, fix: str) -> Iterator[None]:
    """Raise one kind of `RecipeError` for missing or broken parts of a benchmark that the user has installed."""
    try:
        yield
    except (ImportError, AttributeError, OSError, ValueError, TypeError, LookupError, SyntaxError) as error:
        raise RecipeError(
            f"{what} cannot be read: {type(error).__name__}: {error}", code="data-invalid", fix=fix
        ) from error
