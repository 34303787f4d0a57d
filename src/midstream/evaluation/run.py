"""Run an agent on a fixed set of tasks, and sum up its trajectories as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Protocol

from midstream.core.metrics import EvaluationResult, FamilyResult, reward_parts, stream_metrics, tool_use
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.evaluation.estimates import majority, mean_interval, pass_all, pass_at, value
from midstream.evaluation.leakage import repeats_question
from midstream.evaluation.settings import EvaluationConfig, SetConfig, result_name, sampling_name
from midstream.rewards.composite import PerTask
from midstream.rollout import Environment, Group, OnDone, Place, rollout

RULE = "rule"  # the part of a judge's reward that the rule-based reward gives
_REASONS = 3


class MakeEnvironment(Protocol):
    """Builds an environment around the trained planner, or another `planner`, with some settings changed."""

    def __call__(
        self, *, planner: Any = None, temperature: float | None = None, chosen: SetConfig | None = None
    ) -> Environment:
        """None leaves the recipe's own; `planner` is a table like `agent.planner`, `chosen` an evaluation set."""
        ...


@dataclass(frozen=True, kw_only=True)
class SetEvaluation:
    """One set at one temperature under one policy, ready to run.

    `policy` names what is evaluated, after `step` steps of training or practice. `numbered`: the run evaluates the set
    at several steps, so the step is part of `name`.
    """

    chosen: SetConfig
    temperature: float
    tasks: Sequence[Task]
    environment: Environment
    policy: str
    seed: int
    step: int | None = None
    trials: int = 1
    numbered: bool = True

    @property
    def name(self) -> str:
        """Name of the files that hold its trajectories."""
        return result_name(self.chosen.name, sampling_name(self.temperature), self.step if self.numbered else None)

    @property
    def key(self) -> tuple[str, str, int | None]:
        """Set, sampling and step, which identify its result in the run directory."""
        return self.chosen.name, sampling_name(self.temperature), self.step


def every_set(
    config: EvaluationConfig,
    set_tasks: Callable[[SetConfig], Sequence[Task]],
    make_environment: MakeEnvironment,
    *,
    policy: str,
    seed: int,
    step: int | None = None,
) -> Iterator[SetEvaluation]:
    """Every set of a recipe at every temperature; `seed` is the run's."""
    for chosen in config.sets:
        tasks = set_tasks(chosen)
        for temperature in config.temperatures:
            yield SetEvaluation(
                chosen=chosen,
                temperature=temperature,
                tasks=tasks,
                environment=make_environment(temperature=temperature, chosen=chosen),
                policy=policy,
                seed=derive_seed(seed, "evaluation", chosen.name),
                step=step,
                trials=config.trials,
            )


async def evaluate(
    evaluation: SetEvaluation, *, kept: Mapping[Place, Trajectory] | None = None, on_done: OnDone | None = None
) -> tuple[EvaluationResult, list[Trajectory]]:
    """Run every task `trials` times and count; the trajectories are all trials of the first task, then of the second.

    `kept` holds trajectories of an evaluation that was interrupted, by task id and trial: they are not run again.
    `on_done` receives each new one as it ends.
    """
    reward, tasks = evaluation.environment.reward, evaluation.tasks
    # Before any work, because a task may name a reward that does not exist.
    metric = reward.names(tasks) if isinstance(reward, PerTask) else reward.name
    groups = await rollout(
        evaluation.environment, tasks, group_size=evaluation.trials, seed=evaluation.seed, kept=kept, on_done=on_done
    )
    result = summarize(
        groups,
        policy=evaluation.policy,
        set_name=evaluation.chosen.name,
        split=evaluation.chosen.split,
        sampling=sampling_name(evaluation.temperature),
        seed=evaluation.seed,
        step=evaluation.step,
        metric=metric,
        judged=reward.judged,
    )
    return result, [trajectory for group in groups for trajectory in group.trajectories]


def summarize(groups: Sequence[Group], *, judged: bool, **identity: Any) -> EvaluationResult:
    """Sum up groups, each all trials of one task; `EvaluationResult` defines each number.

    `identity` are its fields that the groups do not hold: policy, set, split, sampling, metric, seed, step.
    """
    every = [trajectory for group in groups for trajectory in group.trajectories]
    finished = [trajectory for trajectory in every if trajectory.status == "ok"]
    trials = max((len(group.trajectories) for group in groups), default=0)
    values = [_mean(group.trajectories) for group in groups]
    interval, method = mean_interval(values) if values else (None, "")
    right = [sum(value(trajectory) >= 1 for trajectory in group.trajectories) for group in groups]
    # Tasks without any result are left out of this mean, and so are trials without one.
    with_result = [[trial for trial in group.trajectories if trial.status == "ok"] for group in groups]
    without_errors = [_mean(group) for group in with_result if group]
    by_trial = [
        fmean(value(group.trajectories[trial]) for group in groups if trial < len(group.trajectories))
        for trial in range(trials)
    ]
    voted = trials > 1 and not any(trajectory.outcome for trajectory in every)  # a dialogue's last words are no answer
    with_rule = [trial for trial in finished if judged and trial.reward and RULE in trial.reward.parts]
    reasons = Counter(trajectory.error.message.partition("\n")[0] for trajectory in every if trajectory.error)
    families: dict[str, list[Group]] = {}
    for group in groups:
        families.setdefault(group.task.family, []).append(group)
    return EvaluationResult(
        **identity,
        judged=judged,
        tasks=len(groups),
        trials=trials,
        success=fmean(values or [0.0]),
        success_without_errors=fmean(without_errors or [0.0]),
        interval=interval,
        interval_method=method,
        pass_at=pass_at(right, trials) if groups else {},
        pass_all=pass_all(right, trials) if groups else {},
        majority=fmean(majority(group.trajectories) for group in groups) if voted else None,
        deviation=stdev(by_trial) if trials > 1 else None,
        rule_success=fmean(fmean(map(_rule, group.trajectories)) for group in groups) if with_rule else None,
        disagreements=sum((value(trial) >= 1) != (_rule(trial) >= 1) for trial in with_rule) if with_rule else None,
        errors=len(every) - len(finished),
        error_reasons=dict(reasons.most_common(_REASONS)),
        by_family={
            name: FamilyResult(
                tasks=len(members),
                success=fmean(_mean(group.trajectories) for group in members),
                turns_mean=fmean(len(trial.turns) for group in members for trial in group.trajectories),
            )
            for name, members in families.items()
        },
        turns_mean=fmean([len(trajectory.turns) for trajectory in every] or [0.0]),
        tool_use=tool_use(every),
        reward_parts=reward_parts(finished),
        streams=stream_metrics(every),
        leaks=sum(map(repeats_question, every)),
        stop_reasons=dict(sorted(Counter(trajectory.stop_reason for trajectory in every).items())),
        request_failures=sum(trajectory.request_failures for trajectory in every),
        replies_repaired=sum(trajectory.replies_repaired for trajectory in every),
        prompt_tokens=sum(call.usage.prompt_tokens for trajectory in every for call in trajectory.calls),
        completion_tokens=sum(call.usage.completion_tokens for trajectory in every for call in trajectory.calls),
        cost_usd=sum(trajectory.cost_usd for trajectory in every),
    )


def _mean(trials: Sequence[Trajectory]) -> float:
    return fmean(map(value, trials))


def _rule(trajectory: Trajectory) -> float:
    """The rule-based reward next to a judge's; 0 if there is no score at all, as in the headline."""
    return trajectory.reward.parts.get(RULE, 0.0) if trajectory.reward and trajectory.status == "ok" else 0.0
