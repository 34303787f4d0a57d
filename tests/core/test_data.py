"""What of a model's JSON can be kept in a trajectory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.data import unfit
from midstream.core.trajectory import ToolCall

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
)


@given(st.dictionaries(st.text(st.characters()), json_like, max_size=4))
def test_what_fits_can_be_stored(arguments: dict[str, Any]):
    if unfit(arguments) is None:
        call = ToolCall(tool="echo", arguments=arguments, status="ok", text="")
        assert ToolCall.model_validate_json(call.model_dump_json()) == call


@pytest.mark.parametrize(
    ("value", "why"),
    [(float("inf"), "Out of range"), (float("nan"), "Out of range"), ({"\ud800": 1}, "surrogates not allowed")],
)
def test_what_does_not_fit(value: object, why: str):
    problem = unfit([value])
    assert problem is not None
    assert why in problem


def test_depth_is_bounded():
    value: object = 1
    for _ in range(31):
        value = [value]
    assert unfit(value) is None
    assert unfit([value]) == "more than 32 levels"
