"""A reply that arrives in pieces: server-sent events, put together to what the same server would have sent whole.

    data: {"choices": [{"index": 0, "delta": {"content": "Par"}}]}
    data: {"choices": [{"index": 0, "delta": {"content": "is"}, "finish_reason": "stop"}]}
    data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    data: [DONE]

The format of events is the HTML standard's (section 9.2); chunks are OpenAI's, with vLLM's token ids. A stream counts
only with a finish reason and [DONE], or with usage in the same chunk (`transformers serve` sends no [DONE]): what ends
before was cut off, however whole its text may look.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from midstream.core.http import TransientError
from midstream.engines.openai.tool_calls import StreamedCalls

DONE = "[DONE]"
_LONGEST_LINE = 4 << 20  # bytes; with a log-probability a token, an event has hundreds
_LINE_END = re.compile(rb"\r\n|\r|\n")


class EventParser:
    """Bytes in, in any pieces; the data of whole events out."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []
        self._after_return = False

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The events that this piece completes. Text is decoded by line, so a piece may end inside a character.

        Raises:
            TransientError: a line is longer than any event's can be.
        """
        if len(self._rest) > _LONGEST_LINE:
            raise TransientError(f"the stream holds a line of more than {_LONGEST_LINE >> 20} MB")
        if self._after_return and chunk.startswith(b"\n"):
            chunk, self._after_return = chunk[1:], False  # the second half of a line end
        if not chunk:
            return
        self._after_return = chunk.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        for line in lines:
            field, _, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
            if field in (b"data", b"error"):  # older servers of llama.cpp name the field of an error so
                self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
            elif not line and self._data:
                yield "\n".join(self._data)
                self._data = []

    def end(self) -> Iterator[str]:
        """The event that lacks nothing but its empty line."""
        return self.feed(b"\n\n")


class StreamedReply:
    """The first choice of a stream, as its pieces come."""

    def __init__(self) -> None:
        self.done = False
        self._body: dict[str, Any] = {}
        self._text: dict[str, list[str]] = {}
        self._calls = StreamedCalls()
        self._finish_reason: str | None = None
        self._token_ids: list[Any] = []
        self._logprobs: dict[str, list[Any]] = {}

    def add(self, chunk: dict[str, Any]) -> str:
        """Take one event's object; returns the piece of text in it."""
        if isinstance(chunk.get("usage"), dict):
            self._body["usage"] = chunk["usage"]
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        if not isinstance(choice, dict) or choice.get("index", 0) != 0:
            return ""
        prompt_ids = chunk.get("prompt_token_ids") or choice.get("prompt_token_ids")
        if prompt_ids:
            self._body["prompt_token_ids"] = prompt_ids
        if isinstance(choice.get("finish_reason"), str):
            self._finish_reason = choice["finish_reason"]
            self.done = self.done or isinstance(chunk.get("usage"), dict)  # `transformers serve` sends no [DONE]
        if isinstance(choice.get("token_ids"), list):
            self._token_ids += choice["token_ids"]
        self._add_logprobs(choice.get("logprobs"))
        delta = choice.get("delta")
        fields = delta if isinstance(delta, dict) else {}
        self._calls.add(fields.get("tool_calls"))
        return self._add_text(fields | {"text": choice.get("text")})

    def whole(self) -> dict[str, Any]:
        """The body that the same reply has without streaming.

        Raises:
            TransientError: the stream ended too early.
        """
        if not self.done or self._finish_reason is None:
            raise TransientError("the stream was cut off" if self._text else "the stream ended without a reply")
        joined = {kind: "".join(pieces) for kind, pieces in self._text.items()}
        choice: dict[str, Any] = {"finish_reason": self._finish_reason, "token_ids": self._token_ids}
        choice["logprobs"] = self._logprobs or None
        if "text" in joined:
            choice["text"] = joined["text"]
        else:
            thought = "" if "reasoning_content" in joined or "reasoning" in joined else None
            message = {"content": joined.get("content", thought), "refusal": joined.get("refusal")}
            choice["message"] = message | {"tool_calls": self._calls.calls}
        return self._body | {"choices": [choice]}

    def _add_text(self, fields: dict[str, Any]) -> str:
        told = ""
        for kind in ("content", "text", "refusal", "reasoning_content", "reasoning"):
            piece = fields.get(kind)
            if isinstance(piece, str):
                self._text.setdefault(kind, []).append(piece)
                if kind in ("content", "text") or (kind == "refusal" and "content" not in self._text):
                    told += piece
        return told

    def _add_logprobs(self, field: object) -> None:
        if isinstance(field, dict):
            for kind in ("content", "token_logprobs"):
                if isinstance(field.get(kind), list):
                    self._logprobs.setdefault(kind, []).extend(field[kind])


def event_object(event: str) -> dict[str, Any]:
    """The object in an event's data.

    Raises:
        TransientError: it is none.
    """
    try:
        data = json.loads(event)
    except (ValueError, RecursionError) as failure:
        raise TransientError("the stream holds an event that is no JSON") from failure
    if not isinstance(data, dict):
        raise TransientError("the stream holds an event that is no object")
    return data
