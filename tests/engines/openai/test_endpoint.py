"""Connections: shared, bounded, reused newest first, verified, through proxies, and none left open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from anyio import CapacityLimiter
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from midstream.core import http
from midstream.core.engine import Request
from midstream.core.errors import EngineError, UnsupportedError, UsageError
from midstream.core.trajectory import Message
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig, endpoint_of
from support.errors import coded
from support.llm_server import LLMServer, completion

HELLO = Request(role="planner", messages=(Message(role="user", content="hello"),))
OK = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}'


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "OPENAI_API_KEY", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def engine_at(base_url: str, **settings: Any) -> OpenAICompatibleEngine:
    config = {"model": "m", "base_url": base_url, "first_pause_s": 0.001, "timeout_s": 5.0} | settings
    return OpenAICompatibleEngine(OpenAIConfig.model_validate(config), "engine")


@contextlib.asynccontextmanager
async def tiny_server(
    tls: ssl.SSLContext | None = None, *, answers: int = 10**6
) -> AsyncIterator[tuple[str, list[str]]]:
    """(address, request lines with a number for the connection); hangs up after `answers` answers."""
    lines: list[str] = []
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        number, left = count, answers
        with contextlib.closing(writer.transport), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while left:
                left -= 1
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                assert "proxy-authorization" not in head.lower()  # a proxy's password is for the proxy alone
                length = next(line for line in head.lower().split("\r\n") if line.startswith("content-length"))
                await reader.readexactly(int(length.split(":")[1]))
                lines.append(f"{number} {head.splitlines()[0]}")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(OK) + OK)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        scheme = "http" if tls is None else "https"
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", lines


# --- slots ----------------------------------------------------------------------------------------------------------


def test_slots_are_handed_over_in_order():
    async def run() -> list[int]:
        slots, order = CapacityLimiter(2), []

        async def hold(number: int) -> None:
            async with slots:
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*map(hold, range(6)))
        return order

    assert asyncio.run(run()) == list(range(6))


def test_a_cancelled_waiter_takes_no_slot():
    async def run() -> None:
        slots = CapacityLimiter(1)
        release = asyncio.Event()

        async def hold() -> None:
            async with slots:
                await release.wait()

        first, second, third = (asyncio.create_task(hold()) for _ in range(3))
        await asyncio.sleep(0)
        second.cancel()  # while it waits
        await asyncio.sleep(0)
        release.set()
        await asyncio.sleep(0)
        third.cancel()  # when the slot is already its own, and it does not know yet
        await asyncio.gather(first, second, third, return_exceptions=True)
        async with asyncio.timeout(1), slots:
            pass

    asyncio.run(run())


@given(
    limit=st.integers(1, 3),
    jobs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.none() | st.integers(0, 8)), max_size=8),
)
def test_slots_hold_their_limit_under_cancellation(limit: int, jobs: list[tuple[int, int, int | None]]):
    """Jobs (start, length, cancelled at), in turns of the event loop."""
    inside: list[int] = []
    finished: set[int] = set()

    async def hold(slots: CapacityLimiter, number: int, start: int, length: int) -> None:
        for _ in range(start):
            await asyncio.sleep(0)
        async with slots:
            inside.append(number)
            assert len(inside) <= limit
            try:
                for _ in range(length):
                    await asyncio.sleep(0)
            finally:
                inside.remove(number)
        finished.add(number)

    async def run() -> None:
        slots = CapacityLimiter(limit)
        tasks = [asyncio.create_task(hold(slots, i, start, length)) for i, (start, length, _) in enumerate(jobs)]
        for now in range(9):
            for task, (_, _, cancelled) in zip(tasks, jobs, strict=True):
                if cancelled == now:
                    task.cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(1):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
        assert finished >= {i for i, (_, _, cancelled) in enumerate(jobs) if cancelled is None}
        assert slots.statistics().borrowed_tokens == slots.statistics().tasks_waiting == 0

    asyncio.run(run())


def test_more_slots_let_in_those_who_wait():
    async def run() -> int:
        slots, inside = CapacityLimiter(1), 0
        leave = asyncio.Event()

        async def hold() -> None:
            nonlocal inside
            async with slots:
                inside += 1
                await leave.wait()

        tasks = [asyncio.create_task(hold()) for _ in range(5)]
        await asyncio.sleep(0.01)
        assert inside == 1
        slots.total_tokens = 3
        await asyncio.sleep(0.01)
        seen = inside
        leave.set()
        await asyncio.gather(*tasks)
        return seen

    assert asyncio.run(run()) == 3


# --- sharing --------------------------------------------------------------------------------------------------------


def test_engines_of_one_address_share_the_smallest_limit():
    async def run(one: OpenAICompatibleEngine, other: OpenAICompatibleEngine) -> None:
        await one.sample(HELLO)
        await other.sample(HELLO)
        together[0] = 2
        await asyncio.gather(*[engine.sample(HELLO) for engine in (one, other) for _ in range(6)])
        narrow = server.max_in_flight
        await other.close()
        together[0] = 5
        await asyncio.gather(*[one.sample(HELLO) for _ in range(12)])
        assert (narrow, server.max_in_flight) == (2, 5)

    together = [1]

    def reply(body: dict[str, Any]) -> str:
        """Answer once as many requests were here together as the limit lets in, and late enough to see one more."""
        end = time.monotonic() + 10
        while server.max_in_flight < together[0] and time.monotonic() < end:
            threading.Event().wait(0.001)
        threading.Event().wait(0.02)
        return "ok"

    with LLMServer(reply) as server:
        path = server.base_url.replace("/v1", "/v1/")  # the same endpoint, spelt otherwise
        asyncio.run(run(engine_at(server.base_url, max_concurrency=5), engine_at(path, max_concurrency=2)))


def test_idle_connections_are_used_again():
    async def run() -> list[str]:
        async with tiny_server() as (url, lines):
            one, other = engine_at(url), engine_at(url)
            await asyncio.gather(one.sample(HELLO), other.sample(HELLO))
            for _ in range(3):
                await one.sample(HELLO)
                await other.sample(HELLO)
            return [line.split()[0] for line in lines]

    used = asyncio.run(run())
    assert sorted(used[:2]) == ["1", "2"]
    assert set(used[2:]) <= {"1", "2"}


def test_a_connection_that_the_server_closed_is_not_used_again():
    async def run() -> tuple[list[str], int]:
        async with tiny_server(answers=1) as (url, lines):
            engine, failures = engine_at(url), 0
            for _ in range(4):
                failures += len((await engine.sample(HELLO)).failures)
                await asyncio.sleep(0.02)
            return [line.split()[0] for line in lines], failures

    assert asyncio.run(run()) == (["1", "2", "3", "4"], 0)


def test_a_connection_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "_IDLE_S", 0.01)

    async def run() -> list[str]:
        async with tiny_server() as (url, lines):
            engine = engine_at(url)
            await engine.sample(HELLO)
            await asyncio.sleep(0.02)
            await engine.sample(HELLO)
            return [line.split()[0] for line in lines]

    assert asyncio.run(run()) == ["1", "2"]


def test_the_last_engine_to_close_closes_connections():
    async def run() -> None:
        async with tiny_server() as (url, _):
            one, other = engine_at(url), engine_at(url)
            await one.sample(HELLO)
            await other.sample(HELLO)
            [here] = endpoint_of(URL(url).origin())._loops.values()
            await one.close()
            assert not here.session.closed
            await other.close()
            await other.close()
            assert here.session.closed
            await one.sample(HELLO)  # joins again
            assert [here.session.closed for here in endpoint_of(URL(url).origin())._loops.values()] == [False]

    asyncio.run(run())
    gc.collect()


def test_event_loops_in_several_threads_share_nothing():
    finished: list[int] = []
    with LLMServer(lambda body: "ok") as server:
        engine = engine_at(server.base_url)

        async def run() -> None:
            calls = await asyncio.gather(*[engine.sample(HELLO) for _ in range(8)])
            assert [call.completion for call in calls] == ["ok"] * 8

        def work() -> None:
            for round_ in range(3):
                asyncio.run(run())
                finished.append(round_)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    gc.collect()  # an unclosed transport would warn here, and warnings are errors
    assert sorted(finished) == sorted([0, 1, 2] * 4)
    assert all(here.session.closed for here in endpoint_of(URL(server.base_url).origin())._loops.values())


FORGETFUL = """
import asyncio, sys
from support.http_engine import HELLO, engine_for
from support.llm_server import LLMServer
with LLMServer(lambda body: "ok") as server:
    engine, loop = engine_for(server), asyncio.new_event_loop()
    print(loop.run_until_complete(engine.sample(HELLO)).completion)
    if sys.argv[1] == "closed":
        loop.close()
