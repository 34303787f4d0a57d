"""Run tasks x G into groups of trajectories: concurrency, deadlines, scores, and the one broad error boundary.

In the terms of reinforcement learning this is the environment: agent loop, tools and reward.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
import traceback
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from pydantic import Field

from midstream.core.agent import Agent, RunContext, lessons_digest
from midstream.core.data import Settings
from midstream.core.engine import ORDER, Engine, LockstepEngine
from midstream.core.errors import (
    BudgetError,
    DeadlineError,
    EngineError,
    InfrastructureError,
    MidstreamError,
    RefusedError,
    RepeatedError,
    RewardError,
    SandboxError,
    StorageError,
    ToolServerError,
    UnsupportedError,
    UsageError,
)
from midstream.core.events import TurnEvent, TurnListener
from midstream.core.seeds import derive_seed
from midstream.core.source import Dialogue, Dialogues, Reward
from midstream.core.task import Task
from midstream.core.texts import SHOWN, Lessons
from midstream.core.tool import PerRun, RunProgress, Tool, ToolRun, described
from midstream.core.trajectory import Call, ErrorInfo, Sampling, Trajectory

T = TypeVar("T")
Place = tuple[str, int]  # task id, index in its group
Ended = tuple[int, Trajectory]  # a trajectory and its place in the whole rollout
OnDone = Callable[[Sequence[Trajectory]], None]

SAME_FAILURES = 5
"""Runs in a row that a reward, tool, judge or agent may end in the same way; then the rollout ends."""


class RolloutConfig(Settings):
    """Settings of rollouts. A passed deadline is not tried again, nor is a bug in a reward or an agent function.

    Attributes:
        concurrency: the most trajectories in progress
        deadline_s: seconds of one attempt's turns; then the agent has `agent.answer_s` to answer (`time_limit`), and
            only a run without a last reply is an error
        max_attempts: attempts at a trajectory whose engine, tool or sandbox failed, or at its score if the judge failed
        batching: of an engine in process: `lockstep` samples once all trajectories of a wave wait, and repeats bit by
            bit; with `continuous` a request joins the running batch, which stays full where trajectories differ in
            length, and samples are equal from run to run but for rounding
    """

    concurrency: int = Field(default=64, ge=1)
    deadline_s: float | None = Field(default=None, gt=0)
    max_attempts: int = Field(default=2, ge=1)
    batching: Literal["lockstep", "continuous"] = "lockstep"


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The G trajectories of one task under one policy."""

    task: Task
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Everything a rollout needs besides tasks: agent, tools, engines by module, reward, settings.

    `sandbox` is the tier that tools and agent run code in, "" if they run none; every trajectory records it. `lessons`
    are in the prompts of every run. `dialogues` is the task source if its tasks are dialogues: every attempt then has
    its own dialogue. `progress` is how far training is, for the rollouts of a step.
    """

    agent: Agent
    tools: Sequence[Tool]
    engines: Mapping[str, Engine]
    reward: Reward
    config: RolloutConfig = RolloutConfig()
    sandbox: str = ""
    lessons: Lessons = field(default_factory=dict)
    dialogues: Dialogues | None = None
    progress: RunProgress | None = None
    sampling: Sampling | float | None = None  # see `RunContext`

    async def close(self) -> None:
        """Close agent, tools and engines."""
        for part in _distinct((self.agent, *self.tools, *self.engines.values())):
            await part.close()


async def rollout(
    environment: Environment,
    tasks: Sequence[Task],
    *,
    group_size: int = 1,
    seed: int,
    lessons: Mapping[str, Lessons] | None = None,
    listener: TurnListener | None = None,
    kept: Mapping[Place, Trajectory] | None = None,
    on_done: OnDone | None = None,
) -> list[Group]:
    """Run every task `group_size` times and score the answers: a group for each task, in the order of `tasks`.

    Groups include failed trajectories, with `status="error"`. `listener` receives the events of all runs.

    Seeds derive from (seed, task id, rollout index), so a result does not depend on the order of completion. With a
    lockstep engine, trajectories run in waves of `concurrency`: a batch's composition must not depend on timing.
    `lessons` gives tasks, by their ids, other lessons than the environment's.

    `kept` are trajectories of an earlier attempt at this very rollout, which are used as they are. `on_done` receives
    what a later attempt may keep: each trajectory as it ends; with a lockstep engine each complete wave, because a
    missing trajectory changes the wave's batches.
    """
    kept = kept or {}
    done: dict[int, Trajectory] = {}

    def collect(ended: Sequence[Ended]) -> None:
        done.update(ended)
        if on_done is not None:
            on_done([trajectory for _, trajectory in ended])

    await run_each(
        environment,
        tasks,
        group_size=group_size,
        seed=seed,
        lessons=lessons,
        listener=listener,
        skip=kept,
        on_ended=collect,
    )
    return [
        Group(
            task=task,
            trajectories=tuple(
                kept.get((task.id, index)) or done[place * group_size + index] for index in range(group_size)
            ),
        )
        for place, task in enumerate(tasks)
    ]


async def run_each(
    environment: Environment,
    tasks: Sequence[Task],
    *,
    group_size: int,
    seed: int,
    lessons: Mapping[str, Lessons] | None = None,
    listener: TurnListener | None = None,
    skip: Container[Place] = (),
    on_ended: Callable[[Sequence[Ended]], None],
) -> None:
    """Run what `rollout` runs, except the places in `skip`, and keep nothing.

    `on_ended` receives each trajectory as it ends, with a lockstep engine each complete wave. Memory depends on the
    concurrency, not on the number of trajectories. Raises `RepeatedError` after `SAME_FAILURES`.
    """
    failures = _Failures()

    def run_at(order: int) -> _Run | None:
        task, index = tasks[order // group_size], order % group_size
        if (task.id, index) in skip:
            return None
        shown = lessons.get(task.id, environment.lessons) if lessons else environment.lessons
        return _Run(environment, task, index, derive_seed(seed, task.id, index), order, shown, listener, failures)

    total, limit = len(tasks) * group_size, environment.config.concurrency
    # An engine in this process samples a batch for all live trajectories together, so they run in fixed waves, whose
    # members depend on `tasks` and `limit` alone. A server takes each request as it comes: a trajectory starts as soon
    # as another has ended.
    if engine := _lockstep_engine(environment):
        for start in range(0, total, limit):
            wave = list(filter(None, map(run_at, range(start, min(start + limit, total)))))
            if wave:
                on_ended(await _run_wave(wave, engine))
        return
    # The workers share the iterator, so each place is taken once.
    orders = iter(range(total))

    async def work() -> None:
        for order in orders:
            if (run := run_at(order)) is not None:
                on_ended([(order, await run.trajectory())])

    await run_concurrently(work() for _ in range(min(limit, total)))


async def _run_wave(wave: Sequence[_Run], engine: LockstepEngine) -> list[Ended]:
    async def finish(run: _Run) -> Ended:
        ORDER.set(run.order)
        try:
            return run.order, await run.trajectory()
        finally:
            engine.leave(run.order)

    for run in wave:
        engine.join(run.order)
    try:
        return await run_concurrently(finish(run) for run in wave)
    finally:
        # Also those leave that were cancelled before they began.
        for run in wave:
            engine.leave(run.order)


def _lockstep_engine(environment: Environment) -> LockstepEngine | None:
    """The lockstep engine, if there is one. Two would wait for each other's trajectories forever."""
    engines = _distinct(environment.engines.values())
    found: list[LockstepEngine] = [engine for engine in engines if isinstance(engine, LockstepEngine)]
    if len(found) > 1:
        raise UnsupportedError(
            f"the agent's modules have {len(found)} in-process engines",
            code="engine-in-process",
            cause="each samples only when every live trajectory waits for it, so they would wait for each other",
            fix="give all modules one in-process engine, or serve the others (engine type openai_compatible)",
        )
    return found[0] if found else None


