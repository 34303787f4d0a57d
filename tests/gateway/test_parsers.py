"""Models' own texts: what a format renders is parsed to the same calls, and no text is an error or loses words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from midstream.engines.openai.reply import with_calls
from midstream.gateway.parsers import PARSERS

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,10}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(st.text(), VALUES, max_size=3)), min_size=1, max_size=3)
MARKS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<function=add>", "</function>", "<parameter=a>"),
    *("</parameter>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]abc", "<|python_tag|>", "add", "[", "]", "{", "}"),
    *('{"name": "add", "arguments": {}}', '{"name": "add", "parameters": {}}', "\n", " ", "\ud800"),
]
REPLIES = st.lists(st.sampled_from(MARKS) | st.text(max_size=5), max_size=14).map("".join)


def names_and_arguments(calls: tuple[tuple[str, str], ...]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


def letters(text: str) -> str:
    """A text without the marks of thoughts and without blanks."""
    return "".join(text.replace("<think>", " ").replace("</think>", " ").split())


@pytest.mark.parametrize("name", PARSERS)
@given(text=REPLIES)
@example(text="[" * 100_000)
@example(text='[TOOL_CALLS]add{"a": ' + "[" * 100_000)
def test_no_text_is_an_error(name: str, text: str) -> None:
    parsed = PARSERS[name](text)
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in parsed.calls)
    for use in parsed.tool_uses("7"):
        assert len(use.id) == 9
        assert use.id.isalnum()
        assert use.id.isascii()
    # Every letter of the reply outside of calls is in its text or thoughts.
    if not parsed.calls:
        assert letters(parsed.thoughts + parsed.text) == letters(text)


@pytest.mark.parametrize("name", PARSERS)
@given(text=st.text(st.characters(exclude_characters="<[{")))
def test_a_text_without_calls_is_unchanged(name: str, text: str) -> None:
    parsed = PARSERS[name](text)
    assert (parsed.text, parsed.thoughts, parsed.calls) == (text, "", ())


@given(CALLS, st.text(st.characters(exclude_characters="<")).map(str.strip))
def test_hermes(calls: list[tuple[str, dict[str, Any]]], words: str) -> None:
    sent = [{"function": {"name": name, "arguments": json.dumps(arguments)}} for name, arguments in calls]
    parsed = PARSERS["hermes"](with_calls(words, sent))
    assert names_and_arguments(parsed.calls) == calls
    assert parsed.text == words


# Qwen's template writes texts as they are, and all else but objects and lists as Python does.
PLAIN = st.text(st.characters(exclude_characters="<>\r\n", exclude_categories=["Cs"]))


@given(
    NAMES,
    st.dictionaries(PLAIN.map(str.strip).filter(bool), PLAIN | st.integers() | st.booleans() | st.lists(VALUES)),
)
def test_qwen3_coder(name: str, arguments: dict[str, Any]) -> None:
    lines = [f"<tool_call>\n<function={name}>"]
    for key, value in arguments.items():
        text = json.dumps(value).replace("<", r"\u003c") if isinstance(value, list) else str(value)
        lines.append(f"<parameter={key}>\n{text}\n</parameter>")
    lines.append("</function>\n</tool_call>")
    properties = {key: {"type": "string"} for key, value in arguments.items() if isinstance(value, str)}
    tool = {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}
    parsed = PARSERS["qwen3_coder"]("<think>\nSo.\n</think>\n\nI call.\n" + "\n".join(lines), [tool])
    assert names_and_arguments(parsed.calls) == [(name, arguments)]
    assert (parsed.text, parsed.thoughts) == ("I call.", "So.")


def test_qwen3_coder_without_schemas() -> None:
    text = (
        "<tool_call><function=add><parameter=a>1</parameter><parameter=b>\nx\n\ny\n</parameter><parameter=c>None"
        '</parameter><parameter=d>{"e": [true]}</parameter></function></tool_call>'
    )
    parsed = PARSERS["qwen3_coder"](text)
    assert names_and_arguments(parsed.calls) == [("add", {"a": 1, "b": "x\n\ny", "c": None, "d": {"e": [True]}})]


@given(NAMES, st.dictionaries(st.text(), VALUES, max_size=3), st.sampled_from(["", "<|python_tag|>", "\n"]))
def test_llama3_json(name: str, arguments: dict[str, Any], before: str) -> None:
    parsed = PARSERS["llama3_json"](before + json.dumps({"name": name, "parameters": arguments}))
    assert names_and_arguments(parsed.calls) == [(name, arguments)]
    assert parsed.text == ""


@given(CALLS, st.text(st.characters(exclude_characters="[")).map(str.strip), st.sampled_from(["list", "", "[ARGS]"]))
def test_mistral(calls: list[tuple[str, dict[str, Any]]], words: str, form: str) -> None:
    if form == "list":
        named = [{"name": name, "arguments": arguments, "id": "a1b2c3d4e"} for name, arguments in calls]
        text = f"[TOOL_CALLS] {json.dumps(named)}"
    else:
        text = "".join(f"[TOOL_CALLS]{name}{form}{json.dumps(arguments)}" for name, arguments in calls)
    parsed = PARSERS["mistral"](words + text)
    assert names_and_arguments(parsed.calls) == calls
    assert parsed.text == words


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": "1"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "a b", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add"'),
        ("qwen3_coder", "<tool_call><function=add><parameter=a>1</function></tool_call>"),
        ("qwen3_coder", '<tool_call>{"name": "add", "arguments": {}}</tool_call>'),
        ("llama3_json", '{"name": "Bob"}'),
        ("llama3_json", '{"name": "add", "parameters": [1]}'),
        ("llama3_json", 'I call {"name": "add", "parameters": {}}'),
        ("mistral", "[TOOL_CALLS]add"),
        ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": 1}]'),
        ("none", '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'),
    ],
)
def test_a_malformed_call_is_text(name: str, text: str) -> None:
    parsed = PARSERS[name](text)
    assert (parsed.text, parsed.calls) == (text, ())


@pytest.mark.parametrize(
    ("reply", "thoughts", "text"),
    [
        ("<think>\nSo.\n</think>\n\nIt is 3.", "So.", "It is 3."),
        ("So.\n</think>\n\nIt is 3.", "So.", "It is 3."),
        ("<think>So, <tool_call>", "So, <tool_call>", ""),
        ("The mark <think> begins thoughts.", "", "The mark <think> begins thoughts."),
        ("<think>\n\n</think>\n\nIt is 3.", "", "It is 3."),
    ],
)
def test_thoughts(reply: str, thoughts: str, text: str) -> None:
    parsed = PARSERS["hermes"](reply)
    assert (parsed.thoughts, parsed.text, parsed.calls) == (thoughts, text, ())


def test_calls_between_malformed_ones() -> None:
    good, bad = '<tool_call>{"name": "add", "arguments": {}}</tool_call>', "<tool_call>add</tool_call>"
    parsed = PARSERS["hermes"](f"I add. {bad}{good}{bad}")
    assert (parsed.text, parsed.calls) == (f"I add. {bad}{bad}", (("add", "{}"),))
    parsed = PARSERS["mistral"]("I add.[TOOL_CALLS]add{}[TOOL_CALLS]add")
    assert (parsed.text, parsed.calls) == ("I add.[TOOL_CALLS]add", (("add", "{}"),))


def test_ids_follow_from_answer_and_place() -> None:
    parsed = PARSERS["mistral"]("[TOOL_CALLS]add{}[TOOL_CALLS]add{}")
    ids = [use.id for use in parsed.tool_uses("7")]
    assert ids == [use.id for use in parsed.tool_uses("7")]
    assert len({*ids, *(use.id for use in parsed.tool_uses("8"))}) == 4
