import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from midstream.core import http
from midstream.core.errors import RecipeError, ToolServerError, TransientError, UnsupportedError
from midstream.core.version import __version__
from midstream_web.api import Key, Service, WebApiConfig, retried, valid
from support.api_server import Answer, ApiServer, Fault
from support.errors import coded
from support.peak_memory import growth_of_memory

QUICK = WebApiConfig(timeout_s=5, max_attempts=2, first_pause_s=0.0)
SECRET = "sk-0123456789abcdef-secret"


def any_answer(data: Any, pause_s: float) -> None:
    pass


def serve(*faults: Fault) -> ApiServer:
    return ApiServer(lambda asked: {"params": dict(asked.params), "body": asked.body}, faults=faults)


def get(server: ApiServer, config: WebApiConfig = QUICK, **params: str) -> Any:
    async def go() -> Any:
        service = Service("test", server.url, config)
        try:
            return await service.request("GET", any_answer, params=params)
        finally:
            await service.close()

    return asyncio.run(go())


def failure(*faults: Fault, config: WebApiConfig = QUICK) -> tuple[ToolServerError, ApiServer]:
    with serve(*faults) as server:
        with pytest.raises(ToolServerError) as caught:
            get(server, config)
        return caught.value, server


def test_asks_and_answers_in_json():
    with serve() as server:
        assert get(server, q="Ωmega & עברית")["params"] == {"q": "Ωmega & עברית"}
        (asked,) = server.asked
    assert asked.headers["user-agent"] == f"midstream/{__version__}"
    assert asked.headers["accept-encoding"] == "gzip"


def test_the_user_agent_is_sent():
    with serve() as server:
        get(server, WebApiConfig(user_agent="my-agent/1.0 (me@example.org)"))
        assert server.asked[0].headers["user-agent"] == "my-agent/1.0 (me@example.org)"


@pytest.mark.parametrize("bad", ["", " ", "a\r\nX-Evil: 1", "naïve", "trailing "])
def test_a_user_agent_that_no_header_can_carry_is_refused(bad: str):
    with pytest.raises(ValidationError):
        WebApiConfig(user_agent=bad)


TRANSIENT: list[Fault] = [429, 500, 503, 408, "reset", "truncate", "cut_json", "html", "huge", "bomb", Answer(body="")]


@pytest.mark.matrix(4)
@pytest.mark.parametrize("fault", TRANSIENT, ids=str)
def test_a_transient_failure_is_retried(fault: Fault):
    with serve(fault) as server:
        assert get(server) == {"params": {}, "body": None}
        assert len(server.asked) == 2


@pytest.mark.matrix(4)
@pytest.mark.parametrize("fault", TRANSIENT, ids=str)
def test_a_failure_that_persists_is_a_retryable_error(fault: Fault):
    error, server = failure(fault, fault, fault)
    assert len(server.asked) == 2
    assert error.retryable
    assert error.code == "service-failed"
    assert f"test at {server.url}" in error.what


@pytest.mark.parametrize("fault", ["drip", "hang"])
def test_time_is_bounded_as_a_whole(fault: str):
    error, _ = failure(fault, config=WebApiConfig(timeout_s=0.2, max_attempts=1))
    assert "no complete answer within 0.2 s" in error.what


def test_size_is_bounded_while_it_is_read():
    error, server = failure("huge", config=WebApiConfig(max_attempts=1))
    assert "longer than 8 MB" in error.what
    assert server.sent < 30 << 20  # what the sockets hold beyond our 8 MB
    with growth_of_memory() as growth:
        error, _ = failure("bomb", config=WebApiConfig(max_attempts=1))
    assert "longer than 8 MB" in error.what
    assert growth.mb < 64


def test_no_server():
    with serve() as server:
        url = server.url
    with pytest.raises(ToolServerError, check=coded("service-failed", "ClientConnectorError")):
        asyncio.run(Service("test", url, QUICK).request("GET", any_answer))


@pytest.mark.parametrize(
    ("answer", "fix"),
    [
        (Answer(status=403, body="Please set a user-agent"), "user_agent"),
        (Answer(status=404, body="no such thing"), "base_url"),
        (Answer(status=302, headers={"Location": "https://elsewhere.example/api"}), "https://elsewhere.example/api"),
    ],
)
def test_a_refusal_is_final(answer: Answer, fix: str):
    error, server = failure(answer, answer)
    assert len(server.asked) == 1
    assert not error.retryable
    assert error.code == "service-refused"
    assert f"answered {answer.status}" in error.what
    assert answer.body in error.what
    assert fix in error.fix


def noted(pauses: list[float]) -> Callable[[float], Coroutine[Any, Any, None]]:
    """A sleep that only notes the pauses of retries; those of other tests' servers, in their threads, are slept."""
    sleep = asyncio.sleep

    async def note(pause_s: float) -> None:
        if pause_s > 0.2:
            pauses.append(pause_s)
        else:
            await sleep(pause_s)

    return note


