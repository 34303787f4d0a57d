"""The gateway's server with clients that misbehave: raw sockets, broken bodies, other sessions' keys."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import resource
import socket
import threading
import time
from contextlib import AsyncExitStack

import openai
import pytest

from midstream.components.agent_record import RunRecord
from midstream.core.agent import RunContext
from midstream.core.errors import UsageError
from midstream.gateway.server import Gateway
from midstream.gateway.session import AgentSession
from midstream.gateway.settings import ServeConfig, SessionSettings
from support.gateway_sessions import Model, ask, chat, client, open_session


async def raw(gateway: Gateway, *parts: bytes, end: bool = True) -> bytes:
    """What the server sends back for bytes as they are, until it has answered and is silent for a moment, or closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.address.rpartition(":")[2]))
    got = b""
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        while chunk := await asyncio.wait_for(reader.read(1 << 16), 0.2 if got else 5):
            got += chunk
    except (TimeoutError, ConnectionError):  # the server may close before it has read all
        pass
    writer.close()
    return got


def post(url: str, body: bytes, *headers: bytes) -> bytes:
    path = "/" + url.split("/", 3)[3] + "/v1/chat/completions"
    lines = [f"POST {path} HTTP/1.1".encode(), b"host: 127.0.0.1:1", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


BODY = json.dumps(chat()).encode()


@pytest.mark.parametrize(
    "api",
    ["chat/completions", "responses", "messages", "models", "sessions", "nothing"],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_other_methods_and_paths_do_no_harm(api, method):
    async def both():
        model = Model()
        async with (
            open_session(model) as (_, _, url),
            client() as http,
            http.request(method, f"{url}/v1/{api}", data=b"x") as reply,
        ):
            return reply.status, len(model.requests)

    status, asked = asyncio.run(both())
    assert status == (
        405 if method in ("PUT", "DELETE") else {"models": 200, "sessions": 400, "nothing": 400}.get(api, 404)
    )
    assert asked == 0


@pytest.mark.matrix(12)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"a": 1' + b"0" * 5000 + b"}",
        b'{"model": "policy", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "policy", "messages": "hello"}',
        b'{"model": "policy", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"model": {"a": 1}, "messages": [{"role": "user", "content": "x"}]}',
    ],
)
@pytest.mark.parametrize("api", ["chat/completions", "responses", "messages"])
def test_a_body_that_is_no_request_is_refused(body, api):
    async def both():
        model = Model()
        async with open_session(model) as (_, session, url), client() as http:
            async with http.post(f"{url}/v1/{api}", data=body) as reply:
                shown = await reply.json()
            return reply.status, shown, model.requests, session.failure.done()

    status, shown, asked, failed = asyncio.run(both())
    assert (status, asked, failed) == (400, [], False)
    assert shown["error"]["message"]


@pytest.mark.slow
def test_large_bodies():
    async def both():
        async with open_session() as (_, _, url), client() as http:
            found = []
            for megabytes in (10, 40, 1):
                found.append(await ask(http, url, chat("x" * (megabytes << 20))))
            return found

    (ten, _), (forty, refused), (one, _) = asyncio.run(both())
    assert (ten, forty, one) == (200, 413, 200)
    assert refused["error"]["code"] == "body-too-long"


