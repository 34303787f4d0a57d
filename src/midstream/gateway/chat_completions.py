"""OpenAI's Chat Completions API: `POST /v1/chat/completions` (https://platform.openai.com/docs/api-reference/chat).

Thoughts are `reasoning_content` of a message, as vLLM, SGLang and DeepSeek have them, in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from midstream.core.data import JsonObject
from midstream.core.trajectory import Message
from midstream.gateway import forms
from midstream.gateway.forms import ChatReply, ChatRequest, FormError, JsonFields, Relayed

heartbeat, error = forms.HEARTBEAT, forms.openai_error

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_ROLES |= {"function": "tool"}
_PARTS = {"text": "text", "refusal": "refusal"}
# How many replies, and what of each.
_REPLIES = ("n", "logprobs", "top_logprobs")
_READ = {"messages", "max_tokens", "max_completion_tokens", "stop", "seed", "response_format", *_REPLIES}
_STREAM = {"model", "messages", "stream", "stream_options"}


def read(body: object) -> ChatRequest:
    """A request. Raises `FormError` if it is malformed."""
    fields = forms.fields_of(body, {})
    stream, offered = fields.within("stream_options"), forms.tools_of(fields, inner="function")
    tools, options = forms.tool_options(fields.table.get("tool_choice"), offered)
    fields.number("n", int, 1, 128)
    replies = {key: fields.table[key] for key in _REPLIES if fields.table.get(key) is not None}
    return ChatRequest(
        model=fields.need("model", str),
        messages=forms.some_messages([_message(message) for message in fields.objects("messages")], "messages"),
        tools=tools,
        options=options | forms.other_options(fields, _READ) | replies,
        sampling=forms.sampling_of(fields, ("max_completion_tokens", "max_tokens"), "stop"),
        seed=fields.number("seed", int, -(2**63), 2**63 - 1),
        json_schema=forms.schema_of(fields.within("response_format"), "json_schema"),
        body={key: value for key, value in fields.table.items() if key not in _STREAM},
        stream=fields.maybe("stream", bool) or False,
        include_usage=bool(stream and stream.maybe("include_usage", bool)),
    )


def _message(message: JsonFields) -> Message:
    """A message whose `wire` is the one that was sent; a content that is missing is null there."""
    role = _ROLES.get(message.need("role", str))
    if role is None:
        raise message.unsupported("role", f"send one of {', '.join(_ROLES)}")
    if message.table.get("content") is None and role != "assistant":
        raise FormError("missing_required_parameter", "it is required", message.at("content"))
    # Where nothing is trained, a server gets other parts as they are (`forms.media_of`).
    text = message.text("content", _PARTS, skipped=None)
    for key in ("name", "reasoning_content"):
        message.maybe(key, str)
    if message.table["role"] == "tool":
        message.need("tool_call_id", str)
    for call in message.objects("tool_calls"):  # templates read these
        if call.table.get("type") not in (None, "function"):
            raise call.unsupported("type", 'send calls of type "function"')
        call.need("id", str)
        function = call.inside("function")
        function.need("name", str)
        function.maybe("arguments", str)
    wire = {"content": None, **message.table}
    plain = {"role": role, "content": text}
    extra = {key: value for key, value in wire.items() if key not in plain or plain[key] != value}
    return Message.model_validate({**plain, "fields": extra})


def write(reply: ChatReply) -> JsonObject:
    """A `chat.completion`: the server's own, if it sent one."""
    if reply.body:
        return reply.body
    message: JsonObject = {"role": "assistant", "content": reply.text if reply.speaks else None}
    if reply.thoughts:
        message["reasoning_content"] = reply.thoughts
    if reply.tool_uses:
        message["tool_calls"] = [use.wire() for use in reply.tool_uses]
    reason = "tool_calls" if reply.tool_uses and reply.finish == "stop" else reply.finish
    prompt, completion = reply.prompt_tokens, reply.completion_tokens
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion",
        "created": reply.created,
        "model": reply.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }


class CompletionStream:
    """The stream of a reply, in server-sent events."""

    def __init__(self, chat: ChatRequest) -> None:
        self._chat, self._relayed = chat, False

    def step(self, text: str) -> Iterator[str]:
        """What an agent has done before its reply, as a piece of its thoughts."""
        choice = {"index": 0, "delta": {"role": "assistant", "reasoning_content": f"{text}\n"}, "finish_reason": None}
        envelope = {"id": "chatcmpl-steps", "object": "chat.completion.chunk", "created": 0}
        yield forms.sse(envelope | {"model": self._chat.model, "choices": [choice]})

    def add(self, relayed: Relayed) -> Iterator[str]:
        """A chunk of a server's stream. The usage, which comes last, is for those who asked for it."""
        self._relayed, chunk = True, relayed.chunk
        if chunk.get("choices") or not chunk.get("usage") or self._chat.include_usage:
            yield forms.sse(chunk)

    def end(self, reply: ChatReply) -> Iterator[str]:
        """What is left of the reply, and the end."""
        if not self._relayed:
            yield from self._whole(write(reply))
        yield "data: [DONE]\n\n"

    def _whole(self, completion: JsonObject) -> Iterator[str]:
        """A reply that did not come as a stream: a chunk with all of each choice, and one with its end."""
        body: dict[str, Any] = {**completion, "object": "chat.completion.chunk"}
        choices, usage = body.pop("choices"), body.pop("usage", None)
        unused = {"usage": None} if self._chat.include_usage else {}
        for choice in choices:
            message = choice.get("message") or {"role": "assistant", "content": choice.get("text")}
            calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls") or ())]
            said = {key: value for key, value in message.items() if value is not None or key == "content"}
            begun = {"index": choice.get("index", 0), "logprobs": None, "finish_reason": None}
            ended = {**begun, **{key: value for key, value in choice.items() if key not in ("message", "text")}}
            delta = {**said, "tool_calls": calls} if calls else said
            for shown in ({**begun, "delta": delta}, {**ended, "delta": {}}):
                yield forms.sse({**body, "choices": [shown]} | unused)
        if self._chat.include_usage:
            yield forms.sse({**body, "choices": [], "usage": usage})


Stream = CompletionStream


def error_event(failure: FormError) -> str:
    """An error in a stream that has begun; it is the stream's last event."""
    return forms.sse(error(failure))
