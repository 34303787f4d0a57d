"""Evaluate an agent on a fixed set of tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field, model_validator

from midstream.core.data import Frozen
from midstream.core.metrics import EvaluationResult, FamilyResult, tool_use
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.rollout import Environment, rollout


class SetConfig(Frozen):
    """A fixed set: `per_family` tasks of each family of a split; `max_turns` replaces the agent's own limit."""

    name: str
    split: Literal["train", "validation", "test"] = "test"
    families: tuple[str, ...] = ()
    per_family: int = Field(default=60, ge=1, le=10_000)
    seed: int = 99
    max_turns: int | None = Field(default=None, ge=1)


class Config(Frozen):
    """What is evaluated before and after training (`sets`), and while it goes (`validation`, greedily)."""

    sets: tuple[SetConfig, ...] = ()
    validation: SetConfig = SetConfig(name="validation", split="validation", per_family=20, seed=7)
    temperatures: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = Field(
        default=(1.0, 0.0), min_length=1
    )

    @model_validator(mode="after")
    def _names_differ(self) -> Config:
        """Results are told apart by their set's name."""
        names = [one.name for one in (*self.sets, self.validation)]
        if len(set(names)) < len(names):
            raise ValueError(f"two evaluation sets have the same name: {', '.join(names)}")
        return self


async def evaluate(
    environment: Environment,
    tasks: Sequence[Task],
    *,
    policy: str,
    chosen: SetConfig,
    temperature: float,
    seed: int,
    step: int | None = None,
) -> tuple[EvaluationResult, list[Trajectory]]:
    """Run every task once and count.

    A task without a result (an infrastructure error that stayed) counts as wrong in `success`; `errors` is the number
    of such tasks and `success_without_errors` leaves them out. Both are unweighted means over families.
    """
    groups = await rollout(environment, tasks, seed=seed)
    trajectories = [group.trajectories[0] for group in groups]
    families = list(dict.fromkeys(task.family for task in tasks))
    by_family = {name: [one for one in trajectories if one.family == name] for name in families}
    finished = {name: [one for one in members if one.status == "ok"] for name, members in by_family.items()}
    return (
        EvaluationResult(
            policy=policy,
            set_name=chosen.name,
            split=chosen.split,
            sampling=sampling_name(temperature),
            seed=seed,
            tasks=len(tasks),
            success=fmean(_success(members) for members in by_family.values()),
            success_without_errors=fmean([_success(members) for members in finished.values() if members] or [0.0]),
            errors=sum(one.status == "error" for one in trajectories),
            by_family={
                name: FamilyResult(
                    tasks=len(members), success=_success(members), turns_mean=fmean(len(one.turns) for one in members)
                )
                for name, members in by_family.items()
            },
            turns_mean=fmean(len(one.turns) for one in trajectories),
            tool_use=tool_use(trajectories),
            stop_reasons=dict(sorted(Counter(one.stop_reason for one in trajectories).items())),
            request_failures=sum(one.request_failures for one in trajectories),
            replies_repaired=sum(one.replies_repaired for one in trajectories),
            step=step,
        ),
        trajectories,
    )


def sampling_name(temperature: float) -> str:
    """ "greedy" or "T=1"."""
    return "greedy" if temperature == 0 else f"T={temperature:g}"


def _success(trajectories: Sequence[Trajectory]) -> float:
    return fmean(one.reward.value if one.reward else 0.0 for one in trajectories)
