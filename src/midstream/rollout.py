"""Tasks x G -> groups of trajectories: concurrency, deadlines, scores, and the one error boundary.

The reinforcement-learning reader's `Env` is here: agent loop + tools + reward.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import Field

from midstream.core.data import Frozen
from midstream.core.dialogue import Dialogue, Dialogues
from midstream.core.errors import (
    InfrastructureError,
    MidstreamError,
    RewardError,
    StorageError,
    UnsupportedError,
    UsageError,
)
from midstream.core.events import TurnEvent, TurnListener
from midstream.core.lessons import Lessons, digest
from midstream.core.protocols import Agent, Engine, LockstepEngine, Reward, Tool
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Call, ErrorInfo, Trajectory

T = TypeVar("T")
Place = tuple[str, int]  # task id, index in its group
OnDone = Callable[[Sequence[Trajectory]], None]


class Config(Frozen):
    """How rollouts are made.

    `concurrency` bounds the trajectories under way at once; `deadline_s` is the wall-clock limit of one attempt, its
    reward not included; a trajectory whose engine, tool or sandbox failed is run again from its start, one whose judge
    failed is scored again, up to `max_attempts` times in all. A passed deadline or a bug is not tried again.
    """

    concurrency: int = Field(default=64, ge=1)
    deadline_s: float | None = Field(default=None, gt=0)
    max_attempts: int = Field(default=2, ge=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The G trajectories of one task under one policy."""

    task: Task
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Everything a rollout needs beside tasks: agent, tools, engines by module, reward, settings.

    `sandbox` is the tier that tools and agent run code in, "" where they run none; every trajectory says it. `lessons`
    are in the prompts of every run. `dialogues` is the source of the tasks where each of them is a dialogue: every
    attempt then has one of its own.
    """

    agent: Agent
    tools: Sequence[Tool]
    engines: Mapping[str, Engine]
    reward: Reward
    config: Config = Config()
    sandbox: str = ""
    lessons: Lessons = field(default_factory=dict)
    dialogues: Dialogues | None = None

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
    """Run every task `group_size` times and score the answers. `listener` is told what happens in all of them.

    Seeds derive from (seed, task id, rollout index), so a result does not depend on the order of completion. With a
    lockstep engine, trajectories run in waves of `concurrency`: a batch's composition must not depend on timing.
    `lessons` gives tasks, by their ids, others than the environment's.

    `kept` are trajectories of an earlier attempt at this very rollout, which are taken as they are. `on_done` gets what
    a later attempt may keep: each trajectory as it ends; with a lockstep engine each wave, because whoever is left out
    of one changes its batches.

    Returns:
        One group a task, in the order of `tasks`; each holds `group_size` trajectories, those that failed included,
        with `status="error"`.
    """
    copies = [(task, index) for task in tasks for index in range(group_size)]
    jobs = [(order, task, index) for order, (task, index) in enumerate(copies)]
    barriers = _barriers(environment)
    size = environment.config.concurrency
    waves = [jobs[i : i + size] for i in range(0, len(jobs), size)] if barriers else [jobs]
    slots = asyncio.Semaphore(size)
    done = {order: kept[task.id, index] for order, task, index in jobs if (task.id, index) in kept} if kept else {}
    finished = on_done or (lambda trajectories: None)

    async def one(order: int, task: Task, index: int) -> None:
        try:
            async with slots:
                run_seed = derive_seed(seed, task.id, index)
                told = lessons.get(task.id, environment.lessons) if lessons else environment.lessons
                trajectory = await _attempts(
                    environment, task, index, seed=run_seed, order=order, lessons=told, listener=listener
                )
            done[order] = trajectory
            if not barriers:
                finished([trajectory])
        finally:
            for barrier in barriers:
                barrier.leave(order)

    for wave in waves:
        wave = [job for job in wave if job[0] not in done]
        for barrier in barriers:
            for order, _, _ in wave:
                barrier.join(order)
        try:
            await together([one(*job) for job in wave])
        finally:
            for barrier in barriers:  # of runs, too, that were cancelled before they began
                for order, _, _ in wave:
                    barrier.leave(order)
        if barriers and wave:
            finished([done[order] for order, _, _ in wave])
    return [
        Group(task=task, trajectories=tuple(done[i * group_size + j] for j in range(group_size)))
        for i, task in enumerate(tasks)
    ]


def _barriers(environment: Environment) -> list[LockstepEngine]:
    """The lockstep engine, if there is one. Two would wait for each other's trajectories for ever."""
    engines = _distinct(environment.engines.values())
    barriers: list[LockstepEngine] = [engine for engine in engines if isinstance(engine, LockstepEngine)]
    if len(barriers) > 1:
        raise UnsupportedError(
            f"the agent's modules have {len(barriers)} in-process engines",
            cause="each samples only when every live trajectory waits for it, so they would wait for each other",
            fix="give all modules one in-process engine, or serve the others (engine type openai_compatible)",
        )
    return barriers


