"""JSON in replies: found as it stands; repaired only in its punctuation."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from midstream.agents.formats import json_objects, repaired_objects

words = st.text(alphabet="abc é😀.-", min_size=1, max_size=8)
scalars = words | st.integers() | st.booleans() | st.none()
objects = st.dictionaries(words, scalars | st.lists(scalars, max_size=3) | st.dictionaries(words, scalars), min_size=1)
SHARDS = (
    *("{", "}", "[", "(", '"', "'", "“", ":", ",", "\\", "\n", "```", "```json\n"),
    *("true", "null", "query", "a b", "1"),
)


def repaired(reply: str) -> dict[str, Any] | None:
    found = list(repaired_objects(reply))
    assert len(found) <= 1
    return found[0] if found else None


@given(value=st.dictionaries(st.text(), st.integers() | st.text()), before=st.text(alphabet="ab \n"))
def test_any_object_is_found(value: dict[str, Any], before: str):
    assert next(json_objects(before + json.dumps(value))) == value


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("{'query': 'height'}", {"query": "height"}),
        ('{"query": "height",}', {"query": "height"}),
        ('So: {query: "height", "top_k": 3}', {"query": "height", "top_k": 3}),
        ('{"query": "height" "top_k": 3}', {"query": "height", "top_k": 3}),
        ("{“query”: “height”}", {"query": "height"}),
        ('{"query": "the "big" hill"}', {"query": 'the "big" hill'}),
        ('{"code": "a = 1\nb = \\"x\\" * a"}', {"code": 'a = 1\nb = "x" * a'}),
        ('```json\n{"ok": True, "none": None,}\n```\nDone.', {"ok": True, "none": None}),
        ('{"a": {"b": [1 2, -5,]},}', {"a": {"b": [1, 2, -5]}}),
    ],
)
def test_punctuation_is_repaired(reply: str, value: dict[str, Any]):
    assert list(json_objects(reply)) != [value]
    assert repaired(reply) == value


@pytest.mark.parametrize(
    "reply",
    [
        *("", "garbage", "I think {not} so", "[1, 2,]", '"query"'),  # nothing there
        *('{"query": "height of Am', '{"query": "height"', '{"a": [1, 2', '{"a": {"b": 1}'),  # broken off
        '{"query": "a} and more',
        '```json\n{"query": "heigh\n```',
        *('{"query": "x", "top_k": }', '{"query": , "top_k": 3}', "{'a': '', 'b': }"),  # a value is missing
        *('{"a": 50%}', '{"a": 0.50,}', '{"a": 1 2}', '{"a": true false}', '{"a": 1e999,}'),  # which value?
        '{"a": 1,} {"b": 2}',
        '{"a": "x", // a comment\n "b": "y"}',
        '{"a": "x",} and so on',
        "{'a': 'it's here'}",
        '{"a": "\\ud800",}',
        '{"ok": true, "analysis": "it said "ok": false" but", "ok": true,}',
    ],
)
def test_what_nobody_wrote_is_not_made_up(reply: str):
    assert repaired(reply) is None


@given(value=objects, data=st.data())
def test_a_reply_that_breaks_off_is_never_repaired(value: dict[str, Any], data: st.DataObject):
    whole = json.dumps(value, ensure_ascii=False)
    end = data.draw(st.integers(0, len(whole) - 1))
    assert repaired(whole[:end]) is None


@given(value=objects)
def test_what_is_repaired_has_the_reply_s_value(value: dict[str, Any]):
    """A comma too many, before the last brace, changes nothing."""
    broken = json.dumps(value, ensure_ascii=False)[:-1] + ",}"
    assert repaired(broken) in (value, None)


@given(reply=st.lists(st.sampled_from(SHARDS), max_size=30).map("".join))
@example(reply="{" * 20_000)
@example(reply='{"a":' * 400 + "1" + "}" * 400 + ",")
@example(reply="{'\"" * 300)
@example(reply="{" + "a," * 9_000)
def test_any_text_gives_nothing_or_an_object_of_its_words(reply: str):
    value = repaired(reply)
    if value is not None:
        said = json.dumps(value, ensure_ascii=False)
        assert Counter(filter(str.isalnum, said)) <= Counter(filter(str.isalnum, reply))