"""


@pytest.mark.parametrize("loop", ["open", pytest.param("closed", marks=pytest.mark.slow)])
def test_a_notebook_that_closes_nothing_ends_without_complaints(loop: str):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FORGETFUL, loop]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("ok\n", "")


def test_cancelled_requests_leave_no_connection_and_no_slot():
    async def run() -> None:
        engine = engine_at(server.base_url, max_concurrency=2)
        tasks = [asyncio.create_task(engine.sample(HELLO)) for _ in range(6)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        session, slots = await endpoint_of(URL(server.base_url).origin()).join(engine, 2)
        assert (slots.borrowed_tokens, session.connector._acquired, session.connector._conns) == (0, set(), {})

    def slow(body: dict[str, Any]) -> dict[str, Any]:
        threading.Event().wait(0.2)
        return completion(body, "late")

    with LLMServer(slow) as server:
        asyncio.run(run())
    gc.collect()


def test_a_name_with_several_addresses_is_reached():
    async def run() -> str:
        async with tiny_server() as (url, _):  # listens on one of localhost's two
            return (await engine_at(url.replace("127.0.0.1", "localhost")).sample(HELLO)).completion

    assert asyncio.run(run()) == "ok"
    gc.collect()


# --- TLS and proxies --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for 127.0.0.1, in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl command to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=test"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", str(path.with_suffix(".crt"))]
    subprocess.run([openssl, "req", "-x509", *made, *names], check=True, capture_output=True, timeout=30)
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path


def serving(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_certificate_is_verified(certificate: Path, monkeypatch: pytest.MonkeyPatch):
    async def run() -> list[str]:
        async with tiny_server(serving(certificate)) as (url, lines):
            engine = engine_at(url)
            assert (await engine.sample(HELLO)).completion == "ok"
            assert (await engine.sample(HELLO)).completion == "ok"
            return lines

    with pytest.raises(EngineError, check=coded("certificate-untrusted", "CERTIFICATE_VERIFY_FAILED")) as caught:
        asyncio.run(run())
    assert "SSL_CERT_FILE" in caught.value.fix
    gc.collect()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_suffix(".crt")))
    assert asyncio.run(run()) == ["1 POST /v1/chat/completions HTTP/1.1"] * 2
    gc.collect()


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "empty.pem").write_text("")
    for name in ("nowhere.pem", "empty.pem"):
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / name))
        with pytest.raises(
            UsageError,
            check=coded("certificates-invalid", f"SSL_CERT_FILE='{tmp_path / name}'", fix="export SSL_CERT_FILE"),
        ):
            asyncio.run(engine_at("http://127.0.0.1:9/v1").sample(HELLO))


def test_tls_with_a_plain_server_is_explained():
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer.transport):
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def run() -> None:
        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        async with server:
            await engine_at(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1").sample(HELLO)

    with pytest.raises(EngineError, check=coded("certificate-untrusted", "https://127.0.0.1:")):
        asyncio.run(run())
    gc.collect()


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch):
    async def run() -> list[str]:
        async with tiny_server() as (proxy, lines), tiny_server() as (url, direct):
            monkeypatch.setenv("http_proxy", proxy.removesuffix("/v1"))
            await engine_at("http://a.test:81/v1").sample(HELLO)
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            await engine_at(url).sample(HELLO)
            assert len(direct) == 1
            return lines

    assert asyncio.run(run()) == ["1 POST http://a.test:81/v1/chat/completions HTTP/1.1"]
    gc.collect()


def test_tls_goes_through_a_proxy(certificate: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def run() -> list[str]:
        async with tiny_server(serving(certificate)) as (url, lines):
            port = int(url.split(":")[2].split("/")[0])

            async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                with contextlib.closing(far_writer.transport), contextlib.closing(writer.transport):
                    await asyncio.wait(
                        [
                            asyncio.ensure_future(pipe(reader, far_writer)),
                            asyncio.ensure_future(pipe(far_reader, writer)),
                        ],
                        return_when=asyncio.FIRST_COMPLETED,
                    )

            proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
            async with proxy:
                address = f"u:p%40@127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
                monkeypatch.setenv("https_proxy", address)
                engine = engine_at(url)
                await engine.sample(HELLO)
                await engine.sample(HELLO)
                await engine.close()
                await asyncio.sleep(0.05)
            return lines

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_suffix(".crt")))
    assert asyncio.run(run()) == ["1 POST /v1/chat/completions HTTP/1.1"] * 2
    [head] = asked
    assert head.startswith("CONNECT 127.0.0.1:")
    assert "dTpwQA==" in head  # u:p@
    gc.collect()


def test_another_kind_of_proxy_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(UnsupportedError, check=coded("proxy-invalid", fix="name an HTTP proxy")):
        asyncio.run(engine_at("http://a.test/v1").sample(HELLO))


# --- what is not sent -------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[tuple[str, list[str]]]:
    """(address, heads of requests) of a server that gives these answers in turn, the last one again and again."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer.transport), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                await reader.readexactly(int(heads[-1].lower().split("content-length: ")[1].split("\r\n")[0]))
                writer.write(answers[min(len(heads), len(answers)) - 1])

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", heads