def test_retry_after_is_respected_and_capped(monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []

    monkeypatch.setattr(http.asyncio, "sleep", noted(pauses))

    for asked_for in ("30", "86400"):
        with serve(Answer(status=503, headers={"Retry-After": asked_for})) as server:
            get(server)
            assert len(server.asked) == 2
    assert pauses == [30.0, http.LONGEST_PAUSE_S]


def test_pauses_grow(monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []

    monkeypatch.setattr(http.asyncio, "sleep", noted(pauses))

    async def fail() -> None:
        raise TransientError("no")

    with pytest.raises(ToolServerError):
        asyncio.run(retried(fail, WebApiConfig(max_attempts=12, first_pause_s=1.0), "test"))
    assert len(pauses) == 11
    assert all(0.5 * 2**i <= pause <= 2**i for i, pause in enumerate(pauses[:6]))
    assert pauses[-1] == http.LONGEST_PAUSE_S


# --- keys ---------------------------------------------------------------------------------------------------------


def post(server: ApiServer) -> Any:
    key = Key(header="X-API-KEY", env="TEST_API_KEY")
    return asyncio.run(Service("test", server.url, QUICK, key=key).request("POST", any_answer, json={"q": "a"}))


def test_a_key_goes_out_as_a_header_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEST_API_KEY", f" {SECRET}\n")
    with serve() as server:
        assert post(server)["body"] == {"q": "a"}
        (asked,) = server.asked
    assert asked.headers["x-api-key"] == SECRET
    assert SECRET not in repr(Key(header="X-API-KEY", env="TEST_API_KEY"))


@pytest.mark.parametrize("said", [f"bad key {SECRET}", f"bad key ...{SECRET[8:20]}...", SECRET])
@pytest.mark.parametrize("status", [403, 500])
def test_an_error_does_not_show_the_key(said: str, status: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEST_API_KEY", SECRET)
    answer = Answer(status=status, body=said)
    with serve(answer, answer) as server, pytest.raises(ToolServerError) as caught:
        post(server)
    assert not any(SECRET[i : i + 6] in str(caught.value) for i in range(len(SECRET) - 5))
    assert f"{status}" in str(caught.value)


def test_an_answer_that_repeats_the_key_is_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEST_API_KEY", SECRET)
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in SECRET)
    with serve(Answer(body=f'{{"echo": "{escaped}"}}')) as server, pytest.raises(ToolServerError) as caught:
        post(server)
    assert "answered with the key" in caught.value.what
    assert SECRET not in str(caught.value)
    assert not caught.value.retryable


@pytest.mark.parametrize("value", [None, "", "  ", "sk-naïve", "sk-a\nb"])
def test_a_missing_or_broken_key_is_refused(value: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TEST_API_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("TEST_API_KEY", value)
    with serve() as server, pytest.raises(RecipeError) as caught:
        post(server)
    assert caught.value.code == "missing-key"
    assert caught.value.fix == "export TEST_API_KEY=<your key>"
    assert not server.asked


# --- many at once, many loops -------------------------------------------------------------------------------------


def test_no_more_at_once_than_allowed_in_one_loop_after_another():
    def slow(asked: Any) -> Any:
        time.sleep(0.02)
        return int(asked.params["n"])

    with ApiServer(slow) as server:
        service = Service("test", server.url, WebApiConfig(concurrency=3))

        async def phase() -> list[Any]:
            return await asyncio.gather(*(service.request("GET", any_answer, params={"n": str(n)}) for n in range(20)))

        for _ in range(3):  # without close: asyncio.run ends the connections of its loop
            assert asyncio.run(phase()) == list(range(20))
        assert server.most_in_flight == 3


def test_loops_of_several_threads_do_not_wait_for_each_other():
    def slow(asked: Any) -> Any:
        time.sleep(0.02)
        return int(asked.params["n"])

    with ApiServer(slow) as server, ThreadPoolExecutor(3) as threads:
        service = Service("test", server.url, WebApiConfig(concurrency=1))

        async def phase() -> list[Any]:
            asked = (service.request("GET", any_answer, params={"n": str(n)}) for n in range(5))
            return await asyncio.wait_for(asyncio.gather(*asked), 10)

        for phases in [threads.submit(asyncio.run, phase()) for _ in range(3)]:
            assert phases.result() == list(range(5))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org",
        "ftp://a.example/",
        "http://",
        "file:///etc/passwd",
        "http://me:pass@a.example/",
        "http://a:99999/",
    ],
)
def test_an_invalid_address_is_refused(url: str):
    with pytest.raises(RecipeError) as caught:
        Service("test", url, QUICK)
    assert caught.value.code == "address-invalid"
    assert "pass@" not in str(caught.value)


def test_an_unusable_proxy_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALL_PROXY", "gopher://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serve() as server, pytest.raises(UnsupportedError, check=coded("proxy-invalid")):
        get(server)


@given(st.text() | st.integers() | st.none())
def test_valid_text_can_always_be_sent(argument: object):
    text = valid(argument)
    assert text == text.encode().decode()
    assert text == " ".join(text.split())


def test_half_a_surrogate_pair_is_replaced():
    assert valid("a\ud800  b\n") == "a? b"
