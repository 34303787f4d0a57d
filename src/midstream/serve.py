"""Serve an agent, or sessions for agents of other programs, until Ctrl-C (`midstream serve`).

RUN or RECIPE            clients of OpenAI's and Anthropic's APIs ask the agent
RECIPE, sessions         callers open sessions with tasks of their own; each is scored and recorded
RECIPE, sessions, train  callers run the agent that learns: they get the tasks of the training
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from midstream import api
from midstream.core.engine import ForwardedReply, ForwardedRequest
from midstream.core.errors import MidstreamError, RewardError, StorageError
from midstream.core.events import Listener, Note, TurnEvent
from midstream.core.seeds import derive_seed
from midstream.core.source import Reward
from midstream.core.task import Task
from midstream.core.text import shorten
from midstream.core.trajectory import Action, Observation, Score, Trajectory, usage_of
from midstream.gateway.forms import ChatReply, ChatRequest, FormError, find_changing, media_of
from midstream.gateway.server import Gateway, PendingReply, Step
from midstream.gateway.settings import ServeConfig, SessionSettings
from midstream.process import build_for, open_budget, running
from midstream.recipe.inputs import create_run
from midstream.recipe.overrides import AgentChanges, LearningChanges, changed_recipe
from midstream.recipe.schema import Recipe, parse_recipe
from midstream.recipe.sessions import refuse_strategy
from midstream.report.progress import print_warnings
from midstream.rewards.rule import BaseReward
from midstream.rollout import Environment, rollout
from midstream.runs import EvaluationInfo, Journal, RunDirectory, results
from midstream.runs.budget import BudgetedAgent

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


def serve_training(
    source: str,
    out: Path | None = None,
    *,
    config: ServeConfig,
    listener: Listener = print_warnings,
    ready: Callable[[str], object] = lambda _: None,
    **changes: Unpack[LearningChanges],
) -> RunDirectory:
    """Train a recipe with an agent that runs elsewhere: its callers get the tasks. Arguments as of `api.train`."""
    recipe = external_recipe(source, config, **changes)
    ready(f"http://{config.host}:{config.port}")
    return api.train(recipe, out=out, exist_ok=False, listener=listener).directory


def external_recipe(source: str, config: ServeConfig, **changes: Unpack[LearningChanges]) -> Recipe:
    """A recipe whose agent runs elsewhere, and asks the engine of the recipe's policy.

    Raises `RecipeError` for one with a strategy.
    """
    recipe = changed_recipe(source, **changes)
    refuse_strategy(recipe)
    table = recipe.table()
    policy = recipe.modules[recipe.trained]
    if table["agent"]["type"] != "external":
        sampling = getattr(policy.config, "sampling", None)
        given = {} if sampling is None else {"sampling": sampling.model_dump(mode="json")}
        if isinstance(policy.config, SessionSettings):
            # Its limits are those of the sessions.
            given = policy.config.model_dump(mode="json", include=set(SessionSettings.model_fields), exclude_none=True)
        table["agent"] = {**given, "type": "external", "engine": policy.engine}
        table["tools"] = {}
    table["serve"] = {**table["serve"], "host": config.host, "port": config.port}
    return parse_recipe(table)


def serve_sessions(
    source: str,
    out: Path | None = None,
    *,
    config: ServeConfig,
    listener: Listener = print_warnings,
    ready: Callable[[str], object] = lambda _: None,
    **changes: Unpack[LearningChanges],
) -> RunDirectory:
    """Open sessions for callers with tasks of their own, and record each as it ends, until Ctrl-C.

    A session is scored by its caller's reward, or by the recipe's if its task has an answer; else it has no reward.
    """
    recipe = external_recipe(source, config, **changes).model_copy(update={"training": None})
    root = Path(out or api.new_root(recipe.name))
    build = build_for(recipe, {})
    with ExitStack() as opened:
        run_coroutine = opened.enter_context(running("evaluation", build, listener))
        begun = (root / "run.json").exists()
        run = RunDirectory.open(root) if begun else create_run(root, build, EvaluationInfo())
        opened.enter_context(run.lock())
        opened.enter_context(open_budget(run, build.budget))
        journal = opened.enter_context(closing(Journal(run.results_path)))
        run.set_status("running")
        environment = build.environment()
        # A caller who gave up does not come back for another attempt.
        once = environment.config.model_copy(update={"max_attempts": 1})
        environment = replace(environment, reward=_WithAnswer(environment.reward), config=once)

        async def work() -> None:
            full: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            async def one(task: Task) -> str:
                try:
                    [group] = await rollout(environment, [task], seed=derive_seed(recipe.seed, task.id))
                    results.append(journal, "sessions", group.trajectories)
                except Exception as failure:  # noqa: BLE001  # whatever a caller brought ends only its own session
                    listener(Note(f"session {task.id!r} is lost: {failure!r:.500}"))
                    # No session can be recorded any more.
                    if isinstance(failure, StorageError) and not full.done():
                        full.set_exception(failure)
                    return str(failure) or repr(failure)
                return ""

            agent: Any = environment.agent
            while isinstance(agent, BudgetedAgent):
                agent = agent.agent
            # Ids of sessions that an earlier server has recorded are taken.
            ended = [result.place[0] for result in results.read(run.results_path)]
            agent.take_tasks(one, ended)
            build.gateway.start()
            ready(build.gateway.address)
            # Or until Ctrl-C.
            await full

        try:
            with suppress(KeyboardInterrupt):
                run_coroutine(work())
        finally:
            with run.trajectories.writing("sessions") as write:
                for result in results.read(run.results_path):
                    write(result.trajectory)
            run.set_status("finished")
    return run


class _WithAnswer(BaseReward):
    """A reward that refuses to score a task without an answer: an answer that nothing compares with is not wrong."""

    def __init__(self, reward: Reward) -> None:
        # Its owner closes it.
        self._reward, self.name, self.judged = reward, reward.name, reward.judged

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """The reward's score. Raises `RewardError` for a task without an answer."""
        if not task.answer:
            raise RewardError(
                f"task {task.id!r} has no answer to score by, and its caller gave no reward",
                code="reward-missing",
                fix="open the session with an answer, or end it with a reward",
                retryable=False,
            )
        return await self._reward.score(task, trajectory)


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
