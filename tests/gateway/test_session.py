"""Retries, disconnects and the end of a session: each sample is made once, and trained at most once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import aiohttp
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from midstream.components.agent_record import RunRecord
from midstream.core.trajectory import Call, Sampling, Score, Trajectory
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.gateway.session import AgentSession
from midstream.training.rows import build_rows
from support.gateway_sessions import Model, ask, chat, client, open_session
from support.llm_server import LLMServer


async def hang_up(url: str, body: Any, until: asyncio.Event | None = None, retry: int = 0) -> None:
    """Ask, and close the connection before the answer."""
    host = url.split("/")[2]
    text = json.dumps(body).encode()
    path = "/" + url.split("/", 3)[3] + "/v1/chat/completions"
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(text)}\r\n"
    head += f"x-stainless-retry-count: {retry}\r\n\r\n"
    _, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(head.encode() + text)
    await writer.drain()
    if until is not None:
        await until.wait()
    else:
        await asyncio.sleep(0.05)
    writer.close()
    await writer.wait_closed()


async def ended(session: AgentSession) -> list[Call]:
    """All calls of the session's record, answered or not delivered."""
    for _ in range(100):
        if not session._under_way:
            break
        await asyncio.sleep(0.01)
    record = RunRecord()
    await session.end(record)
    return [call for turn in record.turns for call in turn.calls] + list(record.closing_calls)


def contents(replies: list[tuple[int, Any]]) -> list[str]:
    assert {status for status, _ in replies} == {200}
    return [shown["choices"][0]["message"]["content"] for _, shown in replies]


def test_a_marked_retry_gets_the_first_sample_and_an_equal_request_a_new_one():
    async def both():
        model = Model()
        async with open_session(model) as (_, session, url), client() as http:
            replies = [await ask(http, url, chat("a"), retry=retry) for retry in (0, 1, 0, 2)]
            return contents(replies), len(model.requests), await ended(session), session.counts

    texts, sampled, calls, counts = asyncio.run(both())
    assert texts == ["1.", "1.", "2.", "1."]
    assert (sampled, len(calls), counts["retried"]) == (2, 2, 2)
    assert len({call.sent["seed"] for call in calls}) == 2


def test_a_retry_while_the_first_is_under_way():
    async def both():
        model = Model()
        model.gate = asyncio.Event()
        async with open_session(model) as (_, session, url), client() as http:
            asking = [asyncio.ensure_future(ask(http, url, chat("a"), retry=retry)) for retry in (0, 1, 2)]
            await asyncio.sleep(0.2)
            model.gate.set()
            return contents(await asyncio.gather(*asking)), len(model.requests), await ended(session)

    texts, sampled, calls = asyncio.run(both())
    assert texts == ["1."] * 3
    assert (sampled, len(calls)) == (1, 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("again", [False, True], ids=["never", "retried"])
def test_a_client_that_hangs_up_before_the_answer(stream, again, monkeypatch):
    monkeypatch.setattr("midstream.gateway.server.HEARTBEAT_S", 0.02)

    async def both():
        model = Model()
        model.gate = asyncio.Event()
        async with open_session(model) as (_, session, url), client() as http:
            body = chat("a", stream=stream)
            await hang_up(url, body)
            await asyncio.sleep(0.1)
            model.gate.set()
            if again:
                async with http.post(
                    f"{url}/v1/chat/completions", data=json.dumps(body), headers={"x-stainless-retry-count": "1"}
                ) as reply:
                    assert reply.status == 200
                    assert (await reply.read()).rstrip().endswith(b"data: [DONE]" if stream else b"}")
            return len(model.requests), await ended(session)

    sampled, [call] = asyncio.run(both())
    assert (sampled, call.delivered) == (1, again)


def test_a_retry_that_hangs_up_does_not_take_back_what_was_delivered():
    async def both():
        model = Model()
        async with open_session(model) as (_, session, url), client() as http:
            await ask(http, url, chat("a"))
            for _ in range(5):
                now = asyncio.Event()
                now.set()
                await hang_up(url, chat("a"), now, retry=1)
            await asyncio.sleep(0.1)
            return len(model.requests), await ended(session)

    sampled, [call] = asyncio.run(both())
    assert (sampled, call.delivered) == (1, True)


def test_a_client_that_hangs_up_in_mid_stream():
    async def both():
        model = Model(lambda _: "x" * (20 << 20), token_ids=False)
        async with open_session(model) as (_, session, url), client() as http:
            reply = await http.post(f"{url}/v1/chat/completions", json=chat("a", stream=True))
            await reply.content.readany()
            reply.close()
            await asyncio.sleep(0.5)
            return await ended(session)

    [call] = asyncio.run(both())
    assert not call.delivered


def test_no_failure_of_a_client_is_logged(caplog):
    async def both():
        # On a busy machine asyncio's debug mode also logs that a callback took long.
        asyncio.get_running_loop().slow_callback_duration = 60
        model = Model()
        model.gate = asyncio.Event()
        async with open_session(model) as (_, session, url):
            for number in range(5):
                await hang_up(url, chat(str(number)))
            await session.end(RunRecord())
        return session

    asyncio.run(both(), debug=True)
    assert not caplog.records


OWN = {"temperature": 0.2, "top_p": 0.5, "seed": 5, "stop": ["END"]}
MORE = {"reasoning_effort": "low", "parallel_tool_calls": False, "frequency_penalty": 0.5, "x": {"y": 1}}
MORE |= {"n": 2, "logprobs": True}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
FORCED = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}}


