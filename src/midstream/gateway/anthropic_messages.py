"""Anthropic's Messages API: `POST /v1/messages` (https://docs.anthropic.com/en/api/messages).

Thoughts are a thinking block without a signature, in both directions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from midstream.core.data import JsonObject
from midstream.core.engine import ReplyPiece
from midstream.core.trajectory import Message
from midstream.gateway import forms
from midstream.gateway.forms import ChatReply, ChatRequest, FormError, FunctionCall, JsonFields, Relayed

heartbeat = forms.sse({"type": "ping"}, "ping")

_TEXT = {"text": "text"}
_REFUSED: dict[str, tuple[JsonValue, ...]] = {
    "mcp_servers": ("call them in the agent, and send their tools as tools",),
    "container": ("no container is built in: remove it",),
}
_ERRORS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}

_READ = {"messages", "system", "max_tokens", "stop_sequences", "output_config", "output_format", "cache_control"}


def read(body: object) -> ChatRequest:
    """A request. Settings that change no reply, such as `metadata`, are ignored.

    Raises:
        FormError: the body is malformed, or asks for what midstream's engines do not do.
    """
    fields = forms.fields_of(body, _REFUSED)
    fields.need("max_tokens", int)
    config, choice = fields.within("output_config"), fields.maybe("tool_choice", dict) or {}
    kind, named = choice.get("type", "auto"), {"type": "function", "name": choice.get("name")}
    tools, options = forms.tool_options(
        {"any": "required", "tool": named}.get(str(kind), kind),
        forms.tools_of(fields, kinds=(None, "custom"), schema="input_schema"),
    )
    if choice.get("disable_parallel_tool_use"):
        options["parallel_tool_calls"] = False
    options |= forms.other_options(fields, _REFUSED.keys() | _READ)
    if config and (effort := config.maybe("effort", str)):
        options["reasoning_effort"] = effort
    said = fields.objects("messages")
    messages = [one for message in said for one in _messages(message)]
    if said and said[-1].table["role"] == "assistant":
        message = "the beginning of a reply cannot be given; end with a message of the user"
        raise FormError("unsupported_value", message, said[-1].at("role"))
    return ChatRequest(
        model=fields.need("model", str),
        messages=(*forms.system_messages(fields.text("system", _TEXT)), *forms.some_messages(messages, "messages")),
        tools=tools,
        options=options,
        sampling=forms.sampling_of(fields, ("max_tokens",), "stop_sequences"),
        json_schema=forms.schema_of(config.within("format") if config else fields.within("output_format")),
        stream=fields.maybe("stream", bool) or False,
    )


def _messages(message: JsonFields) -> list[Message]:
    """A message in chat completions' form; the results of tools come before a user's words."""
    role = message.need("role", str)
    content = message.table.get("content")
    if content is None:
        raise FormError("missing_required_parameter", "it is required", message.at("content"))
    blocks = message.objects("content") if isinstance(content, list) else []
    if role == "assistant":
        text = message.text("content", _TEXT, ("thinking", "redacted_thinking", "tool_use"))
        thoughts = [block.maybe("thinking", str) for block in blocks if block.table["type"] == "thinking"]
        calls = [
            FunctionCall(
                id=block.need("id", str),
                name=block.need("name", str),
                arguments=json.dumps(block.maybe("input", dict) or {}, ensure_ascii=False),
            )
            for block in blocks
            if block.table["type"] == "tool_use"
        ]
        return [forms.assistant_message(text, "\n".join(filter(None, thoughts)), calls)]
    if role not in ("user", "system"):
        raise message.unsupported("role", "send one of user, assistant, system")
    results = [
        forms.tool_message(block.need("tool_use_id", str), block.text("content", _TEXT))
        for block in blocks
        if block.table["type"] == "tool_result"
    ]
    said = forms.user_message(message, role, _TEXT, {"image": _image}, ("tool_result",))
    return [*results, said] if said.content or said.fields or not results else results


def _image(block: JsonFields) -> JsonObject:
    source = block.inside("source")
    if source.table.get("type") == "url":
        return {"url": source.need("url", str)}
    return {"url": f"data:{source.need('media_type', str)};base64,{source.need('data', str)}"}


def write(reply: ChatReply) -> dict[str, Any]:
    """A message."""
    content: list[dict[str, Any]] = []
    if reply.thoughts:
        content.append({"type": "thinking", "thinking": reply.thoughts, "signature": ""})
    if reply.speaks:
        content.append({"type": "text", "text": reply.text})
    for use in reply.tool_uses:
        content.append({"type": "tool_use", "id": use.id, "name": use.name, "input": use.values or {}})
    ended = "tool_use" if reply.tool_uses else "end_turn"
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": "max_tokens" if reply.finish == "length" else ended,
        "stop_sequence": None,
        "usage": {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens},
    }


class MessageStream:
    """The stream of a reply, in server-sent events."""

    def __init__(self, chat: ChatRequest) -> None:
        self._chat = chat
        # The blocks that have begun: thoughts, text, calls by their place.
        self._blocks: list[tuple[str, int]] = []
        self._begun = False

    def add(self, relayed: Relayed) -> Iterator[str]:
        """A chunk of a server's stream of a chat completion."""
        if not self._begun:
            yield self._begin(relayed.id, 0)
        for piece in relayed.pieces:
            yield from self._add(piece)

    def end(self, reply: ChatReply) -> Iterator[str]:
        """What is left of the reply, and the end."""
        if not self._begun:
            yield self._begin(reply.id, reply.prompt_tokens)
            for piece in forms.pieces_of(reply):
                yield from self._add(piece)
        if self._blocks:
            yield _event("content_block_stop", index=len(self._blocks) - 1)
        message = write(reply)
        ended = {name: message[name] for name in ("stop_reason", "stop_sequence")}
        yield _event("message_delta", delta=ended, usage=message["usage"])
        yield _event("message_stop")

    def _begin(self, identifier: str, prompt_tokens: int) -> str:
        self._begun = True
        none: Any = {"created": 0, "text": "", "finish": "stop", "completion_tokens": 0}
        empty = write(ChatReply(id=identifier, model=self._chat.model, prompt_tokens=prompt_tokens, **none))
        return _event("message_start", message=empty | {"content": [], "stop_reason": None})

    def _add(self, piece: ReplyPiece) -> Iterator[str]:
        """The events of a piece; the first of a kind or call begins a block."""
        # The field with the text of a text block is "text", of a thinking block "thinking".
        key = "thinking" if piece.kind == "thoughts" else "text"
        block, change = {"type": key, key: ""}, {"type": f"{key}_delta", key: piece.text}
        if piece.kind == "call":
            block = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}}
            change = {"type": "input_json_delta", "partial_json": piece.text}
        elif key == "thinking":
            block["signature"] = ""
        if (place := (piece.kind, piece.place)) not in self._blocks:
            if self._blocks:
                yield _event("content_block_stop", index=len(self._blocks) - 1)
            self._blocks.append(place)
            yield _event("content_block_start", index=self._blocks.index(place), content_block=block)
        if piece.text or piece.kind != "call":
            yield _event("content_block_delta", index=self._blocks.index(place), delta=change)


Stream = MessageStream


def _event(kind: str, **fields: object) -> str:
    return forms.sse({"type": kind, **fields}, kind)


def error(failure: FormError) -> JsonObject:
    """An error; its type follows from the status, and the place stands in its message."""
    kind = _ERRORS.get(failure.status, "api_error" if failure.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(failure)}}


def error_event(failure: FormError) -> str:
    """An error in a stream that has begun; it is the stream's last event."""
    return forms.sse(error(failure), "error")
