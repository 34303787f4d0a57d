"""The loopback server is a real one: every fault shows on the wire, and a patient engine gets past all of them."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError

from midstream.core.errors import EngineError, RecipeError
from midstream.core.protocols import Request
from midstream.core.trajectory import Message
from midstream.engines.loopback import Faults, Loopback
from midstream.engines.openai.engine import Config, OpenAICompatibleEngine

ASKED = Request(role="planner", messages=(Message(role="user", content="twelve chars"),), seed=7)


def echo(messages, seed):
    return f"{seed}: {messages[-1].content}"


def post(server, body, path="/v1/chat/completions"):
    """(status, headers, body) of one request, or what the connection raised."""
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.base_url).port, timeout=0.3)
    try:
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    except (OSError, http.client.HTTPException) as failure:
        return type(failure), {}, b""
    finally:
        connection.close()


def chat(text="hello", seed=1):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "seed": seed}


def ask(server, requests, **settings):
    """The calls of an engine on the server, all asked at once."""
    config = Config(model="m", base_url=server.base_url, api_key_env="", first_pause_s=0.0, **settings)

    async def run():
        engine = OpenAICompatibleEngine(config, "e")
        try:
            return await asyncio.gather(*(engine.sample(one) for one in requests))
        finally:
            await engine.close()

    return asyncio.run(run())


def many(count):
    return [Request(role="r", messages=(Message(role="user", content=f"n{i}"),), seed=i) for i in range(count)]


def test_an_engine_gets_the_functions_answer_and_four_characters_are_a_token():
    with Loopback(echo) as server:
        [call] = ask(server, [ASKED])
    assert call.completion == "7: twelve chars"
    assert (call.usage.prompt_tokens, call.usage.completion_tokens, call.finish_reason) == (3, 4, "stop")
    assert (server.requests, server.met) == (1, {"": 1})


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("rate_limit", 429),
        ("server_error", 500),
        ("hang", TimeoutError),
        ("reset", ConnectionResetError),
        ("cut", http.client.IncompleteRead),
        ("bad_json", 200),
        ("empty_choice", 200),
    ],
)
def test_every_fault_shows_on_the_wire_and_stops_an_engine_that_does_not_try_again(fault, status):
    with Loopback(echo, faults=Faults(**{fault: 1.0})) as server:
        seen, headers, body = post(server, chat())
        with pytest.raises(EngineError, match="failed 1 times"):
            ask(server, [ASKED], max_attempts=1, timeout_s=0.2)
    assert seen == status
    assert server.met == {fault: 2}
    if fault == "rate_limit":
        assert headers["Retry-After"] == "0"
    if fault == "bad_json":
        assert body.startswith(b"<html>")
    if fault == "empty_choice":
        assert json.loads(body)["choices"] == []


def test_a_patient_engine_loses_nothing_at_thirty_percent_faults():
    shares = dict.fromkeys(("rate_limit", "server_error", "reset", "cut", "bad_json", "empty_choice"), 0.049)
    with Loopback(echo, faults=Faults(hang=0.006, **shares)) as server:
        calls = ask(server, many(300), max_attempts=20, timeout_s=0.5)
    assert [call.completion for call in calls] == [f"{i}: n{i}" for i in range(300)]
    assert set(server.met) == {"", "hang", *shares}
    assert server.requests == server.met.total() == 300 + sum(len(call.failures) for call in calls)


def test_faults_do_not_depend_on_the_order_of_arrival():
    def failures(at_once):
        with Loopback(echo, faults=Faults(server_error=0.4), seed=5) as server:
            calls = ask(server, many(60), max_concurrency=at_once)
            return [len(call.failures) for call in calls], dict(server.met)

    assert failures(1) == failures(16)


def test_another_seed_has_other_faults():
    def met(seed):
        with Loopback(echo, faults=Faults(server_error=0.5), seed=seed) as server:
            return [post(server, chat(f"n{i}"))[0] for i in range(30)]

    assert met(1) == met(1) != met(2)


def test_what_is_no_chat_request_is_refused_and_named():
    with Loopback(echo) as server:
        assert post(server, chat(), "/v1/completions")[0] == 404
        assert post(server, b"{")[0] == 400
        status, _, body = post(server, {"model": "m"})
        for strange in (b'{"messages": [], "seed": 1}', b'{"messages": [], "seed": 1e400}', b"[" * 100_000):
            assert post(server, strange)[0] == 400
    assert status == 400
    assert "messages" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "head", [b"X: " + b"a" * 200_000, b"Content-Length: " + b"9" * 5_000, b"Content-Length: 3\r\n\r\n{", b""]
)
def test_no_client_disturbs_the_server_or_its_log(head, caplog):
    with Loopback(echo) as server:
        with socket.create_connection(("127.0.0.1", urlsplit(server.base_url).port)) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + head + b"\r\n\r\n")
        assert post(server, chat())[0] == 200
    assert not caplog.records


def test_a_question_that_the_model_cannot_take_is_an_error_at_once_with_its_words():
    def refuse(messages, seed):
        raise RecipeError("no order of the workshop")

    with Loopback(refuse) as server, pytest.raises(EngineError, match="no order of the workshop"):
        ask(server, [ASKED])
    assert server.requests == 1


def test_closing_ends_the_thread_and_every_connection_even_one_that_hangs():
    server = Loopback(echo, faults=Faults(hang=1.0))
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.base_url).port, timeout=30)
    connection.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
    while not server.requests:
        time.sleep(0.001)
    server.close()
    with pytest.raises(ConnectionError):
        connection.getresponse()
    connection.close()
    server.close()  # again does nothing
    assert "loopback" not in {thread.name for thread in threading.enumerate()}
    assert post(server, chat())[0] is ConnectionRefusedError


def test_shares_beyond_one_are_refused():
    with pytest.raises(ValidationError, match="more than 1"):
        Faults(reset=0.6, cut=0.6)


def test_native_calls_reach_the_model_as_text():
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "x", "content": "1"}
    with Loopback(lambda messages, seed: "|".join(f"{one.role}:{one.content}" for one in messages)) as server:
        status, _, body = post(server, {"model": "m", "messages": [said, result]})
        assert post(server, {"model": "m", "messages": [said | {"tool_calls": [{}]}]})[0] == 400
    assert status == 200
    text = json.loads(body)["choices"][0]["message"]["content"]
    assert text == 'assistant:<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>|tool:1'