@pytest.mark.parametrize(
    ("body", "sampling", "sent"),
    [
        ({}, None, {}),
        (OWN, None, OWN),
        (MORE, None, MORE),
        (FORCED, None, FORCED),
        ({"max_completion_tokens": 9}, None, {"max_completion_tokens": 9}),
        ({"max_completion_tokens": 9}, 0.7, {"temperature": 0.7, "max_completion_tokens": 9}),
        (OWN, Sampling(max_tokens=7), {"temperature": 1.0, "top_p": 1.0, "max_tokens": 7, "stop": ["END"]}),
    ],
    ids=["nothing", "sampling", "other fields", "forced call", "limit", "at a temperature", "trained"],
)
def test_a_server_gets_what_the_agent_asks_for(body, sampling, sent):
    async def both(url: str):
        engine = OpenAICompatibleEngine(OpenAIConfig(model="m", base_url=url, api_key_env=""), "model")
        async with open_session(engine, sampling=sampling) as (_, session, url), client() as http:
            status, _ = await ask(http, url, chat("a", **body))
            [call] = session.calls
        await engine.close()
        return status, call

    with LLMServer(lambda _: "fine") as server:
        status, call = asyncio.run(both(server.base_url))
    assert status == 200
    [body] = server.bodies
    seed = body.pop("seed")
    assert body == {"model": "m", "messages": chat("a")["messages"], **{k: v for k, v in sent.items() if k != "seed"}}
    assert (seed == 5) == ("seed" in sent)
    assert call.sent["seed"] % 2**31 == seed


PARTS = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K", "detail": "low"}},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
]


@pytest.mark.parametrize(("sampling", "served"), [(None, True), (None, False), (Sampling(), True)])
def test_images_and_audio_pass_as_they_are_where_nothing_is_trained(sampling, served):
    messages = [{"role": "system", "content": "Look."}, {"role": "user", "content": PARTS}]

    async def both(url: str):
        engine = OpenAICompatibleEngine(OpenAIConfig(model="m", base_url=url, api_key_env=""), "model")
        async with (
            open_session(engine if served else Model(), sampling=sampling) as (_, session, url),
            client() as http,
        ):
            status, shown = await ask(http, url, {**chat("a"), "messages": messages})
            texts = [message.content for call in session.calls for message in call.messages]
        await engine.close()
        return status, shown.get("error", {}).get("param"), texts

    message = {"role": "assistant", "content": "a cat"}
    whole = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {}}
    with LLMServer(lambda _: whole) as server:
        status, param, texts = asyncio.run(both(server.base_url))
    if sampling is None and served:
        assert (status, texts) == (200, ["Look.", "What is this?"])
        assert server.bodies[0]["messages"] == messages
    else:
        assert (status, param, server.bodies) == (400, "messages[1].content[1]", [])


