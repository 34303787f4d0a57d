"""Odd recipes: whatever stands in one, reading and checking it succeeds, or raises an error with a code and a fix."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import MidstreamError
from midstream.recipe.check import resolve
from midstream.recipe.files import read_table, shipped_recipes, to_toml
from midstream.recipe.schema import load_recipe, parse_recipe

RECIPES = [*shipped_recipes()]
HOSTILE: list[Any] = [
    "", " ", ".", "/", "/dev/null", "/nowhere/at/all", "x" * 5000, "a\nb", "[INST]", "{{query}}", "é\u202e", "a:b",
    "-1", "inf", "nan", "true", "http://", "http://[::1", "http://a:99999", "a.py:b", "os:system", "tiny", "prompted",
    "9" * 400, True, False, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 0.0, -0.0, 1e-320, 1e308, -1.5, math.inf, math.nan,
    [], [[]], [1], ["a", "a"], [True], [math.nan], [{}], {}, {"type": "tiny"}, {"type": 3}, {"a": {"b": []}}, {"": 1},
]  # fmt: skip
ODD_LINES = ("[" * 9999, "=", "a" + ".a" * 9999 + "=1", "x=" + "9" * 5000, "\0", "[tools]", 'extends="/"')
NAMES = ("", "type", "engine", "seed", "a.b", "é", "\n", '"', "model", "parts", "weight", "extends", "x" * 300)
Table = dict[str, Any]
Change = Callable[[Table, str], object]  # of a key in a table

changes: st.SearchStrategy[Change] = st.one_of(
    st.sampled_from(HOSTILE).map(lambda value: lambda table, key: table.update({key: value})),
    st.sampled_from(NAMES).map(lambda name: lambda table, key: table.update({name: table.pop(key)})),
    st.sampled_from(NAMES).map(lambda name: lambda table, key: table.update({name: table[key]})),
)


def places(table: Table, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every key of a table and of the tables in it."""
    found = [(*prefix, key) for key in table]
    for key, value in table.items():
        found += places(value, (*prefix, key)) if isinstance(value, dict) else []
    return found


def edited(table: Table, path: tuple[str, ...], change: Change) -> Table:
    """A copy of the table with the key at `path` changed."""
    table = dict(table)
    if len(path) == 1:
        change(table, path[0])
    else:
        table[path[0]] = edited(table[path[0]], path[1:], change)
    return table


def is_read_or_refused(read: Callable[[], object]) -> bool:
    """Whether `read` succeeds or raises an error that a user can act on; any other exception is raised."""
    try:
        read()
    except MidstreamError as error:
        return bool(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", error.code) and error.fix and len(str(error)) < 20_000)
    return True


@given(data=st.data(), name=st.sampled_from(RECIPES))
def test_an_edited_recipe_is_read_or_refused(name: str, data: st.DataObject):
    table = load_recipe(name).table() if data.draw(st.booleans()) else read_table(name)
    for _ in range(data.draw(st.integers(1, 3))):
        table = edited(table, data.draw(st.sampled_from(places(table))), data.draw(changes))
    assert is_read_or_refused(lambda: resolve(parse_recipe(table)))


@given(data=st.data(), name=st.sampled_from(RECIPES))
def test_a_recipe_with_odd_lines_is_read_or_refused(name: str, data: st.DataObject, tmp_path_factory):
    lines = to_toml(read_table(name)).splitlines()
    odd = st.sampled_from(
        ["[" * 9999, "=", "a" + ".a" * 9999 + "=1", "x=" + "9" * 5000, "\0", "[tools]", 'extends="/"']
    )
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        lines.insert(place, data.draw(odd | st.sampled_from(lines) | st.text(max_size=20)))
    path: Path = tmp_path_factory.getbasetemp() / "odd.toml"
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    assert is_read_or_refused(lambda: resolve(load_recipe(str(path))))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_of_every_recipe_with_every_odd_value_is_read_or_refused(name: str):
    whole = load_recipe(name).table()
    for path in places(whole):
        for value in HOSTILE:
            table = edited(whole, path, lambda table, key, value=value: table.update({key: value}))
            assert is_read_or_refused(lambda table=table: resolve(parse_recipe(table))), (path, value)
