"""A reply in pieces: server-sent events, assembled to the body that the same server would have sent as a whole.

    data: {"choices": [{"index": 0, "delta": {"content": "Par"}}]}
    data: {"choices": [{"index": 0, "delta": {"content": "is"}, "finish_reason": "stop"}]}
    data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    data: [DONE]

The format of events is the HTML standard's (section 9.2), without line ends of a carriage return only, and read
leniently: some servers leave the last event unfinished, or name a field `error`. Chunks are OpenAI's, with vLLM's token
ids. A stream counts only with a finish reason and [DONE], or with a finish reason and the usage (`transformers serve`
sends no [DONE]): one that ends earlier was cut off, however complete its text looks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from midstream.core.data import JsonObject
from midstream.core.engine import ReplyPiece
from midstream.core.errors import TransientError

DONE = "[DONE]"
# Bytes, which bound all that is kept. Most are the events' own: 400 for a token with its id and log-probability.
LONGEST_STREAM = 64 << 20
# What an agent sees of a reply, and the fields of a chunk that may hold it.
_PIECES: tuple[tuple[Literal["thoughts", "text"], tuple[str, ...]], ...] = (
    ("thoughts", ("reasoning_content", "reasoning")),
    ("text", ("content", "text", "refusal")),
)


class EventParser:
    """Bytes in, in any pieces; the data of complete events out."""

    def __init__(self) -> None:
        # The beginning of a line, whose end has not arrived.
        self._line = bytearray()
        self._data: bytearray | None = None

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The events that this piece completes."""
        *lines, rest = chunk.split(b"\n")
        if lines and self._line:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        self._line += rest
        for line in lines:
            line = line.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\r")
            field, _, value = line.partition(b":")
            # Older servers of llama.cpp name the field of an error so.
            if field in (b"data", b"error"):
                if self._data is None:
                    self._data = bytearray()
                else:
                    self._data += b"\n"
                self._data += value.removeprefix(b" ")
            elif not line and self._data is not None:
                yield self._data.decode("utf-8", "replace")
                self._data = None

    def end(self) -> Iterator[str]:
        """The event that lacks nothing but its empty line."""
        return self.feed(b"\n\n")


class StreamedReply:
    """A stream, as its chunks arrive; `done` once the server has marked its end."""

    def __init__(self) -> None:
        self.done = False
        self._body: JsonObject = {}
        self._choices: dict[int, _StreamedChoice] = {0: _StreamedChoice()}  # by index

    @property
    def complete(self) -> bool:
        """Whether nothing is missing: `transformers serve` sends a finish reason and the usage, and no [DONE]."""
        return self._choices[0].finish_reason is not None and (self.done or "usage" in self._body)

    def add(self, chunk: JsonObject) -> list[ReplyPiece]:
        """Add one event's object; returns what it adds to the first choice. Raises `TransientError` if malformed."""
        self._body |= {key: value for key, value in chunk.items() if key not in ("choices", "usage", "object")}
        if isinstance(usage := chunk.get("usage"), dict):
            self._body["usage"] = usage
        found: list[ReplyPiece] = []
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(index := choice.get("index") or 0, int):
                pieces = self._choices.setdefault(index, _StreamedChoice()).add(choice)
                found += pieces if index == 0 else ()
        return found

    def whole(self) -> JsonObject:
        """The body that the same reply has without streaming. Raises `TransientError` if the stream ended too early."""
        if not self.complete:
            some = self._choices[0].text
            raise TransientError("the stream was cut off" if some else "the stream ended without a reply")
        choices: list[JsonValue] = [{"index": at, **choice.whole()} for at, choice in sorted(self._choices.items())]
        return {**self._body, "object": "chat.completion", "choices": choices}


