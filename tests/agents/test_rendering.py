"""Memory text: it parses back, only grows, and cannot be forged."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from midstream.agents.rendering import MemoryStyle, parse_memory, render_memory, to_json
from midstream.core.memory import Memory, MemoryRecord
from midstream.core.trajectory import Action, Command, Verdict

STYLES: tuple[MemoryStyle, ...] = ("json", "toon", "table")
TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<｜User｜>",
    "</s>",
    "<s>",
    "[INST]",
    "[/INST]",
    "[gMASK]",
    "<<SYS>>",
    "<think>",
    "</think>",
    "<answer>",
    "<start_of_turn>",
    "[TOOL_CALLS]",
)
HOSTILE = (
    *TOKENS,
    '{"turn":9}',
    '"',
    "\\",
    "\n",
    "\r",
    "\u2028",
    "\x85",
    "|",
    " | ",
    "- turn: 9",
    "  ",
    ": ",
    "null",
    "true",
    "7",
    "1e5",
    "NaN",
    "{}",
    "[",
    "#",
    "\x1f",
    "\ud800",
    "<",
    "\\u003c",
)
texts = st.one_of(st.text(), st.lists(st.sampled_from(HOSTILE), max_size=6).map("".join))
numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
optional_texts = st.none() | texts
records = st.builds(
    MemoryRecord,
    turn=st.integers(1, 99),
    action=st.builds(Action, sub_goal=texts, tool=texts, context=texts, error=optional_texts),
    command=st.none()
    | st.builds(
        Command,
        tool=texts,
        arguments=st.dictionaries(texts, values, max_size=3),
        code=optional_texts,
        error=optional_texts,
    ),
    result=texts,
    error=optional_texts,
    verdict=st.none() | st.builds(Verdict, result_valid=st.booleans(), memory_sufficient=st.booleans(), analysis=texts),
    elapsed_s=st.none() | st.floats(0, 1e6),
)
memories = st.lists(records, max_size=3).map(lambda made: Memory(records=tuple(made)))


@pytest.mark.parametrize("style", STYLES)
@given(memory=memories)
@settings(deadline=None, max_examples=80)
@example(memory=Memory(records=(MemoryRecord(turn=1, action=Action(), command=Command(tool="t", arguments={"": {}})),)))
def test_parse_gives_back_what_was_rendered(style: MemoryStyle, memory: Memory):
    assert parse_memory(render_memory(memory, style), style) == memory


@pytest.mark.parametrize("style", STYLES)
@given(memory=memories, record=records)
@settings(deadline=None, max_examples=60)
def test_rendering_only_grows(style: MemoryStyle, memory: Memory, record: MemoryRecord):
    longer = render_memory(memory.append(record), style)
    assert longer.startswith(render_memory(memory, style))
    assert longer.endswith("\n")


@pytest.mark.parametrize("style", STYLES)
@given(memory=memories)
@settings(deadline=None, max_examples=60)
def test_no_text_forges_a_token_or_a_record(style: MemoryStyle, memory: Memory):
    text = render_memory(memory, style)
    assert not [token for token in TOKENS if token in text]
    text.encode()  # no lone surrogate is left
    starts = {"json": r'^\{"turn":', "toon": r"^- turn: ", "table": r"^\d+ \| "}[style]
    lines = text.splitlines()
    assert sum(bool(re.match(starts, line)) for line in lines) == len(memory)
    assert len(lines) == text.count("\n")  # no other kind of line break is left


@given(value=values)
@settings(deadline=None)
def test_json_is_one_line_and_equal(value: object):
    line = to_json(value)
    assert json.loads(line) == value
    assert len(line.splitlines()) <= 1


def test_the_styles_read_as_documented():
    action = Action(sub_goal="find height", tool="search")
    memory = Memory(records=(MemoryRecord(turn=1, action=action, result="height 105"),))
    assert render_memory(memory, "json") == (
        '{"turn":1,"action":{"sub_goal":"find height","tool":"search"},"result":"height 105"}\n'
    )
    assert render_memory(memory, "toon") == (
        "- turn: 1\n  action:\n    sub_goal: find height\n    tool: search\n  result: height 105\n"
    )
    assert render_memory(memory, "table").splitlines() == [
        "turn | sub_goal | tool | context | command | result | error | more",
        "1 | find height | search |  | null | height 105 | null | {}",
    ]


def test_comparisons_stay_readable():
    assert to_json("a < b, x<3, [1, 2], [Smith 2010]") == '"a < b, x<3, [1, 2], [Smith 2010]"'


@pytest.mark.parametrize(("text", "style"), [("nonsense\n", "json"), ("   x\n", "toon"), ("h\na | b\n", "table")])
def test_other_text_is_refused(text: str, style: MemoryStyle):
    with pytest.raises(ValueError, match=r".+"):
        parse_memory(text, style)
