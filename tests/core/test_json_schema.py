"""Arguments under JSON schemas of others: what is wrong with them, and that every check ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
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
from midstream.core.json_schema import _FORKER, CLOCK_S, LONGEST, UNFINISHED, schema_error, schema_error_async
from support.errors import coded
from support.processes import gone

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

LONGEST_S = 15 * CLOCK_S  # a second of CPU time on a machine that does much else


def test_nested_schemas_are_followed():
    assert schema_error({"root": {"size": 1, "inner": [{"size": 2}]}}, TREE) is None
    assert schema_error({"root": {"size": 1, "inner": [{"size": "2"}]}}, TREE) == (
        "at $.root.inner[0].size: '2' is not of type 'integer'"
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
        ({"type": "objekt"}, "'objekt'"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, "'('"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, "/$defs/gone"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "RecursionError"),
        ({"$schema": 5}, "AttributeError"),
        ({"$schema": {"a": 1}}, "TypeError"),
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


# --- checks that never end --------------------------------------------------------------------------------------------

DOUBLING = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)} | {"d40": {}}
NESTED = r"^([a-zA-Z0-9]+\s?)+$"  # needs 2^45 steps for 45 letters and a "!"
ENDLESS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "definitions": ({"$ref": "#/$defs/d0", "$defs": DOUBLING}, {}),
    "definitions of a property": ({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": DOUBLING}, {"a": 1}),
    "pattern": ({"properties": {"a": {"pattern": NESTED}}}, {"a": 45 * "a" + "!"}),
    "pattern of names": ({"patternProperties": {NESTED: {}}}, {45 * "a" + "!": 1}),
    "pattern behind a default": (
        {"properties": {"a": {"$ref": "#/default"}}, "default": {"pattern": NESTED}},
        {"a": 45 * "a" + "!"},
    ),
    "unevaluated": ({"$ref": "#/$defs/d0", "$defs": DOUBLING, "unevaluatedProperties": False}, {"a": 1}),
    "unique items": (
        {"properties": {"a": {"uniqueItems": True}}},
        {"a": [[i] if i % 2 else {"a": i} for i in range(9999)]},
    ),
    "another dialect": (
        {
            "$schema": "http://json-schema.org/draft-03/schema#",
            "properties": {"a": {"type": [{"pattern": NESTED}]}},
        },
        {"a": 45 * "a" + "!"},
    ),
    "memory": (
        {
            "properties": {"a": {"$ref": "#/$defs/d0"}},
            "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 9} for i in range(9)} | {"d9": False},
        },
        {"a": 999 * "a"},
    ),
}


@pytest.mark.parametrize(
    "names", [["definitions", "pattern"], pytest.param([*ENDLESS], marks=pytest.mark.slow)], ids=["two", "all"]
)
def test_checks_that_never_end_are_ended_while_the_event_loop_continues(names: list[str]):
    """Several at once, and one that ends."""
    endless = {name: ENDLESS[name] for name in names}

    async def longest_tick() -> float:
        assert await schema_error_async({"a": "a"}, {"properties": {"a": {"pattern": NESTED}}}) is None
        longest, start = 0.0, time.monotonic()
        checks = [asyncio.create_task(schema_error_async(arguments, schema)) for schema, arguments in endless.values()]
        innocent = asyncio.create_task(schema_error_async({"a": "a"}, {"properties": {"a": {"pattern": NESTED}}}))
        while not all(check.done() for check in checks):
            last = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - last)
        assert time.monotonic() - start < LONGEST_S
        assert dict(zip(endless, [check.result() for check in checks], strict=True)) == dict.fromkeys(
            endless, UNFINISHED
        )
        assert innocent.result() is None
        return longest

    assert asyncio.run(longest_tick()) < LONGEST_S / 2


WAITING = """
import asyncio, sys
from midstream.core import json_schema
async def main():
    schema = {"properties": {"a": {"pattern": r"^([a-z]+ ?)+$"}}}
    while True:
        check = asyncio.create_task(json_schema.schema_error_async({"a": 45 * "a" + "!"}, schema))
        await asyncio.sleep(0.01)
        print(json_schema._FORKER._process.pid, flush=True)
        await check
asyncio.run(main())
"""


def test_ctrl_c_ends_a_program_that_checks_and_leaves_no_process_behind():
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        forker = int(process.stdout.readline())
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors
    assert gone(forker)


def test_a_program_that_was_killed_is_started_again():
    schema = {"properties": {"a": {"pattern": "^a$"}}}
    assert schema_error({"a": "a"}, schema) is None
    assert _FORKER._process is not None
    _FORKER._process.kill()
    _FORKER._process.wait()
    assert schema_error({"a": "b"}, schema) == "at $.a: 'b' does not match '^a$'"


def test_arguments_have_a_length():
    error = schema_error({"a": LONGEST * "a"}, {"properties": {"a": {"pattern": "^a$"}}})
    assert error == f"they have {LONGEST + 9} characters, more than {LONGEST}"


def _longer(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return (
        st.tuples(inner, inner).map("|".join)
        | st.tuples(inner, st.sampled_from(["*", "+", "{2,90}", "*?"])).map(lambda pair: f"({pair[0]}){pair[1]}")
        | st.tuples(inner, inner).map("".join)
    )


PATTERNS = st.recursive(st.sampled_from(["a", "[ab]", r"\s?", ".", "a*", "(?=a)"]), _longer, max_leaves=6).map(
    "^{}$".format
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


def _ends(definitions: list[dict[str, Any]], value: JsonValue) -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {f"d{place}": definition for place, definition in enumerate(definitions)},
    }
    start = time.monotonic()
    with suppress(ToolServerError):  # an invalid schema
        schema_error({"a": value}, schema)
    assert time.monotonic() - start < LONGEST_S


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.lists(SCHEMAS, min_size=6, max_size=6), VALUES)
def test_every_check_keeps_its_clock(definitions: list[dict[str, Any]], value: JsonValue):
    _ends(definitions, value)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(SCHEMAS, min_size=6, max_size=6), VALUES)
def test_many_more_checks_keep_their_clock(definitions: list[dict[str, Any]], value: JsonValue):
    _ends(definitions, value)
