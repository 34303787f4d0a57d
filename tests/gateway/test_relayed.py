"""Where nothing is trained, a served model gets the requests of an agent as they are, and the agent its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from midstream.components.agent_record import RunRecord
from midstream.core.trajectory import Sampling
from midstream.engines.cached import CachedEngine, ReplyFile
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.runs.budget import Budget, BudgetConfig, BudgetedAgent, budgeted
from support.gateway_sessions import Model, ask, chat, client, open_session, run_agent

Answer = Callable[[web.Request, Any], Awaitable[web.StreamResponse]]
TOOL = {"type": "function", "function": {"name": "add", "strict": True, "parameters": {"type": "object"}}}
SCHEMA = {"name": "n", "strict": True, "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K", "detail": "low"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
# What agents ask of a chat beyond its messages.
ASKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "sampling": {"temperature": 0.2, "top_p": 0.5, "seed": 5},
    "limit": {"max_tokens": 64},
    "newer limit": {"max_completion_tokens": 64},
    "stop": {"stop": "END"},
    "reasoning": {"reasoning_effort": "low", "verbosity": "low"},
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}, "chat_template_kwargs": {"enable": True}},
    "tools": {"tools": [TOOL], "parallel_tool_calls": False},
    "required call": {"tools": [TOOL], "tool_choice": "required"},
    "named call": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}},
    "structured": {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    "several": {"n": 2},
    "log-probabilities": {"logprobs": True, "top_logprobs": 2},
    "penalties": {"frequency_penalty": 0.5, "presence_penalty": 0.1, "logit_bias": {"50": -100}},
    "images": {"messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, PICTURE, SOUND]}]},
}
REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 7,
    "model": "m-2026",
    "system_fingerprint": "fp",
    "choices": [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": text,
                "reasoning_content": "2 and 3 make 5.",
                "tool_calls": [
                    {"id": "call_x", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
                ],
            },
            "logprobs": {"content": [{"token": text, "logprob": -0.5, "top_logprobs": []}]},
            "finish_reason": "tool_calls",
        }
        for index, text in enumerate(("five", "5"))
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 2}},
}


@asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[tuple[OpenAICompatibleEngine, list[tuple[str, Any]]]]:
    """An engine, and what its server received: paths and bodies."""
    received: list[tuple[str, Any]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        received.append((request.raw_path, json.loads(body) if body else None))
        return await answer(request, received[-1][1])

    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    config = OpenAIConfig(
        model="m", base_url=f"http://127.0.0.1:{port}/v1", api_key_env="", first_pause_s=0.01, max_attempts=2
    )
    engine = OpenAICompatibleEngine(config, "model")
    try:
        yield engine, received
    finally:
        await engine.close()
        await runner.cleanup()


async def whole(request: web.Request, body: Any) -> web.StreamResponse:
    return web.json_response(REPLY)


@pytest.mark.parametrize("fields", ASKED.values(), ids=ASKED)
def test_a_server_receives_what_the_agent_sent(fields):
    body = chat("2 + 3?", **fields)

    async def both():
        async with served(whole) as (engine, received), open_session(engine) as (_, _, url), client() as http:
            return await ask(http, url, body), received

    (status, shown), [(path, got)] = asyncio.run(both())
    assert (status, shown, path) == (200, REPLY, "/v1/chat/completions")
    # The name is the server's, and a seed is set where the agent sets none.
    assert got == {**body, "model": "m", "seed": body.get("seed", got["seed"])}


def test_an_answer_is_recorded_as_it_came():
    later = [{"role": "tool", "tool_call_id": "call_x", "content": "5"}]

    async def both():
        async with served(whole) as (engine, received), open_session(engine) as (_, session, url), client() as http:
            asked = chat("2 + 3?", tools=[TOOL])
            _, shown = await ask(http, url, asked)
            asked["messages"] += [shown["choices"][0]["message"], *later]
            await ask(http, url, asked)
            record = RunRecord()
            await session.end(record)
            return record, received[1][1]["messages"]

    record, sent = asyncio.run(both())
    first, second = record.turns
    assert first.calls[0].reply == REPLY
    assert first.calls[0].completion.startswith("five")
    assert (first.command.tool, first.command.arguments) == ("add", {"a": 2})
    assert first.observation.text == "5"
    assert second.calls[0].role == "policy"
    assert sent[1:] == [REPLY["choices"][0]["message"], *later]


def pieces() -> list[dict[str, Any]]:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m-2026"}
    deltas = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "2 and "},
        {"reasoning_content": "3."},
        {"content": "fi"},
        {"content": "ve"},
        {"tool_calls": [{"index": 0, "id": "call_x", "type": "function", "function": {"name": "add"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 2}'}}]},
    ]
    found = [
        {**base, "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]}
        for delta in deltas
        for index in (0, 1)
    ]
    found += [{**base, "choices": [{"index": i, "delta": {}, "finish_reason": "tool_calls"}]} for i in (0, 1)]
    return [*found, {**base, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 8}}]


async def read_stream(http: Any, url: str, body: Any, arrived: asyncio.Event) -> list[str]:
    """The data of a stream's events; each sets `arrived`."""
    found = []
    async with http.post(url, json=body) as reply:
        async for line in reply.content:
            if line.startswith(b"data: "):
                found.append(line[6:].strip().decode())
                arrived.set()
    return found