GOOD = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: %d\r\n\r\n" % len(OK) + OK


def test_no_cookie_and_no_password_of_a_netrc_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / ".netrc").write_text("default login me password 4kqz9x\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))

    async def run() -> list[str]:
        async with answering(GOOD) as (url, heads):
            engine = engine_at(url)
            await engine.sample(HELLO)
            await engine.sample(HELLO)
            return heads

    first, second = asyncio.run(run())
    names = [line.split(":")[0] for line in first.split("\r\n")[1:] if line]
    assert names == ["Host", "Content-Type", "Accept", "Accept-Encoding", "User-Agent", "Content-Length"]
    assert second == first


def test_a_redirect_is_not_followed(monkeypatch: pytest.MonkeyPatch):
    """It could carry the key to another server."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")

    async def run() -> list[str]:
        async with answering(GOOD) as (elsewhere, heads):
            moved = f"HTTP/1.1 307 X\r\nLocation: {elsewhere}/chat/completions\r\nContent-Length: 0\r\n\r\n"
            async with answering(moved.encode()) as (url, first):
                with pytest.raises(EngineError, check=coded("model-not-found", "307")):
                    await engine_at(url).sample(HELLO)
            assert "Authorization: Bearer sk-0123456789abcdef" in first[0]
            return heads

    assert asyncio.run(run()) == []


def test_the_path_is_sent_as_it_is_written():
    async def run() -> str:
        async with answering(GOOD) as (url, heads):
            await engine_at(f"{url}/a%2Fb/%7Eme/c+d;e=f").sample(HELLO)
            return heads[0].split("\r\n")[0]

    assert asyncio.run(run()) == "POST /v1/a%2Fb/%7Eme/c+d;e=f/chat/completions HTTP/1.1"


def test_a_proxys_password_and_the_key_meet_nobody_else(certificate: Path, monkeypatch: pytest.MonkeyPatch):
    """A proxy that refuses the tunnel sees its own password and no key; neither stands in the error."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")

    async def run() -> None:
        refusal = b"HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n"
        heads: list[str] = []

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(refusal)
            writer.close()

        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
            port = proxy.sockets[0].getsockname()[1]
            monkeypatch.setenv("https_proxy", f"http://me:p%C3%A94kqz9x@127.0.0.1:{port}")
            with pytest.raises(EngineError, check=coded("endpoint-unreachable")) as caught:
                await engine_at("https://a.test/v1").sample(HELLO)
        assert "4kqz9x" not in str(caught.value)
        [head] = heads
        assert "sk-0123" not in head
        assert "Proxy-Authorization: Basic bWU6cMOpNGtxejl4" in head  # me:pé4kqz9x in UTF-8

    asyncio.run(run())
    gc.collect()
