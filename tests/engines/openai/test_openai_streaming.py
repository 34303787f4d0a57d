"""The HTTP engine in streams: the same replies in pieces, and every way in which a stream breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from midstream.core.engine import Request
from midstream.core.errors import EngineError
from midstream.core.trajectory import Call, Message
from midstream.engines.openai import engine as openai_engine
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from support.errors import coded
from support.http_engine import HELLO, ask, echo, engine_for
from support.llm_server import STREAM_FAULTS, Fault, LLMServer, completion, events_of


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def reported_by(request: Request) -> tuple[Request, list[tuple[str, Any]]]:
    emitted: list[tuple[str, Any]] = []
    return replace(request, emit=lambda kind, value: emitted.append((kind, value))), emitted


def ask_raw(serve: Callable[[asyncio.StreamWriter], Awaitable[None]], **settings: Any) -> Call:
    """One attempt at a server whose stream is what `serve` writes, and ends with the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer.transport), contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            await serve(writer)

    async def run() -> Call:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with asyncio.timeout(5), server:
            base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            config = OpenAIConfig(model="m", base_url=base_url, stream=True, max_attempts=1, **settings)
            try:
                return await OpenAICompatibleEngine(config, "e").sample(HELLO)
            finally:
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()  # on Python 3.12 and newer, a server waits for its connections

    return asyncio.run(run())


@pytest.mark.parametrize("token_ids", [False, True])
@pytest.mark.parametrize(
    "request_", [HELLO, Request(role="planner", prompt="hello", seed=7)], ids=["chat", "completions"]
)
def test_a_streamed_reply_is_the_whole_one(request_: Request, token_ids: bool):
    with LLMServer(echo) as server:
        [whole] = ask(engine_for(server, token_ids=token_ids), request_)
        asked, emitted = reported_by(request_)
        [streamed] = ask(engine_for(server, token_ids=token_ids, stream=True), asked)
    assert server.bodies[1]["stream_options"] == {"include_usage": True}
    assert streamed.model_copy(update={"sent": {}}) == whole.model_copy(update={"sent": {}})
    assert len(emitted) > 3
    assert {kind for kind, _ in emitted} == {"text"}
    assert "".join(piece for _, piece in emitted) == whole.completion


@pytest.mark.matrix(8)
@pytest.mark.parametrize("token_ids", [False, True])
@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_a_stream_that_breaks_is_tried_again(fault: Fault, token_ids: bool):
    asked, emitted = reported_by(HELLO)
    with LLMServer(echo, faults=[fault, fault]) as server:
        [call] = ask(engine_for(server, token_ids=token_ids, stream=True), asked)
    assert (call.completion, server.served) == ("you said: hello", {fault: 2, None: 1})
    kinds = [kind for kind, _ in emitted]
    assert kinds.count("retry") == len(call.failures) == 2
    last = len(kinds) - kinds[::-1].index("retry")
    assert "".join(piece for _, piece in emitted[last:]) == call.completion
    assert tuple(value for kind, value in emitted if kind == "retry") == call.failures


@pytest.mark.parametrize("token_ids", [False, True])
def test_a_stream_with_its_usage_needs_no_mark_at_its_end(token_ids: bool):
    with LLMServer(echo, faults=["no_done"]) as server:
        [call] = ask(engine_for(server, token_ids=token_ids, stream=True), HELLO)
    assert (call.completion, call.failures) == ("you said: hello", ())


def test_a_stream_that_stalls_is_given_up_but_a_long_one_is_not():
    with LLMServer(lambda body: "a" * 60, faults=["stall"], slow_s=0.4) as server:
        [call] = ask(engine_for(server, stream=True, timeout_s=0.2), HELLO)
    assert call.failures == ("no whole answer within 0.2 s",)

    async def drip(writer: asyncio.StreamWriter) -> None:
        for one in events_of(completion({"model": "m", "messages": []}, "a" * 30)):
            writer.write(one)
            await asyncio.sleep(0.03)

    call = ask_raw(drip, timeout_s=0.25)
    assert (call.completion, call.failures) == ("a" * 30, ())


def test_a_stream_without_an_end_is_given_up(monkeypatch):
    async def drip(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n')
            await writer.drain()
            await asyncio.sleep(0.01)

    monkeypatch.setattr(
        openai_engine, "_STREAM_TIMEOUTS", 0.1
    )  # or the machine, not the stream, could pass the other limit
    with pytest.raises(EngineError, check=coded("endpoint-failed", "0.5 s")):
        ask_raw(drip, timeout_s=5)


def test_nothing_follows_done_but_the_reply():
    """A server that keeps the connection open after [DONE]: the reply is there, only the connection is lost."""

    async def hold(writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(events_of(completion({"model": "m", "messages": []}, "ok"))))
        await asyncio.sleep(60)

    assert ask_raw(hold).completion == "ok"


def test_a_server_that_does_not_stream_is_understood():
    asked, emitted = reported_by(HELLO)

    def plain(body: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [], "error": None} | completion(body, "whole")

    with LLMServer(plain, faults=["slow"], slow_s=0.01) as server:  # a slow answer comes whole
        [call] = ask(engine_for(server, stream=True), asked)
    assert (call.completion, emitted) == ("whole", [("text", "whole")])


def test_nothing_is_lost_in_streams_with_thirty_percent_faults():
    requests = [Request(role="planner", messages=(Message(role="user", content=f"r{i}"),), seed=i) for i in range(200)]
    with LLMServer(echo, fault_rate=0.3, seed=1) as server:
        calls = ask(engine_for(server, stream=True), *requests)
    assert [call.completion for call in calls] == [f"you said: r{i}" for i in range(200)]
    assert all(server.served[fault] > 0 for fault in STREAM_FAULTS)
    assert sum(len(call.failures) for call in calls) == sum(server.served.values()) - 200
