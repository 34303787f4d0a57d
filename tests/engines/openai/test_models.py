"""What a server says of its models: their context, in each server's own form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from midstream.core.engine import Request
from midstream.core.errors import PromptTooLongError
from midstream.core.trajectory import Message, Sampling
from midstream.engines.openai.server import ModelContext, served_context
from midstream.engines.openai.settings import OpenAIConfig


@contextmanager
def listing(path: str, answer: Any, asked: list[str] | None = None) -> Iterator[str]:
    """A server that answers GET `path` alone; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.path)
            body = json.dumps(answer).encode()
            self.send_response(200 if self.path == path else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def entries(*found: dict[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": list(found)}


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (entries({"id": "m", "max_model_len": 4096}), 4096),  # vLLM
        (entries({"id": "/weights/m", "max_model_len": 4096}, {"id": "lora"}), 4096),  # its one model, by another name
        (entries({"id": "m", "meta": {"n_ctx_train": 131072, "n_ctx": 8192}}), 8192),  # llama.cpp
        (
            entries({"id": "m", "context_length": 131072, "top_provider": {"context_length": 32768}}),
            32768,
        ),  # OpenRouter
        (entries({"id": "o", "context_window": 1}, {"id": "m", "context_window": 8192}), 8192),  # Groq
        (entries({"id": "models/m", "max_context_length": 32768}), 32768),
        (entries({"id": "o", "max_model_len": 1}, {"id": "p", "max_model_len": 2}), None),
        (entries({"id": "m"}), None),  # OpenAI
        (entries({"id": "m", "max_model_len": "4096"}, {"id": "m", "max_model_len": True}), None),
        ({"data": "m"}, None),
        ([], None),
    ],
    ids=str,
)
def test_the_context_in_a_servers_list(answer: Any, tokens: int | None):
    with listing("/v1/models", answer) as base_url:
        assert asyncio.run(served_context(OpenAIConfig(model="m", base_url=base_url))) == tokens


def test_ollama_gives_the_context_of_loaded_models_elsewhere():
    answer = {"models": [{"name": "other:7b", "context_length": 1}, {"name": "m:latest", "context_length": 4096}]}
    with listing("/api/ps", answer) as base_url:
        config = OpenAIConfig(model="m", base_url=base_url, provider="ollama")
        assert asyncio.run(served_context(config)) == 4096


def test_a_server_that_gives_no_list_gives_no_context():
    with listing("/elsewhere", {}) as base_url:
        assert asyncio.run(served_context(OpenAIConfig(model="m", base_url=base_url))) is None
    assert asyncio.run(served_context(OpenAIConfig(model="m", base_url=base_url))) is None  # nothing listens


def request(characters: int, max_tokens: int = 100) -> Request:
    message = Message(role="user", content="x" * characters)
    return Request(role="planner", messages=(message,), sampling=Sampling(max_tokens=max_tokens))


def test_a_setting_counts_four_characters_or_the_token_ids():
    context = ModelContext(OpenAIConfig(model="m", context_tokens=1000), "e")
    asyncio.run(context.check(request(3600), None))
    with pytest.raises(PromptTooLongError, match="about 1001 tokens, 100 of them new, do not fit its context of 1000"):
        asyncio.run(context.check(request(3604), None))
    asyncio.run(context.check(request(9000), range(900)))
    with pytest.raises(PromptTooLongError, match=": 1001 tokens"):
        asyncio.run(context.check(request(9000), range(901)))


def test_a_served_context_is_kept_to_where_the_server_surely_refuses():
    asked: list[str] = []
    with listing("/v1/models", entries({"id": "m", "max_model_len": 2000}), asked) as base_url:
        context = ModelContext(OpenAIConfig(model="m", base_url=base_url), "e")
        asyncio.run(context.check(request(6000), None))
        assert asked == []  # a short prompt fits every model
        asyncio.run(context.check(request(11400), None))  # 1900 tokens at six characters; the server counts itself
        assert context.is_exceeded(request(11400), None)
        with pytest.raises(PromptTooLongError):
            asyncio.run(context.check(request(11406), None))
        assert asked == ["/v1/models"]
