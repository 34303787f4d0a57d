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
from midstream.engines.openai.reply import listed_logprobs

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
    """The first choice of a stream, as its pieces arrive; `done` once the server has marked its end."""

    def __init__(self) -> None:
        self.done = False
        self._body: JsonObject = {}
        self._text: dict[str, list[str]] = {}
        self._calls = StreamedCalls()
        self._finish_reason: str | None = None
        self._token_ids: list[JsonValue] = []
        self._logprobs: list[JsonValue] = []

    def add(self, chunk: JsonObject) -> str:
        """Add one event's object; returns the piece of text in it."""
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._body["usage"] = usage
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        if not isinstance(choice, dict) or choice.get("index", 0) != 0:
            return ""
        prompt_ids = chunk.get("prompt_token_ids") or choice.get("prompt_token_ids")
        if prompt_ids:
            self._body["prompt_token_ids"] = prompt_ids
        finish_reason, token_ids = choice.get("finish_reason"), choice.get("token_ids")
        if isinstance(finish_reason, str):
            self._finish_reason = finish_reason
            # `transformers serve` sends no [DONE].
            self.done = self.done or isinstance(usage, dict)
        if isinstance(token_ids, list):
            self._token_ids += token_ids
        self._logprobs += listed_logprobs(choice) or ()
        delta = choice.get("delta")
        fields = delta if isinstance(delta, dict) else {}
        self._calls.add(fields.get("tool_calls"))
        fields = fields | {"text": choice.get("text")}
        emitted = ""
        for kind in ("content", "text", "refusal", "reasoning_content", "reasoning"):
            piece = fields.get(kind)
            if isinstance(piece, str):
                self._text.setdefault(kind, []).append(piece)
                if kind in ("content", "text") or (kind == "refusal" and "content" not in self._text):
                    emitted += piece
        return emitted

    def whole(self) -> JsonObject:
        """The body that the same reply has without streaming. Raises `TransientError` if the stream ended too early."""
        if not self.done or self._finish_reason is None:
            raise TransientError("the stream was cut off" if self._text else "the stream ended without a reply")
        joined = {kind: "".join(pieces) for kind, pieces in self._text.items()}
        choice: JsonObject = {"finish_reason": self._finish_reason, "token_ids": self._token_ids}
        choice["logprobs"] = {"token_logprobs": self._logprobs}
        if "text" in joined:
            choice["text"] = joined["text"]
        else:
            thought = "" if "reasoning_content" in joined or "reasoning" in joined else None
            message: JsonObject = {"content": joined.get("content", thought), "refusal": joined.get("refusal")}
            choice["message"] = {**message, "tool_calls": [*self._calls.whole()]}
        return {**self._body, "choices": [choice]}


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
        return [{"function": {"name": call.name or None, "arguments": "".join(call.arguments)}} for call in self._calls]


def event_object(event: str) -> JsonObject:
    """The object in an event's data. Raises `TransientError` for anything else."""
    try:
        data = json.loads(event)
    except (ValueError, RecursionError) as failure:
        raise TransientError("the stream holds an event that is not JSON") from failure
    if not isinstance(data, dict):
        raise TransientError("the stream holds an event that is not an object")
    return data
