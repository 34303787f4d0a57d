"""Limits a minute, of settings and of a server's headers, on a clock that a wait moves on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest

from midstream.core.engine import Request
from midstream.core.errors import EngineError
from midstream.core.trajectory import Sampling
from midstream.engines.openai import limits as limits_module
from midstream.engines.openai.limits import RateLimits, Reservation, seconds_until
from support.http_engine import HELLO, ask, echo, engine_for
from support.llm_server import LLMServer

NOW = 1_764_500_000.0


class Clock:
    """Seconds that pass only while somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, delay: float) -> None:
        self.now += delay
        await asyncio.sleep(0)


def limited() -> RateLimits:
    limits, clock = RateLimits(), Clock()
    vars(limits).update(clock=clock, sleep=clock.sleep)
    return limits


def sent_at(limits: RateLimits, requests: Sequence[Reservation]) -> list[float]:
    """Seconds after which each of the requests, which are made at once, is sent."""

    async def send() -> None:
        await asyncio.gather(*map(limits.turn, requests))

    asyncio.run(send())
    return [request.at - 1000 for request in requests]


def stated(kind: str, limit: object, remaining: object, reset: str) -> dict[str, str]:
    values = {"limit": limit, "remaining": remaining, "reset": reset}
    return {f"x-ratelimit-{name}-{kind}": str(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6m0s", 360),
        ("20ms", 0.02),
        ("1s", 1),
        ("2m59.56s", 179.56),
        ("1h0m0.5s", 3600.5),
        ("1d2h", 93600),
        ("17", 17),
        ("1.5", 1.5),
        ("1764500030", 30),
        ("2025-11-30T10:54:20Z", 1_764_500_060 - NOW),
        ("2025-11-30T10:53:10+00:00", -10),
        ("", None),
        ("soon", None),
        ("5 minutes", None),
        ("-5", None),
        ("2025-13-45T00:00:00Z", None),
    ],
)
def test_resets_are_read_in_each_form(text, seconds):
    assert seconds_until(text, NOW) == (None if seconds is None else pytest.approx(seconds))


def test_no_minute_has_more_requests_than_the_settings_allow():
    times = sent_at(limited(), [Reservation(1, limits=(3, inf)) for _ in range(10)])
    assert times == sorted(times)
    assert all(later - earlier >= 60 for earlier, later in zip(times, times[3:], strict=False))
    assert times[-1] < 181


