"""What an MCP server sends, before the SDK sees it: bounded lines, messages told from noise, floods held back.

A server is a program of somebody else's. Three things are never read whole or passed on: a line longer than allowed, a
line that is no message, and what nobody asked for (progress, logs, changed lists). Where the call that such a line
answers can be told by its id, that call gets an error at once instead of waiting for its time to pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Self

from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

TOO_LONG = -32413  # our own: a reply that was not read because of its size
NOISE_BYTES = 300  # of a line that is no message, kept for the error message
FLOOD = 100_000  # unasked messages in a row: no honest server sends as many between two replies
OPEN_REQUESTS = 16  # of the server's requests (sampling and the like) that wait for their refusal at a time

_EDGE = 512  # bytes kept of both ends of a line that is too long
_LONGEST = 32  # times the limit: then a line counts as one without an end
_ID = rb'"id"\s*:\s*(\d{1,18})'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID_FIRST = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*,")
_ID_LAST = re.compile(_ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*\Z")


class Flood(Exception):
    """A server sends more than anybody could want; the text says what."""


class LineBuffer:
    """Cuts a stream of bytes into lines, and holds no more than `limit` bytes (and one piece) of it.

    Of a longer line only both ends are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._size, self._kept = limit, 0, bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[bytes, bool]]:
        """(line, whether it is whole) of every line that `piece` ends.

        Raises:
            Flood: a line has no end.
        """
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            self._add(piece[start:end])
            line, whole = bytes(self._kept), self._size <= self._limit
            self._size, self._kept = 0, bytearray()
            yield line, whole
            start = end + 1
        self._add(piece[start:])

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        self._kept += piece
        if self._size > self._limit:
            del self._kept[_EDGE : max(_EDGE, len(self._kept) - _EDGE)]
        if self._size > _LONGEST * self._limit:
            raise Flood(f"a line of more than {self._size >> 20} MB")


def messages_of(line: bytes) -> list[JSONRPCMessage]:
    """The messages in a line: one, or those of a batch, or none if it is noise.

    Bytes that are no UTF-8, and half a surrogate pair (JavaScript's `slice` leaves such), become "?". A reply that is
    no JSON-RPC becomes an error for the call it answers.
    """
    try:
        return [jsonrpc_message_adapter.validate_json(line, by_name=False)]
    except ValidationError:
        pass
    try:
        found = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return failures(line, PARSE_ERROR, "a reply that is no JSON")
    items = found if isinstance(found, list) else [found]
    return [message for item in items for message in _mended(item)]


def failures(line: bytes, code: int, text: str) -> list[JSONRPCMessage]:
    """An error for the call that a line answers, if its id can be told without reading all of it."""
    match = _ID_FIRST.match(line) or _ID_LAST.search(line, max(0, len(line) - _EDGE))
    return [_error(int(match[1]), code, text)] if match else []


def _mended(item: Any) -> list[JSONRPCMessage]:
    try:
        text = json.dumps(item, ensure_ascii=False).encode("utf-8", "replace")
        return [jsonrpc_message_adapter.validate_json(text, by_name=False)]
    except (ValidationError, ValueError, RecursionError):
        identifier = item.get("id") if isinstance(item, dict) and "method" not in item else None
        if type(identifier) is not int:
            return []
        return [_error(identifier, PARSE_ERROR, f"a reply that is no JSON-RPC: {json.dumps(item)[:200]}")]


def _error(identifier: int | str, code: int, text: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=identifier, error=ErrorData(code=code, message=text))


class Gate:
    """Lets through what a client without extras needs: replies, and a few of the server's own requests at a time.

    The SDK refuses those requests, one task each; what nobody asked for ends here.
    """

    def __init__(self) -> None:
        self._open = self._unasked = 0

    def admit(self, message: JSONRPCMessage) -> bool:
        """Whether the SDK gets this message from the server.

        Raises:
            Flood: there are too many that nobody asked for.
        """
        if not isinstance(message, JSONRPCRequest | JSONRPCNotification):
            self._unasked = 0
            return True
        self._unasked += 1
        if self._unasked > FLOOD:
            raise Flood(f"{FLOOD} messages in a row that nobody asked for, the last: {message.method[:80]!r}")
        if isinstance(message, JSONRPCNotification) or self._open >= OPEN_REQUESTS:
            return False
        self._open += 1
        return True

    def sent(self, message: JSONRPCMessage) -> None:
        """A message went to the server: an answer makes room for another of its requests."""
        if not isinstance(message, JSONRPCRequest | JSONRPCNotification):
            self._open -= 1


class _Stream:
    """What the SDK asks of both ends. A link closes what is behind them."""

    async def aclose(self) -> None:
        """Nothing to do."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        return None


class Inbox(_Stream):
    """The stream that the SDK reads: what `receive_next` gives, until it gives None."""

    def __init__(self, receive_next: Callable[[], Awaitable[SessionMessage | None]]) -> None:
        self._receive_next = receive_next

    async def receive(self) -> SessionMessage | Exception:
        """The next message; raises `StopAsyncIteration` after the last."""
        return await self.__anext__()

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        message = await self._receive_next()
        if message is None:
            raise StopAsyncIteration
        return message


class Outbox(_Stream):
    """The stream that the SDK writes to."""

    def __init__(self, send: Callable[[SessionMessage], Awaitable[None]]) -> None:
        self._send = send

    async def send(self, item: SessionMessage, /) -> None:
        """Pass a message on."""
        await self._send(item)
