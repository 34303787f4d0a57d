"""The gate before reinforcement: a planner that cannot copy an unseen name cannot be rewarded for looking it up."""

from __future__ import annotations

from collections.abc import Sequence, Set

from midstream.core.errors import RecipeError, TrainingError
from midstream.core.task import Task
from midstream.rollout import Environment, rollout

COPY_SAMPLES = 4  # rollouts a question, for a rate that is steady to a few points


def require_names(tasks: Sequence[Task], names: Set[str], least: float) -> None:
    """Refuse validation tasks of which none names a place, unless any copy rate will do."""
    if least and not any(names & set(task.question.split()) for task in tasks):
        raise RecipeError(
            "no question of evaluation.validation names a place of the offline world",
            code="setting-conflict",
            cause="they are of another source, or of families that ask about none; the copy gate asks them",
            fix="give it questions of the world that name places, or set warm_start.min_copy_rate = 0",
        )


async def copy_rate(environment: Environment, tasks: Sequence[Task], names: Set[str], seed: int) -> float:
    """Of the first actions that look something up, the share that names a place of the question asked."""
    asked = [task for task in tasks if names & set(task.question.split())]
    looked_up = copied = 0
    for group in await rollout(environment, asked, group_size=COPY_SAMPLES, seed=seed):
        places = names & set(group.task.question.split())
        for trajectory in group.trajectories:
            action = trajectory.turns[0].action if trajectory.turns else None
            if action and action.tool == "local_search":
                looked_up += 1
                copied += bool(places & set(action.context.split()))
    return copied / max(1, looked_up)


def require_copy_rate(rate: float, least: float) -> None:
    """Refuse to train a planner that copies too few names."""
    if rate < least:
        raise TrainingError(
            f"the warm planner copies unseen names at a rate of {rate:.2f}, below {least}",
            code="warm-start-failed",
            cause="the warm start was too short or its learning rate too low",
            fix="start a new run with a higher warm_start.steps, or with a lower warm_start.min_copy_rate",
        )