@pytest.mark.parametrize("sampling", [None, Sampling()], ids=["in process", "trained"])
def test_what_an_engine_cannot_use_is_refused_by_name(sampling):
    async def both():
        async with open_session(Model(), sampling=sampling) as (_, session, url), client() as http:
            found = []
            for key, value in (MORE | FORCED).items():
                status, shown = await ask(http, url, chat("a", **{key: value}))
                found.append((status, key, shown.get("error", {}).get("param")))
            harmless = {"top_k": -1, "parallel_tool_calls": True, "logit_bias": {}, "user": "me"}
            found.append(((await ask(http, url, chat("b", **harmless)))[0], "tools", None))
            return found, session.failure.done()

    found, failed = asyncio.run(both())
    assert not failed
    assert {(status, param) for status, key, param in found if key == "tools"} == {(200, None)}
    refused = [(status, key, param) for status, key, param in found if key != "tools"]
    assert all(status == 400 and param == key for status, key, param in refused)
    assert len(refused) == 7


def test_an_engine_in_process_writes_to_the_end_of_its_context_where_the_agent_sets_no_limit():
    async def both(body: Any):
        model = Model()
        async with open_session(model) as (_, _, url), client() as http:
            await ask(http, url, chat("a", **body))
        return model.requests[0].max_tokens

    assert [asyncio.run(both(body)) for body in ({}, {"max_tokens": 5})] == [None, 5]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # which conversation
        st.sampled_from(["ask", "ask", "continue", "same", "retry", "hang up", "hang up, retry", "together"]),
        st.booleans(),  # at once with what follows
    ),
    min_size=1,
    max_size=12,
)


@given(STEPS)
def test_each_delivered_token_is_in_exactly_one_row(steps):
    """Generated scripts of calls, retries and disconnects, some at once, against the real server."""
    replied: Counter[str] = Counter()  # what clients got, by text; each sample's text is another

    async def one(http: aiohttp.ClientSession, url: str, talk: list[Any], what: str) -> None:
        body = {"model": "policy", "messages": list(talk)}
        if what == "hang up":
            return await hang_up(url, body)
        if what == "hang up, retry":
            await hang_up(url, body)
        retry = int(what in ("retry", "hang up, retry"))
        asking = [ask(http, url, body, retry=retry or number) for number in range(2 if what == "together" else 1)]
        texts = contents(await asyncio.gather(*asking))
        for text in texts:
            replied[text] += 1
        if what == "continue":
            talk += [{"role": "assistant", "content": texts[0]}, {"role": "user", "content": "and then?"}]
        return None

    async def both() -> tuple[list[Call], AgentSession, int]:
        model = Model(lambda _: f"<{len(model.requests)}>", pause_s=0.01)
        async with open_session(model) as (_, session, url), client() as http:
            talks = [[{"role": "user", "content": f"talk {number}"}] for number in range(3)]
            under_way = []
            for talk, what, at_once in steps:
                under_way.append(asyncio.ensure_future(one(http, url, talks[talk], what)))
                if not at_once:
                    await asyncio.gather(*under_way)
            await asyncio.gather(*under_way)
            return await ended(session), session, len(model.requests)

    calls, session, sampled = asyncio.run(both())
    # Every sample is one call, and what a client got is one of them, marked as delivered.
    assert sampled == len(calls) == len({call.completion for call in calls})
    assert set(replied) <= {call.completion for call in calls if call.delivered}
    firsts = sum({"together": 1, "hang up, retry": 1, "retry": 0}.get(what, 1) for _, what, _ in steps)
    assert sampled <= firsts + sum(what == "retry" for _, what, _ in steps)
    assert session.counts["not delivered"] == sum(not call.delivered for call in calls)
    trained = [
        Trajectory(
            id=name,
            task_id="t",
            question="q",
            closing_calls=tuple(calls) if name == "a" else (),
            reward=Score(float(name == "a")),
            status="ok",
        )
        for name in "ab"
    ]
    delivered = [call for call in calls if call.delivered]
    if not delivered:
        return
    rows = build_rows([trained], role="policy").rows
    joined = sum(what == "continue" for _, what, _ in steps) > 0 and len(rows) < len(delivered)
    event("calls continue one another" if joined else "each call is a row")
    in_rows: Counter[bytes] = Counter()
    for row in rows:
        flags = row.sampled or (True,) * len(row.completion_ids)
        text = bytes(token for token, own in zip(row.completion_ids, flags, strict=True) if own)
        in_rows.update(part + b">" for part in text.split(b">") if part)
    assert in_rows == Counter(bytes(call.completion_ids) for call in delivered)


