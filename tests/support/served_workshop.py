"""The simulated workshop's agent and reflector behind real HTTP servers, with faults on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from midstream.core.trajectory import Message
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream_worlds.simulated import Reply
from midstream_worlds.workshop import models
from support.llm_server import Body, LLMServer

RECIPE = "lessons-simulated"


@contextmanager
def served_workshop(changes: Mapping[str, Any], fault_rate: float = 0.0) -> Iterator[dict[str, str]]:
    """Overrides of the recipe with `changes` that send its requests to servers, a share of which meets a fault."""
    with Build(load_recipe(RECIPE, [f"{key}={value}" for key, value in changes.items()])) as build:
        world: Any = build.source

    def server(reply: Reply) -> LLMServer:
        def answer(body: Body) -> str:
            messages = [Message(role=message["role"], content=message["content"]) for message in body["messages"]]
            return reply(messages, body["seed"])

        return LLMServer(answer, fault_rate=fault_rate)

    with server(models.agent_reply(world)) as agent, server(models.reflector_reply(world)) as reflector:
        settings = 'api_key_env="", first_pause_s=0.0, max_attempts=20, timeout_s=5.0'
        yield {
            f"engines.{name}": f'{{type="openai_compatible", model="m", base_url="{served.base_url}", {settings}}}'
            for name, served in (("agent", agent), ("reflector", reflector))
        }