def streamed(arrived: asyncio.Event) -> Answer:
    """A server that sends a piece only when the agent has the one before."""

    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces():
            arrived.clear()
            await response.write(f"data: {json.dumps(piece)}\n\n".encode())
            # Those of the second choice, and the last, are for chat completions only.
            if piece["choices"] and piece["choices"][0]["index"] == 0 and piece["choices"][0]["delta"]:
                await asyncio.wait_for(arrived.wait(), 20)
        await response.write(b"data: [DONE]\n\n")
        return response

    return answer


def test_a_stream_passes_piece_by_piece(tmp_path):
    """The agent has a piece before the server sends the next; a kept reply streams too."""

    async def both():
        arrived = asyncio.Event()
        async with served(streamed(arrived)) as (engine, received):
            cached = CachedEngine(engine, {"model": "m"}, ReplyFile(tmp_path))
            found = []
            for _ in range(2):
                async with open_session(cached) as (_, session, url), client() as http:
                    body = chat("2 + 3?", stream=True, n=2)
                    found.append(await read_stream(http, f"{url}/v1/chat/completions", body, arrived))
                    [call] = session.calls
            await cached.close()
            return found, call, received

    (first, again), call, received = asyncio.run(both())
    assert len(received) == 1
    assert received[0][1]["stream_options"] == {"include_usage": True}
    # The usage is for those who ask for it.
    assert [*map(json.loads, first[:-1])] == pieces()[:-1]
    assert first[-1] == again[-1] == "[DONE]"
    message = call.reply["choices"][1]["message"]
    assert (message["content"], message["reasoning_content"]) == ("five", "2 and 3.")
    assert message["tool_calls"] == [
        {"id": "call_x", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    ]
    assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (3, 8)
    seen = [json.loads(text)["choices"][0] for text in again[:-1]]
    assert "".join(choice["delta"].get("content") or "" for choice in seen if choice["index"] == 1) == "five"
    assert [choice["finish_reason"] for choice in seen if choice["finish_reason"]] == ["tool_calls"] * 2


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("responses", {"input": "2 + 3?"}),
        ("messages", {"max_tokens": 50, "messages": [{"role": "user", "content": "2 + 3?"}]}),
    ],
)
def test_a_stream_of_chat_completions_passes_in_the_form_of_other_apis(api, body):
    async def both():
        arrived = asyncio.Event()
        async with (
            served(streamed(arrived)) as (engine, received),
            open_session(engine) as (_, session, url),
            client() as http,
        ):
            asked = {"model": "policy", "stream": True, **body}
            return await read_stream(http, f"{url}/v1/{api}", asked, arrived), session.calls, received

    found, [call], [(path, sent)] = asyncio.run(both())
    events = [json.loads(text) for text in found]
    texts: dict[str, str] = {}
    for event in events:
        delta = event.get("delta")
        if event["type"] == "content_block_delta":
            (kind, piece) = next((key, value) for key, value in delta.items() if key != "type")
            texts[kind] = texts.get(kind, "") + piece
        elif isinstance(delta, str):
            texts[event["type"]] = texts.get(event["type"], "") + delta
    assert [*texts.values()] == ["2 and 3.", "five", '{"a": 2}']
    assert (path, sent["stream"], call.usage.completion_tokens) == ("/v1/chat/completions", True, 8)
    if api == "responses":
        assert events[-1]["type"] == "response.completed"
        assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message", "function_call"]
        assert events[-1]["response"]["output"][2]["call_id"] == "call_x"
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
    else:
        assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1, 2]
        assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_stream_that_breaks_off_fails_the_run_and_is_not_asked_again():
    async def broken(request: web.Request, body: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"data: {json.dumps(pieces()[0])}\n\n".encode())
        return response

    async def both():
        async with served(broken) as (engine, received), open_session(engine) as (_, session, url), client() as http:
            async with http.post(f"{url}/v1/chat/completions", json=chat(stream=True)) as reply:
                text = await reply.text()
            return text, session.failure.result(), received

    text, failure, received = asyncio.run(both())
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert events[0] == pieces()[0]
    assert events[-1]["error"]["code"] == failure.code == "endpoint-failed"
    assert len(received) == 1


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_request_that_the_server_refuses_is_the_agents_to_handle(ends_well):
    """But an agent that ends with it has no answer that can be scored."""

    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        if "tools" in body:
            return web.json_response({"error": {"message": "no tools here"}}, status=400)
        return web.json_response(REPLY)

    async def solve(task, session):
        async with client() as http:
            status, shown = await ask(http, session.base_url, chat("a", tools=[TOOL]))
            assert (status, shown["error"]["code"]) == (400, "request-refused")
            assert "no tools here" in shown["error"]["message"]
            if ends_well:
                await ask(http, session.base_url, chat("a"))
        return "right"

    async def both():
        async with served(answer) as (engine, _):
            return await run_agent(solve, engine)

    [trajectory] = asyncio.run(both())
    if ends_well:
        assert (trajectory.status, trajectory.reward.value) == ("ok", 1.0)
        assert trajectory.outcome == {"refused: request-refused": 1}
    else:
        assert (trajectory.status, trajectory.reward) == ("error", None)
        assert "no tools here" in trajectory.error.message


