"""Anthropic's Messages API. `test_libraries.py` checks it with Anthropic's own library, where that is installed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from midstream.gateway.anthropic_messages import Stream, error, read, write
from midstream.gateway.forms import ChatReply, ChatRequest, FormError

ADD = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object"},
    "cache_control": {"type": "ephemeral"},
}


def asked(**others: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}], **others}


def data_of(blocks: Iterable[str]) -> list[Any]:
    """The JSON of every event, whose name is its type."""
    found = []
    for block in blocks:
        name, data = block.removesuffix("\n\n").split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_blocks_become_messages() -> None:
    def use(identifier: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": identifier, "name": "add", "input": {"a": 1}}

    def call(identifier: str) -> dict[str, Any]:
        return {"id": identifier, "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}

    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Add 1", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "So.", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I add."},
                use("c1"),
                use("c2"),
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
                {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "2"}]},
                {"type": "text", "text": "Again."},
            ],
        },
        {"role": "assistant", "content": [use("c3")]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c3", "is_error": True}]},
    ]
    body = asked(system=[{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}], messages=messages)
    assert [message.wire() for message in read(body).messages] == [
        {"role": "system", "content": "Be\nkind."},
        {"role": "user", "content": "Add 1"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "So.",
            "tool_calls": [call("c1"), call("c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "user", "content": "Again."},
        {"role": "assistant", "content": None, "tool_calls": [call("c3")]},
        {"role": "tool", "tool_call_id": "c3", "content": ""},
    ]


def test_every_setting() -> None:
    body = asked(
        tools=[ADD],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        temperature=1,
        top_p=0.9,
        stop_sequences=["END"],
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "array"}}},
        stream=True,
        metadata={"user_id": "u"},
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    plain = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert read(body) == ChatRequest(
        model="m",
        messages=read(asked()).messages,
        tools=({"type": "function", "function": plain},),
        sampling={"temperature": 1, "top_p": 0.9, "max_tokens": 8, "stop": ("END",)},
        options={
            "parallel_tool_calls": False,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "reasoning_effort": "low",
        },
        json_schema={"type": "array"},
        stream=True,
    )
    assert read(body | {"tool_choice": {"type": "none"}}).tools == ()
    assert read(asked(tools=[ADD], tool_choice={"type": "any"}, top_k=5)).options == {
        "tool_choice": "required",
        "top_k": 5,
    }
    named = {"tool_choice": {"type": "function", "function": {"name": "add"}}}
    assert read(asked(tools=[ADD], tool_choice={"type": "tool", "name": "add"})).options == named


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"max_tokens": None}, "missing_required_parameter", "max_tokens"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [], "system": "Hi"}, "invalid_value", "messages"),
        ({"messages": [{"role": "tool", "content": "1"}]}, "unsupported_value", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": "I"}]}, "unsupported_value", "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64"}}]}]},
            "missing_required_parameter",
            "messages[0].content[0].source.media_type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "1"}]}]},
            "missing_required_parameter",
            "messages[0].content[0].tool_use_id",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": 1}]}
                ]
            },
            "invalid_type",
            "messages[0].content[0].input",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "unsupported_value", "tools[0].type"),
        ({"tool_choice": {"type": "some"}}, "unsupported_value", "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "missing_required_parameter", "tool_choice.name"),
        ({"stop": ["END"]}, "unsupported_parameter", "stop"),
        ({"mcp_servers": [{}]}, "unsupported_parameter", "mcp_servers"),
    ],
)
def test_refusals(change: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(FormError) as caught:
        read(asked(**change))
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)


def test_a_reply(full: ChatReply) -> None:
    assert write(full) == {
        "id": "msg_7",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": full.thoughts, "signature": ""},
            {"type": "text", "text": full.text},
            {"type": "tool_use", "id": "a1b2c3d4e", "name": "add", "input": {"a": 1}},
            {"type": "tool_use", "id": "f1b2c3d4e", "name": "now", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 9},
    }
    assert write(replace(full, finish="length"))["stop_reason"] == "max_tokens"
    silent = write(replace(full, text="", thoughts="", tool_uses=()))
    assert (silent["stop_reason"], silent["content"]) == ("end_turn", [{"type": "text", "text": ""}])


def test_a_stream_adds_up_to_the_reply(full: ChatReply) -> None:
    start, *blocks, delta, stop = data_of(Stream(read(asked(stream=True))).end(full))
    message = start["message"]
    for data in blocks:
        if data["type"] == "content_block_start":
            assert data["index"] == len(message["content"])
            block = data["content_block"]
            if block["type"] == "tool_use":
                assert block["input"] == {}
                block["input"] = ""
            message["content"].append(block)
            continue
        assert data["index"] == len(message["content"]) - 1
        if data["type"] == "content_block_delta":
            kind, block = data["delta"].pop("type"), message["content"][-1]
            [(key, piece)] = data["delta"].items()
            key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "input"}[kind]
            block[key] += piece
    for block in message["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"])
    assert delta["type"] == "message_delta"
    assert message | delta["delta"] | {"usage": delta["usage"]} == write(full)
    assert stop == {"type": "message_stop"}
    assert [data["type"] for data in blocks].count("content_block_stop") == len(message["content"])


def test_a_reply_can_be_sent_back(full: ChatReply) -> None:
    said = {"role": "assistant", "content": write(full)["content"]}
    message = read(asked(messages=[said, {"role": "user", "content": "Thanks."}])).messages[0]
    assert (message.role, message.content) == ("assistant", full.text)
    assert message.fields == {
        "reasoning_content": full.thoughts,
        "tool_calls": [use.wire() for use in full.tool_uses],
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (500, "api_error")],
)
def test_errors(status: int, kind: str) -> None:
    said = error(FormError("some_code", "it is wrong", "tools[0]", status))
    assert said == {"type": "error", "error": {"type": kind, "message": "tools[0]: it is wrong"}}
