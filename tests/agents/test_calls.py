"""Calls as a policy writes them: valid arguments, or what is wrong, and never anything run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from midstream.agents.calls import WrittenCall, read_calls, tools_by_name
from midstream.core.errors import RecipeError
from midstream.core.stream import Block
from midstream.core.stream_template import Template, load_template
from midstream.core.tool import ToolResult
from midstream.core.trajectory import Command

TEXT = load_template("artist-math")
JSON = load_template("artist-function-calling")


@dataclass
class Tank:
    """A function with a number and a text."""

    name: str = "fill"
    description: str = "fills"
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {
            "type": "object",
            "properties": {"litres": {"type": "number"}, "fuel": {"type": "string"}},
            "required": ["litres"],
        }
    )
    timeout_s: float = 1.0
    output_tokens: int = 100

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        raise AssertionError("reading a call runs nothing")

    async def close(self) -> None: ...


CODE = Tank("python", parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]})
TOOLS = {"fill": Tank(), "status": Tank("status", parameters={"type": "object", "properties": {}})}


def read(body: str, template: Template = JSON, tool: str = "", closed: bool = True) -> list[WrittenCall]:
    tools = {"python": CODE} if template is TEXT else TOOLS
    return read_calls([Block(kind="call", body=body, tool=tool, closed=closed)], template, tools)


def problem(call: WrittenCall) -> str:
    return call.unreadable or (call.command.error if call.command and call.command.error else "")


# --- text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("print(1)", "print(1)"),
        ("\n  print(1)\n", "print(1)"),
        ("\n    if x:\n        y\n", "if x:\n    y"),
        ("\n```python\nprint(1)\n```\n", "print(1)"),
        ("```\nprint('```')\n```", "print('```')"),
        ("", ""),
    ],
)
def test_a_text_is_the_one_argument(body, code):
    [call] = read(body, TEXT)
    assert call.command == Command(tool="python", arguments={"code": code})
    assert (call.action.tool, call.action.context, call.action.error) == ("python", body.strip(), None)


def test_a_fence_that_never_ends_is_read_in_linear_time():
    body = "```\n" + 1_000_000 * " " + "x"  # where each space is tried as the end's first, this takes an hour
    [call] = read(body, TEXT)
    assert call.command == Command(tool="python", arguments={"code": body})


def test_a_text_may_be_no_valid_argument():
    marks = TEXT.model_copy(update={"tool": "fill"})
    [call] = read_calls([Block(kind="call", body="a lot")], marks, TOOLS)
    assert call.command is not None
    assert call.command.error == 'invalid arguments for fill: at $.litres: "a lot" is not of type "number"'
    assert call.action.error is None


def test_half_a_surrogate_pair_is_replaced():
    [call] = read("print('\ud800')", TEXT)
    assert call.command == Command(tool="python", arguments={"code": "print('?')"})


# --- json ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "fill", "arguments": {"litres": 20}}',
        '[{"name": "fill", "arguments": {"litres": 20}}]',
        '\n```json\n[{"name": "fill", "arguments": {"litres": 20}}]\n```\n',
    ],
)
def test_json_names_its_tool(body):
    [call] = read(body)
    assert call.command == Command(tool="fill", arguments={"litres": 20})
    assert call.action.context == '{"name": "fill", "arguments": {"litres": 20}}'


def test_a_list_is_several_calls_each_read_for_itself():
    filled, unknown, status = read('[{"name": "fill", "arguments": {}}, {"name": "fly"}, {"name": "status"}]')
    assert problem(filled) == 'invalid arguments for fill: "litres" is a required property'
    assert problem(unknown) == "no tool is called 'fly' (tools: fill, status)"
    assert (unknown.command, unknown.action.tool) == (None, "fly")
    assert status.command == Command(tool="status", arguments={})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "no JSON"),
        ("fill(20)", "no JSON"),
        ('{"name": "fill", "arguments": {"litres": 20}', "no JSON"),
        ('{"name": "fill", "arguments": {"litres": NaN}}', "not JSON compliant"),
        ('{"name": "fill", "arguments": "20"}', "bad arguments"),
        ('{"name": "fill", "litres": 20}', "nothing else: litres"),
        ('{"name": 3}', "a call is an object"),
        ("[[]]", "a call is an object"),
        ("[]", "the list of calls is empty"),
        ("[" * 100_000, "no JSON"),
        ('"\\ud800"', "surrogates"),
    ],
)
def test_json_that_cannot_be_read(body, said):
    [call] = read(body)
    assert said in call.unreadable
    assert call.command is None


def test_a_call_that_is_never_closed():
    [call] = read('{"name": "status"}', closed=False)
    assert call.unreadable == "the call is never closed: </tool> is missing"


def test_marks_that_name_the_tool_need_no_name_inside():
    template = JSON.model_copy(update={"tool": "status"})
    assert read('{"name": "status"}', template)[0].command == Command(tool="status")
    assert "no tool is called 'fill'" in read('{"name": "fill"}', template)[0].unreadable


# --- any body -----------------------------------------------------------------------------------------------------


BODIES = st.one_of(
    st.text(), st.lists(st.sampled_from("[]{}(),:'\"\\ \n=*.1ef-")).map("".join), st.sampled_from(["{}", "[1]"])
)


@given(st.sampled_from([TEXT, JSON]), BODIES, st.booleans())
def test_any_body_gives_calls_that_can_be_kept(template, body, closed):
    found = read(body, template, closed=closed)
    assert found
    for call in found:
        assert call.unreadable or call.command
        call.action.model_dump_json()
        if call.command is not None:
            call.command.model_dump_json()


# --- tools by name ------------------------------------------------------------------------------------------------


def test_tools_go_by_the_names_in_the_marks():
    search = load_template("search-r1")
    assert tools_by_name([CODE], search, {"search": "python"}) == {"search": CODE}
    assert tools_by_name(list(TOOLS.values()), JSON, {}) == TOOLS
    assert tools_by_name(list(TOOLS.values()), JSON, {"tank": "fill"}).keys() == {"tank", "status"}


@pytest.mark.parametrize(
    ("tools", "template", "names", "code", "named"),
    [
        ([CODE], load_template("search-r1"), {}, "unknown-tool", "'search'"),
        ([], TEXT, {}, "unknown-tool", "'python'"),
        ([CODE], TEXT, {"python": "snake"}, "unknown-tool", "'python'"),
        ([CODE, Tank()], TEXT, {}, "template-mismatch", "fill"),
        ([TOOLS["status"]], TEXT, {"python": "status"}, "template-mismatch", "python"),
        ([Tank("wiki"), Tank("search")], JSON, {"search": "wiki"}, "name-clash", "wiki, search"),
        ([Tank(), Tank()], JSON, {}, "name-clash", "fill, fill"),
        ([Tank()], JSON, {"tank": "fill", "fuel": "fill"}, "unknown-tool", "'tank'"),
    ],
)
def test_tools_that_do_not_fit_the_marks(tools, template, names, code, named):
    with pytest.raises(RecipeError) as caught:
        tools_by_name(tools, template, names)
    assert caught.value.code == code
    assert named in caught.value.what
