"""An engine at a test's server, and what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from midstream.core.engine import Request
from midstream.core.trajectory import Call, Message
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from support.llm_server import Body, LLMServer, prompt_of

HELLO = Request(role="planner", messages=(Message(role="user", content="hello"),), seed=7)


class Bytes:
    """The codec of `LLMServer`: a token is a byte, 0 ends a reply."""

    def encode(self, request: Request) -> Sequence[int]:
        """A chat is its messages, one after another."""
        return request.prompt_ids or "\n".join([request.prompt, *(one.content for one in request.messages)]).encode()

    def encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def encode_reply(self, messages: Sequence[Message], *, ended: bool) -> tuple[int, ...]:
        said = "\n".join(one.content for one in messages)
        return ((0,) * (not ended)) + self.encode_text(said)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).removesuffix(b"\0").decode("utf-8", "replace")


def echo(body: Body) -> str:
    return "you said: " + prompt_of(body)


def engine_for(server: LLMServer, **settings: Any) -> OpenAICompatibleEngine:
    config = {"model": "m", "base_url": server.base_url, "first_pause_s": 0.001, "timeout_s": 5.0} | settings
    return OpenAICompatibleEngine(OpenAIConfig.model_validate(config), "engine")


def ask(engine: OpenAICompatibleEngine, *requests: Request) -> list[Call]:
    async def run() -> list[Call]:
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    return asyncio.run(run())
