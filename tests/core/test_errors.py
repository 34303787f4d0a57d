"""Three lines: what, cause, fix."""

from __future__ import annotations

import pickle

import pytest

from midstream.core import errors
from midstream.core.errors import EngineError, InfrastructureError, MidstreamError, RecipeError, UsageError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MidstreamError)]


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_what_cause_fix(kind):
    error = kind("steps = -1 is too few", cause="it was mistyped", fix="set steps to 1 or more")
    assert str(error).splitlines() == [
        "steps = -1 is too few",
        "  cause: it was mistyped",
        "  fix: set steps to 1 or more",
    ]
    assert str(kind("alone")) == "alone"


@pytest.mark.parametrize("kind", KINDS)
def test_crosses_processes(kind):
    error = kind("a", cause="b", fix="c")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.what, copy.cause, copy.fix) == (str(error), "a", "b", "c")


def test_user_errors_are_not_infrastructure_errors():
    assert issubclass(RecipeError, UsageError)
    assert issubclass(EngineError, InfrastructureError)
    assert not issubclass(UsageError, InfrastructureError)
    assert not issubclass(InfrastructureError, UsageError)
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in KINDS)
