"""A reply in pieces: server-sent events, assembled to the body that the same server would have sent as a whole.

    data: {"choices": [{"index": 0, "delta": {"content": "Par"}}]}
    data: {"choices": [{"index": 0, "delta": {"content": "is"}, "finish_reason": "stop"}]}
    data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    data: [DONE]

The format of events is the HTML standard's (section 9.2), read leniently: some servers leave the last event unfinished,
or name a field `error`. Chunks are OpenAI's, with vLLM's token ids. A stream counts only with a finish reason and
[DONE], or with usage in the same chunk (`transformers serve` sends no [DONE]): one that ends earlier was cut off,
however complete its text looks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from midstream.core.http import TransientError
from midstream.engines.openai.tool_calls import StreamedCalls

DONE = "[DONE]"
_LONGEST_LINE = 4 << 20  # bytes; with a log-probability for each token, an event has hundreds
_LINE_END = re.compile(rb"\r\n|\r|\n")


class EventParser:
    """Bytes in, in any pieces; the data of complete events out."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []
        self._after_return = False

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The events that this piece completes. Text is decoded by line, so a piece may end inside a character.

        Raises `TransientError` if a line is longer than any event's can be.
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
    """The first choice of a stream, as its pieces arrive; `done` once the server has marked its end."""

    def __init__(self) -> None:
        self.done = False
        self._body: dict[str, Any] = {}
        self._text: dict[str, list[str]] = {}
        self._calls = StreamedCalls()
        self._finish_reason: str | None = None
        self._token_ids: list[Any] = []
        self._logprobs: dict[str, list[Any]] = {}

    def add(self, chunk: dict[str, Any]) -> str:
        """Add one event's object; returns the piece of text in it."""
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
        logprobs = choice.get("logprobs")
        for kind, values in logprobs.items() if isinstance(logprobs, dict) else ():
            if kind in ("content", "token_logprobs") and isinstance(values, list):
                self._logprobs.setdefault(kind, []).extend(values)
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

    def whole(self) -> dict[str, Any]:
        """The body that the same reply has without streaming. Raises `TransientError` if the stream ended too early."""
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


def event_object(event: str) -> dict[str, Any]:
    """The object in an event's data. Raises `TransientError` for anything else."""
    try:
        data = json.loads(event)
    except (ValueError, RecursionError) as failure:
        raise TransientError("the stream holds an event that is not JSON") from failure
    if not isinstance(data, dict):
        raise TransientError("the stream holds an event that is not an object")
    return data
