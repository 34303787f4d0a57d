"""A model that is a function of its prompt: those of the simulated worlds (`tasks/worlds/`: workshop, desks).

Asked in process, or, with `http = true`, through a real server on this machine (`loopback.py`) and the same
`OpenAICompatibleEngine` that asks every other server, with faults on demand: what a run does when its endpoint fails
can then be seen without one.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from midstream.core.data import Frozen
from midstream.core.errors import RecipeError
from midstream.core.protocols import Engine, Request
from midstream.core.trajectory import Call, Usage
from midstream.engines.loopback import Faults, Loopback, Reply, usage_of
from midstream.engines.openai import engine as openai_compatible

MODEL = "simulated"
_SEEDS = 2**31  # as many as requests over HTTP can name


class Config(Frozen):
    """Whom the model `plays`, how it is asked, and what goes wrong on the way.

    `skill` is the chance that a call of an agent at the desks is right; other worlds say themselves how well it goes.
    With `http` it is asked over HTTP; then `faults` are shares of its requests, drawn with `seed`, and `timeout_s`
    bounds one attempt of `max_attempts`. A token is four characters; prices are US dollars per million of them.
    """

    plays: Literal["agent", "reflector"]
    skill: float = Field(default=1.0, ge=0, le=1)
    http: bool = False
    faults: Faults = Faults()
    seed: int = 0
    timeout_s: float = Field(default=2.0, gt=0)
    max_attempts: int = Field(default=20, ge=1)
    max_concurrency: int = Field(default=32, ge=1)
    price_prompt_usd: float = Field(default=0.0, ge=0)
    price_completion_usd: float = Field(default=0.0, ge=0)


class SimulatedEngine:
    """`core.protocols.Engine` on a function of messages and seed, in process: nothing is sampled, and nothing waits."""

    token_exact = False

    def __init__(self, reply: Reply, config: Config, name: str) -> None:
        self.name, self.config = name, config
        self._reply = reply

    async def sample(self, request: Request) -> Call:
        """What the function says.

        Raises:
            RecipeError: the request is a text without messages, as the compact planner's are.
        """
        if not request.messages:
            raise RecipeError(
                f"engine {self.name!r} was asked for the rest of a text by the {request.role}",
                cause="a simulated model answers messages, as a chat model does",
                fix='give the module type = "prompted", or another engine',
            )
        completion = self._reply(request.messages, request.seed % _SEEDS)
        prompt_tokens, completion_tokens = usage_of(request.messages, completion)
        cost = prompt_tokens * self.config.price_prompt_usd + completion_tokens * self.config.price_completion_usd
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cost_usd=cost / 1e6)
        return Call(
            role=request.role,
            engine=self.name,
            messages=request.messages,
            completion=completion,
            sampling=request.sampling,
            finish_reason="stop",
            usage=usage,
        )

    async def close(self) -> None:
        """Nothing to release."""


class ServedEngine:
    """The same model behind a server of its own, which lives as long as the engine."""

    token_exact = False

    def __init__(self, reply: Reply, config: Config, name: str) -> None:
        self.name = name
        self.server = Loopback(reply, faults=config.faults, seed=config.seed)
        asked = openai_compatible.Config(
            model=MODEL,
            base_url=self.server.base_url,
            api_key_env="",
            max_concurrency=config.max_concurrency,
            timeout_s=config.timeout_s,
            max_attempts=config.max_attempts,
            first_pause_s=0.0,
            price_prompt_usd=config.price_prompt_usd,
            price_completion_usd=config.price_completion_usd,
        )
        self._engine = openai_compatible.OpenAICompatibleEngine(asked, name)

    async def sample(self, request: Request) -> Call:
        """The server's answer; `EngineError` once every attempt has failed."""
        return await self._engine.sample(request)

    async def close(self) -> None:
        """Leave the server, then end it."""
        await self._engine.close()
        self.server.close()


def make(reply: Reply, config: Config, name: str) -> Engine:
    """The engine that a recipe asks for."""
    return ServedEngine(reply, config, name) if config.http else SimulatedEngine(reply, config, name)
