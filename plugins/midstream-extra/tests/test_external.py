"""Agents that run elsewhere: callers that come late, twice, vanish, or end their sessions wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.gateway.server import Gateway
from midstream.gateway.settings import ServeConfig
from midstream.rollout import Environment, RolloutConfig, rollout
from midstream_extra.external import ExternalAgent, ExternalSettings
from support.gateway_sessions import Model, Right, ask, client


class Caller:
    """A program elsewhere."""

    def __init__(self, http: Any, address: str) -> None:
        self.http, self.address = http, address

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.http.post(self.address + path, json=body) as reply:
            return reply.status, await reply.json()

    async def open(self, name: str = "") -> dict[str, Any]:
        status, shown = await self.post("/v1/sessions", {"id": name} if name else {})
        assert status == 200, shown
        return shown

    async def end(self, opened: dict[str, Any], **body: Any) -> tuple[int, Any]:
        return await self.post(f"/s/{opened['key']}/end", body)


@asynccontextmanager
async def calling(
    tasks: int = 1, attempts: int = 1, deadline_s: float | None = None, **settings: Any
) -> AsyncIterator[tuple[Caller, Callable[[], Any]]]:
    """A caller, and what waits for the trajectories."""
    gateway = Gateway(ServeConfig())
    agent = ExternalAgent(ExternalSettings(**settings), gateway)
    environment = Environment(
        agent=agent,
        tools=(),
        engines={"policy": Model()},
        reward=Right(),
        config=RolloutConfig(max_attempts=attempts, deadline_s=deadline_s),
    )
    asked = [Task(id=f"t{i}", question=f"question {i}", answer="right") for i in range(tasks)]
    running = asyncio.ensure_future(rollout(environment, asked, seed=1))
    try:
        while not gateway.address:
            await asyncio.sleep(0.01)

        async def trajectories() -> list[Trajectory]:
            return [one for group in await running for one in group.trajectories]

        async with client() as http:
            yield Caller(http, gateway.address), trajectories
    finally:
        running.cancel()
        await asyncio.wait({running})
        await gateway.close()


def test_a_caller_asks_and_ends():
    async def both():
        async with calling() as (caller, trajectories):
            opened = await caller.open("mine")
            again = await caller.open("mine")
            assert again == opened
            assert set(opened["task"]) == {"id", "question", "metadata"}
            status, _ = await ask(caller.http, opened["base_url"], key=opened["key"])
            assert status == 200
            assert (await caller.end(opened, answer="right"))[0] == 200
            [found] = await trajectories()
            late = await caller.end(opened, answer="wrong")
            return found, late

    found, (status, refused) = asyncio.run(both())
    assert (found.answer, found.reward.value, len(found.calls)) == ("right", 1, 1)
    assert (status, refused["error"]["code"]) == (409, "session-ended")


def test_each_task_has_one_caller():
    async def both():
        async with calling(tasks=20) as (caller, trajectories):

            async def work() -> str:
                opened = await caller.open()
                await ask(caller.http, opened["base_url"], key=opened["key"])
                await caller.end(opened, answer="right")
                return opened["task"]["id"]

            names = await asyncio.gather(*(work() for _ in range(20)))
            return names, await trajectories()

    names, found = asyncio.run(both())
    assert sorted(names) == sorted(one.task_id for one in found)
    assert {one.reward.value for one in found if one.reward} == {1}


def test_one_caller_that_asks_twice_at_once_gets_one_place():
    async def both():
        async with calling(tasks=2) as (caller, _):
            one, two = await asyncio.gather(caller.open("mine"), caller.open("mine"))
            other = await caller.open("another")
            return one, two, other

    one, two, other = asyncio.run(both())
    assert one == two
    assert one["key"] != other["key"]


def test_a_caller_that_is_gone_takes_no_place(monkeypatch):
    """Nothing is free when it asks; it hangs up, and the next caller gets the place."""

    async def both():
        async with calling(attempts=3) as (caller, trajectories):
            first = await caller.open("first")
            waiting = asyncio.ensure_future(caller.open("gone"))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.sleep(0.1)
            await caller.end(first, error="broke")  # its place is free again, for another attempt
            second = await asyncio.wait_for(caller.open("second"), 2)
            await caller.end(second, answer="right", reward=0.5, feedback="half")
            [found] = await trajectories()
            return found

    found = asyncio.run(both())
    assert (found.status, found.attempts, found.reward.value) == ("ok", 2, 0.5)


@pytest.mark.parametrize(
    "body",
    [
        {"answer": 3},
        {"reward": 2},
        {"reward": "much"},
        {"answer": "right", "reward": "1"},
        {"answer": "right", "reward": True},
        {"reward": None, "other": 1},
        [],
        "text",
        {"answer": {"a": 1}},
    ],
)
def test_a_wrong_end_is_refused_and_the_session_continues(body):
    async def both():
        async with calling() as (caller, trajectories):
            opened = await caller.open()
            status, _ = await caller.post(f"/s/{opened['key']}/end", body)
            assert status == 400
            await caller.end(opened, answer="right")
            [found] = await trajectories()
            return found

    assert asyncio.run(both()).reward.value == 1


@pytest.mark.parametrize("body", [[], {"id": 3}, {"id": "x" * 1000}, {"task": "t9"}])
def test_openings_that_are_refused(body):
    async def both():
        async with calling() as (caller, _):
            return await asyncio.wait_for(caller.post("/v1/sessions", body), 2)

    assert asyncio.run(both())[0] == (200 if body == [] else 400)


@asynccontextmanager
async def with_own_tasks(ended: Sequence[str] = (), fails: bool = False) -> AsyncIterator[tuple[Caller, list[Any]]]:
    """A caller that brings tasks, and the trajectories that are recorded."""
    gateway, kept = Gateway(ServeConfig()), list[Any]()
    agent = ExternalAgent(ExternalSettings(), gateway)
    config = RolloutConfig(max_attempts=1)
    environment = Environment(agent=agent, tools=(), engines={"policy": Model()}, reward=Right(), config=config)

    async def record(task: Task) -> str:
        kept.extend(await rollout(environment, [task], seed=1))
        return "no space left" if fails else ""

    agent.take_tasks(lambda task: asyncio.create_task(record(task)), ended)
    gateway.start()
    try:
        async with client() as http:
            yield Caller(http, gateway.address), kept
    finally:
        await gateway.close()


TASK = {"question": "q", "answer": "right"}


def test_a_wrong_opening_takes_no_place_and_burns_no_id():
    wrong = [
        b'{"id": "\\ud800", "task": {"question": "q"}}',
        b'{"id": "x", "task": {"question": "q", "metadata": {"a": NaN}}}',
        b'{"id": "x", "task": {"question": "q", "metadata": {"a": 1e999}}}',
        b'{"id": "x", "task": {"question": "q", "metadata": {"a": "\\udfff"}}}',
        b'{"id": "x", "task": {"quest": 1}}',
        b'{"id": "x"}',
    ]

    async def both():
        async with with_own_tasks() as (caller, kept):
            statuses = []
            for body in wrong:
                async with caller.http.post(f"{caller.address}/v1/sessions", data=body) as reply:
                    statuses.append(reply.status)
            status, opened = await asyncio.wait_for(caller.post("/v1/sessions", {"id": "x", "task": TASK}), 5)
            assert status == 200
            return statuses, await caller.end(opened, answer="right"), kept

    statuses, (status, _), kept = asyncio.run(both())
    assert statuses == [400] * len(wrong)
    assert (status, [one.reward.value for group in kept for one in group.trajectories]) == (200, [1])


def test_an_ended_id_stays_ended_and_an_end_is_answered_once_it_is_stored():
    async def both(fails: bool):
        async with with_own_tasks(["before"], fails) as (caller, kept):
            again, _ = await caller.post("/v1/sessions", {"id": "before", "task": TASK})
            _, opened = await caller.post("/v1/sessions", {"id": "new", "task": TASK})
            status, _ = await caller.end(opened, answer="right")
            return again, status, len(kept)

    assert [asyncio.run(both(fails)) for fails in (False, True)] == [(409, 200, 1), (409, 500, 1)]


def test_an_error_and_a_reward_before_it_give_no_reward():
    async def both():
        async with calling() as (caller, trajectories):
            opened = await caller.open()
            await caller.post(f"/s/{opened['key']}/reward", {"reward": 1})
            await caller.end(opened, error=f"no route to {opened['base_url']}")
            [found] = await trajectories()
            return found, opened["key"]

    found, key = asyncio.run(both())
    assert (found.status, found.reward) == ("error", None)
    assert key not in found.model_dump_json()


def test_the_deadline_and_idle_time_begin_with_the_caller():
    async def both():
        async with calling(deadline_s=0.6) as (caller, trajectories):
            await asyncio.sleep(1)
            opened = await caller.open()
            await asyncio.sleep(0.1)
            assert (await caller.end(opened, answer="right"))[0] == 200
            [in_time] = await trajectories()
        async with calling(deadline_s=0.6) as (caller, trajectories):
            await caller.open()
            [late] = await asyncio.wait_for(trajectories(), 3)
        async with calling(idle_s=0.3) as (caller, trajectories):
            await asyncio.sleep(0.5)
            await caller.open()
            [idle] = await asyncio.wait_for(trajectories(), 3)
        return in_time.status, late.status, idle.status

    assert asyncio.run(both()) == ("ok", "error", "error")


def test_the_admin_key(monkeypatch):
    monkeypatch.setenv("MIDSTREAM_ADMIN_KEY", "s\u00e9cret")

    async def both():
        async with calling() as (caller, _):
            statuses = []
            for key in ("", "wrong", "s\u00e9cret"):
                headers = {"x-api-key": key} if key.isascii() else {"authorization": f"Bearer {key}"}
                async with caller.http.post(f"{caller.address}/v1/sessions", json={}, headers=headers) as reply:
                    statuses.append(reply.status)
            return statuses

    assert asyncio.run(both())[:2] == [401, 401]