# -- rewards of single replies -----------------------------------------------------------------------------------------

SPOKEN = {
    "chat/completions": chat("a"),
    "responses": {"model": "policy", "input": "b"},
    "messages": {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "c"}]},
}


async def reward(http: aiohttp.ClientSession, url: str, **body: Any) -> tuple[int, str]:
    """Status and code of an answer to a reward."""
    async with http.post(f"{url}/reward", json=body) as answer:
        return answer.status, (await answer.json()).get("error", {}).get("code", "")


def test_a_reply_of_each_api_may_have_a_reward_of_its_own():
    async def both():
        async with open_session(Model()) as (_, session, url), client() as http:
            names = []
            for path, body in SPOKEN.items():
                async with http.post(f"{url}/v1/{path}", json=body) as answer:
                    names.append((await answer.json())["id"])
            given = zip(names, (0.3, -1, 0), strict=True)
            answers = [await reward(http, url, call=name, reward=value) for name, value in given]
            answers += [await reward(http, url, call="chatcmpl-0", reward=0.3)]
            answers += [await reward(http, url, call=names[0], reward=value) for value in (-2, "1", True, None)]
            return answers, session.reward, await ended(session), await reward(http, url, call=names[0], reward=0.5)

    answers, own, calls, late = asyncio.run(both())
    assert answers[:3] == [(200, "")] * 3
    assert answers[3] == (404, "unknown-call")
    assert answers[4:] == [(400, "reward-invalid")] * 4
    assert [call.reward for call in calls] == [0.3, -1.0, 0.0]
    assert own is None
    assert late == (409, "session-ended")


def test_a_servers_own_reply_is_known_by_the_servers_id():
    async def both(url: str):
        engine = OpenAICompatibleEngine(OpenAIConfig(model="m", base_url=url, api_key_env=""), "model")
        async with open_session(engine) as (_, session, url), client() as http:
            _, shown = await ask(http, url)
            found = await reward(http, url, call=shown["id"], reward=0.5)
            [call] = session.calls
        await engine.close()
        return found, call.reward

    with LLMServer(lambda _: "fine") as server:
        assert asyncio.run(both(server.base_url)) == ((200, ""), 0.5)


def test_names_of_roles_are_asked_with_the_policys_model_and_sampling():
    async def both():
        model = Model()
        async with open_session(model, sampling=Sampling(temperature=0.7)) as (gateway, session, url), client() as http:
            gateway.roles = ("planner", "writer")
            statuses = [
                (await ask(http, url, chat("a", model=name, temperature=0)))[0]
                for name in ("planner", "writer", "policy")
            ]
            return statuses, session.names, model.requests

    statuses, names, requests = asyncio.run(both())
    assert statuses == [200, 200, 404]
    assert names == ["planner", "writer"]
    assert [(one.role, one.sampling.temperature) for one in requests] == [("planner", 0.7), ("writer", 0.7)]
