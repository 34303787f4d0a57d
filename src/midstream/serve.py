"""Serve an agent, or sessions for agents of other programs, until it is stopped.

    midstream serve RUN               answers OpenAI's, Anthropic's and MCP's clients with the agent of a run or recipe
    midstream serve RECIPE --sessions callers open sessions with tasks of their own, and each is recorded
    midstream train RECIPE            with agent type `external`: callers run the agent that learns
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from midstream import api
from midstream.core.errors import InfrastructureError
from midstream.core.events import Listener, TurnEvent
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.text import shorten
from midstream.core.trajectory import Action, Message, Observation, Trajectory, usage_of
from midstream.gateway.forms import Answered, Asked, FormError
from midstream.gateway.server import Gateway, now
from midstream.gateway.settings import ServeConfig
from midstream.recipe.overrides import AgentChanges
from midstream.report.progress import print_warnings
from midstream.rollout import Environment, rollout

_SHOWN = 200  # characters of a step


def serve_agent(
    source: api.Source | Path,
    *,
    config: ServeConfig = ServeConfig(),  # noqa: B008  # immutable
    mcp: bool = False,
    temperature: float | None = None,
    unsafe: bool = False,
    listener: Listener = print_warnings,
    ready: Callable[[str], Any] = lambda _: None,
    **changes: Unpack[AgentChanges],
) -> None:
    """Answer clients with the agent of a recipe or run, until Ctrl-C.

    Args:
        source: a training or practice run, or a recipe by name, file or table.
        config: where to listen.
        mcp: speak MCP on standard input and output in place of HTTP.
        temperature: as of `api.solve`.
        unsafe: as of `api.solve`.
        listener: as of `api.solve`.
        ready: called with the address once it answers.
        changes: what differs from the recipe.
    """
    with api.answering(
        source, temperature=temperature, unsafe=unsafe, listener=listener, continuous=True, **changes
    ) as (environment, run_coroutine, seed):
        agent = AnsweringAgent(environment, seed)
        run_coroutine(_speak_mcp(agent) if mcp else _speak_http(agent, config, ready))


@dataclass
class _Reply:
    answered: Answered
    delivered: bool = False


class AnsweringAgent:
    """An agent that answers each request of a chat with a run of its own (`gateway.server.Served`)."""

    names: Sequence[str] = ("midstream",)

    def __init__(self, environment: Environment, seed: int) -> None:
        self.environment, self._seed = environment, seed
        self.loop = asyncio.get_event_loop_policy().get_event_loop() if False else None  # set by the server
        self._asked = 0

    async def run(self, question: str, step: Callable[[str], Any]) -> Trajectory:
        """The run of one question; `step` gets a line for each action and what it found."""

        def listen(event: TurnEvent) -> None:
            if isinstance(value := event.value, Action) and not value.error:
                step(f"{event.turn}. {value.tool}: {shorten(value.sub_goal or value.context, _SHOWN)}")
            elif isinstance(value, Observation):
                step(f"   {shorten(value.text, _SHOWN)}")

        self._asked += 1
        task = Task(id=f"question-{self._asked}", question=question, answer="")
        # No answer is known to score by: the reward's result is not used.
        environment = replace(self.environment, reward=_NoReward())
        [group] = await rollout(environment, [task], seed=derive_seed(self._seed, self._asked), listener=listen)
        return group.trajectories[0]

    async def ask(self, asked: Asked, digest: str, retried: bool, step: Callable[[str], Any]) -> _Reply:
        """Answer a chat. Raises `FormError` if the run was lost, or for tools: the agent has its own."""
        if asked.tools:
            raise FormError("unsupported_parameter", "this agent has its own tools: leave them out", "tools")
        ended = await self.run(question_of(asked.messages), step)
        if ended.error is not None:
            raise FormError("agent-failed", ended.error.line, None, status=503)
        usage = usage_of(ended.calls)
        return _Reply(
            Answered(
                id=f"{derive_seed(self._seed, digest, self._asked):016x}",
                model=asked.model,
                created=now(),
                text=ended.answer or "",
                finish="stop",
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
            )
        )
