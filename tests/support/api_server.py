"""A real web service that answers in JSON on 127.0.0.1, with faults on demand.

    with ApiServer(lambda asked: {"seen": asked.params}, faults=[429, "truncate"]) as server: ...

A fault is dealt out to each request in order of arrival: a status, one of the names below, an `Answer` of any shape, or
None for a good answer. "reset" hangs up without an answer, "truncate" before its end, "cut_json" sends half of the JSON
as if it were all; "html" is a page; "huge" streams 100 MB in chunks, "bomb" 100 MB of zeros in 100 kB of gzip; "drip"
sends a byte every 20 ms, "hang" none; both until the client leaves or the server ends.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

HUGE = 100 << 20


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer with status, body and further headers."""

    body: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Fault = int | str | Answer | None


class ApiServer:
    """A context manager around a threaded HTTP server; `answer(asked)` is the JSON of a good answer, or an `Answer`.

    Attributes:
        asked: every request in order of arrival.
        sent: bytes of bodies sent.
        most_in_flight: requests that were answered at the same time.
    """

    def __init__(self, answer: Callable[[Asked], Any], *, faults: Sequence[Fault] = ()) -> None:
        self.answer, self.faults = answer, list(faults)
        self.asked: list[Asked] = []
        self.sent = self.in_flight = self.most_in_flight = 0
        self.ending = threading.Event()
        self.lock = threading.Lock()

    def __enter__(self) -> Self:
        self._http = _Server(self)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ending.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, owner: ApiServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    """One request a connection: none stays open after the test."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._serve(None)

    def do_POST(self) -> None:
        self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _serve(self, body: Any) -> None:
        assert isinstance(self.server, _Server)
        self._owner, parts = self.server.owner, urlsplit(self.path)
        params = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(method=self.command, path=parts.path, params=params, headers=headers, body=body)
        with self._owner.lock:
            self._owner.asked.append(asked)
            fault = self._owner.faults.pop(0) if self._owner.faults else None
        self.close_connection = True
        with contextlib.suppress(ConnectionError):  # the client has left, as it may
            self._reply(asked, fault)

    def _reply(self, asked: Asked, fault: Fault) -> None:
        if isinstance(fault, Answer):
            return self._send(fault.status, fault.body.encode(), fault.headers)
        if isinstance(fault, int):
            return self._send(fault, b"injected")
        if fault == "html":
            return self._send(200, b"<html>sign in to this network</html>", {"Content-Type": "text/html"})
        if fault == "bomb":
            return self._send(200, gzip.compress(bytes(HUGE)), {"Content-Encoding": "gzip"})
        if fault in ("huge", "drip", "hang"):
            return self._stream(fault)
        if fault == "reset":
            return None
        answer = self._answer(asked)
        if isinstance(answer, Answer):
            return self._send(answer.status, answer.body.encode(), answer.headers)
        body = json.dumps(answer, ensure_ascii=False).encode()
        if fault == "cut_json":
            return self._send(200, body[: len(body) // 2])
        return self._send(200, body, cut=len(body) // 2 if fault == "truncate" else 0)

    def _answer(self, asked: Asked) -> Any:
        """Counted up to here: a client may have its reply, and ask again, before the sending thread continues."""
        with self._owner.lock:
            self._owner.in_flight += 1
            self._owner.most_in_flight = max(self._owner.most_in_flight, self._owner.in_flight)
        try:
            return self._owner.answer(asked)
        finally:
            with self._owner.lock:
                self._owner.in_flight -= 1

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None, cut: int = 0) -> None:
        sent = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        self._head(status, sent | dict(headers or {}))
        self._write(body[: len(body) - cut])

    def _stream(self, fault: str) -> None:
        self._head(200, {"Content-Type": "application/json", "Transfer-Encoding": "chunked", "Connection": "close"})
        piece = bytes(1 << 16) if fault == "huge" else b" "
        left = HUGE
        while left > 0 and not self._owner.ending.wait(0 if fault == "huge" else 0.02):
            if fault != "hang":
                self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
            left -= len(piece)
        self._write(b"0\r\n\r\n")

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, data: bytes) -> None:
        self.wfile.write(data)
        with self._owner.lock:
            self._owner.sent += len(data)
