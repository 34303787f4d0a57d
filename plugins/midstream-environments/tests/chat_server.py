"""A model server for tests: what it replies is a function of the messages, so that two runners get the same replies.

    with ChatServer(lambda messages: "hello") as server: ...            server.base_url

It streams like OpenAI's, for clients that take no less.
"""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Message = dict[str, Any]


def called(tool: str, arguments: dict[str, Any]) -> Message:
    """A reply that calls a tool."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }


class ChatServer:
    """Serves while its block lasts. `reply` gives a text, or a whole message."""

    def __init__(self, reply: Callable[[list[Message]], str | Message]) -> None:
        self.reply, self.requests = reply, list[dict[str, Any]]()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append(body)
                kind, content = server.answer(body)
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self) -> None:
                self.send_error(404)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def answer(self, body: dict[str, Any]) -> tuple[str, bytes]:
        """The type and the body of an answer."""
        said = self.reply(body["messages"])
        message = {"role": "assistant", "content": said} if isinstance(said, str) else said
        ended = "tool_calls" if message.get("tool_calls") else "stop"
        envelope = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": ended, "logprobs": None}
            whole = envelope | {"object": "chat.completion", "choices": [choice], "usage": usage}
            return "application/json", json.dumps(whole).encode()

        def chunks() -> Iterator[dict[str, Any]]:
            calls = [{**call, "index": n} for n, call in enumerate(message.get("tool_calls") or [])]
            delta = message | ({"tool_calls": calls} if calls else {})
            yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            yield {"choices": [{"index": 0, "delta": {}, "finish_reason": ended}]}
            if (body.get("stream_options") or {}).get("include_usage"):
                yield {"choices": [], "usage": usage}

        events = [json.dumps(envelope | {"object": "chat.completion.chunk"} | chunk) for chunk in chunks()]
        return "text/event-stream", "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
