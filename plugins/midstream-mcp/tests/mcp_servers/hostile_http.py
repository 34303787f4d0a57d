"""An HTTP server on 127.0.0.1 that speaks just enough MCP, and does one thing wrong at a call.

with HostileHttp("http_500") as server:
    server.url, server.calls, server.sessions
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
JSON = "application/json"
NOTE = b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/progress"}\n\n'
BOMB = gzip.compress(b" " * 20_000_000)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self._send(405, b"", JSON)

    def do_DELETE(self) -> None:
        self.server.owner.ended += 1
        self._send(200, b"", JSON)

    def do_POST(self) -> None:
        owner = self.server.owner
        body = self.rfile.read(int(self.headers["content-length"]))
        request = json.loads(body)
        owner.headers.append(dict(self.headers))
        if owner.mode == "http_401":
            return self._send(401, b"who are you", "text/plain")
        method = request["method"]
        if owner.mode == f"endless_at_{method}":
            return self._endless(b"x" * 65536)
        if method == "initialize":
            owner.sessions += 1
            version = request["params"]["protocolVersion"]
            info = {"name": "h", "version": "1"}
            result: Any = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            return self._reply(request, result, {"mcp-session-id": str(owner.sessions)})
        if method == "tools/list":
            return self._reply(request, {"tools": [{"name": "echo", "inputSchema": SCHEMA}]})
        if method == "tools/call":
            owner.calls += 1
            return self._call(request, owner.mode)
        return self._send(202, b"", JSON)

    def _call(self, request: dict[str, Any], mode: str) -> None:
        number = request["id"]
        result = {"content": [{"type": "text", "text": "echo: " + request["params"]["arguments"]["text"]}]}
        reply = json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode()
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "No valid session ID"}}
        in_first = self.headers["mcp-session-id"] == "1"
        match mode:
            case "http_500":
                self._send(500, b"<h1>oops</h1>", "text/html")
            case "session_lost" if in_first:
                self._send(404, b"", JSON)
            case "session_lost_400" if in_first:
                self._send(400, json.dumps(error).encode(), JSON)
            case "accepted":
                self._send(202, b"", JSON)
            case "html":
                self._send(200, b"<h1>hello</h1>", "text/html")
            case "no_json":
                self._send(200, b'{"jsonrpc": ', JSON)
            case "redirect":
                self._send(307, b"", JSON, {"location": "http://localhost:1/elsewhere"})
            case "gzip":
                self._send(200, gzip.compress(reply), JSON, {"content-encoding": "gzip"})
            case "bomb":
                self._send(200, BOMB, JSON, {"content-encoding": "gzip"})
            case "long_json":
                self._send(200, b'{"jsonrpc":"2.0","id":%d,"result":"' % number + b"x" * 5_000_000, JSON)
            case "long_event":
                self._send(200, b"event: message\ndata: " + b"x" * 5_000_000, "text/event-stream")
            case "endless_json":
                self._endless(b"x" * 65536)
            case "endless_line":
                self._endless(b" " * 65536, kind="text/event-stream")
            case "endless_headers":
                self._endless(b"x-more: " + b"x" * 65526 + b"\r\n", kind=None)
            case "cut_json":
                self._send(200, reply[:20], JSON, {"content-length": str(len(reply))})
                self.close_connection = True
            case "cut_events":
                self._send(200, b"event: message\ndata: {", "text/event-stream")
            case "hang":
                time.sleep(1.5)
                self.close_connection = True
            case "reset":
                self.close_connection = True
            case "events":
                self._send(200, NOTE * 100 + b"event: message\ndata: " + reply + b"\n\n", "text/event-stream")
            case _:
                self._send(200, reply, JSON)

    def _endless(self, piece: bytes, kind: str | None = JSON) -> None:
        """Send a piece again and again, in a body of that kind, or in the headers (`kind` None)."""
        self.send_response(200)
        if kind is not None:
            self.send_header("content-type", kind)
            self.end_headers()
        self.flush_headers()
        self.close_connection = True
        try:
            while not self.server.owner.closing:
                self.wfile.write(piece)
        except OSError:
            pass

    def _reply(self, request: dict[str, Any], result: Any, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode(), JSON, headers)

    def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client has read enough


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    owner: HostileHttp

    def handle_error(self, request: Any, client_address: Any) -> None: ...


class HostileHttp:
    """A context manager around the server. It counts calls, sessions opened and sessions ended."""

    def __init__(self, mode: str) -> None:
        self.mode, self.calls, self.sessions, self.ended, self.closing = mode, 0, 0, 0, False
        self.headers: list[dict[str, str]] = []

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/mcp"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.closing = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