def test_any_other_api_of_the_server():
    vectors = {"data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 6, "total_tokens": 6}}
    speech = b"RIFF\x00\xff"

    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        if request.path.endswith("/embeddings"):
            return web.json_response(vectors)
        if request.path.endswith("/speech"):
            return web.Response(body=speech, content_type="audio/wav")
        return web.json_response({"error": {"message": "what?"}}, status=404)

    async def both():
        async with served(answer) as (engine, received), open_session(engine) as (_, session, url), client() as http:
            budget = Budget(BudgetConfig(calls=2))
            session.context.engines["policy"] = budgeted(engine, budget)
            found = []
            for method, path, body in (
                ("POST", "embeddings", {"model": "policy", "input": "a"}),
                ("POST", "audio/speech", {"model": "tts", "input": "a"}),
                ("GET", "files?limit=1", None),
            ):
                async with http.request(method, f"{url}/v1/{path}", json=body) as reply:
                    found.append((reply.status, reply.content_type, await reply.read()))
            record = RunRecord()
            await session.end(record)
            return found, received, record.closing_calls, budget.spent()

    found, received, calls, spent = asyncio.run(both())
    assert received == [
        ("/v1/embeddings", {"model": "m", "input": "a"}),
        ("/v1/audio/speech", {"model": "tts", "input": "a"}),
    ]
    assert (found[0][0], json.loads(found[0][2])) == (200, vectors)
    assert found[1] == (200, "audio/wav", speech)
    # The budget has two calls.
    assert (found[2][0], json.loads(found[2][2])["error"]["code"]) == (503, "budget-spent")
    assert [(call.sent["path"], call.usage.prompt_tokens) for call in calls] == [("embeddings", 6), ("audio/speech", 0)]
    assert (spent.calls, spent.tokens) == (2, 6)


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "in process"])
def test_other_apis_are_refused_by_name_where_no_server_has_them(trained):
    async def both():
        async with served(whole) as (engine, received):
            chosen: Any = engine if trained else Model()
            async with (
                open_session(chosen, sampling=Sampling() if trained else None) as (_, session, url),
                client() as http,
                http.post(f"{url}/v1/embeddings", json={"input": "a"}) as reply,
            ):
                return reply.status, (await reply.json())["error"]["message"], received, session.failure.done()

    status, message, received, failed = asyncio.run(both())
    assert (status, received, failed) == (400, [], False)
    assert "embeddings" in message


