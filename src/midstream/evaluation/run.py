"""Run an agent on a fixed set of tasks and sum up what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from midstream.core.metrics import EvaluationResult
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.evaluation.settings import SetConfig, sampling_name
from midstream.evaluation.summary import summarise
from midstream.rewards.composite import PerTask
from midstream.rollout import Environment, OnDone, Place, rollout


async def evaluate(
    environment: Environment,
    tasks: Sequence[Task],
    *,
    policy: str,
    chosen: SetConfig,
    temperature: float,
    seed: int,
    step: int | None = None,
    trials: int = 1,
    kept: Mapping[Place, Trajectory] | None = None,
    on_done: OnDone | None = None,
) -> tuple[EvaluationResult, list[Trajectory]]:
    """Run every task `trials` times and count.

    `kept` holds trajectories of an evaluation that was interrupted, by task id and trial: they are not run again.
    `on_done` is told of each new one as it ends.

    Returns:
        The numbers, and the trajectories: all trials of the first task, then of the second ...
    """
    reward = environment.reward
    # Found before any work: a task that names a reward which is none.
    metric = reward.names(tasks) if isinstance(reward, PerTask) else reward.name
    groups = await rollout(environment, tasks, group_size=trials, seed=seed, kept=kept, on_done=on_done)
    result = summarise(
        groups,
        policy=policy,
        set_name=chosen.name,
        split=chosen.split,
        sampling=sampling_name(temperature),
        seed=seed,
        step=step,
        metric=metric,
        judged=reward.judged,
    )
    return result, [one for group in groups for one in group.trajectories]