class _StreamedChoice:
    """One choice of a stream."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.text: dict[str, list[str]] = {}
        self._calls = StreamedCalls()
        self._fields: JsonObject = {"token_ids": []}
        self._message: JsonObject = {}

    def add(self, choice: JsonObject) -> list[ReplyPiece]:
        """Add a chunk of this choice."""
        delta, reason = choice.get("delta"), choice.get("finish_reason")
        if isinstance(reason, str):
            self.finish_reason = reason
        if choice.get("prompt_token_ids"):
            self._fields["prompt_token_ids"] = choice["prompt_token_ids"]
        _extend(self._fields, {key: choice[key] for key in ("logprobs", "token_ids") if choice.get(key)})
        message = {**delta} if isinstance(delta, dict) else {}
        pieces = self._calls.add(message.pop("tool_calls", None))
        for kind, piece in {**message, "text": choice.get("text")}.items():
            if isinstance(piece, str) and kind != "role":
                self.text.setdefault(kind, []).append(piece)
            elif piece is not None:
                _extend(self._message, {kind: piece})
        for kind, keys in _PIECES:
            # Some servers send thoughts under both names.
            key = next((key for key in keys if any(self.text.get(key, ()))), None)
            piece = choice.get("text") if key == "text" else message.get(str(key))
            if isinstance(piece, str) and piece:
                pieces.append(ReplyPiece(kind=kind, text=piece))
        return pieces

    def whole(self) -> JsonObject:
        """The choice as a server sends it that does not stream."""
        joined: JsonObject = {kind: "".join(pieces) for kind, pieces in self.text.items()}
        found: JsonObject = {"logprobs": None, **self._fields, "finish_reason": self.finish_reason}
        if "text" in joined:
            return {**found, "text": joined["text"]}
        thought = "" if "reasoning_content" in joined or "reasoning" in joined else None
        message: JsonObject = {"role": "assistant", "content": thought, "refusal": None, **self._message, **joined}
        if calls := self._calls.whole():
            message["tool_calls"] = [*calls]
        return {**found, "message": message}


def _extend(fields: JsonObject, more: JsonObject) -> None:
    """Add values to `fields`: pieces of lists and of texts in objects follow one another, else the last counts."""
    for key, value in more.items():
        before = fields.get(key)
        if isinstance(before, list) and isinstance(value, list):
            before += value
        elif isinstance(before, dict) and isinstance(value, dict):
            known = ((name, before.get(name), text) for name, text in value.items())
            texts = {name: old + new for name, old, new in known if isinstance(old, str) and isinstance(new, str)}
            _extend(before, {**value, **texts})
        else:
            # The chunk, which an agent gets, keeps its own.
            fields[key] = deepcopy(value)


@dataclass(slots=True)
class _StreamedCall:
    place: int
    identifier: str | None
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class StreamedCalls:
    """The calls of a message that arrives in pieces."""

    def __init__(self) -> None:
        self._calls: list[_StreamedCall] = []
        self._latest: dict[str, _StreamedCall] = {}  # by index

    def add(self, deltas: object) -> list[ReplyPiece]:
        """Add a delta's `tool_calls`: names arrive whole, arguments in pieces. Raises `TransientError` if malformed."""
        pieces: list[ReplyPiece] = []
        for delta in deltas if isinstance(deltas, list) else [deltas] * bool(deltas):
            if not isinstance(delta, dict) or not isinstance(delta.get("function"), dict):
                raise TransientError("the answer holds a tool call without a function's name")
            # A delta continues the call of its index, unless it starts a new one: some servers send whole calls, each
            # without an index or all with 0.
            index, given = str(delta.get("index")), delta.get("id")
            identifier = None if given is None else str(given)
            name, arguments = delta["function"].get("name"), delta["function"].get("arguments") or ""
            call = self._latest.get(index)
            if call is None or (name and identifier != call.identifier):
                call = self._latest[index] = _StreamedCall(len(self._calls), identifier)
                self._calls.append(call)
            if not call.name and isinstance(name, str):
                call.name = name
            if not isinstance(arguments, str):
                arguments = "" if call.arguments else json.dumps(arguments)
            call.arguments += [arguments] * bool(arguments)
            about = {"place": call.place, "id": call.identifier or "", "name": call.name}
            pieces.append(ReplyPiece(kind="call", text=arguments, **about))
        return pieces

    def whole(self) -> list[JsonObject]:
        """The calls as a server sends them that does not stream."""
        return [
            {
                **({} if call.identifier is None else {"id": call.identifier}),
                "type": "function",
                "function": {"name": call.name or None, "arguments": "".join(call.arguments)},
            }
            for call in self._calls
        ]


def event_object(event: str) -> JsonObject:
    """The object in an event's data. Raises `TransientError` for anything else."""
    try:
        data = json.loads(event)
    except (ValueError, RecursionError) as failure:
        raise TransientError("the stream holds an event that is not JSON") from failure
    if not isinstance(data, dict):
        raise TransientError("the stream holds an event that is not an object")
    return data
