"""A small real LLM server for tests: OpenAI's HTTP API on 127.0.0.1, a scripted model, and faults on demand.

    with LLMServer() as server:                       # plays planner, executor, verifier and generator
        engine = OpenAICompatibleEngine(OpenAIConfig(model="m", base_url=server.base_url), "planner")

    with LLMServer(lambda body: "hello", faults=[429, "reset"]) as server: ...

It serves /v1/chat/completions (also below a deployment), /v1/completions, /v1/models and vLLM's LoRA calls; token ids
are UTF-8 bytes. A streamed request gets the same faults inside its stream: half of the events and then a cut, a reset,
an event that is an error or garbage, chunks without a choice or text. "no_done" and "no_finish" end a stream well,
without what must come last; "stall" waits `slow_s` in the middle.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

Body = dict[str, Any]
Fault = int | str | None  # a status, one of BODY_FAULTS or "reset", "truncate", "slow", "stall"; None is a good answer
BODY_FAULTS: Mapping[str, str] = {
    "garbage": "<html>bad gateway</html>",
    "empty_choices": '{"id": "x", "choices": []}',
    "null_content": '{"choices": [{"index": 0, "message": {"role": "assistant", "content": null}, "text": null}]}',
    "error_in_200": '{"error": {"message": "overloaded", "code": 503}}',
}
TRANSIENT_FAULTS: tuple[Fault, ...] = (429, 500, 503, "reset", "truncate", *BODY_FAULTS)
STREAM_FAULTS: tuple[Fault, ...] = (*TRANSIENT_FAULTS, "no_finish")
PIECE = 3  # characters of a reply in one event of a stream


@dataclass
class AgentFlowReplies:
    """Plays all four roles of `agents.prompted`: `turns` tool calls of `tool` with `arguments`, then `answer`.

    The role is read from the first line of the system prompt, the turn from the records of a JSON memory.
    """

    tool: str = "echo"
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"text": "hello"})
    turns: int = 2
    answer: str = "hello"

    def __call__(self, body: Body) -> str:
        text = prompt_of(body)
        role = text.partition("\n")[0].lstrip("# ").lower()
        if role == "planner":
            return f"Justification: it helps\nContext: {self.answer}\nSub-Goal: take a step\nTool Name: {self.tool}"
        if role == "executor":
            return json.dumps(self.arguments)
        if role == "verifier":
            stop = text.count('\n{"turn":') >= self.turns
            return json.dumps({"analysis": "seen", "result_valid": True, "memory_sufficient": stop})
        return f"<answer>{self.answer}</answer>"


def prompt_of(body: Body) -> str:
    """All the text of a request; a prompt of token ids is UTF-8."""
    if "messages" in body:
        return "\n".join(message["content"] or "" for message in body["messages"])
    return body["prompt"] if isinstance(body["prompt"], str) else bytes(body["prompt"]).decode()


class LLMServer:
    """A context manager around a threaded HTTP server.

    `reply(body)` gives the completion's text, or the whole answer as a dict. `faults` are dealt out to requests in
    order of arrival; `fault_rate` makes that share of answers a mixed fault, drawn from (seed, request body, how often
    this body came), so that the order of arrival does not matter.

    Attributes:
        bodies: every request body received, in order.
        headers: the headers of each.
        paths: the path of each.
    """

    def __init__(
        self,
        reply: Callable[[Body], str | Body] | None = None,
        *,
        faults: Sequence[Fault] = (),
        fault_rate: float = 0.0,
        seed: int = 0,
        slow_s: float = 1.0,
        retry_after: str | None = None,
        answer_headers: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> None:
        self.reply = reply or AgentFlowReplies()
        self.fault_rate, self.seed, self.slow_s, self.retry_after = fault_rate, seed, slow_s, retry_after
        self.answer_headers = answer_headers or {}
        self.bodies: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.served: Counter[Fault] = Counter()
        self.in_flight = self.max_in_flight = 0
        self.adapters: dict[str, str] = {}
        self._faults = list(faults)
        self._seen: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._http = _Server(self, port)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.hang_up()
        self._http.server_close()

    def next_fault(self, raw: bytes, kinds: Sequence[Fault] = TRANSIENT_FAULTS) -> Fault:
        """What goes wrong with this request."""
        with self._lock:
            if self._faults:
                fault = self._faults.pop(0)
            else:
                key = blake2b(raw, digest_size=8).digest()
                self._seen[key] += 1
                draw = random.Random(f"{self.seed}/{key.hex()}/{self._seen[key]}")
                fault = draw.choice(kinds) if draw.random() < self.fault_rate else None
            self.served[fault] += 1
            return fault

    def answer(self, path: str, body: Body) -> tuple[int, Body]:
        """A good answer."""
        if path == "/v1/load_lora_adapter":
            if body["lora_name"] in self.adapters:
                return 400, {"error": {"message": "The lora adapter has already been loaded"}}
            self.adapters[body["lora_name"]] = body["lora_path"]
            return 200, {}
        if path == "/v1/unload_lora_adapter":
            if self.adapters.pop(body["lora_name"], None) is None:
                return 404, {"error": {"message": "The lora adapter cannot be found."}}
            return 200, {}
        if not urlsplit(path).path.endswith(("/chat/completions", "/v1/completions")):
            return 404, {"error": {"message": f"no such path {path}"}}
        made = self.reply(body)
        return 200, made if isinstance(made, dict) else completion(body, made)


def completion(body: Body, text: str) -> Body:
    """The answer to a chat or completion request, with token ids and log-probabilities if they were asked for."""
    prompt_ids, ids = list(prompt_of(body).encode()), list(text.encode())
    choice: Body = {"index": 0, "finish_reason": "stop", "logprobs": None}
    chat = "messages" in body
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(ids), "total_tokens": len(prompt_ids + ids)}
    made: Body = {"id": "x", "object": "completion", "model": body["model"], "choices": [choice], "usage": usage}
    if body.get("return_token_ids"):
        choice["token_ids"] = ids
        (made if chat else choice)["prompt_token_ids"] = prompt_ids
    if body.get("logprobs"):
        each = [{"token": chr(byte), "logprob": -0.5} for byte in ids]
        choice["logprobs"] = {"content": each} if chat else {"token_logprobs": [-0.5] * len(ids)}
    return made


def events_of(made: Body) -> list[bytes]:
    """A good answer as the events of a stream, the last of them [DONE]."""
    choice, chat = made["choices"][0], "message" in made["choices"][0]
    text = (choice["message"]["content"] or "") if chat else choice["text"]
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    chunks: list[Body] = []
    if chat:
        chunks.append({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    for i, piece in enumerate(pieces):
        part: Body = {"index": 0, "finish_reason": None} | ({"delta": {"content": piece}} if chat else {"text": piece})
        if "token_ids" in choice:
            part["token_ids"] = _share(choice["token_ids"], i, len(pieces))
        if choice.get("logprobs"):
            [(kind, values)] = choice["logprobs"].items()
            part["logprobs"] = {kind: _share(values, i, len(pieces))}
        chunks.append({"choices": [part]})
    for number, call in enumerate((choice["message"].get("tool_calls") if chat else None) or ()):
        chunks += [{"choices": [{"index": 0, "delta": {"tool_calls": [one]}}]} for one in _call_pieces(number, call)]
    last = {"index": 0, "finish_reason": choice["finish_reason"]} | ({"delta": {}} if chat else {"text": ""})
    chunks.append({"choices": [last]})
    prompt_ids = made.get("prompt_token_ids") or choice.get("prompt_token_ids")
    if prompt_ids:
        (chunks[0] if chat else chunks[0]["choices"][0])["prompt_token_ids"] = prompt_ids
    chunks.append({"choices": [], "usage": made.get("usage")})
    return [*map(event, chunks), b"data: [DONE]\n\n"]


def _call_pieces(number: int, call: Body) -> list[Body]:
    """A tool call as a stream has it: its name first, then pieces of its arguments."""
    said = call["function"]["arguments"]
    pieces = [said[i : i + PIECE] for i in range(0, len(said), PIECE)]
    first = call | {"index": number, "function": call["function"] | {"arguments": ""}}
    return [first, *({"index": number, "function": {"arguments": piece}} for piece in pieces)]


def event(chunk: Body) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def broken_events(events: list[bytes], fault: Fault) -> list[bytes]:
    """What is left of a stream's events under a fault inside it."""
    half = events[: len(events) // 2]
    if fault == "garbage":
        return [*half, b"data: <html>bad gateway</html>\n\n", *events[len(half) :]]
    if fault == "error_in_200":
        return [*half, b"data: " + BODY_FAULTS["error_in_200"].encode() + b"\n\n", events[-1]]
    if fault == "empty_choices":
        return [event({"choices": []}), events[-1]]
    if fault == "null_content":
        return [event({"choices": [{"index": 0, "delta": {"content": None}, "finish_reason": "stop"}]}), events[-1]]
    if fault == "no_finish":
        return [*half, events[-1]]
    return {"no_done": events[:-1], "truncate": half, "reset": half}.get(str(fault), events)


def _share(values: list[Any], i: int, count: int) -> list[Any]:
    """Part `i` of `count` about equal ones; the last has what is left."""
    size = len(values) // count
    return values[i * size :] if i == count - 1 else values[i * size : (i + 1) * size]


class _Server(ThreadingHTTPServer):
    """Knows its open connections, so that none outlives the test; a "reset" one ends without a clean close."""

    daemon_threads = False
    request_queue_size = 256

    def __init__(self, owner: LLMServer, port: int) -> None:
        self.owner = owner
        self.open: set[socket.socket] = set()
        self.reset: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        if request in self.reset:
            self.reset.discard(request)
            request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_request(request)
        else:
            super().shutdown_request(request)

    def hang_up(self) -> None:
        """End reading on idle keep-alive connections; their threads then finish and close them."""
        for connection in list(self.open):
            try:
                connection.shutdown(socket.SHUT_RD)
            except OSError:
                continue  # already gone


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _flying = 0

    @property
    def _http(self) -> _Server:
        assert isinstance(self.server, _Server)
        return self.server

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True  # the client went away, as a cancelled one does

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "m", "object": "model"}]}
        self._send(200 if self.path == "/v1/models" else 404, json.dumps(models).encode())

    def do_POST(self) -> None:
        owner = self._http.owner
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        with owner._lock:
            owner.bodies.append(json.loads(raw))
            owner.headers.append({name.lower(): value for name, value in self.headers.items()})
            owner.paths.append(self.path)
            owner.in_flight += 1
            self._flying = 1
            owner.max_in_flight = max(owner.max_in_flight, owner.in_flight)
        try:
            body = json.loads(raw)
            self._reply(owner, owner.next_fault(raw, STREAM_FAULTS if body.get("stream") else TRANSIENT_FAULTS), body)
        finally:
            self._leave_flight()

    def _leave_flight(self) -> None:
        """Before the last byte: a client that has the answer may ask again at once."""
        with self._http.owner._lock:
            self._http.owner.in_flight -= self._flying
        self._flying = 0

    def _reply(self, owner: LLMServer, fault: Fault, body: Body) -> None:
        if isinstance(fault, int):
            self._send(fault, json.dumps({"error": {"message": f"injected {fault}"}}).encode())
        elif body.get("stream") and fault != "slow":
            self._stream(owner, fault, body)
        elif fault == "reset":
            self._http.reset.add(self.connection)
            self.close_connection = True
        elif isinstance(fault, str) and fault in BODY_FAULTS:
            self._send(200, BODY_FAULTS[fault].encode())
        else:
            if fault == "slow":
                time.sleep(owner.slow_s)
            status, answer = owner.answer(self.path, body)
            self._send(status, json.dumps(answer).encode(), cut=40 if fault == "truncate" else 0)

    def _stream(self, owner: LLMServer, fault: Fault, body: Body) -> None:
        """Answer in events, one chunk of the transfer encoding each."""
        status, made = owner.answer(self.path, body)
        if status != 200 or not made.get("choices"):
            return self._send(status, json.dumps(made).encode())
        events = broken_events(events_of(made), fault)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        for name, value in self._http.owner.answer_headers.items():
            self.send_header(name, value)
        self.end_headers()
        for number, one in enumerate(events):
            if fault == "stall" and number == len(events) // 2:
                time.sleep(owner.slow_s)
            if number == len(events) - 1:
                self._leave_flight()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(one), one))
        if fault in ("reset", "truncate"):
            self.close_connection = True
            if fault == "reset":
                self._http.reset.add(self.connection)
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _send(self, status: int, data: bytes, cut: int = 0) -> None:
        """Send `data`; with `cut`, announce all of it and hang up before the last `cut` bytes."""
        self._leave_flight()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 429 and self._http.owner.retry_after is not None:
            self.send_header("Retry-After", self._http.owner.retry_after)
        for name, value in self._http.owner.answer_headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[: len(data) - cut])
        if cut:
            self.close_connection = True