async def together(runs: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """All results in order. The first error, of a rollout only the user's, ends the others before it is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run) for run in runs]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _attempts(
    environment: Environment,
    task: Task,
    index: int,
    *,
    seed: int,
    order: int,
    lessons: Lessons,
    listener: TurnListener | None,
) -> Trajectory:
    """Run and score one trajectory, again after an infrastructure error; what stays broken is recorded.

    A run that has ended is not thrown away where its score fails: only the score is tried again.
    """
    attempts: list[Trajectory] = []
    ended: Trajectory | None = None
    while True:
        deadline_s = environment.config.deadline_s
        trajectory, ended = await _one_attempt(
            environment,
            task,
            ended,
            seed=seed,
            order=order,
            lessons=lessons,
            deadline_s=None if deadline_s is None else time.monotonic() + deadline_s,
            listener=listener,
        )
        attempts.append(trajectory)
        error = trajectory.error
        if error is None or not error.retryable or len(attempts) == environment.config.max_attempts:
            break
        if ended is not None:  # what it cost is counted once
            ended = ended.model_copy(update={"cost_usd": 0.0, "request_failures": 0})
        elif listener is not None:
            listener(TurnEvent(turn=0, role="", kind="restart", value=error))
    return trajectory.model_copy(
        update={
            "id": f"{task.id}#{index}",
            "task_id": task.id,
            "rollout_index": index,
            "family": task.family,
            "gold": task.answer,
            "attempts": len(attempts),
            "sandbox": environment.sandbox,
            "lessons": digest(lessons),
            "earlier_errors": tuple(one.error for one in attempts[:-1]),
            "cost_usd": sum(one.cost_usd for one in attempts),
            "request_failures": sum(one.request_failures for one in attempts),
        }
    )


async def _one_attempt(
    environment: Environment,
    task: Task,
    ended: Trajectory | None,
    *,
    seed: int,
    order: int,
    lessons: Lessons,
    deadline_s: float | None,
    listener: TurnListener | None,
) -> tuple[Trajectory, Trajectory | None]:
    """The one error boundary: whatever an agent, tool, engine or reward raises becomes a trajectory with its error.

    Returns it, and the run as the agent ended it, where it did: given as `ended`, it is only scored.
    """
    trajectory = ended or Trajectory(id=task.id, task_id=task.id, question=task.question, seed=seed)
    try:
        if ended is None:
            trajectory = await _run(
                environment, task, seed=seed, order=order, lessons=lessons, deadline_s=deadline_s, listener=listener
            )
        if trajectory.status == "ok":
            ended = trajectory
            reward = await environment.reward.score(task, trajectory)
            trajectory = _with_costs(trajectory, reward.calls)
            if not 0 <= reward.value <= 1:
                raise RewardError(
                    f"a reward of {reward.value} for task {task.id!r}",
                    cause="rewards lie in [0, 1]",
                    fix="scale what the reward's `score` returns",
                )
            trajectory = trajectory.model_copy(update={"reward": reward})
    except (UsageError, StorageError):
        raise  # the same for every trajectory: the run cannot work, or keep what it does
    except Exception as failure:
        text = str(failure) if isinstance(failure, MidstreamError) else traceback.format_exc(limit=-3)
        retryable = isinstance(failure, InfrastructureError) and failure.retryable
        if isinstance(failure, RewardError):
            trajectory = _with_costs(trajectory, failure.calls)
        error = ErrorInfo(type=type(failure).__name__, message=text, retryable=retryable)
        trajectory = trajectory.model_copy(update={"status": "error", "stop_reason": "error", "error": error})
    return trajectory, ended


async def _run(environment: Environment, task: Task, *, seed: int, **run: Any) -> Trajectory:
    """The agent's run; of a task that is a dialogue with one opened for this run alone, and what it found."""
    dialogue: Dialogue | None = None
    if environment.dialogues is not None:
        dialogue = environment.dialogues.open(task, seed=seed)
        run["dialogue"] = dialogue
    try:
        trajectory = await environment.agent.run(
            task.without_answer(), environment.tools, environment.engines, seed=seed, **run
        )
        if dialogue is None or trajectory.status != "ok":
            return trajectory
        return trajectory.model_copy(update={"outcome": dialogue.outcome()})
    finally:
        if dialogue is not None:
            await dialogue.close()


def _with_costs(trajectory: Trajectory, calls: Sequence[Call]) -> Trajectory:
    """The trajectory with what a judge's calls cost on top."""
    failed = sum(max(len(call.failures), call.error is not None) for call in calls)
    cost_usd = sum(call.usage.cost_usd for call in calls)
    changes = {
        "cost_usd": trajectory.cost_usd + cost_usd,
        "request_failures": trajectory.request_failures + failed,
    }
    return trajectory.model_copy(update=changes) if calls else trajectory


def _distinct(items: Iterable[T]) -> list[T]:
    """Each object once: several modules may share one engine."""
    return list({id(item): item for item in items}.values())
