"""Answers without an end, of every kind: the error comes within the time-out, and memory does not grow with them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest

from midstream.core.errors import EngineError
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from support.http_engine import HELLO
from support.peak_memory import growth_of_memory

TIMEOUT_S = 4.0
MOST_MB = 400


def event(**delta: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


def head(kind: str = "application/json", status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n\r\n".encode()


def called(index: int, arguments: str) -> dict[str, object]:
    return {"index": index, "id": str(index), "function": {"name": "add", "arguments": arguments}}


STREAM = head("text/event-stream")
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
NEW_CALL = event(tool_calls=[{"index": 0, "id": "%", "function": {"name": "add"}}])
NEW_CALLS = b"".join(NEW_CALL.replace(b"%", b"%d" % index) for index in range(2000))
# kind: the beginning of an answer, what is then repeated, and what the error says
ENDLESS: dict[str, tuple[bytes, bytes, str]] = {
    "line": (STREAM + b"data: ", b"x" * 65_536, "longer than 64 MB"),
    "lines": (STREAM, b"data: a line of an event that never ends\n" * 2000, "longer than 64 MB"),
    "short-lines": (STREAM, b"data:\n" * 10_000, "longer than 64 MB|no whole answer"),
    "comments": (STREAM, b": still here\n\n" * 5000, "longer than 64 MB|no whole answer"),
    "line-ends": (STREAM, b"\r\n" * 30_000, "longer than 64 MB|no whole answer"),
    "events": (STREAM, b'data: {"choices": []}\n\n' * 3000, "longer than 64 MB|did not end within 40 s"),
    "text": (STREAM, event(content="😀" + "a" * 60_000), "longer than 64 MB|did not end within 40 s"),
    "short-texts": (STREAM, event(content="😀") * 2000, "longer than 64 MB|did not end within 40 s"),
    "token-ids": (STREAM, event().replace(b'"delta"', b'"token_ids": [' + b"7, " * 20_000 + b'7], "delta"'), "64 MB"),
    "calls": (STREAM, NEW_CALLS, "longer than 64 MB|did not end within 40 s"),
    "malformed-calls": (STREAM, event(tool_calls=[[]] * 20_000), "without a function's name"),
    "arguments": (STREAM, event(tool_calls=[called(0, "9" * 60_000)]), "longer than 64 MB|did not end within 40 s"),
    "short-arguments": (STREAM, event(tool_calls=[called(0, "9")]) * 1000, "longer than 64 MB|did not end within 40 s"),
    "body": (head(), b" " * 65_536, "longer than 32 MB"),
    "body-of-an-error": (head(status=503), b"x" * 65_536, "503: xxx"),
    "header": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65_536, "ClientResponseError 400"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 10_000, "ClientResponseError 400"),
    "status": (b"HTTP/1.1 200 ", b"x" * 65_536, "ClientResponseError 400"),
    "interim-answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2000, "no whole answer"),
    "size-of-a-chunk": (CHUNKED, b"1;" + b"x" * 65_536, "Error|no whole answer"),
    "trailers": (CHUNKED + b"0\r\n", b"X: y\r\n" * 10_000, "Error|no whole answer"),
}
QUICK = ("line", "lines", "text", "malformed-calls", "arguments", "body", "body-of-an-error", "header", "headers")
PIECES = ("events", "short-texts", "calls", "short-arguments")  # each within `timeout_s`, and all within ten times that


def answer_to(kind: str, timeout_s: float) -> tuple[EngineError, float, float]:
    """(the error, its seconds, megabytes that this process grew by)."""
    first, repeated, _ = ENDLESS[kind]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer.transport), contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            while True:
                writer.write(repeated)
                await writer.drain()
                await asyncio.sleep(0)

    async def run() -> tuple[EngineError, float, float]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            config = OpenAIConfig(model="m", base_url=base_url, stream=True, max_attempts=1, timeout_s=timeout_s)
            engine = OpenAICompatibleEngine(config, "e")
            start = time.monotonic()
            with growth_of_memory() as growth, pytest.raises(EngineError) as caught:
                await engine.sample(HELLO)
            seconds = time.monotonic() - start
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        return caught.value, seconds, growth.mb

    return asyncio.run(run())


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in ENDLESS]
)
def test_an_answer_without_an_end(kind: str):
    # Where only the limit of size ends the answer, a busy machine has all the time that it needs.
    timeout_s = 15 * TIMEOUT_S if kind in QUICK else TIMEOUT_S
    error, seconds, grown_mb = answer_to(kind, timeout_s)
    assert error.code == "endpoint-failed"
    [failure] = error.calls[0].failures
    assert any(words in failure for words in ENDLESS[kind][2].split("|")), failure
    assert seconds < timeout_s * (10 if kind in PIECES else 1) + 1
    assert grown_mb < MOST_MB
