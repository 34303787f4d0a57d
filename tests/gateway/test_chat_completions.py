"""OpenAI's Chat Completions API, checked with the models of OpenAI's own library."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.gateway.chat_completions import Stream, read, write
from midstream.gateway.forms import ChatReply, ChatRequest, FormError

ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}


def asked(**others: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **others}


def data_of(blocks: Iterable[str]) -> list[Any]:
    """The JSON of every event but the last, which must end the stream."""
    *blocks, last = blocks
    assert last == "data: [DONE]\n\n"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "system", "content": "Be kind.", "name": "rules"},
    {"role": "user", "content": [{"type": "text", "text": "Add"}, {"type": "text", "text": "1", "extra": [None]}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "So.", "refusal": None},
    {"role": "tool", "tool_call_id": "c1", "content": "1"},
    {"role": "assistant", "content": "It is 1.", "tool_calls": None},
    {"role": "user", "content": ""},
]


def test_messages_are_kept_as_they_were_sent() -> None:
    messages = read(asked(messages=CONVERSATION)).messages
    assert [message.wire() for message in messages] == CONVERSATION
    assert [(message.role, message.content) for message in messages] == [
        ("system", "Be brief."),
        ("system", "Be kind."),
        ("user", "Add\n1"),
        ("assistant", ""),
        ("tool", "1"),
        ("assistant", "It is 1."),
        ("user", ""),
    ]
    assert messages[0].fields == {"role": "developer"}
    assert messages[4].fields == {"tool_call_id": "c1"}
    assert messages[6].fields == {}


@given(
    st.sampled_from(["system", "developer", "user", "assistant"]),
    st.text() | st.lists(st.builds(lambda text: {"type": "text", "text": text}, st.text()), max_size=3),
    st.dictionaries(st.sampled_from(["a", "b", "refusal"]), st.none() | st.integers() | st.text(), max_size=3),
)
def test_any_message_is_kept_as_it_was_sent(role: str, content: Any, others: dict[str, Any]) -> None:
    sent = {"role": role, "content": content, **others}
    assert read(asked(messages=[sent])).messages[0].wire() == sent


def test_a_call_without_content_has_null() -> None:
    [message] = read(asked(messages=[{"role": "assistant", "tool_calls": [CALL]}])).messages
    assert message.wire() == {"role": "assistant", "content": None, "tool_calls": [CALL]}


def test_every_setting() -> None:
    body = asked(
        tools=[ADD],
        tool_choice="auto",
        temperature=0,
        top_p=0.5,
        max_tokens=7,
        max_completion_tokens=8,
        stop="END",
        seed=3,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}},
        stream=True,
        stream_options={"include_usage": True},
        n=1,
        logprobs=False,
        frequency_penalty=0.0,
        logit_bias={},
        modalities=["text"],
        user="someone",
        unknown={"a": 1},
        parallel_tool_calls=False,
    )
    assert read(body) == ChatRequest(
        model="m",
        messages=read(asked()).messages,
        tools=(ADD,),
        sampling={"temperature": 0, "top_p": 0.5, "max_tokens": 8, "stop": ("END",)},
        options={
            "frequency_penalty": 0,
            "logit_bias": {},
            "unknown": {"a": 1},
            "parallel_tool_calls": False,
            "modalities": ["text"],
            "n": 1,
            "logprobs": False,
        },
        seed=3,
        json_schema={"type": "array"},
        body={key: body[key] for key in body if key not in ("model", "messages", "stream", "stream_options")},
        stream=True,
        include_usage=True,
    )
    assert read(body | {"tool_choice": "none"}).tools == ()
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        assert read(asked(tools=[ADD], tool_choice=choice)).options == {"tool_choice": choice}
    assert read(body | {"response_format": {"type": "json_object"}}).json_schema == {"type": "object"}
    assert read(body | {"response_format": {"type": "text"}}).json_schema is None
    assert read(body | {"stop": ["a", "b"]}).sampling["stop"] == ("a", "b")
    # Libraries send null for what is not set.
    nothing = dict.fromkeys([key for key in body if key not in ("model", "messages")])
    assert replace(read(body | nothing), body=None) == replace(read(asked()), body=None)


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 1


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"model": None}, "missing_required_parameter", "model"),
        ({"model": 3}, "invalid_type", "model"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": {}}, "invalid_type", "messages"),
        ({"messages": ["Hi"]}, "invalid_type", "messages[0]"),
        ({"messages": [{"role": "critic", "content": ""}]}, "unsupported_value", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "user", "content": 4}]}, "invalid_type", "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "1"}]}, "missing_required_parameter", "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]},
            "missing_required_parameter",
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {}}]}]},
            "missing_required_parameter",
            "messages[0].tool_calls[0].function.name",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "invalid_value", "messages[0]"),
        ({"metadata": deep(40)}, "invalid_value", "metadata[0]"),
        ({"\ud800": 1}, "invalid_value", "\\ud800"),
        ({"prompt": "x"}, "unsupported_parameter", "prompt"),
        ({"tool_choice": "sometimes"}, "unsupported_value", "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "unsupported_value", "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "missing_required_parameter", "tool_choice.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "add"}}]}, "unsupported_value", "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "invalid_value", "tools[0].function.name"),
        ({"temperature": True}, "invalid_type", "temperature"),
        ({"temperature": -1}, "invalid_value", "temperature"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": 1.5}, "invalid_type", "max_tokens"),
        ({"stop": [""]}, "invalid_type", "stop"),
        ({"stream": 1}, "invalid_type", "stream"),
        ({"response_format": {"type": "grammar"}}, "unsupported_value", "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "missing_required_parameter",
            "response_format.json_schema.schema",
        ),
    ],
)
def test_refusals(change: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(FormError) as caught:
        read(asked(**change))
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)


def test_a_body_that_is_no_object() -> None:
    with pytest.raises(FormError) as caught:
        read([])
    assert (caught.value.code, caught.value.param) == ("invalid_type", None)


def test_a_reply_is_one_of_the_library(full: ChatReply) -> None:
    chat = pytest.importorskip("openai.types.chat")
    reply = chat.ChatCompletion.model_validate(write(full), strict=True)
    choice = reply.choices[0]
    assert (reply.id, choice.finish_reason, choice.message.content) == ("chatcmpl-7", "tool_calls", full.text)
    assert [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls] == [
        (use.id, use.name, use.arguments) for use in full.tool_uses
    ]
    assert choice.message.reasoning_content == full.thoughts
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (5, 9, 14)


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_adds_up_to_the_reply(full: ChatReply, include_usage: bool) -> None:
    chat = pytest.importorskip("openai.types.chat")
    request = read(asked(stream=True, stream_options={"include_usage": include_usage}))
    chunks = [chat.ChatCompletionChunk.model_validate(data, strict=True) for data in data_of(Stream(request).end(full))]
    if include_usage:
        last = chunks.pop()
        assert (last.choices, last.usage.total_tokens) == ([], 14)
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == full.text
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == full.thoughts
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        for call in delta.tool_calls or ():
            calls.setdefault(call.index, [call.id, call.function.name, ""])[2] += call.function.arguments
    assert list(calls.values()) == [[use.id, use.name, use.arguments] for use in full.tool_uses]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]


def test_a_reply_can_be_sent_back(full: ChatReply) -> None:
    message = write(full)["choices"][0]["message"]
    assert read(asked(messages=[message])).messages[0].wire() == message
