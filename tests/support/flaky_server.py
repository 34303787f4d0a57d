"""A fast LLM server in the caller's own event loop: it numbers its answers and keeps what it sent to each caller.

    async with FlakyServer(reply, fault_rate=0.3) as server:
        engine = OpenAICompatibleEngine(OpenAIConfig(model="m", base_url=server.base_url), "planner")

`support.llm_server` is a thread a connection; this one is for thousands of requests. `Connection` alone is also the
server of benchmarks/rollouts.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

from support.llm_server import BODY_FAULTS, Body, Fault, completion

NINE_FAULTS: tuple[Fault, ...] = (429, 500, "hang", "truncate", "reset", *BODY_FAULTS)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection: every whole request, head and body, goes to `handle`."""

    transport: asyncio.Transport

    def __init__(self, handle: Callable[[Connection, bytes, bytes], None]) -> None:
        self.handle, self.lost = handle, False
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while (end := self._unread.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._unread, 0, end)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._unread) < whole:
                return
            head, body, self._unread = self._unread[:end], self._unread[end + 4 : whole], self._unread[whole:]
            self.handle(self, head, body)

    def send(self, status: int, data: bytes, *, cut: int = 0, kind: str = "application/json") -> None:
        """Send `data`; with `cut`, announce all of it and hang up before the last `cut` bytes."""
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
        self.transport.write(head.encode() + data[: len(data) - cut])
        if cut:
            self.transport.close()

    def begin_stream(self) -> None:
        """The head of an answer in server-sent events."""
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

    def send_event(self, data: str) -> None:
        """One event, in a chunk of its own."""
        event = f"data: {data}\n\n".encode()
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    def end_stream(self) -> None:
        """The last, empty chunk."""
        self.transport.write(b"0\r\n\r\n")

    def reset(self) -> None:
        """Abort the connection without a clean close."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request with its result: a numbered answer, or a fault."""

    body: Body
    fault: Fault
    number: int


class FlakyServer:
    """An asynchronous context manager around the server.

    `reply(body, number)` gives the text of the answer with that number. `fault_of(body)` decides what goes wrong, if
    anything; by default the share `fault_rate` of requests meets one of nine faults, drawn from (seed, request body,
    how often this body came), so that the order of arrival does not matter, and never more than `most_in_row` for one
    body. `asked` is every request in order of arrival.
    """

    def __init__(
        self,
        reply: Callable[[Body, int], str],
        *,
        fault_rate: float = 0.0,
        fault_of: Callable[[Body], Fault] | None = None,
        seed: int = 0,
        most_in_row: int = 5,
        latency_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.reply, self.latency_s = reply, latency_s
        self.fault_rate, self.seed, self.most_in_row = fault_rate, seed, most_in_row
        self.asked: list[Asked] = []
        self.unread = 0  # answers whose client had gone
        self._fault_of = fault_of or self._drawn
        self._seen: Counter[bytes] = Counter()
        self._connections: set[Connection] = set()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(self._connect, "127.0.0.1", 0, backlog=1024)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        for connection in self._connections:
            if not connection.lost:
                connection.transport.abort()
        await self._server.wait_closed()
        await asyncio.sleep(0)  # the aborted connections' last callback

    def _connect(self) -> Connection:
        connection = Connection(self._handle)
        self._connections.add(connection)
        return connection

    def _handle(self, connection: Connection, head: bytes, raw: bytes) -> None:
        if head.startswith(b"GET"):  # it lists no models
            return connection.send(404, b"{}")
        body = json.loads(raw)
        asked = Asked(body=body, fault=self._fault_of(body), number=len(self.asked))
        self.asked.append(asked)
        asyncio.get_running_loop().call_later(self.latency_s(), self._answer, connection, asked)
        return None

    def _drawn(self, body: Body) -> Fault:
        key = blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=8).digest()
        self._seen[key] += 1
        draw = random.Random(f"{self.seed}/{key.hex()}/{self._seen[key]}")
        unlucky = self._seen[key] <= self.most_in_row and draw.random() < self.fault_rate
        return draw.choice(NINE_FAULTS) if unlucky else None

    def _answer(self, connection: Connection, asked: Asked) -> None:
        fault = asked.fault
        if connection.lost:
            self.unread += 1
        elif isinstance(fault, int):
            connection.send(fault, json.dumps({"error": {"message": f"injected {fault}"}}).encode())
        elif asked.body.get("stream"):
            self._stream(connection, asked)
        elif fault == "reset":
            connection.reset()
        elif isinstance(fault, str) and fault in BODY_FAULTS:
            connection.send(200, BODY_FAULTS[fault].encode())
        elif fault != "hang":
            text = self.reply(asked.body, asked.number)
            connection.send(
                200, json.dumps(completion(asked.body, text)).encode(), cut=40 if fault == "truncate" else 0
            )

    def _stream(self, connection: Connection, asked: Asked) -> None:
        """The answer in pieces; what goes wrong goes wrong after the first half of the text.

        A truncated stream ends as if it were whole, without a finish reason and [DONE].
        """
        text, fault = self.reply(asked.body, asked.number), asked.fault
        connection.begin_stream()
        if fault not in ("empty_choices", "null_content"):
            connection.send_event(_delta(text[: len(text) // 2]))
        if fault == "hang":
            return
        if fault == "reset":
            connection.reset()
            return
        if fault is None:
            connection.send_event(_delta(text[len(text) // 2 :]))
            connection.send_event(_delta(None, finish_reason="stop"))
            connection.send_event(json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 9}}))
        elif isinstance(fault, str) and fault in _STREAM_FAULTS:
            connection.send_event(_STREAM_FAULTS[fault])
        if fault != "truncate":
            connection.send_event("[DONE]")
        connection.end_stream()


def _delta(content: str | None, finish_reason: str | None = None) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}]})


_STREAM_FAULTS = {**BODY_FAULTS, "null_content": _delta(None, finish_reason="stop")}
