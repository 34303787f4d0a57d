"""The HTTP engine against a real server that misbehaves in every way known to occur."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.engine import Engine, Request
from midstream.core.errors import DeadlineError, EngineError, RefusedError, TransientError, UnsupportedError
from midstream.core.trajectory import Call, ErrorInfo, Message, Sampling
from midstream.engines.openai import engine as engine_module
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.engines.openai.reply import checked_reply
from support.errors import coded
from support.http_engine import HELLO, Bytes, ask, echo, engine_for
from support.llm_server import BODY_FAULTS, TRANSIENT_FAULTS, Fault, LLMServer, completion


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def test_a_chat_is_sent_and_recorded():
    request = Request(
        role="verifier",
        messages=(Message(role="system", content="be brief"), Message(role="user", content="hi")),
        sampling=Sampling(temperature=0.5, top_p=0.9, max_tokens=12, stop=("END",)),
        seed=2**62 + 5,
        json_schema={"type": "object"},
    )
    with LLMServer(echo) as server:
        engine = engine_for(server, price_prompt_usd=2.0, price_completion_usd=10.0, extra_body={"top_k": 3})
        [call] = ask(engine, request)
    assert server.paths == ["/v1/chat/completions"]
    assert server.bodies == [
        {
            "model": "m",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
            "temperature": 0.5,
            "top_p": 0.9,
            "max_tokens": 12,
            "stop": ["END"],
            "seed": 5,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "verifier", "schema": {"type": "object"}},
            },
            "top_k": 3,
        }
    ]
    assert (call.role, call.engine, call.messages, call.sampling) == (
        "verifier",
        "engine",
        request.messages,
        request.sampling,
    )
    assert (call.completion, call.finish_reason, call.completion_ids) == ("you said: be brief\nhi", "stop", ())
    assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (11, 21)
    assert call.usage.cost_usd == pytest.approx((11 * 2 + 21 * 10) / 1e6)
    assert isinstance(engine, Engine)
    assert not engine.token_exact


def test_a_raw_prompt_goes_to_completions():
    with LLMServer(echo) as server:
        [call] = ask(engine_for(server), Request(role="planner", prompt="once"))
    assert server.paths == ["/v1/completions"]
    assert (call.prompt, call.completion, server.bodies[0]["prompt"]) == ("once", "you said: once", "once")


@pytest.mark.parametrize("request_", [HELLO, Request(role="planner", prompt="hello")], ids=["chat", "completions"])
def test_token_ids_are_recorded(request_: Request):
    with LLMServer(lambda body: "ok") as server:
        engine = engine_for(server, token_ids=True)
        [call] = ask(engine, request_)
    assert engine.token_exact
    assert (call.prompt_ids, call.completion_ids, call.logprobs) == (tuple(b"hello"), tuple(b"ok"), (-0.5, -0.5))


@pytest.mark.parametrize(("lost", "value"), [("token_ids", "completion: none"), ("logprobs", "log-probabilities: 0")])
def test_a_server_without_token_ids_cannot_train(lost: str, value: str):
    def reply(body: dict[str, Any]) -> dict[str, Any]:
        made = completion(body, "ok")
        del made["choices"][0][lost]
        return made

    with (
        LLMServer(reply) as server,
        pytest.raises(UnsupportedError, check=coded("token-ids-missing", value)) as caught,
    ):
        ask(engine_for(server, token_ids=True), HELLO)
    assert "vllm serve" in caught.value.fix
    assert len(server.bodies) == 1


@pytest.mark.parametrize("token_ids", [False, True])
@pytest.mark.parametrize("fault", TRANSIENT_FAULTS)
def test_a_transient_fault_is_tried_again(fault: Fault, token_ids: bool):
    with LLMServer(echo, faults=[fault, fault]) as server:
        [call] = ask(engine_for(server, token_ids=token_ids), HELLO)
    assert call.completion == "you said: hello"
    assert server.served == {fault: 2, None: 1}


def test_nothing_is_lost_with_thirty_percent_faults():
    requests = [Request(role="planner", messages=(Message(role="user", content=f"r{i}"),), seed=i) for i in range(200)]
    with LLMServer(echo, fault_rate=0.3, seed=1) as server:
        calls = ask(engine_for(server), *requests)
    assert [call.completion for call in calls] == [f"you said: r{i}" for i in range(200)]
    assert server.served[None] == 200
    assert all(server.served[fault] > 0 for fault in TRANSIENT_FAULTS)


@pytest.mark.parametrize("fault", [500, *BODY_FAULTS])
def test_attempts_come_to_an_end(fault: Fault):
    with (
        LLMServer(echo, faults=[fault] * 3) as server,
        pytest.raises(EngineError, check=coded("endpoint-failed", "3 times")),
    ):
        ask(engine_for(server, max_attempts=3), HELLO)
    assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("status", "code", "fix"),
    [
        (400, "request-refused", "serve a longer context: vllm serve m --max-model-len"),
        (401, "key-refused", "export OPENAI_API_KEY"),
        (403, "key-refused", "export OPENAI_API_KEY"),
        (404, "model-not-found", "/v1/models shows the names"),
        (422, "request-refused", "change sampling or extra_body"),
        (308, "model-not-found", "correct model or base_url"),
    ],
)
def test_a_refusal_is_final_and_says_what_to_do(status: int, code: str, fix: str):
    with (
        LLMServer(echo, faults=[status]) as server,
        pytest.raises(EngineError, check=coded(code, status, fix=fix)) as caught,
    ):
        ask(engine_for(server, provider="vllm", api_key_env="OPENAI_API_KEY"), HELLO)
    assert not caught.value.retryable
    assert len(server.bodies) == 1


def test_a_refusal_of_every_request_differs_from_one_of_a_single_prompt():
    for status, same_for_all in [(401, True), (402, True), (403, True), (404, True), (400, False), (422, False)]:
        with LLMServer(echo, faults=[status]) as server, pytest.raises(EngineError) as caught:
            ask(engine_for(server), HELLO)
        assert isinstance(caught.value, RefusedError) == same_for_all, status
    with LLMServer(echo, faults=[None, 403, 401]) as server:
        engine = engine_for(server)
        ask(engine, HELLO)
        with pytest.raises(EngineError) as flagged:  # a server that moderates refuses one prompt, not the key
            ask(engine, HELLO)
        assert not isinstance(flagged.value, RefusedError)
        with pytest.raises(RefusedError):
            ask(engine, HELLO)


def test_a_spent_quota_is_not_waited_for():
    quota = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    with (
        LLMServer(lambda body: quota) as server,
        pytest.raises(EngineError, check=coded("quota-spent", 402, "You exceeded your quota", fix="add credit")),
    ):
        ask(engine_for(server), HELLO)
    assert len(server.bodies) == 1


def test_a_slow_answer_is_given_up_and_asked_for_again():
    with LLMServer(echo, faults=["slow"], slow_s=1.5) as server:
        [call] = ask(engine_for(server, timeout_s=1.0), HELLO)
    assert call.completion == "you said: hello"
    assert len(server.bodies) == 2


def test_the_deadline_ends_everything():
    started = time.monotonic()
    late = Request(role="planner", messages=HELLO.messages, deadline_s=started + 0.2)
    with LLMServer(echo, faults=["slow"], slow_s=0.5) as server, pytest.raises(DeadlineError):
        ask(engine_for(server), late)
    with LLMServer(echo, faults=[500] * 50) as server, pytest.raises(DeadlineError):
        ask(engine_for(server, max_attempts=50, first_pause_s=0.05), late)
    assert time.monotonic() - started < 3


def test_retry_after_is_waited_for():
    started = time.monotonic()
    with LLMServer(echo, faults=[429], retry_after="0.3") as server:
        ask(engine_for(server), HELLO)
    assert time.monotonic() - started >= 0.3


def test_the_pause_grows_and_repeats(monkeypatch):
    taken: list[list[float]] = []

    async def once(attempt, *, max_attempts, pause_s):
        taken.append([pause_s(failed) for failed in (1, 2, 3)])
        return await attempt()

    monkeypatch.setattr(engine_module, "retry", once)
    with LLMServer(echo) as server:
        ask(engine_for(server, first_pause_s=1.0), HELLO, HELLO)
    first, second = taken
    assert first == second
    assert 0.5 <= first[0] <= 1 <= first[1] <= 2 <= first[2] <= 4


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_nobody_there_says_how_to_start_a_server():
    port = free_port()
    started = time.monotonic()
    engine = OpenAICompatibleEngine(
        OpenAIConfig(model="qwen", provider="vllm", base_url=f"http://127.0.0.1:{port}/v1"), "planner"
    )
    with pytest.raises(EngineError, check=coded("endpoint-unreachable", f"http://127.0.0.1:{port}/v1")) as caught:
        ask(engine, HELLO)
    assert caught.value.fix == f"vllm serve qwen --port {port}"
    assert time.monotonic() - started < 2
    with pytest.raises(EngineError, check=coded("endpoint-unreachable", f"http://127.0.0.1:{port}/v1")):
        asyncio.run(engine.use_adapter(1, Path("a")))


def test_a_server_that_restarts_is_waited_for():
    with LLMServer(echo) as server:
        engine = engine_for(server, max_attempts=3)
        ask(engine, HELLO)
    with pytest.raises(EngineError, check=coded("endpoint-failed", "3 times", "connection")):
        ask(engine, HELLO)
    with LLMServer(echo, port=int(server.base_url.split(":")[2].split("/")[0])):
        assert ask(engine, HELLO)[0].completion == "you said: hello"


def test_concurrency_is_bounded():
    def reply(body: dict[str, Any]) -> str:
        time.sleep(0.01)
        return "ok"

    with LLMServer(reply) as server:
        ask(engine_for(server, max_concurrency=3), *[HELLO] * 12)
    assert server.max_in_flight == 3


def test_one_engine_serves_many_event_loops_without_leaks():
    with LLMServer(echo) as server:
        engine = engine_for(server)
        for _ in range(3):
            ask(engine, HELLO, HELLO)  # nobody calls close: the loop's end does
            gc.collect()  # an unclosed transport would warn here, and warnings are errors

        async def closed_and_used_again() -> str:
            await engine.sample(HELLO)
            await engine.close()
            await engine.close()
            return (await engine.sample(HELLO)).completion

        assert asyncio.run(closed_and_used_again()) == "you said: hello"
    gc.collect()


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    with LLMServer(echo) as server:
        ask(engine_for(server), HELLO)
        monkeypatch.setenv("MY_KEY", "secret\n")
        ask(engine_for(server, api_key_env="MY_KEY"), HELLO)
    assert [headers.get("authorization") for headers in server.headers] == [None, "Bearer secret"]


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    assert OpenAIConfig(model="m").base_url == "https://api.openai.com/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert OpenAIConfig(model="m").base_url == "http://127.0.0.1:1/v1"


def test_an_adapter_takes_over_and_is_recorded():
    async def run(engine: OpenAICompatibleEngine) -> Sequence[Call]:
        before = await engine.sample(HELLO)
        await engine.use_adapter(3, Path("/adapters/3"))
        after = await engine.sample(HELLO)
        await engine.use_adapter(3, Path("/adapters/3"))  # again, as after a resume
        return before, after

    with LLMServer(echo) as server:
        before, after = asyncio.run(run(engine_for(server)))
    [name] = server.adapters
    assert server.adapters[name] == "/adapters/3"
    chats = [
        body["model"]
        for body, path in zip(server.bodies, server.paths, strict=True)
        if path.endswith("chat/completions")
    ]
    assert chats == ["m", name]
    assert (before.policy_version, after.policy_version) == (None, 3)


def test_a_server_without_adapters_says_how_to_get_them():
    with (
        LLMServer(echo, faults=[404]) as server,
        pytest.raises(EngineError, check=coded("adapter-refused", 404)) as caught,
    ):
        asyncio.run(engine_for(server).use_adapter(1, Path("a")))
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in caught.value.fix


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"message": {"content": None, "refusal": "I will not"}}, "I will not"),
        ({"message": {"content": None, "reasoning_content": "hm"}, "finish_reason": "length"}, ""),
        ({"message": {"content": ""}, "finish_reason": "stop"}, ""),
        ({"message": {"content": "a\ud800b"}}, "a?b"),
    ],
)
def test_odd_but_valid_replies(choice: dict[str, Any], text: str):
    assert checked_reply({"choices": [choice], "usage": None}, "", token_ids=False).text == text


def test_what_no_file_can_hold_is_not_kept():
    """JSON can spell half a surrogate pair and integers beyond any float."""

    def odd(body: dict[str, Any]) -> dict[str, Any]:
        if len(server.bodies) == 1:
            return {"error": {"message": "over\ud800loaded", "code": 503}}
        made = completion(body, "ok")
        made["choices"][0]["finish_reason"] = "st\udfffop"
        return made | {"usage": {"prompt_tokens": 10**400, "completion_tokens": 2}}

    with LLMServer(odd) as server:
        [call] = ask(engine_for(server, price_prompt_usd=1.0), HELLO)
    assert (call.failures, call.finish_reason) == (("503: over?loaded",), "st?op")
    assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (0, 2)
    assert Call.model_validate_json(call.model_dump_json()) == call


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "message",
                    "content",
                    "text",
                    "usage",
                    "logprobs",
                    "token_ids",
                    "prompt_token_ids",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    data=st.dictionaries(st.sampled_from(["choices", "usage", "prompt_token_ids"]), json_values), exact=st.booleans()
)
def test_any_body_is_a_reply_or_a_named_error(data: dict[str, Any], exact: bool):
    try:
        reply = checked_reply(data, "", token_ids=exact)
    except (TransientError, EngineError):
        return
    assert len(reply.completion_ids) == len(reply.logprobs)
    reply.text.encode()


# --- the record -----------------------------------------------------------------------------------------------------


def test_what_was_sent_and_what_failed_is_recorded():
    emitted: list[tuple[str, Any]] = []
    request = replace(HELLO, json_schema={"type": "object"}, emit=lambda kind, value: emitted.append((kind, value)))
    with LLMServer(echo, faults=[503, "garbage"]) as server:
        [call] = ask(engine_for(server, extra_body={"top_k": 3}), request)
        body = server.bodies[-1]
    kept = {key: value for key, value in body.items() if key not in ("messages", "response_format")}
    assert call.sent == kept | {"base_url": server.base_url, "json_schema": "planner"}
    assert call.failures == ("503: injected 503", "the answer is cut off or not JSON")
    assert emitted == [("retry", reason) for reason in call.failures]
    assert call.error is None
    assert Call.model_validate_json(call.model_dump_json()) == call


@pytest.mark.parametrize(
    ("faults", "failures", "kind"),
    [
        ([500, "empty_choices"], ("500: injected 500", "the answer holds no choice"), EngineError),
        ([401], (), RefusedError),
    ],
)
def test_a_request_that_failed_leaves_its_call(faults: list[Fault], failures: tuple[str, ...], kind: type[EngineError]):
    with LLMServer(echo, faults=faults) as server, pytest.raises(EngineError) as caught:
        ask(engine_for(server, max_attempts=2), HELLO)
    [call] = caught.value.calls
    assert (call.messages, call.failures, call.completion) == (HELLO.messages, failures, "")
    assert call.sent["base_url"] == server.base_url
    assert call.error == ErrorInfo(type=kind.__name__, message=str(caught.value), retryable=kind is EngineError)
    assert caught.value.retryable is (kind is EngineError)


def test_a_request_past_its_deadline_leaves_its_call():
    with LLMServer(echo, faults=[500, *["slow"] * 5], slow_s=1.0) as server, pytest.raises(DeadlineError) as caught:
        ask(engine_for(server), replace(HELLO, deadline_s=time.monotonic() + 0.5))
    [call] = caught.value.calls
    assert call.failures == ("500: injected 500",)
    assert call.error is not None
    assert (call.error.type, call.error.retryable) == ("DeadlineError", False)


# --- token ids in ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_go_out_as_the_ids_that_the_codec_gives(stream: bool):
    with LLMServer(echo) as server:
        engine = engine_for(server, token_ids=True, stream=stream)
        engine.codec = Bytes()
        [call] = ask(engine, HELLO)
    assert (server.paths, server.bodies[0]["prompt"]) == (["/v1/completions"], list(b"\nhello"))
    assert (call.prompt_ids, call.completion) == (tuple(b"\nhello"), "you said: \nhello")
    assert call.messages == HELLO.messages


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_continues_from_the_ids_that_were_sampled(stream: bool):
    """With `keep_stop`, the text is what the sampled tokens say, whatever the server cuts off."""

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        made = completion(body, "print(1)</python>\n")
        made["choices"][0]["text"] = "print(1)</python>"
        return made

    async def run(engine: OpenAICompatibleEngine) -> tuple[Call, Call]:
        sampling = Sampling(stop=("</python>",))
        first = await engine.sample(replace(HELLO, sampling=sampling, keep_stop=True))
        ids = (*first.prompt_ids, *first.completion_ids, *Bytes().encode_text("<output>1</output>"))
        return first, await engine.sample(replace(HELLO, prompt_ids=ids))

    with LLMServer(reply) as server:
        engine = engine_for(server, token_ids=True, stream=stream)
        engine.codec = Bytes()
        first, second = asyncio.run(run(engine))
    assert bytes(server.bodies[1]["prompt"]) == b"\nhelloprint(1)</python>\n<output>1</output>"
    assert second.prompt_ids == tuple(server.bodies[1]["prompt"])
    assert (first.completion, second.completion) == ("print(1)</python>\n", "print(1)</python>")
    assert [body.get("include_stop_str_in_output") for body in server.bodies] == [True, None]


def test_without_a_codec_a_stream_continues_as_text():
    with LLMServer(echo) as server:
        [call] = ask(engine_for(server), replace(HELLO, prompt_ids=(5, 6), keep_stop=True))
    assert (server.paths, call.completion) == (["/v1/chat/completions"], "you said: hello")
    assert "include_stop_str_in_output" not in server.bodies[0]


@pytest.mark.parametrize("read", [list(b"hell"), list(b"hellO"), list(b"hello!"), list(b"xhello")])
def test_a_server_that_reads_other_ids_is_found_out(read: list[int]):
    def reply(body: dict[str, Any]) -> dict[str, Any]:
        made = completion(body, "ok")
        made["choices"][0]["prompt_token_ids"] = read
        return made

    with LLMServer(reply) as server:
        engine = engine_for(server, token_ids=True)
        engine.codec = Bytes()
        with pytest.raises(EngineError, check=coded("prompt-changed", "5 token ids", f"read {len(read)}")) as caught:
            ask(engine, replace(HELLO, prompt_ids=tuple(b"hello")))
    assert not caught.value.retryable
    assert len(caught.value.calls) == len(server.bodies) == 1
