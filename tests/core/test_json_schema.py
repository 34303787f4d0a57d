"""Arguments under JSON schemas of others: what is wrong with them, and that every check ends."""

from __future__ import annotations

import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from midstream.core.errors import ToolServerError
from midstream.core.json_schema import UNFINISHED, schema_error, unusable_schema
from support.errors import coded

TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "required": ["root"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"size": {"type": "integer"}, "inner": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["size"],
            "additionalProperties": False,
        }
    },
}

LONGEST_S = 15.0  # a second of CPU time on a machine that does much else


def test_nested_schemas_are_followed():
    assert schema_error({"root": {"size": 1, "inner": [{"size": 2}]}}, TREE) is None
    assert schema_error({"root": {"size": 1, "inner": [{"size": "2"}]}}, TREE) == (
        'at $.root.inner[0].size: "2" is not of type "integer"'
    )
    error = schema_error({"root": {"size": 1, "inner": [{"size": 2, "x": 1}]}}, TREE)
    assert error is not None
    assert "('x' was unexpected)" in error


def test_arguments_that_a_pattern_names_are_known():
    schema = {"type": "object", "properties": {"a": {}}, "patternProperties": {"^x-": {"type": "string"}}}
    assert schema_error({"a": 1, "x-b": "c"}, schema) is None


def test_a_schema_that_changes_is_compiled_again():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert schema_error({"a": 1}, schema) is not None
    schema["properties"] = {"a": {"type": "integer"}}
    assert schema_error({"a": 1}, schema) is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "objekt"}, '"objekt"'),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, '"("'),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, "/$defs/gone"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "itself"),
        ({"$schema": 5}, "5"),
        ({"$schema": {"a": 1}}, "1"),
    ],
)
def test_a_broken_schema_is_the_tool_s_fault(schema: dict[str, Any], value: str):
    with pytest.raises(ToolServerError, check=coded("tool-schema-invalid", value)):
        schema_error({"a": "x"}, schema)


