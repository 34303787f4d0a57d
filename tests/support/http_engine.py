"""An engine at a test's server, and what it is asked."""

from __future__ import annotations

import asyncio
from typing import Any

from midstream.core.protocols import Request
from midstream.core.trajectory import Call, Message
from midstream.engines.openai_compatible import Config, OpenAICompatibleEngine
from support.llm_server import Body, LLMServer, prompt_of

HELLO = Request(role="planner", messages=(Message(role="user", content="hello"),), seed=7)


def echo(body: Body) -> str:
    return "you said: " + prompt_of(body)


def engine_for(server: LLMServer, **settings: Any) -> OpenAICompatibleEngine:
    config = {"model": "m", "base_url": server.base_url, "first_pause_s": 0.001, "timeout_s": 5.0} | settings
    return OpenAICompatibleEngine(Config.model_validate(config), "engine")


def ask(engine: OpenAICompatibleEngine, *requests: Request) -> list[Call]:
    async def run() -> list[Call]:
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    return asyncio.run(run())