def test_paths_stay_below_the_servers_address():
    async def both():
        async with served(whole) as (engine, received), open_session(engine) as (_, _, url):
            host, key = url.split("/")[2], url.rsplit("/", 1)[1]
            statuses = []
            for path in ("../admin", "%2e%2e/admin", "a/%2e%2e/%2e%2e/b"):
                reader, writer = await asyncio.open_connection(*host.split(":"))
                writer.write(f"GET /s/{key}/v1/{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
                statuses.append(int((await reader.read()).split()[1]))
                writer.close()
            return statuses, received

    statuses, received = asyncio.run(both())
    assert received == []
    assert set(statuses) <= {404, 400}


def test_several_replies_are_reserved_in_a_budget():
    async def both():
        async with served(whole) as (engine, received):
            budget = Budget(BudgetConfig(tokens=500))
            async with open_session(budgeted(engine, budget)) as (_, _, url), client() as http:
                return [(await ask(http, url, chat("a", max_tokens=100, n=count)))[0] for count in (2, 9)], received

    statuses, received = asyncio.run(both())
    assert statuses == [200, 503]
    assert len(received) == 1


def test_a_budget_of_tokens_limits_what_the_agent_leaves_open():
    async def both():
        async with served(whole) as (engine, received):
            limited = budgeted(engine, Budget(BudgetConfig(tokens=100_000)))
            async with open_session(limited) as (_, _, url), client() as http:
                for fields in ({}, {"max_completion_tokens": 5}):
                    await ask(http, url, chat("a", **fields))
                return [{key: body[key] for key in body if "max" in key} for _, body in received]

    assert asyncio.run(both()) == [{"max_tokens": 2048}, {"max_completion_tokens": 5}]


def test_a_run_through_the_gateway_is_counted_once():
    budget = Budget(BudgetConfig(cost_usd=1e6))

    async def solve(task, session):
        async with client() as http:
            await ask(http, session.base_url, chat("a"))
            async with http.post(f"{session.base_url}/embeddings", json={"model": session.model, "input": "a"}):
                return "right"

    async def both():
        async with served(whole) as (engine, _):
            engine.config = engine.config.model_copy(update={"price_prompt_usd": 1e5, "price_completion_usd": 1e5})
            limited = budgeted(engine, budget, (1e5, 1e5))
            return await run_agent(solve, limited, wrap=lambda agent: BudgetedAgent(agent, budget))

    [trajectory] = asyncio.run(both())
    spent = budget.spent()
    # The price is that of a chat.
    assert (spent.calls, spent.cost_usd, trajectory.cost_usd) == (2, 0.7, 0.7)


def completion(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {**REPLY, "choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}]}


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_was_cut_off_is_an_answer_in_every_api(stream):
    call = {"id": "call_x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b'}}
    cut = completion({"role": "assistant", "content": None, "tool_calls": [call]}, finish_reason="length")

    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        return web.json_response(cut)

    async def both():
        async with served(answer) as (engine, _), open_session(engine) as (_, session, url), client() as http:
            hello = [{"role": "user", "content": "Hi"}]
            statuses = []
            for api, fields in (
                ("chat/completions", {"messages": hello}),
                ("responses", {"input": "Hi"}),
                ("messages", {"messages": hello, "max_tokens": 5}),
            ):
                body = {"model": "policy", "stream": stream, **fields}
                async with http.post(f"{url}/v1/{api}", json=body) as reply:
                    statuses.append((reply.status, len(await reply.read()) > 100))
            record = RunRecord()
            await session.end(record)
            return statuses, record, session.failure.cancelled()

    statuses, record, sound = asyncio.run(both())
    assert statuses == [(200, True)] * 3
    assert sound
    assert [turn.command.error for turn in record.turns] == ["the arguments are not a JSON object"] * 3


def test_a_chat_under_another_path_does_not_pass_the_record():
    async def both():
        async with served(whole) as (engine, received), open_session(engine) as (_, _, url), client() as http:
            statuses = []
            for path in ("chat/completions/", "/chat/completions", "v1/chat/completions", "load_lora_adapter"):
                async with http.post(f"{url}/v1/{path}", json=chat()) as reply:
                    statuses.append(reply.status)
            return statuses, received

    statuses, received = asyncio.run(both())
    assert statuses == [404] * 4
    assert received == []


@pytest.mark.parametrize("path", ["embeddings", "completions"])
def test_a_run_whose_last_request_another_api_refused_is_not_scored(path):
    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such model"}}, status=404)

    async def solve(task, session):
        async with client() as http, http.post(f"{session.base_url}/{path}", json={"input": "a"}) as reply:
            assert reply.status == 404
        return "I cannot"

    async def both():
        async with served(answer) as (engine, _):
            return await run_agent(solve, engine)

    [trajectory] = asyncio.run(both())
    assert (trajectory.status, trajectory.reward) == ("error", None)


@pytest.mark.parametrize("count", [0, -100, 2.0, True, 1000])
def test_a_number_of_replies_is_a_positive_integer(count):
    async def both():
        async with served(whole) as (engine, received), open_session(engine) as (_, _, url), client() as http:
            status, shown = await ask(http, url, chat(n=count))
            return status, shown["error"]["param"], received

    assert asyncio.run(both()) == (400, "n", [])


def test_a_limit_that_is_null_sets_no_limit():
    async def both():
        async with served(whole) as (engine, received):
            limited = budgeted(engine, Budget(BudgetConfig(tokens=100_000)))
            async with open_session(limited) as (_, _, url), client() as http:
                await ask(http, url, chat(max_tokens=None))
            return received[0][1]["max_tokens"]

    assert asyncio.run(both()) == 2048


def chunks(*deltas: dict[str, Any]) -> list[dict[str, Any]]:
    """A stream with usage in each chunk, and without ids."""
    found = [{"choices": [{"index": 0, "delta": delta}], "usage": {"completion_tokens": 1}} for delta in deltas]
    return [
        *found,
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 9}},
    ]


def sent_as_stream(events: list[Any]) -> Answer:
    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return web.Response(text=text, content_type="text/event-stream")

    return answer


def called(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments, **fields}}]}


