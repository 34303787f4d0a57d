"""OpenAI's Chat Completions API: `POST /v1/chat/completions` (https://platform.openai.com/docs/api-reference/chat).

Thoughts are `reasoning_content` of a message, as vLLM, SGLang and DeepSeek have them, in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from midstream.core.data import JsonObject
from midstream.core.trajectory import Message
from midstream.gateway import forms
from midstream.gateway.forms import ChatReply, ChatRequest, FormError, JsonFields

heartbeat, error = forms.HEARTBEAT, forms.openai_error

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_PARTS = {"text": "text", "refusal": "refusal"}
_MEDIA = ("image_url", "input_audio", "file")
_REFUSED: dict[str, tuple[JsonValue, ...]] = {
    "n": ("send one request for each reply", 1),
    "logprobs": ("the run records them: remove it",),
    "top_logprobs": ("the run records log-probabilities: remove it", 0),
    "functions": ("send tools",),
    "function_call": ("send tools and tool_choice", "auto", "none"),
    "modalities": ('send ["text"]', ["text"]),
    "audio": ("the models write text only: remove it",),
    "web_search_options": ("send a tool of your own that searches",),
}

_READ = {"messages", "max_tokens", "max_completion_tokens", "stop", "seed", "response_format"}


def read(body: object) -> ChatRequest:
    """A request. Settings that change no reply, such as `user`, are ignored.

    Raises:
        FormError: the body is malformed, or asks for what midstream's engines do not do.
    """
    fields = forms.fields_of(body, _REFUSED)
    stream, offered = fields.within("stream_options"), forms.tools_of(fields, inner="function")
    tools, options = forms.tool_options(fields.table.get("tool_choice"), offered)
    return ChatRequest(
        model=fields.need("model", str),
        messages=forms.some_messages([_message(message) for message in fields.objects("messages")], "messages"),
        tools=tools,
        options=options | forms.other_options(fields, _REFUSED.keys() | _READ),
        sampling=forms.sampling_of(fields, ("max_completion_tokens", "max_tokens"), "stop"),
        seed=fields.number("seed", int, -(2**63), 2**63 - 1),
        json_schema=forms.schema_of(fields.within("response_format"), "json_schema"),
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
    # Where nothing is trained, a server gets these parts as they are (`forms.media_of`).
    text = message.text("content", _PARTS, skipped=_MEDIA if role == "user" else ())
    for key in ("name", "reasoning_content"):
        message.maybe(key, str)
    if role == "tool":
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
    """A `chat.completion`."""
    message: JsonObject = {"role": "assistant", "content": reply.text if reply.speaks else None}
    if reply.thoughts:
        message["reasoning_content"] = reply.thoughts
    if reply.tool_uses:
        message["tool_calls"] = [use.wire() for use in reply.tool_uses]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
    return {**_envelope(reply, "chat.completion", [choice]), "usage": _usage(reply)}


def events(reply: ChatReply, chat: ChatRequest) -> Iterator[str]:
    """The stream of a reply, in server-sent events."""

    def chunk(delta: JsonObject, reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if chat.include_usage else {}
        return forms.sse(_envelope(reply, "chat.completion.chunk", [choice]) | usage)

    yield chunk({"role": "assistant", "content": "" if reply.speaks else None})
    if reply.thoughts:
        yield chunk({"reasoning_content": reply.thoughts})
    if reply.text:
        yield chunk({"content": reply.text})
    for index, use in enumerate(reply.tool_uses):
        yield chunk({"tool_calls": [{"index": index, **use.wire()}]})
    yield chunk({}, _finish_reason(reply))
    if chat.include_usage:
        yield forms.sse(_envelope(reply, "chat.completion.chunk", []) | {"usage": _usage(reply)})
    yield "data: [DONE]\n\n"


def step(text: str, chat: ChatRequest) -> str:
    """What an agent has done before its reply, as a piece of its thoughts."""
    choice = {"index": 0, "delta": {"role": "assistant", "reasoning_content": f"{text}\n"}, "finish_reason": None}
    envelope = {"id": "chatcmpl-steps", "object": "chat.completion.chunk", "created": 0, "model": chat.model}
    return forms.sse(envelope | {"choices": [choice]})


def error_event(failure: FormError) -> str:
    """An error in a stream that has begun; it is the stream's last event."""
    return forms.sse(error(failure))


def _envelope(reply: ChatReply, kind: str, choices: list[JsonValue]) -> JsonObject:
    base = {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created}
    return base | {"model": reply.model, "choices": choices}


def _finish_reason(reply: ChatReply) -> str:
    return "tool_calls" if reply.tool_uses and reply.finish == "stop" else reply.finish


def _usage(reply: ChatReply) -> JsonObject:
    prompt, completion = reply.prompt_tokens, reply.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
