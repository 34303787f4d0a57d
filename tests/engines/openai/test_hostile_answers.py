"""Answers made to fill memory, burn time or slip past the checks: each is a named error, and no bug."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from midstream.core.errors import EngineError, MidstreamError, RecipeError, TransientError, UnsupportedError
from midstream.core.http import redacted
from midstream.core.trajectory import Call
from midstream.engines.openai import engine as openai_engine
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.engines.openai.reply import LONGEST_WORDS, checked_reply
from support.errors import coded
from support.http_engine import HELLO, engine_for
from support.llm_server import LLMServer, completion

OK = json.dumps({"choices": [{"finish_reason": "stop", "message": {"content": "ok"}}]}).encode()


def answered(head: bytes, body: bytes) -> Call:
    """The call to a server that sends these very bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer.transport), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            sent = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(sent.split(b"content-length: ")[1].split(b"\r\n")[0]))
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()

    async def run() -> Call:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            config = OpenAIConfig(model="m", base_url=url, max_attempts=2, first_pause_s=0.001, timeout_s=5)
            return await OpenAICompatibleEngine(config, "engine").sample(HELLO)

    return asyncio.run(run())


def failures_of(head: bytes, body: bytes = OK) -> tuple[str, ...]:
    with pytest.raises(EngineError) as caught:
        answered(head, body)
    return caught.value.calls[0].failures


def test_the_server_of_these_tests_can_answer():
    assert answered(b"HTTP/1.1 200 OK\r\n", OK).completion == "ok"


@pytest.mark.parametrize("body", [gzip.compress(OK), b"no gzip"], ids=["gzip", "not gzip"])  # the bytes hold the time
def test_a_compressed_answer_is_not_unpacked(body: bytes):
    assert "compressed" in failures_of(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n", body)[0]


def test_a_long_answer_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(openai_engine, "LONGEST_BODY", 1 << 20)
    assert failures_of(b"HTTP/1.1 200 OK\r\n", b" " * (3 << 20) + OK)[0] == "the answer is longer than 1 MB"


def test_a_broken_header_is_reported_in_a_few_words(monkeypatch: pytest.MonkeyPatch):
    """And searched for the key no further than that: the search takes long where a server masks much."""
    searched: list[int] = []

    def noting(text: str, key: str) -> str:
        searched.append(len(text))
        return redacted(text, key)

    monkeypatch.setattr(openai_engine, "redacted", noting)
    [first, _] = failures_of(b"HTTP/1.1 200 OK\r\n" + b"*" * 9000 + b"\r\n")
    assert len(first) <= 300
    assert 0 < max(searched) <= LONGEST_WORDS


def exact(**choice: Any) -> dict[str, Any]:
    return {
        "prompt_token_ids": [1],
        "choices": [{"finish_reason": "stop", "message": {"content": "hi"}, "token_ids": [5, 6], **choice}],
    }


def said(*values: object) -> dict[str, Any]:
    return {"logprobs": {"content": [{"logprob": value} for value in values]}}


@pytest.mark.parametrize(
    "logprobs",
    [
        {"logprobs": {"content": ["a", "b"]}},
        {"logprobs": {"content": [None, None]}},
        said(-0.5, 5.0),
        said(-0.5, True),
        said(-0.5, float("nan")),
        said(-0.5),
    ],
)
def test_what_is_no_log_probability_is_not_trained_on(logprobs: dict[str, Any]):
    assert checked_reply(exact(**said(-0.5, 0.0)), "", token_ids=True).logprobs == (-0.5, 0.0)
    with pytest.raises(UnsupportedError, check=coded("token-ids-missing", "log-probabilities: ")):
        checked_reply(exact(**logprobs), "", token_ids=True)


def test_text_without_its_ids_is_a_broken_answer():
    with pytest.raises(TransientError, match="no token ids"):
        checked_reply(exact(token_ids=[], logprobs={"content": []}), "", token_ids=True)


def test_one_broken_answer_does_not_end_a_training():
    """A server that gave ids before can give them again; one that never did cannot be trained on."""
    replies = iter([True, False, True])

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        made = completion(body, "hi")
        if not next(replies):
            made["choices"][0]["logprobs"]["content"][0]["logprob"] = 7
        return made

    with LLMServer(reply) as server:
        engine = engine_for(server, token_ids=True)

        async def run() -> list[Call]:
            return [await engine.sample(HELLO), await engine.sample(HELLO)]

        first, second = asyncio.run(run())
    assert (len(first.failures), len(second.failures)) == (0, 1)
    assert second.logprobs == first.logprobs


def test_a_key_in_a_completion_reaches_no_trace(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-Ab3dEf6hIj9")
    with LLMServer(lambda body: "your key is sk-Ab3dEf6hIj9") as server, pytest.raises(EngineError) as caught:
        asyncio.run(engine_for(server).sample(HELLO))
    error = caught.value
    assert not error.retryable
    assert "sk-Ab3d" not in str(error) + error.calls[0].model_dump_json()


def test_a_key_in_a_stream_is_not_shown_piece_by_piece(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-Ab3dEf6hIj9")
    shown: list[str] = []
    request = replace(HELLO, emit=lambda kind, value: shown.append(value))
    with LLMServer(lambda body: "skip; your key is sk-Ab3dEf6hIj9, sk") as server, pytest.raises(EngineError) as caught:
        asyncio.run(engine_for(server, stream=True).sample(request))
    assert caught.value.code == "key-echoed"
    assert "".join(shown) == "skip; your key is "
    shown.clear()
    with LLMServer(lambda body: "it begins with sk-Ab3, and ends with sk-Ab") as server:
        asyncio.run(engine_for(server, stream=True).sample(request))
    assert "".join(shown) == "it begins with sk-Ab3, and ends with sk-Ab"


@pytest.mark.parametrize("key", ["x", "none", "EMPTY", "dummy-key"])
def test_a_placeholder_of_a_key_may_stand_in_a_completion(key: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with LLMServer(lambda body: f"<answer>{key}</answer>") as server:
        assert key in asyncio.run(engine_for(server).sample(HELLO)).completion


def test_a_key_in_place_of_its_variable_is_refused_and_not_shown():
    with pytest.raises(MidstreamError) as caught:
        OpenAIConfig(model="m", base_url="http://h/v1", api_key_env="sk-Ab3dEf6hIj9")
    assert isinstance(caught.value, RecipeError)
    assert "sk-" not in str(caught.value)
