"""What settings accept, and what of a model's JSON can be kept in a trajectory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from midstream.core.data import Settings, unfit
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


class Example(Settings):
    name: str
    path: Path | None = None
    note: str = ""
    count: int = 1
    share: float = 0.5
    shares: tuple[float, ...] = ()
    by_name: dict[str, float] = {}
    on: bool = False
    either: bool | int = 1


@pytest.mark.parametrize(
    "odd",
    [
        {"name": ""},
        {"name": " "},
        {"path": ""},
        {"count": True},
        {"share": False},
        {"share": float("inf")},
        {"share": "nan"},
        {"shares": [0.5, True]},
        {"shares": [float("nan")]},
        {"by_name": {"a": True}},
        {"by_name": {"a": float("-inf")}},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(odd: dict[str, Any]):
    with pytest.raises(ValidationError) as caught:
        Example.model_validate({"name": "a", **odd})
    assert [error["loc"][0] for error in caught.value.errors()] == list(odd)


def test_ordinary_settings_are_accepted():
    table = {"name": "a", "note": "", "count": 2, "share": 1, "shares": [1, 0.5], "on": True, "either": True}
    assert Example.model_validate(table).model_dump(include=set(table)) == {**table, "shares": (1.0, 0.5)}


def test_depth_is_bounded():
    value: object = 1
    for _ in range(31):
        value = [value]
    assert unfit(value) is None
    assert unfit([value]) == "more than 32 levels"
