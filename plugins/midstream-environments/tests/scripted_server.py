"""A server of chat completions for tests: it calls the tools that a file says for a question, then gives its reply.

    python scripted_server.py REPLIES.json     {question: {"calls": [[name, arguments], ...], "reply": "..."}}

It prints its address. In a reply "{0}" stands for the first result.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPLIES = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


def text_of(content):
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        messages = body["messages"]
        question = next(text_of(message["content"]) for message in messages if message["role"] == "user")
        results = [text_of(message["content"]) for message in messages if message["role"] == "tool"]
        scripted = REPLIES[question]
        message = {"role": "assistant", "content": scripted["reply"]}
        if len(results) < len(scripted.get("calls", ())):
            name, arguments = scripted["calls"][len(results)]
            offered = [tool["function"]["name"] for tool in body.get("tools") or ()]
            assert name in offered, f"{name} is not one of {offered}"
            call = {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"call-{len(results)}", "type": "function", "function": call}],
            }
        elif results:
            message["content"] = scripted["reply"].replace("{0}", results[0])
        reason = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        reply = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
        if body.get("stream"):
            for place, call in enumerate(message.get("tool_calls", ())):
                call["index"] = place
            chunk = reply | {
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": message, "finish_reason": reason}],
            }
            data = b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"
        else:
            data = json.dumps(reply | {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if body.get("stream") else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
sys.stdout.write(f"http://127.0.0.1:{server.server_port}/v1\n")
sys.stdout.flush()
server.serve_forever()
