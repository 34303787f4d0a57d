"""OpenAI's Responses API, checked with the models of OpenAI's own library."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from midstream.gateway.forms import ChatReply, ChatRequest, FormError
from midstream.gateway.responses import Stream, read, write

ADD = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}


def asked(**others: Any) -> dict[str, Any]:
    return {"model": "m", "input": "Hi", **others}


def data_of(blocks: Iterable[str]) -> list[Any]:
    """The JSON of every event, whose name is its type."""
    found = []
    for block in blocks:
        name, data = block.removesuffix("\n\n").split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def call(identifier: str) -> dict[str, Any]:
    return {"id": identifier, "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_items_become_messages() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Add 1"}]},
        {"type": "reasoning", "id": "r1", "summary": [], "content": [{"type": "reasoning_text", "text": "So."}]},
        {
            "type": "message",
            "id": "m1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I add.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}', "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Again."}]},
        {"type": "function_call", "call_id": "c3", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c3", "output": "3"},
        {"role": "user", "content": "Thanks."},
    ]
    messages = read(asked(instructions="Be kind.", input=items)).messages
    assert [message.wire() for message in messages] == [
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Add 1"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "So.",
            "tool_calls": [call("c1"), call("c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": None, "reasoning_content": "Again.", "tool_calls": [call("c3")]},
        {"role": "tool", "tool_call_id": "c3", "content": "3"},
        {"role": "user", "content": "Thanks."},
    ]
    assert messages[1].role == "system"


def test_every_setting() -> None:
    body = asked(
        tools=[ADD],
        tool_choice="auto",
        temperature=0.5,
        top_p=1,
        max_output_tokens=8,
        text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "array"}}, "verbosity": "low"},
        stream=True,
        store=True,
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "low"},
        previous_response_id=None,
        truncation="disabled",
        background=False,
    )
    plain = {key: ADD[key] for key in ("name", "description", "parameters")}
    assert read(body) == ChatRequest(
        model="m",
        messages=read(asked()).messages,
        tools=({"type": "function", "function": plain},),
        sampling={"temperature": 0.5, "top_p": 1, "max_tokens": 8},
        options={"reasoning_effort": "low", "verbosity": "low"},
        json_schema={"type": "array"},
        stream=True,
    )
    assert read(body | {"tool_choice": "none"}).tools == ()
    named = {"tool_choice": {"type": "function", "function": {"name": "add"}}}
    assert read(asked(tools=[ADD], tool_choice={"type": "function", "name": "add"})).options == named
    assert read(asked()).messages[0].wire() == {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"input": []}, "invalid_value", "input"),
        ({"input": None, "instructions": "Hi"}, "invalid_value", "input"),
        ({"input": {}}, "invalid_type", "input"),
        ({"input": [{"type": "item_reference", "id": "m1"}]}, "unsupported_value", "input[0].type"),
        ({"input": [{"type": "web_search_call", "id": "w1"}]}, "unsupported_value", "input[0].type"),
        ({"input": [{"content": "Hi"}]}, "missing_required_parameter", "input[0].role"),
        ({"input": [{"role": "tool", "content": "Hi"}]}, "unsupported_value", "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
            "missing_required_parameter",
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "unsupported_value",
            "input[0].content[0].type",
        ),
        (
            {"input": [{"type": "function_call_output", "output": "1"}]},
            "missing_required_parameter",
            "input[0].call_id",
        ),
        ({"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
        ({"conversation": "c"}, "unsupported_parameter", "conversation"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"include": ["message.output_text.logprobs"]}, "unsupported_value", "include"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_value", "tools[0].type"),
        ({"tool_choice": {"type": "web_search"}}, "unsupported_value", "tool_choice"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"messages": []}, "unsupported_parameter", "messages"),
        ({"max_output_tokens": "8"}, "invalid_type", "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema"}}}, "missing_required_parameter", "text.format.schema"),
    ],
)
def test_refusals(change: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(FormError) as caught:
        read(asked(**change))
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)


def test_a_reply_is_one_of_the_library(full: ChatReply) -> None:
    library = pytest.importorskip("openai.types.responses")
    response = library.Response.model_validate(write(full), strict=True)
    assert (response.id, response.status, response.output_text) == ("resp_7", "completed", full.text)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output[0].content[0].text == full.thoughts
    assert [(item.call_id, item.name, item.arguments) for item in response.output[2:]] == [
        (use.id, use.name, use.arguments) for use in full.tool_uses
    ]
    assert response.usage.total_tokens == 14
    cut = library.Response.model_validate(write(replace(full, finish="length", tool_uses=())), strict=True)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_stream_adds_up_to_the_reply(full: ChatReply) -> None:
    library = pytest.importorskip("openai.types.responses")
    event = TypeAdapter(library.ResponseStreamEvent)
    data = data_of(Stream(read(asked(stream=True))).end(full))
    found = [event.validate_python(item, strict=True) for item in data]
    assert [item.sequence_number for item in found] == list(range(len(found)))
    assert [item.type for item in found[:3]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert data[-1]["type"] == "response.completed"
    assert data[-1]["response"] == write(full)
    output = write(full)["output"]
    assert [item["item"] for item in data if item["type"] == "response.output_item.done"] == output
    for index, item in enumerate(output):
        own = [part for part in data if part.get("output_index") == index]
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(part.get("delta", "") for part in own) == text
        [done] = [part for part in own if part["type"].endswith(".done") and ("text" in part or "arguments" in part)]
        assert text in (done.get("text"), done.get("arguments"))
        assert (own[0]["type"], own[-1]["type"]) == ("response.output_item.added", "response.output_item.done")


def test_a_reply_can_be_sent_back(full: ChatReply) -> None:
    [message] = read(asked(input=write(full)["output"])).messages
    assert (message.role, message.content) == ("assistant", full.text)
    assert message.fields == {
        "reasoning_content": full.thoughts,
        "tool_calls": [use.wire() for use in full.tool_uses],
    }