def test_a_remote_reference_is_refused_and_never_fetched():
    """The server is there, and would answer: nobody asks it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        schema = {"properties": {"a": {"$ref": f"http://127.0.0.1:{server.server_port}/schema.json"}}}
        with pytest.raises(ToolServerError, check=coded("tool-schema-invalid", "http://127.0.0.1:")):
            schema_error({"a": "x"}, schema)
        server.shutdown()
        thread.join()
    assert asked == []


# --- checks that would never end --------------------------------------------------------------------------------------

DOUBLING = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)} | {"d40": {}}
NESTED = r"^([a-zA-Z0-9]+\s?)+$"  # needs 2^45 steps for 45 letters and a "!" with backtracking
ENDLESS: dict[str, dict[str, Any]] = {
    "definitions": {"$ref": "#/$defs/d0", "$defs": DOUBLING},
    "definitions of a property": {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": DOUBLING},
    "unevaluated": {"$ref": "#/$defs/d0", "$defs": DOUBLING, "unevaluatedProperties": False},
    "dependent schemas with the names of keywords": {
        "$ref": "#/$defs/d0",
        "$defs": {
            f"d{i}": {"dependentSchemas": {"default": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}}}
            for i in range(40)
        }
        | {"d40": {}},
    },
    "many patterns": {"patternProperties": {rf"\p{{L}}{{20}}x{i}": {} for i in range(300)}},
    "a look ahead": {"properties": {"a": {"pattern": "(?=a*b)c"}}},
    "a part with an id": {"$ref": "#/$defs/d0", "$defs": {"d0": {"$id": "other", "$defs": DOUBLING}}},
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_schema_without_an_end_is_unusable(name: str):
    assert unusable_schema(ENDLESS[name]) is not None
    with pytest.raises(ToolServerError, check=coded("tool-schema-invalid")):
        schema_error({"a": 1}, ENDLESS[name])
    assert unusable_schema(TREE) is None


def test_arguments_without_an_end_are_refused():
    node = {"properties": {"a": {"allOf": [{"$ref": "#/$defs/n"}] * 2}}}
    schema, arguments = {"$ref": "#/$defs/n", "$defs": {"n": node}}, {}
    for _ in range(30):
        arguments = {"a": arguments}
    assert schema_error(arguments, schema) == UNFINISHED


def test_small_recursive_schemas_take_deep_arguments():
    """A filter as servers have it: only the branches that the arguments have are counted."""
    each = {"type": "array", "items": {"$ref": "#/$defs/filter"}}
    filters = {"and": each, "or": each, "not": {"$ref": "#/$defs/filter"}, "name": {"type": "string"}}
    schema = {
        "type": "object",
        "properties": {"filter": {"$ref": "#/$defs/filter"}},
        "$defs": {"filter": {"type": "object", "properties": filters, "additionalProperties": False}},
    }
    arguments: dict[str, Any] = {"name": "x"}
    for _ in range(12):
        arguments = {"and": [{"or": [arguments, {"name": "y"}]}, {"not": {"name": "z"}}]}
    assert schema_error({"filter": arguments}, schema) is None
    arguments = {"and": [arguments, {"name": 1}]}
    assert schema_error({"filter": arguments}, schema) == 'at $.filter.and[1].name: 1 is not of type "string"'


def test_what_a_reference_may_be():
    integers = {"R<int>": {"type": "integer"}}
    for reference in ("#/$defs/R%3Cint%3E", "https://host/s#/$defs/R%3Cint%3E"):
        schema = {"$id": "https://host/s", "properties": {"a": {"$ref": reference}}, "$defs": integers}
        assert schema_error({"a": 1}, schema) is None
    data = {"properties": {"a": {"enum": [{"$ref": "#nowhere"}, 1]}}, "$schema": "https://host/dialect"}
    assert schema_error({"a": 1}, data) is None


@pytest.mark.parametrize("arguments", [{"a": {1, 2}}, {1: 2}, {"\ud800": 1}, {"a": float("nan")}], ids=str)
def test_what_is_no_json_is_wrong(arguments: Any):
    assert schema_error(arguments, {"properties": {"a": {"type": "integer"}}, "additionalProperties": False})


def test_what_is_no_schema_is_unusable():
    values: list[Any] = [True, 3, [], None]
    assert all(unusable_schema(value) for value in values)


SLOW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pattern": ({"properties": {"a": {"pattern": NESTED}}}, {"a": 45 * "a" + "!"}),
    "pattern of names": (
        {"patternProperties": {NESTED: {}}, "additionalProperties": False},
        {45 * "a" + "!": 1},
    ),
    "pattern behind a default": (
        {"properties": {"a": {"$ref": "#/default"}}, "default": {"pattern": NESTED}},
        {"a": 45 * "a" + "!"},
    ),
    "unique items": (
        {"properties": {"a": {"uniqueItems": True}}},
        {"a": [[i] if i % 2 else {"a": i} for i in range(9999)] * 2},
    ),
    "alternatives": (
        {
            "properties": {"a": {"items": {"$ref": "#/$defs/d0"}}},
            "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 6} for i in range(4)} | {"d4": False},
        },
        {"a": ["z"] * 5},
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_what_is_slow_elsewhere_ends_here(name: str):
    schema, arguments = SLOW[name]
    start = time.monotonic()
    assert schema_error(arguments, schema) not in (None, UNFINISHED)
    assert time.monotonic() - start < LONGEST_S


def test_a_reference_that_is_no_pointer_is_refused():
    schema = {"properties": {"a": {"$ref": "#here"}}, "$defs": {"b": {"$anchor": "here"}}}
    with pytest.raises(ToolServerError, check=coded("tool-schema-invalid", "'#here'")):
        schema_error({"a": 1}, schema)


QUANTIFIED = st.tuples(
    st.lists(st.sampled_from(["a", "[ab]", r"\s?", ".", "a*", "(?=a)"]), min_size=1, max_size=3).map("|".join),
    st.sampled_from(["", "*", "+", "{2,90}", "*?"]),
).map(lambda pair: f"({pair[0]}){pair[1]}")
PATTERNS = st.tuples(st.lists(QUANTIFIED, min_size=1, max_size=3).map("".join), st.sampled_from(["", "+", "*"])).map(
    lambda pair: f"^({pair[0]}){pair[1]}$"
)
KEYS = st.sampled_from(["a", "b", 30 * "a" + "!"])
NUMBERS = st.sampled_from([0, 1, -1, 7.5, 1e-300, 10**4000, 1e308])
PLAIN = st.sampled_from([None, True, "", 30 * "a" + "!", 9000 * "a", 10**4000]) | NUMBERS
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner), max_leaves=12
) | (st.integers(1, 3000).map(lambda size: [[i] if i % 2 else {"a": i} for i in range(size)]))
SCHEMAS = st.recursive(
    st.sampled_from(["string", "array", "object", "number"]).map(lambda name: {"type": name})
    | PATTERNS.map(lambda pattern: {"pattern": pattern})
    | st.integers(0, 5).map(lambda place: {"$ref": f"#/$defs/d{place}"})
    | st.integers(1, 5000).map(lambda size: {"enum": [[[i]] for i in range(size)]})
    | NUMBERS.filter(lambda number: number > 0).map(lambda number: {"multipleOf": number})
    | st.sampled_from([{"uniqueItems": True}, {"unevaluatedProperties": False}, {"required": ["a"]}, {"const": {}}]),
    lambda inner: (
        st.tuples(st.sampled_from(["allOf", "anyOf", "oneOf"]), st.lists(inner, min_size=1, max_size=9)).map(
            lambda pair: {pair[0]: pair[1] * 3}
        )
        | st.tuples(
            st.sampled_from(["items", "not", "additionalProperties", "contains", "if", "propertyNames"]), inner
        ).map(lambda pair: dict([pair]))
        | st.dictionaries(KEYS, inner).map(lambda members: {"properties": members})
        | st.dictionaries(PATTERNS, inner).map(lambda members: {"patternProperties": members})
        | st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1])
    ),
    max_leaves=20,
)


@settings(deadline=None, max_examples=12)
@given(st.lists(SCHEMAS, min_size=6, max_size=6), VALUES)
def test_every_check_ends(definitions: list[dict[str, Any]], value: JsonValue):
    schema = {
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {f"d{place}": definition for place, definition in enumerate(definitions)},
    }
    start = time.monotonic()
    with suppress(ToolServerError):  # an invalid schema
        schema_error({"a": value}, schema)
    assert time.monotonic() - start < LONGEST_S