def test_engines_share_the_least_of_their_settings():
    times = sent_at(limited(), [Reservation(1, limits=(limit, inf)) for limit in (2, inf, 9, inf)])
    assert [time // 60 for time in times] == [0, 0, 1, 1]


def test_tokens_are_reserved_and_what_a_reply_did_not_use_makes_room():
    limits, reservations = limited(), [Reservation(600, limits=(inf, 1000)) for _ in range(3)]
    first, *others = reservations
    assert sent_at(limits, [first]) == [0]
    first.tokens = 100
    assert [time // 60 for time in sent_at(limits, others)] == [0, 1]


def test_a_request_that_is_larger_than_the_limit_has_a_minute_of_its_own():
    times = sent_at(limited(), [Reservation(size, limits=(inf, 1000)) for size in (10, 5000, 10)])
    assert [time // 60 for time in times] == [0, 1, 2]


@pytest.mark.parametrize("names", ["x-ratelimit-{1}-{0}", "anthropic-ratelimit-{0}-{1}"])
@pytest.mark.parametrize("kind", ["requests", "tokens"])
def test_at_remaining_0_requests_wait_until_the_reset(names, kind):
    limits, first = limited(), Reservation(50)
    assert sent_at(limits, [first]) == [0]
    values = {"limit": "100", "remaining": "0", "reset": "2m0s"}
    limits.read(first, 200, {names.format(kind, name): value for name, value in values.items()})
    later = [Reservation(50), Reservation(50)]
    assert [time // 60 for time in sent_at(limits, later)] == [2, 2]
    assert 120 <= later[0].waited_s < 121


def test_not_all_that_wait_are_sent_at_the_reset():
    limits, first = limited(), Reservation(1)
    sent_at(limits, [first])
    limits.read(first, 200, stated("requests", 2, 0, "30s"))
    assert [time // 30 for time in sent_at(limits, [Reservation(1) for _ in range(5)])] == [1, 1, 3, 3, 5]


def test_requests_that_are_under_way_count_as_taken():
    limits, requests = limited(), [Reservation(1) for _ in range(3)]
    sent_at(limits, requests)
    limits.read(requests[0], 200, stated("requests", 60, 3, "20s"))
    assert [time // 20 for time in sent_at(limits, [Reservation(1), Reservation(1)])] == [0, 1]


def test_the_newest_answer_is_followed():
    limits, old, new = limited(), Reservation(1), Reservation(1)
    sent_at(limits, [old])
    asyncio.run(limits.sleep(1))
    sent_at(limits, [new])
    limits.read(new, 200, stated("requests", 60, 5, "20s"))
    limits.read(old, 200, stated("requests", 60, 0, "20s"))
    assert sent_at(limits, [Reservation(1)]) == [1]


@pytest.mark.parametrize(
    "headers",
    [
        stated("requests", 10, 0, ""),
        stated("requests", 10, -1, "60s"),
        stated("requests", "many", "none", "60s"),
        {"x-ratelimit-remaining-requests": "0"},
    ],
)
def test_headers_that_say_nothing_change_nothing(headers):
    limits, first = limited(), Reservation(1)
    sent_at(limits, [first])
    limits.read(first, 200, headers)
    assert sent_at(limits, [Reservation(1)]) == [0]


def test_a_429_pauses_all_and_nobody_waits_for_a_limit_of_a_day():
    limits, first = limited(), Reservation(1)
    sent_at(limits, [first])
    limits.read(first, 429, {"retry-after": "7"})
    assert [time // 7 for time in sent_at(limits, [Reservation(1), Reservation(1)])] == [1, 1]
    limits.read(first, 429, {"retry-after": "86400"})
    assert 600 <= sent_at(limits, [Reservation(1)])[0] < 610


def test_event_loops_of_several_threads_share_the_minute(monkeypatch):
    monkeypatch.setattr(limits_module, "_MINUTE_S", 0.2)
    limits, requests = RateLimits(), [Reservation(1, limits=(3, inf)) for _ in range(12)]

    async def send(part: Sequence[Reservation]) -> None:
        await asyncio.gather(*map(limits.turn, part))

    threads = [threading.Thread(target=asyncio.run, args=[send(requests[number::3])]) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = sorted(request.at for request in requests)
    assert all(later - earlier >= 0.2 for earlier, later in zip(times, times[3:], strict=False))


# --- the engine -------------------------------------------------------------------------------------------------------


def test_a_server_that_refuses_one_request_pauses_the_others():
    """Of two engines at one address: the second is sent when the pause is over."""
    with LLMServer(echo, faults=[429], retry_after="0.6") as server:
        agent, judge = engine_for(server), engine_for(server)

        async def run() -> float:
            first = asyncio.create_task(agent.sample(HELLO))
            while not server.served[429]:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            began = time.monotonic()
            await asyncio.gather(first, judge.sample(HELLO))
            return time.monotonic() - began

        assert asyncio.run(run()) >= 0.4
    assert server.served == {429: 1, None: 2}


def test_what_a_server_states_is_followed_and_the_wait_is_recorded():
    said: list[str] = []
    request = replace(HELLO, emit=lambda kind, value: said.append(f"{kind}: {value}"))
    with LLMServer(echo, answer_headers=stated("requests", 5, 0, "1200ms")) as server:
        engine = engine_for(server)
        began = time.monotonic()
        [first] = ask(engine, request)
        [second] = ask(engine, request)
    assert time.monotonic() - began >= 1.2
    assert ("waited_s" in first.sent, second.sent["waited_s"]) == (False, pytest.approx(1.2, abs=0.4))
    assert said == ["retry: waits up to 1 s for the rate limit"]


def test_a_wait_past_the_deadline_is_no_fault_of_the_agent():
    late = replace(HELLO, deadline_s=time.monotonic() + 0.3)
    with LLMServer(echo) as server:
        engine = engine_for(server, requests_per_minute=1)
        ask(engine, HELLO)
        with pytest.raises(EngineError, check=lambda error: error.retryable and error.code == "endpoint-failed"):
            ask(engine, late)
    assert len(server.bodies) == 1


def test_tokens_are_estimated_before_and_counted_after(monkeypatch):
    taken: list[Reservation] = []

    async def turn(limits: RateLimits, place: Reservation) -> None:
        taken.append(replace(place))
        taken.append(place)

    monkeypatch.setattr(RateLimits, "turn", turn)
    request = Request(role="planner", messages=HELLO.messages, sampling=Sampling(max_tokens=40))
    with LLMServer(echo) as server:
        ask(engine_for(server, tokens_per_minute=500), request)
    before, after = taken
    assert before.limits == (inf, 500)
    assert before.tokens == 41
    assert after.tokens == len("hello") + len("you said: hello")