def test_a_client_that_sends_without_end_is_refused(monkeypatch):
    monkeypatch.setattr("midstream.gateway.server.LONGEST_BODY", 1 << 20)

    async def both():
        async with open_session() as (gateway, _, url):
            head = post(url, b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
            chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
            try:
                return await raw(gateway, head, *[chunk] * 20)
            except ConnectionError:
                return b"HTTP/1.1 413 "

    assert b" 413 " in asyncio.run(both()).partition(b"\r\n")[0]


def test_keys_of_others():
    async def both():
        async with open_session() as (gateway, session, url), client() as http:
            other = AgentSession(gateway, RunContext(engines={"policy": Model()}, seed=2), SessionSettings())
            async with gateway.serving(other) as key:
                mine = url.rpartition("/")[2]
                cases = {
                    "path": await ask(http, url),
                    "bearer": await ask(http, gateway.address, key=mine),
                    "both": await ask(http, url, key=mine),
                    "conflict": await ask(http, url, key=key),
                    "other": await ask(http, gateway.address, key=key),
                    "unknown": await ask(http, gateway.url("x" * 32)),
                    "odd": await ask(http, gateway.address + "/s/%ff%00%2e%2e%e2%82%ac"),
                    "none": await ask(http, gateway.address),
                }
            cases["ended"] = await ask(http, gateway.address, key=key)
            return {name: status for name, (status, _) in cases.items()}, len(session.calls), len(other.calls)

    statuses, mine, others = asyncio.run(both())
    assert statuses == {
        "path": 200,
        "bearer": 200,
        "both": 200,
        "conflict": 400,
        "other": 200,
        "unknown": 401,
        "odd": 401,
        "none": 401,
        "ended": 409,
    }
    assert (mine, others) == (3, 1)


@pytest.mark.parametrize(
    "header",
    [
        b"authorization: Bearer \xff\xfe\x80",
        b"x-api-key: \xe4\xf6",
        b"x-stainless-retry-count: \xb2",
        b"x-stainless-retry-count: -1",
        b"x-stainless-retry-count: " + b"9" * 5000,
        b"authorization: Bearer",
        b"x-other: \x01\x7f",
    ],
)
def test_odd_headers_do_no_harm(header):
    async def both():
        async with open_session() as (gateway, session, url), client() as http:
            got = await raw(gateway, post(url, BODY, header))
            status, _ = await ask(http, url)
            return got, status, session.failure.done()

    got, status, failed = asyncio.run(both())
    assert got[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 400")
    assert (status, failed) == (200, False)


def test_odd_request_lines_do_no_harm():
    async def both():
        async with open_session() as (gateway, session, url), client() as http:
            for line in (b"\xff\xfe\r\n\r\n", b"GET /s/\xff/v1/models HTTP/1.1\r\n\r\n", b"GET " + b"x" * 200_000):
                await raw(gateway, line)
            status, _ = await ask(http, url)
            return status, session.failure.done()

    assert asyncio.run(both()) == (200, False)


def test_chunks_and_pipelines():
    async def both():
        async with open_session(Model(pause_s=0.01)) as (gateway, session, url):
            head = post(url, b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
            chunks = [b"%x\r\n%s\r\n" % (1, BODY[i : i + 1]) for i in range(len(BODY))]
            one = await raw(gateway, head, *chunks, b"0\r\n\r\n")
            three = await raw(gateway, post(url, BODY) * 3)
            return one.count(b"HTTP/1.1 200"), three.count(b"HTTP/1.1 200"), session

    one, three, session = asyncio.run(both())
    assert (one, three) == (1, 3)
    assert [pending.delivered for pending in session._requests] == [True] * 4


def test_slow_bodies_block_nobody():
    async def both():
        async with open_session() as (gateway, session, url), client() as http, AsyncExitStack() as slow:
            for _ in range(50):
                _, writer = await asyncio.open_connection("127.0.0.1", int(gateway.address.rpartition(":")[2]))
                slow.callback(writer.close)
                writer.write(post(url, BODY)[:-5])
            began = time.monotonic()
            status, _ = await ask(http, url)
            took = time.monotonic() - began
        return status, took, len(session.calls)

    status, took, calls = asyncio.run(both())
    assert (status, calls) == (200, 1)
    assert took < 1


def test_other_hosts_origins_and_lengths_are_refused(monkeypatch):
    async def both():
        async with open_session() as (gateway, session, url):
            whole = post(url, BODY)
            here = gateway.address.encode()
            chunked = whole.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 1)
            cases = [
                whole.replace(b"127.0.0.1:1", b"evil.example:8321"),
                whole.replace(b"127.0.0.1:1", b"127.0.0.1.evil.example:8321"),
                post(url, BODY, b"origin: http://evil.example"),
                post(url, BODY, b"origin: null"),
                chunked + whole,
                whole.replace(b"127.0.0.1:1", b"localhost:1"),
                post(url, BODY, b"origin: " + here).replace(b"127.0.0.1:1", here[7:]),
            ]
            found = [await raw(gateway, case) for case in cases]
        async with (
            open_session(serve=ServeConfig(host="127.0.0.2")) as (_, _, url),
            client() as http,
            http.post(f"{url}/v1/chat/completions", data=BODY, headers={"host": "a.example"}) as reply,
        ):
            return found, len(session.calls), reply.status

    monkeypatch.setenv("MIDSTREAM_ADMIN_KEY", "secret")
    found, calls, elsewhere = asyncio.run(both())
    assert [(one[9:12], one.count(b"HTTP/1.1")) for one in found] == [
        *[(b"403", 1)] * 4,
        (b"400", 1),
        *[(b"200", 1)] * 2,
    ]
    assert (calls, elsewhere) == (2, 200)


def test_it_closes_at_once_and_leaves_nothing(caplog):
    """With an idle connection; two gateways in one process; in several event loops, one after another."""

    async def both():
        took = []
        async with client() as http, open_session() as (first, _, url), open_session() as (second, _, other):
            assert first.address != second.address
            assert [(await ask(http, at))[0] for at in (url, other)] == [200, 200]
            for gateway in (first, second):
                began = time.monotonic()
                await gateway.close()
                took.append(time.monotonic() - began)
        return took

    with caplog.at_level(logging.DEBUG):
        took = [second for _ in range(3) for second in asyncio.run(both(), debug=True)]
    gc.collect()  # unclosed things warn, which fails the test
    assert min(took) < 0.2
    assert not [thread for thread in threading.enumerate() if thread.name == "gateway"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("stream", [False, True])
def test_it_closes_while_requests_are_under_way(stream, monkeypatch):
    monkeypatch.setattr("midstream.gateway.server.HEARTBEAT_S", 0.05)

    async def both():
        model = Model()
        model.gate = asyncio.Event()
        async with client() as http:
            async with open_session(model) as (gateway, _, url):
                body = chat(stream=stream)
                asking = asyncio.ensure_future(http.post(f"{url}/v1/chat/completions", json=body))
                await asyncio.sleep(0.2)
                began = time.monotonic()
                await gateway.close()
                took = time.monotonic() - began
            result = (await asyncio.gather(asking, return_exceptions=True))[0]
            if not isinstance(result, BaseException):
                result.close()
            return took

    assert asyncio.run(both()) < 2.5
    gc.collect()


def test_a_session_that_ends_answers_what_is_under_way_with_409():
    async def both():
        model = Model()
        model.gate = asyncio.Event()
        async with open_session(model) as (_, session, url), client() as http:
            asking = asyncio.ensure_future(ask(http, url))
            await asyncio.sleep(0.1)
            await session.end(RunRecord())
            return [
                (status, shown["error"]["code"]) for status, shown in (await asking, await ask(http, url, chat("b")))
            ]

    assert asyncio.run(both()) == [(409, "session-ended")] * 2


def test_addresses():
    async def taken():
        async with open_session() as (gateway, _, _):
            Gateway(ServeConfig(port=int(gateway.address.rpartition(":")[2]))).start()

    with pytest.raises(UsageError) as caught:
        asyncio.run(taken())
    assert caught.value.code == "address-taken"

    async def open_to_all():
        Gateway(ServeConfig(host="0.0.0.0")).start()

    with pytest.raises(UsageError) as caught:
        asyncio.run(open_to_all())
    assert caught.value.code == "admin-key-missing"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6():
    async def both():
        async with open_session(serve=ServeConfig(host="::1")) as (_, _, url), client() as http:
            return (await ask(http, url))[0]

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    assert asyncio.run(both()) == 200


@pytest.mark.parametrize("names", [{"*": True}, {"planner": True, "*": True}, {"planner": True}])
def test_any_other_name_may_be_the_policy(names):
    """ "*" with train = true: an agent that has a model's name in its code is trained as it is."""
    models = {name: {"engine": "policy", "train": train} for name, train in names.items()}

    async def both():
        async with open_session(serve=ServeConfig(models=models)) as (_, session, url), client() as http:
            asked = [(await ask(http, url, chat() | {"model": name}))[0] for name in ("gpt-4o", session.names[0], "*")]
            return asked, {call.role for call in session.calls}

    assert asyncio.run(both()) == ([200 if "*" in names else 404, 200, 404], {"policy"})  # "*" itself names no model


def test_models_and_unknown_ones_with_openais_client():
    async def both():
        async with (
            open_session() as (_, _, url),
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=url.rpartition("/")[2]) as asking,
        ):
            listed = [model.id for model in (await asking.models.list()).data]
            with pytest.raises(openai.NotFoundError) as caught:
                await asking.chat.completions.create(model="gpt", messages=chat()["messages"])
            return listed, caught.value

    listed, refused = asyncio.run(both())
    assert listed == ["policy"]
    assert refused.code == "unknown-model"
    assert "policy" in str(refused)


@pytest.mark.slow
def test_256_sessions_take_little_memory():
    async def both():
        gateway = Gateway(ServeConfig())
        model = Model(pause_s=0.2)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(gateway.close)
            http = await stack.enter_async_context(client())
            urls = []
            for number in range(256):
                session = AgentSession(gateway, RunContext(engines={"policy": model}, seed=number), SessionSettings())
                urls.append(gateway.url(await stack.enter_async_context(gateway.serving(session))))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for call in range(4):
                replies = await asyncio.gather(*(ask(http, url, chat(f"{call}" * 4000)) for url in urls))
                assert {status for status, _ in replies} == {200}
            return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

    assert asyncio.run(both()) < 300
