"""Engines and agents behind the meter of a budget: nothing is asked, and no rollout begins, that could pass a limit.

The upper bound of a request: a token is at least one byte of the prompt, a completion has at most `max_tokens`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from midstream.core.errors import BudgetError, EngineError
from midstream.core.protocols import Agent, Codec, Engine, LockstepEngine, Request, Tool
from midstream.core.task import Task
from midstream.core.trajectory import Call, Trajectory
from midstream.practice.budget import Meter
from midstream.practice.records import Spent

_PER_MESSAGE, _PER_REQUEST = 16, 128  # tokens that a chat template may add


class MeteredEngine:
    """An engine whose requests go through a meter. Prices are US dollars per million tokens."""

    waits = True  # for room under a limit, until others have settled

    def __init__(
        self, engine: Engine, meter: Meter, *, price_prompt: float = 0.0, price_completion: float = 0.0
    ) -> None:
        self.engine, self.meter = engine, meter
        self.name, self.token_exact = engine.name, engine.token_exact
        self._price_prompt, self._price_completion = price_prompt, price_completion

    @property
    def codec(self) -> Codec | None:
        """The engine's own: it may be given one later."""
        return getattr(self.engine, "codec", None)

    async def sample(self, request: Request) -> Call:
        """Answer a request. Raises `BudgetError` where its upper bound has no room."""
        prompt = prompt_bound(request)
        bound = self._priced(prompt, request.sampling.max_tokens)
        number = await self.meter.reserve(request.role, bound, wait=self.waits)
        used: Spent | None = None  # a request that was cut off may have used all of it
        try:
            call = await self.engine.sample(request)
            used = self._used(call, prompt)
            return call
        except EngineError:
            used = Spent(calls=1)
            raise
        finally:
            self.meter.settle(number, used)

    async def close(self) -> None:
        """Close the engine."""
        await self.engine.close()

    def _used(self, call: Call, prompt: int) -> Spent:
        """What the server counted, or bytes where it counted nothing."""
        usage = call.usage
        if usage.prompt_tokens or usage.completion_tokens:
            return Spent(calls=1, tokens=usage.prompt_tokens + usage.completion_tokens, cost_usd=usage.cost_usd)
        return self._priced(prompt, len(call.completion.encode("utf-8", "replace")))

    def _priced(self, prompt: int, completion: int) -> Spent:
        cost_usd = (prompt * self._price_prompt + completion * self._price_completion) / 1e6
        return Spent(calls=1, tokens=prompt + completion, cost_usd=cost_usd)


class LockstepMeteredEngine(MeteredEngine):
    """One that samples when every live trajectory waits for it: none may wait for room instead."""

    waits = False

    def join(self, order: int) -> None:
        """Passed on."""
        assert isinstance(self.engine, LockstepEngine)
        self.engine.join(order)

    def leave(self, order: int) -> None:
        """Passed on."""
        assert isinstance(self.engine, LockstepEngine)
        self.engine.leave(order)


class MeteredAgent:
    """An agent whose runs are counted as rollouts before they start."""

    def __init__(self, agent: Agent, meter: Meter) -> None:
        self.agent, self.meter, self.name = agent, meter, agent.name

    async def run(
        self, task: Task, tools: Sequence[Tool], engines: Mapping[str, Engine], *, seed: int, **named: Any
    ) -> Trajectory:
        """Run once; one that could not pay for its first request does not count.

        Raises `BudgetError` where there may be no more rollouts.
        """
        number = self.meter.start_rollout()
        found = await self.agent.run(task, tools, engines, seed=seed, **named)
        if found.error is not None and found.error.type == BudgetError.__name__ and not found.calls:
            self.meter.settle(number, Spent())
        return found

    async def close(self) -> None:
        """Close the agent."""
        await self.agent.close()


def metered(engine: Engine, meter: Meter, *, price_prompt: float = 0.0, price_completion: float = 0.0) -> MeteredEngine:
    """The engine behind the meter."""
    kind = LockstepMeteredEngine if isinstance(engine, LockstepEngine) else MeteredEngine
    return kind(engine, meter, price_prompt=price_prompt, price_completion=price_completion)


def prompt_bound(request: Request) -> int:
    """At most so many tokens a request's prompt has: a token is at least one byte, a template adds a few.

    Where it has token ids, they may go out or the text that says the same.
    """
    texts = [request.prompt, *(message.content for message in request.messages)]
    texts += [json.dumps(dict(one)) for one in (request.json_schema, *request.tools) if one]
    length = sum(len(text.encode("utf-8", "replace")) for text in texts)
    return max(length + _PER_MESSAGE * len(request.messages) + _PER_REQUEST, len(request.prompt_ids))
