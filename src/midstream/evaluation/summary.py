"""From the trajectories of an evaluation to its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev

from midstream.core.metrics import EvaluationResult, FamilyResult, reward_parts, tool_use
from midstream.core.stream_metrics import stream_metrics
from midstream.core.trajectory import Trajectory
from midstream.evaluation.estimates import majority, mean_interval, pass_all, pass_at, value
from midstream.evaluation.leakage import repeats_question
from midstream.rollout import Group

RULE = "rule"
_REASONS = 3


def summarise(
    groups: Sequence[Group],
    *,
    policy: str,
    set_name: str,
    split: str,
    sampling: str,
    seed: int,
    step: int | None,
    metric: str,
    judged: bool,
) -> EvaluationResult:
    """Sum up groups, each all trials of one task; `EvaluationResult` says what each number means."""
    trajectories = [one for group in groups for one in group.trajectories]
    finished = [one for one in trajectories if one.status == "ok"]
    trials = max((len(group.trajectories) for group in groups), default=0)
    families = list(dict.fromkeys(group.task.family for group in groups))
    values = [_mean(group.trajectories) for group in groups]
    interval, method = mean_interval(values) if values else (None, "")
    right = [sum(value(one) >= 1 for one in group.trajectories) for group in groups]
    voted = trials > 1 and not any(one.outcome for one in trajectories)  # the last words of a dialogue are no answer
    with_rule = [one for one in finished if judged and one.reward and RULE in one.reward.parts]
    return EvaluationResult(
        policy=policy,
        set_name=set_name,
        split=split,
        sampling=sampling,
        metric=metric,
        judged=judged,
        seed=seed,
        tasks=len(groups),
        trials=trials,
        success=fmean(values or [0.0]),
        success_without_errors=_without_errors(groups),
        interval=interval,
        interval_method=method,
        pass_at=pass_at(right, trials) if groups else {},
        pass_all=pass_all(right, trials) if groups else {},
        majority=fmean(majority(group.trajectories) for group in groups) if voted else None,
        deviation=stdev(_by_trial(groups, trials)) if trials > 1 else None,
        rule_success=fmean(fmean(map(_rule, group.trajectories)) for group in groups) if with_rule else None,
        disagreements=sum((value(one) >= 1) != (_rule(one) >= 1) for one in with_rule) if with_rule else None,
        errors=len(trajectories) - len(finished),
        error_reasons=_reasons(trajectories),
        by_family={name: _family([group for group in groups if group.task.family == name]) for name in families},
        turns_mean=fmean([len(one.turns) for one in trajectories] or [0.0]),
        tool_use=tool_use(trajectories),
        reward_parts=reward_parts(finished),
        streams=stream_metrics(trajectories),
        leaks=sum(map(repeats_question, trajectories)),
        stop_reasons=dict(sorted(Counter(one.stop_reason for one in trajectories).items())),
        request_failures=sum(one.request_failures for one in trajectories),
        replies_repaired=sum(one.replies_repaired for one in trajectories),
        prompt_tokens=sum(call.usage.prompt_tokens for one in trajectories for call in one.calls),
        completion_tokens=sum(call.usage.completion_tokens for one in trajectories for call in one.calls),
        cost_usd=sum(one.cost_usd for one in trajectories),
        step=step,
    )


def _mean(trials: Sequence[Trajectory]) -> float:
    return fmean(map(value, trials))


def _by_trial(groups: Sequence[Group], trials: int) -> list[float]:
    """The success of the first trials of all tasks, of the second ..."""
    return [
        fmean(value(group.trajectories[trial]) for group in groups if trial < len(group.trajectories))
        for trial in range(trials)
    ]


def _without_errors(groups: Sequence[Group]) -> float:
    """The mean over tasks with a result of the mean over their trials with one."""
    finished = [[one for one in group.trajectories if one.status == "ok"] for group in groups]
    return fmean([_mean(trials) for trials in finished if trials] or [0.0])


def _reasons(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    said = Counter(one.error.message.partition("\n")[0] for one in trajectories if one.error)
    return dict(said.most_common(_REASONS))


def _rule(trajectory: Trajectory) -> float:
    """What the rule-based reward said beside a judge's; 0 where there is no score at all, as in the headline."""
    return trajectory.reward.parts.get(RULE, 0.0) if trajectory.reward and trajectory.status == "ok" else 0.0


def _family(groups: Sequence[Group]) -> FamilyResult:
    turns = fmean(len(one.turns) for group in groups for one in group.trajectories)
    return FamilyResult(
        tasks=len(groups), success=fmean(_mean(group.trajectories) for group in groups), turns_mean=turns
    )
