"""OpenAI's Responses API: `POST /v1/responses` (https://platform.openai.com/docs/api-reference/responses).

Nothing is stored: each request has the whole conversation. Thoughts are a reasoning item, in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, groupby
from typing import Any

from pydantic import JsonValue

from midstream.core.data import JsonObject
from midstream.core.trajectory import Message
from midstream.gateway import forms
from midstream.gateway.forms import ChatReply, ChatRequest, FormError, FunctionCall, JsonFields

heartbeat, error = forms.HEARTBEAT, forms.openai_error

_PARTS = {kind: "text" for kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text")}
_PARTS |= {"refusal": "refusal"}
_STATELESS = "nothing is stored here: send the whole conversation as input"
_REFUSED: dict[str, tuple[JsonValue, ...]] = {
    "previous_response_id": (_STATELESS,),
    "conversation": (_STATELESS,),
    "prompt": ("send its text as instructions and input",),
    "top_logprobs": ("the run records log-probabilities: remove it", 0),
    "truncation": ("nothing is cut here: remove it", "disabled"),
    "background": ("wait for the reply, or send stream",),
}

_READ = {"input", "instructions", "text", "reasoning", "max_output_tokens", "include", "max_tool_calls"}


def read(body: object) -> ChatRequest:
    """A request. Settings that change no reply, such as `store`, are ignored.

    Raises:
        FormError: the body is malformed, or asks for what midstream's engines do not do.
    """
    fields = forms.fields_of(body, _REFUSED)
    if "message.output_text.logprobs" in (fields.maybe("include", list) or ()):
        raise fields.unsupported("include", "the run records log-probabilities: remove them")
    instructions, text, thinks = fields.maybe("instructions", str), fields.within("text"), fields.within("reasoning")
    tools, options = forms.tool_options(fields.table.get("tool_choice"), forms.tools_of(fields))
    options |= forms.other_options(fields, _REFUSED.keys() | _READ)
    if thinks and (effort := thinks.maybe("effort", str)):
        options["reasoning_effort"] = effort
    if text and (verbosity := text.maybe("verbosity", str)):
        options["verbosity"] = verbosity
    return ChatRequest(
        model=fields.need("model", str),
        messages=(*forms.system_messages(instructions), *forms.some_messages(_conversation(fields), "input")),
        tools=tools,
        options=options,
        sampling=forms.sampling_of(fields, ("max_output_tokens",)),
        json_schema=forms.schema_of(text.within("format")) if text else None,
        stream=fields.maybe("stream", bool) or False,
    )


def _conversation(fields: JsonFields) -> list[Message]:
    """The input as messages. The items of one turn of the model, up to the next of another's, are one message."""
    if isinstance(said := fields.table.get("input"), str):
        return [Message(role="user", content=said)]
    messages: list[Message] = []
    for own, items in groupby(fields.objects("input"), _is_models):
        turn = list(items)
        messages += [_turn(turn)] if own else map(_message, turn)
    return messages


def _kind(item: JsonFields) -> str:
    return item.maybe("type", str) or "message"


def _is_models(item: JsonFields) -> bool:
    kind = _kind(item)
    return kind in ("reasoning", "function_call") or (kind == "message" and item.table.get("role") == "assistant")


def _turn(items: list[JsonFields]) -> Message:
    """The model's message made of its items."""
    thoughts, texts, calls = [], [], []
    for item in items:
        if _kind(item) == "function_call":
            arguments = item.maybe("arguments", str) or "{}"
            calls.append(FunctionCall(id=item.need("call_id", str), name=item.need("name", str), arguments=arguments))
        elif _kind(item) == "reasoning":
            # A summary stands for thoughts that the item does not have.
            thoughts.append(item.text("content", _PARTS) or item.text("summary", _PARTS))
        else:
            texts.append(item.text("content", _PARTS))
    return forms.assistant_message("\n".join(filter(None, texts)), "\n".join(filter(None, thoughts)), calls)


def _message(item: JsonFields) -> Message:
    """A message of a user, of the agent's author or of a tool."""
    kind = _kind(item)
    if kind == "function_call_output":
        return forms.tool_message(item.need("call_id", str), item.text("output", _PARTS))
    if kind != "message":
        fix = _STATELESS if kind == "item_reference" else "send messages, reasoning, function calls and their outputs"
        raise item.unsupported("type", fix)
    role = item.need("role", str)
    if role == "developer":
        return Message(role="system", content=item.text("content", _PARTS), fields={"role": "developer"})
    if role not in ("system", "user"):
        raise item.unsupported("role", "send one of system, developer, user, assistant")
    return forms.user_message(item, role, _PARTS, {"input_image": _image})


def _image(part: JsonFields) -> JsonObject:
    detail: JsonObject = {"detail": part.table["detail"]} if part.maybe("detail", str) else {}
    return {"url": part.need("image_url", str), **detail}


def write(reply: ChatReply) -> dict[str, Any]:
    """A `response`."""
    cut, prompt, completion = reply.finish == "length", reply.prompt_tokens, reply.completion_tokens
    status = "incomplete" if cut else "completed"
    output: list[dict[str, Any]] = []
    if reply.thoughts:
        content = [{"type": "reasoning_text", "text": reply.thoughts}]
        base = {"type": "reasoning", "id": f"rs_{reply.id}", "summary": []}
        output.append({**base, "content": content, "status": status})
    if reply.speaks:
        content = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
        base = {"type": "message", "id": f"msg_{reply.id}", "role": "assistant"}
        output.append({**base, "content": content, "status": status})
    for use in reply.tool_uses:
        base = {"type": "function_call", "id": f"fc_{use.id}", "call_id": use.id, "name": use.name}
        output.append({**base, "arguments": use.arguments, "status": "completed"})
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": reply.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + completion,
        },
    }


def events(reply: ChatReply, chat: ChatRequest) -> Iterator[str]:
    """The stream of a reply, in server-sent events."""
    numbers = count()

    def event(kind: str, **fields: object) -> str:
        return forms.sse({"type": kind, "sequence_number": next(numbers), **fields}, kind)

    response = write(reply)
    begun = response | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(response["output"]):
        calls = item["type"] == "function_call"
        begun_item = item | ({"arguments": ""} if calls else {"content": []}) | {"status": "in_progress"}
        yield event("response.output_item.added", output_index=index, item=begun_item)
        place = {"item_id": item["id"], "output_index": index}
        if calls:
            yield event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            yield event("response.function_call_arguments.done", **place, arguments=item["arguments"])
        else:
            [part] = item["content"]
            place["content_index"] = 0
            extra = {"logprobs": []} if part["type"] == "output_text" else {}
            yield event("response.content_part.added", **place, part=part | {"text": ""})
            yield event(f"response.{part['type']}.delta", **place, delta=part["text"], **extra)
            yield event(f"response.{part['type']}.done", **place, text=part["text"], **extra)
            yield event("response.content_part.done", **place, part=part)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event(f"response.{response['status']}", response=response)


def error_event(failure: FormError) -> str:
    """An error in a stream that has begun; it is the stream's last event."""
    fields = {"code": failure.code, "message": failure.message, "param": failure.param}
    # The form has no `error` in this event, but OpenAI's library raises an exception only for one that has it.
    return forms.sse({"type": "error", "sequence_number": 0} | fields | error(failure), "error")
