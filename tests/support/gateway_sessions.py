"""Runs of agents of other programs against a scripted, token-exact model, over real HTTP."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from midstream.agents.own_agent import own_agent
from midstream.core.agent import RunContext
from midstream.core.engine import Engine, Request
from midstream.core.task import Task
from midstream.core.trajectory import Call, Sampling, Score, Trajectory
from midstream.gateway.server import Gateway
from midstream.gateway.session import AgentSession
from midstream.gateway.session_agent import CommandSettings
from midstream.gateway.settings import ServeConfig, SessionSettings
from midstream.rollout import Environment, RolloutConfig, rollout
from midstream_worlds.scripted_engine import ScriptedEngine


class Model(Engine):
    """Answers with `reply(request)`, after `pause_s`; `gate`, if set, holds every answer back.

    A chat is read as its texts in one line, so that a call which adds to a chat continues the tokens of the last one.
    """

    name = "model"

    def __init__(
        self, reply: Callable[[Request], str] | None = None, pause_s: float = 0.0, *, token_ids: bool = True
    ) -> None:
        self._scripted = ScriptedEngine(reply or (lambda _: f"{len(self.requests)}."), token_ids=token_ids)
        self.token_exact = token_ids
        self.pause_s = pause_s
        self.gate: asyncio.Event | None = None

    @property
    def requests(self) -> list[Request]:
        return self._scripted.requests

    async def sample(self, request: Request) -> Call:
        call = await self._scripted.sample(request)
        if self.token_exact:
            text = "".join(message.content for message in request.messages)
            call = call.model_copy(update={"prompt_ids": tuple(text.encode())})
        await asyncio.sleep(self.pause_s)
        if self.gate is not None:
            await self.gate.wait()
        return call


class Right:
    """A reward of 1 for the answer "right"."""

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        return Score(float(trajectory.answer == "right"))


async def run_agent(
    agent: Any,
    engine: Engine | None = None,
    *,
    tasks: int = 1,
    group_size: int = 1,
    serve: ServeConfig | None = None,
    reference: str = "python:solve",
    attempts: int = 1,
    concurrency: int = 64,
    deadline_s: float | None = None,
    tools: Sequence[Any] = (),
    wrap: Callable[[Any], Any] = lambda agent: agent,
    **settings: Any,
) -> list[Trajectory]:
    """The trajectories of a function, or of a command given as a sequence of words."""
    config: Any
    if isinstance(agent, Sequence):
        config = CommandSettings(command=tuple(map(str, agent)), **settings)
    else:
        config = own_agent("agent", reference, agent)(**settings)
    made = config.build(None)
    made.gateway.config = serve or ServeConfig()
    environment = Environment(
        agent=wrap(made),
        tools=tools,
        engines={"policy": engine or Model()},
        reward=Right(),
        config=RolloutConfig(max_attempts=attempts, concurrency=concurrency, deadline_s=deadline_s),
    )
    asked = [Task(id=f"t{i}", question=f"question {i}", answer="right") for i in range(tasks)]
    try:
        groups = await rollout(environment, asked, group_size=group_size, seed=1)
    finally:
        await made.gateway.close()
    return [trajectory for group in groups for trajectory in group.trajectories]


def run(agent: Any, engine: Engine | None = None, **settings: Any) -> Trajectory:
    """The one trajectory of one task."""
    [trajectory] = asyncio.run(run_agent(agent, engine, **settings))
    return trajectory


@asynccontextmanager
async def open_session(
    engine: Engine | None = None,
    serve: ServeConfig | None = None,
    sampling: Sampling | float | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Gateway, AgentSession, str]]:
    """A gateway, a session in it, and the session's address."""
    gateway = Gateway(serve or ServeConfig())
    context = RunContext(engines={"policy": engine or Model()}, seed=1, sampling=sampling)
    session = AgentSession(gateway, context, SessionSettings(**settings))
    try:
        async with gateway.serving(session) as key:
            yield gateway, session, gateway.url(key)
    finally:
        await gateway.close()


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A chat completion's body."""
    return {"model": "policy", "messages": [{"role": "user", "content": text}], **fields}


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """A client with any number of connections."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as made:
        yield made


async def ask(
    http: aiohttp.ClientSession, url: str, body: Any = None, *, retry: int = 0, key: str = ""
) -> tuple[int, Any]:
    """Status and JSON of a chat completion."""
    headers = {"x-stainless-retry-count": str(retry)} | ({"authorization": f"Bearer {key}"} if key else {})
    base = url if url.endswith("/v1") else f"{url}/v1"
    sent = io.BytesIO(json.dumps(body or chat()).encode())
    async with http.post(f"{base}/chat/completions", data=sent, headers=headers) as reply:
        return reply.status, await reply.json(content_type=None)
