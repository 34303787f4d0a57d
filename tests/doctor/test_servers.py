"""Servers and keys: real servers on 127.0.0.1 that list models, do not, refuse, hang and repeat the key."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from midstream.doctor.servers import Check, check_server
from midstream.engines.openai.settings import OpenAIConfig
from support.llm_server import completion

KEY = "sk-canary-Zq7wLp2Xr9Vt"
Answer = tuple[int, bytes]


def listing(*names: str) -> Answer:
    return 200, json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in names]}).encode()


def hello(body: dict[str, Any]) -> Answer:
    return 200, json.dumps(completion(body, "hello")).encode()


def refused(body: dict[str, Any]) -> Answer:
    said = f"Incorrect API key provided: {KEY} ({KEY[:7]}****{KEY[-4:]})"
    return 401, json.dumps({"error": {"message": said, "code": "invalid_api_key"}}).encode()


class Server:
    """Answers GET /v1/models with `models()`, a request with `reply(body)`; knows the keys that it was sent."""

    def __init__(self, models: Callable[[], Answer], reply: Callable[[dict[str, Any]], Answer] = hello) -> None:
        self.models, self.reply = models, reply
        self.keys: list[str | None] = []
        self.posts = 0
        self.base_url = ""


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            server.keys.append(self.headers["Authorization"])
            self._send(server.models() if self.path == "/v1/models" else (404, b"{}"))

        def do_POST(self) -> None:
            server.posts += 1
            server.keys.append(self.headers["Authorization"])
            self._send(server.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def _send(self, answer: Answer) -> None:
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(answer[1])))
            if answer[0] == 302:
                self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()
            with suppress(ConnectionError):  # the client has read enough
                self.wfile.write(answer[1])

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.base_url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def checked(config: OpenAIConfig) -> list[Check]:
    found = asyncio.run(check_server("model", config))
    assert [check.code for check in found] == ["MS501", "MS502", "MS503"][: len(found)]
    return found


def statuses(config: OpenAIConfig) -> list[str]:
    return [check.status for check in checked(config)]


@pytest.mark.parametrize(
    ("wanted", "listed"), [("m", ("a", "m")), ("qwen2.5", ("qwen2.5:latest",)), ("g", ("models/g",))]
)
def test_a_model_that_is_listed(wanted: str, listed: tuple[str, ...]) -> None:
    with serving(Server(lambda: listing(*listed))) as server:
        assert statuses(OpenAIConfig(model=wanted, base_url=server.base_url + "/")) == ["ok", "ok", "ok"]
    assert server.posts == 0, "nothing is sampled"


def test_a_model_that_is_not_listed_is_a_warning() -> None:
    with serving(Server(lambda: listing("a b", "c", "d", "e", "f"))) as server:
        *_, model = checked(OpenAIConfig(model="m", base_url=server.base_url))
        *_, pulled = checked(OpenAIConfig(model="m", base_url=server.base_url, provider="ollama"))
    assert model.status == "warning"
    assert model.words == "m is not listed there; it has a b, c, d, e and 1 more"
    assert model.fix == f"midstream doctor --model 'a b' --base-url {server.base_url}"
    assert pulled.fix == "ollama pull m"


def test_a_name_without_end_is_neither_shown_nor_advised() -> None:
    with serving(Server(lambda: listing("x" * 10_000))) as server:
        *_, model = checked(OpenAIConfig(model="m", base_url=server.base_url))
    assert len(model.words) < 200
    assert model.fix == f"midstream doctor --model NAME --base-url {server.base_url}"


NO_LISTS = [(200, text) for text in (b"<html>", b"[]", b'{"data": 3}', b'{"data": [{}]}', b'{"data": []}', b"\xff")]


@pytest.mark.parametrize("answer", [*NO_LISTS, (302, b""), (404, b"{}"), (500, b"")])
def test_where_no_models_are_listed_one_is_asked(answer: Answer) -> None:
    with serving(Server(lambda: answer)) as server:
        key, found, model = checked(OpenAIConfig(model="m", base_url=server.base_url))
    assert (key.status, found.status, model.status) == ("ok", "ok", "ok")
    assert model.words == "m answered; no list of models is given"
    assert server.posts == 1


def test_a_server_that_is_slow_to_list_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midstream.engines.openai.server.LIST_LIMIT_S", 0.05)
    free = threading.Event()

    def slow() -> Answer:
        free.wait(5)
        return 200, b"{}"

    def reply(body: dict[str, Any]) -> Answer:
        free.set()
        return hello(body)

    with serving(Server(slow, reply)) as server:
        assert statuses(OpenAIConfig(model="m", base_url=server.base_url)) == ["ok", "ok", "ok"]


def test_where_nothing_answers_the_command_is_named_that_starts_it() -> None:
    with serving(Server(lambda: listing("m"))) as server:
        gone = server.base_url
    key, found = checked(OpenAIConfig(model="m", base_url=gone, provider="vllm"))
    assert (key.status, key.words) == ("ok", "none is sent to provider vllm")
    assert found.status == "failed"
    assert f"nothing answers at {gone}" in found.words
    assert found.fix.startswith("vllm serve m --port ")


def test_a_hosted_provider_without_a_key_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    (key,) = checked(OpenAIConfig(model="m", provider="openrouter"))
    assert (key.status, key.words) == ("failed", "OPENROUTER_API_KEY is not set")
    assert key.fix == "export OPENROUTER_API_KEY=<your key>"


def test_a_key_that_no_header_can_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", "sk-caf\u00e9\nx")
    key = checked(OpenAIConfig(model="m", base_url="http://127.0.0.1:9/v1", api_key_env="OWN_KEY"))[0]
    assert key.status == "failed"
    assert "sk" not in key.words


@pytest.mark.parametrize("models", [lambda: listing(KEY, f"model-{KEY}"), lambda: refused({})])
def test_no_part_of_a_key_is_ever_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, models: Any
) -> None:
    monkeypatch.setenv("OWN_KEY", KEY + "\n")
    with caplog.at_level(logging.DEBUG), serving(Server(models, refused)) as server:
        found = checked(OpenAIConfig(model="m", base_url=server.base_url, api_key_env="OWN_KEY"))
    assert set(server.keys) == {f"Bearer {KEY}"}, "it was sent"
    assert found[0].words == "OWN_KEY is set"
    everything = "".join(check.model_dump_json() for check in found) + caplog.text + "".join(capfd.readouterr())
    assert not [part for part in (KEY[i : i + 6] for i in range(len(KEY) - 5)) if part in everything]
    assert KEY[-4:] not in everything


def test_several_engines_are_named_apart() -> None:
    with serving(Server(lambda: listing("m"))) as server:
        found = asyncio.run(check_server("judge", OpenAIConfig(model="m", base_url=server.base_url), several=True))
    assert [check.what for check in found] == ["key of judge", "server of judge", "model of judge"]
