"""Answer clients of OpenAI's and Anthropic's APIs with an agent, until Ctrl-C (`midstream serve`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Unpack

from midstream import api
from midstream.core.engine import ForwardedReply, ForwardedRequest
from midstream.core.errors import MidstreamError
from midstream.core.events import Listener, TurnEvent
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.text import shorten
from midstream.core.trajectory import Action, Observation, Trajectory, usage_of
from midstream.gateway.forms import ChatReply, ChatRequest, FormError, find_changing, media_of
from midstream.gateway.server import Gateway, PendingReply, Step
from midstream.gateway.settings import ServeConfig
from midstream.recipe.overrides import AgentChanges
from midstream.report.progress import print_warnings
from midstream.rollout import Environment, rollout

_SHOWN = 200  # characters of a step


def serve_agent(
    source: api.AnyAgent,
    *,
    config: ServeConfig = ServeConfig(),  # noqa: B008  # immutable
    temperature: float | None = None,
    unsafe: bool = False,
    listener: Listener = print_warnings,
    ready: Callable[[str], object] = lambda _: None,
    **changes: Unpack[AgentChanges],
) -> None:
    """Answer clients with the agent of a recipe or run.

    Args:
        source: as `agent` of `api.solve`.
        config: where to listen.
        temperature: as of `api.solve`; so are `unsafe`, `listener` and `changes`.
        ready: called with the address once it answers.
    """

    async def speak_http(agent: AnsweringAgent) -> None:
        gateway = Gateway(config)
        agent.loop = asyncio.get_running_loop()
        gateway.everyone = agent
        gateway.start()
        ready(gateway.address)
        try:
            # Until Ctrl-C.
            await asyncio.Event().wait()
        finally:
            await gateway.close()

    built = api.answering(source, temperature=temperature, unsafe=unsafe, listener=listener, continuous=True, **changes)
    with built as (environment, run_coroutine, build), suppress(KeyboardInterrupt):
        run_coroutine(speak_http(AnsweringAgent(environment, build.recipe.seed)))


class AnsweringAgent:
    """An agent that answers each request with a run of its own (`gateway.server.SessionHandle`)."""

    names: Sequence[str] = ("midstream",)

    def __init__(self, environment: Environment, seed: int) -> None:
        self.environment, self._seed, self._asked = environment, seed, 0
        self.loop: Any = None  # the running one, once it serves

    async def run(self, question: str, step: Step) -> Trajectory:
        """The run of one question; `step` gets a line for each action and for what it found."""

        def listen(event: TurnEvent) -> None:
            value = event.value
            if isinstance(value, Action) and not value.error:
                step(f"{event.turn}. {value.tool}: {shorten(value.sub_goal or value.context, _SHOWN)}")
            elif isinstance(value, Observation):
                step(f"   {shorten(value.text, _SHOWN)}")

        self._asked += 1
        seed = derive_seed(self._seed, "served", self._asked)
        task = Task(id=f"question-{self._asked}", question=question, answer="")
        [group] = await rollout(self.environment, [task], seed=seed, listener=listen)
        return group.trajectories[0]

    async def ask(self, chat: ChatRequest, digest: str, retried: bool, step: Step) -> PendingReply:
        """Answer a chat. Raises `FormError` if the run was lost, and for tools: the agent has its own."""
        if chat.tools:
            raise FormError("unsupported_parameter", "this agent has its own tools: leave them out", "tools")
        name = (
            find_changing(chat.options) or media_of(chat.messages) or ("response_format" if chat.json_schema else None)
        )
        if name:
            raise FormError("unsupported_parameter", "this agent asks its models in its own way: leave it out", name)
        # The agent answers one question, so what was said before stands above it.
        *before, last = chat.messages
        said = "\n".join(f"{message.role}: {message.content}" for message in before)
        ended = await self.run(f"{said}\n\n{last.content}" if said else last.content, step)
        if ended.error is not None:
            raise FormError("agent-failed", ended.error.line, None, status=503)
        usage = usage_of(ended.calls)
        reply = ChatReply(
            id=f"{ended.seed:016x}",
            model=chat.model,
            created=int(time.time()),
            text=ended.answer or "",
            finish="stop",
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )
        return PendingReply(reply=reply)

    async def take_reward(self, body: object) -> None:
        """Nothing learns here, so that a reward is refused."""
        raise FormError("no-sessions", "this server answers questions, and learns nothing from them", None, status=404)

    async def forward(self, request: ForwardedRequest) -> ForwardedReply:
        """The agent has no other API."""
        raise FormError("not-found", f"there is no {request.method} /v1/{request.path}", None, status=404)

    take_end = take_reward

    def fail(self, failure: MidstreamError) -> None:
        """A reply that a client cannot get: nothing is recorded here."""