async def run_concurrently(coroutines: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """All results in order. The first error cancels the other coroutines and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def shuffle_rewards(groups: Sequence[Sequence[Trajectory]], seed: int) -> list[tuple[Trajectory, ...]]:
    """Permute the rewards of all finished trajectories at random: a control that must not learn."""
    finished = [trajectory for group in groups for trajectory in group if trajectory.reward is not None]
    rewards = [trajectory.reward for trajectory in finished]
    random.Random(seed).shuffle(rewards)
    new = {id(trajectory): reward for trajectory, reward in zip(finished, rewards, strict=True)}
    return [
        tuple(trajectory.model_copy(update={"reward": new.get(id(trajectory))}) for trajectory in group)
        for group in groups
    ]


class _Failures:
    """Counts how often in a row runs ended in the same failure of a component; outages of servers do not count."""

    def __init__(self) -> None:
        self._last, self._count = set[str](), 0

    def add(self, failure: Exception | SystemExit | None, task: Task) -> None:
        """Count a run that ended in `failure`, None for one with a score. Raises `RepeatedError`."""
        outage = isinstance(failure, EngineError | SandboxError | DeadlineError | BudgetError) or (
            isinstance(failure, ToolServerError) and failure.code != "tool-broken"
        )
        text = "" if failure is None or outage else _text_of(failure)
        # Without the id as a word, and without it anywhere: a text may have it in a path, as "data/ID.json", and a
        # short id may also be a piece of a path that all texts have.
        word = rf"(?<![\w/]){re.escape(task.id)}(?![\w/])"
        forms = {re.sub(r"[0-9]+", "", form) for form in (re.sub(word, "", text), text.replace(task.id, "")) if text}
        self._count = self._count + 1 if forms & self._last else 1
        self._last = forms
        if forms and self._count >= SAME_FAILURES:
            what, code, cause, fix = text, "component-failed", "", ""
            if isinstance(failure, MidstreamError):
                what, code, cause, fix = failure.what, failure.code, failure.cause, failure.fix
            raise RepeatedError(
                f"the last {self._count} runs failed in the same way: {what}",
                code=code,
                cause=cause,
                fix=f"{fix or 'correct it'}; midstream resume continues the run",
            )


def _text_of(failure: BaseException) -> str:
    known = isinstance(failure, MidstreamError)
    return str(failure) if known else "".join(traceback.format_exception(failure, limit=-3))


@dataclass(frozen=True, slots=True)
class _Run:
    """One trajectory to make: its task, index in the group, seed, and place in the whole rollout (`order`)."""

    environment: Environment
    task: Task
    index: int
    seed: int
    order: int
    lessons: Lessons
    listener: TurnListener | None
    failures: _Failures

    async def trajectory(self) -> Trajectory:
        """Run and score, with further attempts after infrastructure errors; a lasting error is recorded.

        A completed run whose score fails is only scored again.
        """
        attempts: list[Trajectory] = []
        completed: Trajectory | None = None
        while True:
            trajectory, completed, failure = await self._attempt(completed)
            attempts.append(trajectory)
            error = trajectory.error
            if error is None or not error.retryable or len(attempts) == self.environment.config.max_attempts:
                break
            # The cost of the run is counted once.
            if completed is not None:
                completed = completed.model_copy(update={"cost_usd": 0.0, "request_failures": 0})
            elif self.listener is not None:
                self.listener(TurnEvent(turn=0, role="", kind="restart", value=error))
        # Callers fail alike where their machine dies, so their failures do not count.
        if not getattr(self.environment.agent, "waits", False):
            self.failures.add(failure, self.task)
        return trajectory.model_copy(
            update={
                "id": f"{self.task.id}#{self.index}",
                "task_id": self.task.id,
                "rollout_index": self.index,
                "family": self.task.family,
                "gold": self.task.answer,
                "aliases": tuple(self.task.answers[1:]),
                "attempts": len(attempts),
                "sandbox": self.environment.sandbox,
                "lessons": lessons_digest(self.lessons),
                "earlier_errors": tuple(attempt.error for attempt in attempts[:-1]),
                "cost_usd": sum(attempt.cost_usd for attempt in attempts),
                "request_failures": sum(attempt.request_failures for attempt in attempts),
            }
        )

    async def _attempt(
        self, completed: Trajectory | None
    ) -> tuple[Trajectory, Trajectory | None, Exception | SystemExit | None]:
        """The one broad error boundary: any error of an agent, tool, engine or reward is recorded in the trajectory.

        Returns the trajectory; the run as the agent completed it, if it did (given as `completed`, it is only scored);
        and what was raised.
        """
        task = self.task
        trajectory = completed or Trajectory(id=task.id, task_id=task.id, question=task.question, seed=self.seed)
        try:
            if completed is None:
                trajectory = await self._run_agent()
            if trajectory.status == "ok":
                completed = trajectory
                # An agent of another program may bring its own reward.
                reward = trajectory.reward or await self.environment.reward.score(task, trajectory)
                trajectory = _with_costs(trajectory, reward.calls)
                if not 0 <= reward.value <= 1:
                    raise RewardError(
                        f"a reward of {reward.value} for task {task.id!r} is not in [0, 1]",
                        code="reward-out-of-range",
                        fix="scale the result of the reward's `score`",
                    )
                trajectory = trajectory.model_copy(update={"reward": reward})
        except (UsageError, RefusedError, StorageError):
            # These are the same for every trajectory: the run cannot work, or cannot store its results.
            raise
        except (Exception, SystemExit) as failure:
            # Parts of your own can raise SystemExit, too.
            retryable = isinstance(failure, InfrastructureError) and failure.retryable
            if isinstance(failure, RewardError):
                trajectory = _with_costs(trajectory, failure.calls)
            error = ErrorInfo(type=type(failure).__name__, message=_text_of(failure), retryable=retryable)
            trajectory = trajectory.model_copy(update={"status": "error", "stop_reason": "error", "error": error})
            return trajectory, completed, failure
        return trajectory, completed, None

    async def _run_agent(self) -> Trajectory:
        """The agent's run; for a dialogue task, with a dialogue opened for this run alone, and its outcome."""
        environment, task, deadline_s = self.environment, self.task, self.environment.config.deadline_s
        dialogue: Dialogue | None = None
        shown = task.without_answer()
        if environment.dialogues is not None:
            dialogue = environment.dialogues.open(task, seed=self.seed)
            # The metadata are what the dialogue is opened from.
            shown = shown.model_copy(update={"metadata": {}})

        def tools_for(seed: int) -> list[Tool]:
            made_from = ToolRun(task=task, seed=seed, progress=environment.progress)
            made = [tool.for_run(made_from) if isinstance(tool, PerRun) else tool for tool in environment.tools]
            return described(made, self.lessons)

        SHOWN.set(self.lessons)
        try:
            context = RunContext(
                tools=tools_for(self.seed),
                tools_for=tools_for,
                engines=environment.engines,
                seed=self.seed,
                order=self.order,
                lessons=self.lessons,
                deadline_s=None if deadline_s is None else time.monotonic() + deadline_s,
                listener=self.listener,
                dialogue=dialogue,
                sampling=environment.sampling,
            )
            trajectory = await environment.agent.run(shown, context)
            if dialogue is None or trajectory.status != "ok":
                return trajectory
            return trajectory.model_copy(update={"outcome": dialogue.outcome()})
        finally:
            if dialogue is not None:
                await dialogue.close()


def _with_costs(trajectory: Trajectory, calls: Sequence[Call]) -> Trajectory:
    """The trajectory with the costs of a judge's calls added."""
    cost_usd = sum(call.usage.cost_usd for call in calls)
    failed = sum(max(len(call.failures), call.error is not None) for call in calls)
    costs = {"cost_usd": trajectory.cost_usd + cost_usd, "request_failures": trajectory.request_failures + failed}
    return trajectory.model_copy(update=costs) if calls else trajectory


def _distinct(items: Iterable[T]) -> list[T]:
    """Each object once: several modules may share one engine."""
    return list({id(item): item for item in items}.values())
