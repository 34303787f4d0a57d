"""Metrics that a run records: one record per training step, one result per evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from midstream.core.data import Frozen
from midstream.core.stream_metrics import StreamMetrics
from midstream.core.trajectory import Action, Trajectory, Turn


class ToolUse(Frozen):
    """How turns with an action were spent: a planner's turns, or each tool call of an interleaved policy.

    Turns that something around the model broke are not counted, nor is what a policy says to a user.

    Attributes:
        turns: number of turns.
        errors: turns whose observation is an error: a malformed action, an invalid command, or a tool's error.
        error_rate: share of turns with an error.
        share: share of turns by tool and "malformed" (an action that calls no tool); the shares add up to 1.
        calls: number of calls that reached each tool: one for a command with arguments, any number for code, none for
            malformed or invalid ones.
        errors_followed: errors that had a next turn.
        recoveries: errors after which the next turn tried something else and succeeded.
        recovery_rate: recoveries / errors_followed; None without any.
        repeats: turns that failed with exactly what had failed before in the trajectory.
        repeat_rate: share of turns that are repeats.
    """

    turns: int = 0
    errors: int = 0
    error_rate: float = 0.0
    share: dict[str, float] = {}
    calls: dict[str, int] = {}
    errors_followed: int = 0
    recoveries: int = 0
    recovery_rate: float | None = None
    repeats: int = 0
    repeat_rate: float = 0.0


def tool_use(trajectories: Sequence[Trajectory]) -> ToolUse:
    """Count tools, calls, errors, recoveries and repeats over all turns of `trajectories`."""
    tools: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    errors = followed = recoveries = repeats = 0
    for trajectory in trajectories:
        failures: set[str] = set()
        before: Turn | None = None
        for turn in trajectory.turns:
            if turn.action is None or turn.error:
                continue
            tools[turn.action.tool if not turn.action.error else "malformed"] += 1
            if turn.command is not None and not turn.command.error and turn.observation is not None:
                if turn.command.code is None:
                    calls[turn.command.tool] += 1
                else:
                    calls.update(call.tool for call in turn.observation.tool_calls)
            failed, attempt = _failed(turn), _attempt(turn)
            if before is not None and _failed(before):
                followed += 1
                recoveries += not failed and turn.observation is not None and attempt != _attempt(before)
            if failed:
                errors += 1
                repeats += attempt in failures
                failures.add(attempt)
            before = turn
    turns = tools.total()
    return ToolUse(
        turns=turns,
        errors=errors,
        error_rate=errors / turns if turns else 0.0,
        share={name: count / turns for name, count in sorted(tools.items())},
        calls=dict(sorted(calls.items())),
        errors_followed=followed,
        recoveries=recoveries,
        recovery_rate=recoveries / followed if followed else None,
        repeats=repeats,
        repeat_rate=repeats / turns if turns else 0.0,
    )


def _failed(turn: Turn) -> bool:
    return turn.observation is not None and turn.observation.status == "error"


def _attempt(turn: Turn) -> str:
    """What a turn tried, as text that is equal for equal attempts; a sub-goal only describes the attempt.

    This is its command. A turn without a valid command has its tool and context (an interleaved policy's malformed call
    has its body there), or the planner's text if that was malformed.
    """
    if turn.command is not None and turn.command.error is None:
        return turn.command.model_dump_json()
    action = turn.action or Action()
    texts = [call.completion for call in turn.calls if call.role == "planner"] if action.error else []
    return texts[-1] if texts else action.model_dump_json(exclude={"sub_goal"})


def reward_parts(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The mean of each named part over the trajectories with a reward; a reward without the part counts as 0."""
    scored = [trajectory.reward.parts for trajectory in trajectories if trajectory.reward]
    names = dict.fromkeys(name for parts in scored for name in parts)
    return {name: fmean(parts.get(name, 0.0) for parts in scored) for name in names}


class Spent(Frozen):
    """What a run has used so far. Tokens are counted by the servers, or estimated if a server gives no count.

    Time is recorded elsewhere (`timings.jsonl`), so that records repeat byte for byte.
    """

    rollouts: int = 0
    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0


