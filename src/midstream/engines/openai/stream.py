"""A reply in pieces: server-sent events, assembled to the body that the same server would have sent as a whole.

    data: {"choices": [{"index": 0, "delta": {"content": "Par"}}]}
    data: {"choices": [{"index": 0, "delta": {"content": "is"}, "finish_reason": "stop"}]}
    data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    data: [DONE]

The format of events is the HTML standard's (section 9.2), without line ends of a carriage return only, and read
leniently: some servers leave the last event unfinished, or name a field `error`. Chunks are OpenAI's, with vLLM's token
ids. A stream counts only with a finish reason and [DONE], or with usage in the same chunk (`transformers serve` sends
no [DONE]): one that ends earlier was cut off, however complete its text looks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import JsonValue

from midstream.core.data import JsonObject
from midstream.core.errors import TransientError

DONE = "[DONE]"
# Bytes, which bound all that is kept. Most are the events' own: 400 for a token with its id and log-probability.
LONGEST_STREAM = 64 << 20


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
    """A stream, as its pieces arrive; `done` once the server has marked its end."""

    def __init__(self) -> None:
        self.done = False
        self._body: JsonObject = {}
        self._choices: dict[int, _StreamedChoice] = {}  # by index

    def add(self, chunk: JsonObject) -> str:
        """Add one event's object; returns the piece of the first choice's text in it."""
        self._body |= {key: value for key, value in chunk.items() if key not in ("choices", "usage", "object")}
        usage, choices, emitted = chunk.get("usage"), chunk.get("choices"), ""
        if isinstance(usage, dict):
            self._body["usage"] = usage
        for choice in choices if isinstance(choices, list) else ():
            index = choice.get("index", 0) if isinstance(choice, dict) else None
            if isinstance(choice, dict) and isinstance(index, int):
                text = self._choices.setdefault(index, _StreamedChoice()).add(choice)
                emitted += text if index == 0 else ""
                # `transformers serve` sends no [DONE].
                self.done |= index == 0 and choice.get("finish_reason") is not None and isinstance(usage, dict)
        return emitted

    def whole(self) -> JsonObject:
        """The body that the same reply has without streaming. Raises `TransientError` if the stream ended too early."""
        first = self._choices.get(0, _StreamedChoice())
        if not self.done or first.finish_reason is None:
            raise TransientError("the stream was cut off" if first.text else "the stream ended without a reply")
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
        self._logprobs: JsonObject = {}

    def add(self, choice: JsonObject) -> str:
        """Add a piece; returns its text."""
        delta, logprobs, reason = choice.get("delta"), choice.get("logprobs"), choice.get("finish_reason")
        if isinstance(reason, str):
            self.finish_reason = reason
        if isinstance(logprobs, dict):
            _extend(self._logprobs, logprobs)
        if choice.get("prompt_token_ids"):
            self._fields["prompt_token_ids"] = choice["prompt_token_ids"]
        if isinstance(choice.get("token_ids"), list):
            _extend(self._fields, {"token_ids": choice["token_ids"]})
        emitted = ""
        message = {**delta} if isinstance(delta, dict) else {}
        self._calls.add(message.pop("tool_calls", None))
        for kind, piece in {**message, "text": choice.get("text")}.items():
            if isinstance(piece, str) and kind != "role":
                self.text.setdefault(kind, []).append(piece)
                if kind in ("content", "text") or (kind == "refusal" and "content" not in self.text):
                    emitted += piece
            elif piece is not None:
                _extend(self._message, {kind: piece})
        return emitted

    def whole(self) -> JsonObject:
        """The choice as a server sends it that does not stream."""
        joined: JsonObject = {kind: "".join(pieces) for kind, pieces in self.text.items()}
        found: JsonObject = {**self._fields, "finish_reason": self.finish_reason}
        found["logprobs"] = self._logprobs or None
        if "text" in joined:
            return {**found, "text": joined["text"]}
        thought = "" if "reasoning_content" in joined or "reasoning" in joined else None
        message: JsonObject = {"role": "assistant", "content": thought, "refusal": None, **self._message, **joined}
        if calls := self._calls.whole():
            message["tool_calls"] = [*calls]
        return {**found, "message": message}


def _extend(fields: JsonObject, more: JsonObject) -> None:
    """Add values to `fields`: pieces of a list follow one another, of other values the last counts."""
    for key, value in more.items():
        before = fields.get(key)
        fields[key] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value


@dataclass(slots=True)
class _StreamedCall:
    identifier: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class StreamedCalls:
    """The calls of a message that arrives in pieces."""

    def __init__(self) -> None:
        self._calls: list[_StreamedCall] = []
        self._latest: dict[str, _StreamedCall] = {}  # by index

    def add(self, deltas: object) -> None:
        """Add a delta's `tool_calls`: names arrive whole, arguments in pieces. Raises `TransientError` if malformed."""
        for delta in deltas if isinstance(deltas, list) else [deltas] * bool(deltas):
            if not isinstance(delta, dict) or not isinstance(delta.get("function"), dict):
                raise TransientError("the answer holds a tool call without a function's name")
            # A delta continues the call of its index, unless it starts a new one: some servers send whole calls, each
            # without an index or all with 0.
            index, identifier = (str(delta.get(key)) for key in ("index", "id"))
            name, arguments = delta["function"].get("name"), delta["function"].get("arguments") or ""
            call = self._latest.get(index)
            if call is None or (name and identifier != call.identifier):
                call = self._latest[index] = _StreamedCall(identifier)
                self._calls.append(call)
            if not call.name and isinstance(name, str):
                call.name = name
            if not isinstance(arguments, str):
                arguments = "" if call.arguments else json.dumps(arguments)
            call.arguments += [arguments] * bool(arguments)

    def whole(self) -> list[JsonObject]:
        """The calls as a server sends them that does not stream."""
        return [
            {
                "id": call.identifier,
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
