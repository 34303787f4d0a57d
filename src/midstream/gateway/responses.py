"""OpenAI's Responses API: `POST /v1/responses` (https://platform.openai.com/docs/api-reference/responses).

Nothing is stored: each request has the whole conversation. Thoughts are a reasoning item, in both directions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count, groupby
from typing import Any

from pydantic import JsonValue

from midstream.core.data import JsonObject
from midstream.core.engine import ReplyPiece
from midstream.core.trajectory import Message
from midstream.gateway import forms
from midstream.gateway.forms import ChatReply, ChatRequest, FormError, FunctionCall, JsonFields, Relayed

_Fields = dict[str, Any]
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
    output = [_item("thoughts", reply.id, reply.thoughts, status)] if reply.thoughts else []
    output += [_item("text", reply.id, reply.text, status)] if reply.speaks else []
    output += [_item("call", use.id, use.arguments, "completed", use.name) for use in reply.tool_uses]
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


def _item(kind: str, identifier: str, text: str, status: str, name: str = "") -> dict[str, Any]:
    """An item of the output: thoughts, text or a call; `identifier` is the reply's or the call's."""
    if kind == "call":
        base = {"type": "function_call", "id": f"fc_{identifier}", "call_id": identifier, "name": name}
        return {**base, "arguments": text, "status": status}
    if kind == "thoughts":
        base = {"type": "reasoning", "id": f"rs_{identifier}", "summary": []}
        return {**base, "content": [{"type": "reasoning_text", "text": text}], "status": status}
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    base = {"type": "message", "id": f"msg_{identifier}", "role": "assistant"}
    return {**base, "content": content, "status": status}


class ResponseStream:
    """The stream of a reply, in server-sent events."""

    def __init__(self, chat: ChatRequest) -> None:
        self._chat, self._numbers = chat, count()
        self._response: dict[str, Any] = {}
        # By kind and place of a call: what makes an item but for its status, and its text so far.
        self._items: dict[tuple[str, int], tuple[ReplyPiece, list[str]]] = {}

    def add(self, relayed: Relayed) -> Iterator[str]:
        """A chunk of a server's stream of a chat completion."""
        if not self._response:
            yield from self._begin(relayed.id, int(time.time()))
        for piece in relayed.pieces:
            yield from self._add(piece)

    def end(self, reply: ChatReply) -> Iterator[str]:
        """What is left of the reply, and the end."""
        if not self._response:
            yield from self._begin(reply.id, reply.created)
            for piece in forms.pieces_of(reply):
                yield from self._add(piece)
        response, output = write(reply), []
        for index, (piece, texts) in enumerate(self._items.values()):
            status = "completed" if piece.kind == "call" else response["status"]
            item, place, part = self._item(piece, "".join(texts), status, index)
            output.append(item)
            key = "arguments" if piece.kind == "call" else "text"
            yield self._event(f"{part}.done", **place, **{key: "".join(texts)})
            if piece.kind != "call":
                shown = {name: value for name, value in place.items() if name != "logprobs"}
                yield self._event("response.content_part.done", **shown, part=item["content"][0])
            yield self._event("response.output_item.done", output_index=index, item=item)
        response |= {"created_at": self._response["created_at"], "output": output}
        yield self._event(f"response.{response['status']}", response=response)

    def _event(self, kind: str, **fields: object) -> str:
        return forms.sse({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)

    def _begin(self, identifier: str, created: int) -> Iterator[str]:
        none: Any = {"text": "", "finish": "stop", "prompt_tokens": 0, "completion_tokens": 0}
        empty = ChatReply(id=identifier, model=self._chat.model, created=created, **none)
        self._response = write(empty) | {"status": "in_progress", "output": [], "usage": None}
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._response)

    def _add(self, piece: ReplyPiece) -> Iterator[str]:
        """The events of a piece; the first of a kind or call begins an item."""
        key = (piece.kind, piece.place)
        begins = key not in self._items
        _, texts = self._items.setdefault(key, (piece, []))
        index = list(self._items).index(key)
        item, place, part = self._item(piece, "", "in_progress", index)
        if begins:
            shown = {name: value for name, value in place.items() if name != "logprobs"}
            empty = item if piece.kind == "call" else {**item, "content": []}
            yield self._event("response.output_item.added", output_index=index, item=empty)
            if piece.kind != "call":
                yield self._event("response.content_part.added", **shown, part=item["content"][0])
        texts.append(piece.text)
        if piece.text or piece.kind != "call":
            yield self._event(f"{part}.delta", **place, delta=piece.text)

    def _item(self, piece: ReplyPiece, text: str, status: str, index: int) -> tuple[_Fields, _Fields, str]:
        """An item, its place in events, and the beginning of their names."""
        identifier = piece.id or self._response["id"].removeprefix("resp_")
        item = _item(piece.kind, identifier, text, status, piece.name)
        place = {"item_id": item["id"], "output_index": index}
        if piece.kind == "call":
            return item, place, "response.function_call_arguments"
        part = item["content"][0]["type"]
        place |= {"content_index": 0} | ({"logprobs": []} if part == "output_text" else {})
        return item, place, f"response.{part}"


Stream = ResponseStream


def error_event(failure: FormError) -> str:
    """An error in a stream that has begun; it is the stream's last event."""
    fields = {"code": failure.code, "message": failure.message, "param": failure.param}
    # The form has no `error` in this event, but OpenAI's library raises an exception only for one that has it.
    return forms.sse({"type": "error", "sequence_number": 0} | fields | error(failure), "error")