class StepMetrics(Frozen):
    """One training step, without wall-clock numbers: the same seed gives the same records, byte for byte.

    Means over trajectories leave out those with `status="error"`.

    Attributes:
        step: number of the step, from 1.
        policy_version: version of the weights that sampled.
        reward_mean: mean reward.
        reward_by_family: mean reward by task family.
        reward_parts: mean of each named part of the rewards (0 in rewards without the part).
        trajectories: number of trajectories.
        trajectories_error: those that ended in an error.
        trajectories_retried: those that failed at least once before they ended.
        request_failures: failed attempts at single requests.
        replies_repaired: replies that were not valid JSON and were repaired.
        groups: number of groups.
        groups_uniform: groups of equal rewards (advantage 0; `uniform_kl_fraction` of them keep their KL term).
        groups_broken: groups with fewer than two finished trajectories, which are left out.
        samples_left_out: number of samples left out, by reason.
        turns_mean: mean number of turns.
        tool_use: how turns were spent.
        streams: measurements of interleaved policies.
        rows: number of training rows.
        prompt_tokens: tokens of the trained module's prompts.
        completion_tokens: sampled tokens.
        total_tokens: tokens of the update's rows; 0 if the learner did not count them.
        unique_tokens: tokens that the update computes, with prefixes shared in a mini-batch counted once; 0 likewise.
        loss: mean loss.
        kl: estimate of the KL divergence per token (`training.loss.kl_kind`), over the rows of the update.
        clip_fraction: share of tokens whose ratio was clipped, over the rows of the update.
        logprob_gap: mean absolute difference between the learner's log-probability and the recorded one, per token of
            the first mini-batch before its update; 0 up to rounding if the learner holds the weights that sampled.
        grad_norm: norm of the gradient before clipping.
        learning_rate: learning rate of the step.
        warnings: warnings shown at this step.
    """

    step: int
    policy_version: int
    reward_mean: float
    reward_by_family: dict[str, float] = {}
    reward_parts: dict[str, float] = {}
    trajectories: int = 0
    trajectories_error: int = 0
    trajectories_retried: int = 0
    request_failures: int = 0
    replies_repaired: int = 0
    groups: int = 0
    groups_uniform: int = 0
    groups_broken: int = 0
    samples_left_out: dict[str, int] = {}
    turns_mean: float = 0.0
    tool_use: ToolUse = ToolUse()
    streams: StreamMetrics | None = None
    rows: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    unique_tokens: int = 0
    loss: float = 0.0
    kl: float = 0.0
    clip_fraction: float = 0.0
    logprob_gap: float = 0.0
    grad_norm: float = 0.0
    learning_rate: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def sharing(self) -> float | None:
        """Tokens of the update's rows per unique token, at least 1; None if they were not counted."""
        return self.total_tokens / self.unique_tokens if self.unique_tokens else None

    @property
    def response_tokens_mean(self) -> float:
        """Mean tokens of a reply (a planner replies once a turn); slightly high if trajectories ended in errors."""
        return self.completion_tokens / max(1, self.streams.replies if self.streams else self.tool_use.turns)


class StepTiming(Frozen):
    """Wall-clock times of a step in seconds, kept apart so that metrics are repeatable."""

    step: int
    duration_s: float
    rollout_s: float = 0.0
    update_s: float = 0.0
    cpu_s: float = 0.0
    tokens_per_s: float = 0.0


class FamilyResult(Frozen):
    """Results of one task family. `success` counts a task without a result as wrong."""

    tasks: int
    success: float
    turns_mean: float = 0.0


class EvaluationResult(Frozen):
    """Results of one evaluation set under one sampling.

    Attributes:
        policy: what was evaluated: "warm start", "trained", "random", ...
        set_name: name of the set.
        split: split of its tasks.
        sampling: "greedy", or e.g. "T=1".
        metric: name of the reward.
        judged: whether a model decided the scores.
        seed: seed of the evaluation.
        tasks: number of tasks.
        trials: number of trials of each task.
        success: mean over tasks of the mean over their trials (avg@k); a trial without a result counts as wrong.
        success_without_errors: the same over the trials with a result.
        interval: 95 % confidence interval of `success` over tasks.
        interval_method: how `interval` was calculated.
        pass_at: k to the probability that the best of k trials is right (pass@k).
        pass_all: k to the probability that all of k trials are right (pass^k).
        majority: score of the most frequent answer; None for dialogues.
        deviation: standard deviation (n - 1) of the success of one trial of every task.
        rule_success: the rule-based score of the same answers, if a model judged.
        disagreements: number of trials that only one of the two scores (judge, rule) calls right (a score of 1).
        errors: number of trials that an infrastructure error left without a result.
        error_reasons: the three most frequent first lines of these errors, with counts.
        by_family: results by task family.
        turns_mean: mean number of turns.
        tool_use: how turns were spent.
        reward_parts: as in `StepMetrics`.
        streams: as in `StepMetrics`.
        leaks: number of trials in which a search repeated the question almost word for word.
        stop_reasons: number of trials by stop reason.
        request_failures: as in `StepMetrics`.
        replies_repaired: as in `StepMetrics`.
        prompt_tokens: prompt tokens of the agent's and its tools' calls.
        completion_tokens: sampled tokens of these calls.
        cost_usd: cost of all calls, a judge's included.
        step: the training step of the evaluated weights.
    """

    policy: str
    set_name: str
    split: str
    sampling: str
    metric: str = "exact match"
    judged: bool = False
    seed: int
    tasks: int
    trials: int = 1
    success: float
    success_without_errors: float
    interval: tuple[float, float] | None = None
    interval_method: str = ""
    pass_at: dict[int, float] = {}
    pass_all: dict[int, float] = {}
    majority: float | None = None
    deviation: float | None = None
    rule_success: float | None = None
    disagreements: int | None = None
    errors: int
    error_reasons: dict[str, int] = {}
    by_family: dict[str, FamilyResult]
    turns_mean: float
    tool_use: ToolUse
    reward_parts: dict[str, float] = {}
    streams: StreamMetrics | None = None
    leaks: int = 0
    stop_reasons: dict[str, int] = {}
    request_failures: int = 0
    replies_repaired: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    step: int | None = None