@pytest.mark.parametrize(
    "deltas",
    [
        [called(0, '{"a"', name="f"), called(1, '{"b"', name="g"), called(0, ": 1}"), called(1, ": 2}")],
        [called(0, '{"a"', name="f"), called(0, ": 1}", name="f"), called(1, '{"b": 2}', name="g")],
    ],
    ids=["interleaved", "with names"],
)
@pytest.mark.parametrize("api", ["responses", "messages"])
def test_calls_in_pieces_are_those_of_the_record(api, deltas):
    body = {"input": "Hi"} if api == "responses" else {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}

    async def both():
        async with (
            served(sent_as_stream(chunks(*deltas))) as (engine, _),
            open_session(engine) as (_, session, url),
            client() as http,
        ):
            asked = {"model": "policy", "stream": True, **body}
            found = await read_stream(http, f"{url}/v1/{api}", asked, asyncio.Event())
            record = RunRecord()
            await session.end(record)
            return [json.loads(text) for text in found], record

    events, record = asyncio.run(both())
    assert [(turn.command.tool, turn.command.arguments) for turn in record.turns] == [("f", {"a": 1}), ("g", {"b": 2})]
    if api == "responses":
        output = events[-1]["response"]["output"]
        assert [(item["name"], item["arguments"]) for item in output] == [("f", '{"a": 1}'), ("g", '{"b": 2}')]
        ids = [item["call_id"] for item in output]
    else:
        started = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        texts = ["", ""]
        for event in events:
            if event["type"] == "content_block_delta":
                texts[event["index"]] += event["delta"]["partial_json"]
        assert texts == ['{"a": 1}', '{"b": 2}']
        ids = [block["id"] for block in started]
    assert len({*ids}) == 2
    assert all(ids)


