"""What an attempt never shows and how it explains a refusal: keys, contexts that are too short, certificates."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.engine import Request
from midstream.core.errors import EngineError, MidstreamError, PromptTooLongError, RecipeError
from midstream.core.http import redacted
from midstream.core.trajectory import Call, Message
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from support.errors import coded
from support.llm_server import Body, LLMServer

KEY = "sk-proj-Ab3dEf6hIj9lMn0pQr"
HELLO = Request(role="planner", messages=(Message(role="user", content="hello"),), seed=7)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def ask(server: LLMServer, request: Request = HELLO, **settings: Any) -> Call:
    config = {"model": "m", "base_url": server.base_url, "first_pause_s": 0.001, "max_attempts": 2} | settings
    return asyncio.run(OpenAICompatibleEngine(OpenAIConfig.model_validate(config), "engine").sample(request))


def refused(server: LLMServer, **settings: Any) -> EngineError:
    with pytest.raises(EngineError) as caught:
        ask(server, **settings)
    return caught.value


class Parrot:
    """A server that repeats the Authorization header in every error."""

    def __init__(self, code: int, shown: slice = slice(None)) -> None:
        self.code, self.shown = code, shown
        self.server = LLMServer(self)

    def __call__(self, body: Body) -> Body:
        header = self.server.headers[-1]["authorization"].removeprefix("Bearer ")
        return {
            "error": {"message": f"Incorrect API key provided: {header[self.shown]}. See {header}", "code": self.code}
        }


@pytest.mark.parametrize("code", [401, 500])
@pytest.mark.parametrize("shown", [slice(None), slice(0, 12), slice(-9, None)], ids=["all", "start", "end"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_key_that_the_server_repeats_is_not_shown(
    code: int, shown: slice, stream: bool, caplog: pytest.LogCaptureFixture
):
    parrot, emitted = Parrot(code, shown), []
    request = Request(role="planner", messages=HELLO.messages, emit=lambda kind, value: emitted.append(value))
    with caplog.at_level(logging.DEBUG), parrot.server as server, pytest.raises(EngineError) as caught:
        ask(server, request, stream=stream)
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    [call] = caught.value.calls
    written = f"{caught.value!s} {caught.value!r} {emitted} {call.model_dump_json()} {caplog.text}"
    assert "Incorrect API key provided: [key]" in written
    assert not [KEY[i : i + 6] for i in range(len(KEY) - 5) if KEY[i : i + 6] in written]


def test_a_key_in_the_answer_to_an_adapter_call_is_not_shown():
    parrot = Parrot(500)
    parrot.server.answer = lambda path, body: (500, parrot(body))  # type: ignore[method-assign]
    with parrot.server as server:
        engine = OpenAICompatibleEngine(OpenAIConfig(model="m", base_url=server.base_url, max_attempts=1), "e")
        with pytest.raises(EngineError) as caught:
            asyncio.run(engine.use_adapter(1, Path("a")))
    assert KEY[:8] not in str(caught.value)
    assert "[key]" in str(caught.value)


def test_a_key_that_no_header_can_carry_is_not_shown(monkeypatch: pytest.MonkeyPatch):
    for key in ("sk-abc\ndef-ghi", "sk-schlüssel-1234"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with LLMServer() as server, pytest.raises(RecipeError, check=coded("key-invalid", "$OPENAI_API_KEY")) as caught:
            ask(server)
        assert key[:5] not in str(caught.value)
        assert not server.bodies


def test_only_the_header_carries_the_key():
    with LLMServer(lambda body: "ok") as server:
        call = ask(server)
    assert KEY not in call.model_dump_json()
    assert KEY not in json.dumps(server.bodies)


def test_a_local_provider_is_sent_no_key():
    with LLMServer(lambda body: "ok") as server:
        ask(server, provider="vllm")
        ask(server, provider="vllm", api_key_env="OPENAI_API_KEY")
    assert [headers.get("authorization") for headers in server.headers] == [None, f"Bearer {KEY}"]


@given(key=st.text(min_size=6), before=st.text(), after=st.text(), start=st.integers(0, 100), size=st.integers(6, 100))
def test_no_part_of_a_key_is_left(key: str, before: str, after: str, start: int, size: int):
    part = key[start % (len(key) - 5) :][:size]
    shown = redacted(before + part + after, key)
    assert part not in shown.replace("[key]", "")


@pytest.mark.parametrize(
    ("text", "key", "shown"),
    [
        ("provided: sk-ab***********wxyz.", "", "provided: [key]"),
        ("nothing here", "sk-123456", "nothing here"),
        ("a short EMPTY one", "EMPTY", "a short [key] one"),
        ("no key", "", "no key"),
        ("2 ** 3", "", "2 ** 3"),
    ],
)
def test_what_is_redacted(text: str, key: str, shown: str):
    assert redacted(text, key) == shown


@pytest.mark.parametrize(
    "address",
    ["http://me:hunter2@host/v1", "ftp://hunter2@h:99999", "http://h/v1?api-key=hunter2", "http://h/v1#hunter2"],
)
def test_an_address_with_a_secret_is_refused_and_not_shown(address: str):
    with pytest.raises(MidstreamError, check=coded("secret-in-recipe", "base_url")) as caught:
        OpenAIConfig(model="m", base_url=address)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "localhost:1/v1",
        "ftp://h/v1",
        "http:///v1",
        "http://h:99999/v1",
        "http://[::1/v1",
        "http://h /v1",
        "http://h/\x7f",
        "http://[v1.x]/v1",
    ],
)
def test_what_is_no_address_is_refused(address: str):
    with pytest.raises(ValueError, match="not an address such as"):
        OpenAIConfig(model="m", base_url=address)


# --- a context that is too short ------------------------------------------------------------------------------------

TOO_LONG = [
    (  # OpenAI
        {
            "message": "This model's maximum context length is 8192 tokens. However, you sent 9001.",
            "type": "invalid_request_error",
            "code": "context_length_exceeded",
        },
        "9001",
    ),
    (  # vLLM, the first of the versions before 0.11
        {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000", "code": 400},
        "5000",
    ),
    (
        {"message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096.", "code": 400},
        "5000",
    ),
    (
        {"message": "The input (5000 tokens) is longer than the model's context length (4096 tokens).", "code": 400},
        "5000",
    ),  # SGLang
    (  # llama.cpp
        {
            "code": 400,
            "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 14429,
            "n_ctx": 8192,
        },
        "14429 tokens, context 8192",
    ),
    ({"message": "the input length exceeds the context length", "code": 400}, "input length"),  # Ollama
    ({"message": "This model's maximum prompt length is 131072 but the request contains 140000 tokens."}, "140000"),
    ({"message": "The input token count (9000) exceeds the maximum number of tokens allowed (8192)."}, "9000"),
    ({"message": "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens"}, "9000"),
    ({"message": "Range of input length should be [1, 30720]"}, "30720"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "value"),
    TOO_LONG,
    ids=["openai", "vllm", "vllm-prompt", "sglang", "llama", "ollama", "xai", "gemini", "tgi", "dashscope"],
)
def test_a_prompt_that_is_too_long_is_named(error: dict[str, Any], value: str, stream: bool):
    server = LLMServer()
    server.answer = lambda path, body: (400, {"error": error})  # type: ignore[method-assign]
    with server:
        failure = refused(server, provider="vllm", stream=stream)
    assert isinstance(failure, PromptTooLongError)
    assert not failure.retryable
    assert value in failure.what
    assert "--max-model-len" in failure.fix
    assert len(server.bodies) == 1


def test_an_older_llama_cpp_says_so_under_another_status():
    error = TOO_LONG[4][0] | {"code": 500}
    with LLMServer(lambda body: {"error": error}) as server:
        assert isinstance(refused(server, provider="llama_cpp"), PromptTooLongError)


def test_other_refusals_are_not_taken_for_it():
    with LLMServer(lambda body: {"error": {"message": "unknown field top_k", "code": 400}}) as server:
        failure = refused(server)
    assert type(failure) is EngineError
    assert not failure.retryable


def test_a_refusal_without_json_is_quoted():
    server = LLMServer()
    server.answer = lambda path, body: (418, {"detail": "x" * 5000})  # type: ignore[method-assign]
    with server:
        failure = refused(server)
    assert '{"detail": "xxxx' in failure.what
    assert len(failure.what) < 400
