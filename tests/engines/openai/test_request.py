"""What goes out, and what a trace keeps of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from midstream.core.engine import Request
from midstream.core.trajectory import Message, Sampling
from midstream.engines.openai.engine import encode_request
from midstream.engines.openai.settings import OpenAIConfig

CHAT = Request(
    role="verifier",
    messages=(Message(role="user", content="hé"),),
    sampling=Sampling(temperature=0.5, top_p=0.9, max_tokens=7, stop=("END",)),
    seed=2**31 + 3,
    json_schema={"type": "object"},
)
TEXT = Request(role="planner", prompt="once")


OPENAI = "https://api.openai.com/v1"


def made(
    request: Request, prompt_ids: tuple[int, ...] | None = None, **settings: Any
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    config = OpenAIConfig.model_validate({"model": "configured", "base_url": "http://h/v1/"} | settings)
    asked = encode_request(request, config, "m", prompt_ids)
    sent = dict(asked.sent)
    assert list(sent)[-1] == "base_url"
    assert sent.pop("base_url") == config.base_url.rstrip("/")
    return asked.path, json.loads(asked.body), sent


def test_a_chat():
    path, body, sent = made(CHAT, base_url=OPENAI, extra_body={"top_k": 3})
    kept = {"model": "m", "temperature": 0.5, "top_p": 0.9, "seed": 3, "max_completion_tokens": 7, "stop": ["END"]}
    kept["top_k"] = 3
    schema = {"type": "json_schema", "json_schema": {"name": "verifier", "schema": {"type": "object"}}}
    assert path == "chat/completions"
    assert body == kept | {"messages": [{"role": "user", "content": "hé"}], "response_format": schema}
    assert sent == kept | {"json_schema": "verifier"}


def test_a_text():
    path, body, sent = made(TEXT, base_url=OPENAI)
    assert (path, body["prompt"], body["max_tokens"]) == ("completions", "once", 512)
    assert "max_completion_tokens" not in body
    assert sent == {key: value for key, value in body.items() if key != "prompt"}


@pytest.mark.parametrize("request_", [CHAT, TEXT], ids=["chat", "text"])
def test_token_ids_in(request_: Request):
    path, body, sent = made(request_, prompt_ids=(5, 6, 7))
    assert (path, body["prompt"]) == ("completions", [5, 6, 7])
    assert "messages" not in body
    assert not {"prompt", "messages"} & set(sent)


@pytest.mark.parametrize(("request_", "logprobs"), [(CHAT, True), (TEXT, 1)], ids=["chat", "text"])
def test_token_ids_out(request_: Request, logprobs: object):
    _, body, _ = made(request_, token_ids=True)
    assert body["return_token_ids"] is True
    assert body["logprobs"] is logprobs
    assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (0, 0.0, 1.0)


@pytest.mark.parametrize(("exact", "asked"), [(True, True), (False, None)])
def test_only_the_server_that_gives_ids_is_asked_to_keep_the_stop_string(exact: bool, asked: bool | None):
    _, body, _ = made(replace(CHAT, keep_stop=True), token_ids=exact)
    assert body.get("include_stop_str_in_output") is asked
    for other in (CHAT, replace(CHAT, keep_stop=True, sampling=Sampling())):  # one that cuts it off, one without any
        assert "include_stop_str_in_output" not in made(other, token_ids=True)[1]


def test_tools_and_the_last_word_on_them():
    tools = ({"type": "function", "function": {"name": "add"}},)
    _, body, sent = made(replace(CHAT, tools=tools))
    assert (body["tools"], sent["tools"]) == (list(tools), 1)
    _, body, sent = made(replace(CHAT, tools=tools), extra_body={"tools": []})
    assert body["tools"] == sent["tools"] == []
    for _, body, sent in (made(replace(TEXT, tools=tools)), made(replace(CHAT, tools=tools), prompt_ids=(1,))):
        assert "tools" not in body | sent


def test_a_stream_and_the_last_word():
    _, body, sent = made(CHAT, stream=True, extra_body={"temperature": 0.0, "response_format": {"type": "text"}})
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert (body["temperature"], body["response_format"]) == (0.0, {"type": "text"})
    assert "json_schema" not in sent