@pytest.mark.parametrize(
    "odd", [{"choices": [None]}, {"choices": {}}, {"choices": [{"delta": "x"}]}, {"choices": None}]
)
@pytest.mark.parametrize("api", ["chat/completions", "responses"])
def test_odd_chunks_do_not_break_a_stream(api, odd):
    async def both():
        events = [odd, *chunks({"content": "fi"}, {"content": "ve"})]
        async with (
            served(sent_as_stream(events)) as (engine, _),
            open_session(engine) as (_, session, url),
            client() as http,
        ):
            asked = {**chat(stream=True), "input": "Hi"} if api == "responses" else chat(stream=True)
            asked.pop("messages" if api == "responses" else "input", None)
            found = await read_stream(http, f"{url}/v1/{api}", asked, asyncio.Event())
            return found, [call.completion for call in session.calls]

    found, texts = asyncio.run(both())
    assert texts == ["five"]
    assert "error" not in json.loads(found[-2] if found[-1] == "[DONE]" else found[-1])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "audio": {"id": "a", "data": "UklGRg=="}},
        {"role": "assistant", "content": [{"type": "text", "text": "five"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm"},
    ],
    ids=["audio", "parts", "thoughts"],
)
def test_an_answer_without_a_text_is_one(message):
    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        return web.json_response(completion(message))

    async def both():
        async with served(answer) as (engine, received), open_session(engine) as (_, session, url), client() as http:
            status, shown = await ask(http, url, chat())
            return status, shown["choices"][0]["message"], len(received), session.calls[0].completion

    status, shown, asked, text = asyncio.run(both())
    assert (status, shown, asked) == (200, message, 1)
    assert text == ("five" if isinstance(message["content"], list) else "")


def test_where_token_ids_are_asked_for_one_reply_is_all_there_is():
    async def both():
        async with served(whole) as (engine, received):
            engine.token_exact = True
            async with open_session(engine) as (_, _, url), client() as http:
                return [
                    (await ask(http, url, chat(**fields)))[0] for fields in ({"n": 2}, {"logprobs": True})
                ], received

    assert asyncio.run(both()) == ([400, 400], [])


def test_a_client_does_not_repeat_what_was_repeated():
    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        return web.json_response({"error": {"message": "down"}}, status=500)

    async def both():
        async with (
            served(answer) as (engine, received),
            open_session(engine) as (_, _, url),
            client() as http,
            http.post(f"{url}/v1/embeddings", json={"input": "a"}) as reply,
        ):
            return reply.status, reply.headers["x-should-retry"], len(received)

    assert asyncio.run(both()) == (503, "false", 2)


@pytest.mark.parametrize("api", ["chat/completions", "responses"])
def test_the_end_of_a_stream_that_may_begin_the_key_is_not_lost(api, monkeypatch):
    """A server that leaves the connection open after the end of its stream, and a text that ends as the key begins."""
    monkeypatch.setenv("SOME_KEY", "sk-canary-Zq7wLp2Xr9Vt")

    async def both():
        held = asyncio.Event()

        async def answer(request: web.Request, body: Any) -> web.StreamResponse:
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            for event in chunks({"content": "ye"}, {"content": "s"}):
                await response.write(f"data: {json.dumps(event)}\n\n".encode())
            await response.write(b"data: [DONE]\n\n")
            await held.wait()
            return response

        async with served(answer) as (engine, _):
            engine.config = engine.config.model_copy(update={"api_key_env": "SOME_KEY"})
            async with open_session(engine) as (_, session, url), client() as http:
                asked = {**chat(stream=True), "input": "Hi"}
                asked.pop("messages" if api == "responses" else "input")
                found = await read_stream(http, f"{url}/v1/{api}", asked, asyncio.Event())
                held.set()
                return found, session.calls[0].completion

    found, text = asyncio.run(both())
    assert text == "yes"
    assert '"s"' in "".join(found)
    assert "completed" in found[-1] or '"finish_reason": "stop"' in found[-2]


def test_an_answer_of_nothing_is_no_answer():
    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        return web.json_response(completion({"role": "assistant", "content": None, "refusal": None}))

    async def both():
        async with served(answer) as (engine, received), open_session(engine) as (_, session, url), client() as http:
            status, _ = await ask(http, url, chat())
            return status, session.failure.result().code, len(received)

    assert asyncio.run(both()) == (503, "endpoint-failed", 2)
