"""Metrics that a run records: one record per training step, one result per evaluation.

The metrics of interleaved policies follow ARTIST's analysis (arXiv 2505.01441).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Literal

from midstream.core.data import Frozen
from midstream.core.stream import POLICY
from midstream.core.trajectory import Action, Call, Trajectory, Turn

_MARK = re.compile(r"</?[\w|-]+>")


class ToolUse(Frozen):
    """How turns with an action were spent: a planner's turns, or each tool call of an interleaved policy.

    Turns that something around the model broke are not counted, nor is what a policy says to a user.
    """

    turns: int = 0
    errors: int = 0  # turns whose observation is an error: a malformed action, an invalid command, or a tool's error
    error_rate: float = 0.0  # errors / turns
    share: dict[str, float] = {}  # of turns, by tool and "malformed" (an action that calls no tool); adds up to 1
    # Calls that reached each tool: one for a command with arguments, any number for code, none for malformed or
    # invalid ones.
    calls: dict[str, int] = {}
    errors_followed: int = 0  # errors that had a next turn
    recoveries: int = 0  # errors after which the next turn tried something else and succeeded
    recovery_rate: float | None = None  # recoveries / errors_followed; None without any
    repeats: int = 0  # turns that failed with exactly what had failed before in the trajectory
    repeat_rate: float = 0.0  # repeats / turns


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


class StreamMetrics(Frozen):
    """Counts and means over the finished trajectories of interleaved policies. Means of nothing are None."""

    trajectories: int = 0  # those that ended in an error are left out
    replies: int = 0  # requests to the policy
    calls: int = 0  # tool calls, malformed ones included
    correct: int = 0  # tool calls with a result
    reasoning_per_call: float | None = None  # text of calling replies in `unit`, without marks and bodies of calls
    unit: Literal["tokens", "words"] = "tokens"  # "words" if an engine gave no token ids
    answered: int = 0  # trajectories with an answer
    steps_to_answer: float | None = None  # mean number of calls of these

    @property
    def correct_rate(self) -> float | None:
        """Share of calls with a result."""
        return self.correct / self.calls if self.calls else None

    @property
    def calls_mean(self) -> float:
        """Mean number of calls of a trajectory."""
        return self.calls / max(1, self.trajectories)


def stream_metrics(trajectories: Iterable[Trajectory]) -> StreamMetrics | None:
    """Measure the finished trajectories of interleaved policies; None without any."""
    # Of each trajectory: requests to the policy, and turns that call a tool (others answer a user).
    finished = [trajectory for trajectory in trajectories if trajectory.status == "ok"]
    replies = [[call for call in trajectory.calls if call.role == POLICY] for trajectory in finished]
    finished = [trajectory for trajectory, calls in zip(finished, replies, strict=True) if calls]
    if not finished:
        return None
    calling = [[turn for turn in trajectory.turns if turn.observation is not None] for trajectory in finished]
    turns = [turn for calls in calling for turn in calls]
    stretches = [stretch for calls in calling for stretch in _stretches(calls)]
    unit = "tokens" if all(call.completion_ids for calls, _ in stretches for call in calls) else "words"
    said_besides = []  # in each stretch, besides its tool calls
    for calls, bodies in stretches:
        text = "".join(call.completion for call in calls)
        if unit == "words":
            said, called = (len(_MARK.sub(" ", part).split()) for part in (text, " ".join(bodies)))
            said_besides.append(max(0, said - called))
        else:
            said, called = (len(_MARK.sub("", part)) for part in (text, "".join(bodies)))
            # The tokens of a reply are divided between its calls and the rest by characters.
            tokens = sum(len(call.completion_ids) for call in calls)
            said_besides.append(tokens * max(0, said - called) / max(1, len(text)))
    answered = [
        len(calls) for trajectory, calls in zip(finished, calling, strict=True) if trajectory.stop_reason == "answered"
    ]
    return StreamMetrics(
        trajectories=len(finished),
        replies=sum(map(len, replies)),
        calls=len(turns),
        correct=sum(turn.observation is not None and turn.observation.status == "ok" for turn in turns),
        reasoning_per_call=sum(said_besides) / len(turns) if turns else None,
        unit=unit,
        answered=len(answered),
        steps_to_answer=sum(answered) / len(answered) if answered else None,
    )


def _stretches(turns: Sequence[Turn]) -> list[tuple[list[Call], list[str]]]:
    """The sampled calls of each reply that calls tools, with the bodies of its tool calls.

    The first turn of a reply holds what was sampled; further tool calls of the reply have turns without a call.
    """
    found: list[tuple[list[Call], list[str]]] = []
    for turn in turns:
        sampled = [call for call in turn.calls if call.role == POLICY]
        if sampled or not found:
            found.append((sampled, []))
        found[-1][1].append(turn.action.context if turn.action else "")
    return found


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
    """

    step: int  # from 1
    policy_version: int  # of the weights that sampled
    reward_mean: float
    reward_by_family: dict[str, float] = {}
    reward_parts: dict[str, float] = {}  # mean of each named part of the rewards (0 in rewards without the part)
    trajectories: int = 0
    trajectories_error: int = 0  # those that ended in an error
    trajectories_retried: int = 0  # those that failed at least once before they ended
    request_failures: int = 0  # failed attempts at single requests
    replies_repaired: int = 0  # replies that were not valid JSON and were repaired
    groups: int = 0
    groups_uniform: int = 0  # of equal rewards (advantage 0; `uniform_kl_fraction` of them keep their KL term)
    groups_broken: int = 0  # with fewer than two finished trajectories: left out
    samples_left_out: dict[str, int] = {}  # by reason
    turns_mean: float = 0.0
    tool_use: ToolUse = ToolUse()
    streams: StreamMetrics | None = None  # of interleaved policies
    rows: int = 0  # training rows
    prompt_tokens: int = 0  # of the trained module's prompts
    completion_tokens: int = 0  # sampled tokens
    total_tokens: int = 0  # of the update's rows; 0 if the learner did not count them
    unique_tokens: int = 0  # computed by the update, prefixes shared in a mini-batch counted once; 0 likewise
    loss: float = 0.0  # mean
    kl: float = 0.0  # estimate of the divergence per token (`training.loss.kl_kind`), over the rows of the update
    clip_fraction: float = 0.0  # share of tokens whose ratio was clipped, over the rows of the update
    # Mean absolute difference between the learner's log-probability and the recorded one, per token of the first
    # mini-batch before its update; 0 up to rounding if the learner holds the weights that sampled.
    logprob_gap: float = 0.0
    grad_norm: float = 0.0  # before clipping
    learning_rate: float = 0.0
    warnings: tuple[str, ...] = ()  # shown at this step

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

    A trial without a result, because an infrastructure error ended it, counts as wrong unless a field says otherwise.
    """

    policy: str  # what was evaluated: "warm start", "trained", "random", ...
    set_name: str
    split: str
    sampling: str  # "greedy", or e.g. "T=1"
    metric: str = "exact match"  # name of the reward
    judged: bool = False  # whether a model decided the scores
    seed: int
    tasks: int
    trials: int = 1  # of each task
    success: float  # mean over tasks of the mean over their trials (avg@k)
    success_without_errors: float  # the same over the trials with a result
    interval: tuple[float, float] | None = None  # 95 % confidence interval of `success` over tasks
    interval_method: str = ""
    pass_at: dict[int, float] = {}  # k to the probability that the best of k trials is right (pass@k)
    pass_all: dict[int, float] = {}  # k to the probability that all of k trials are right (pass^k)
    majority: float | None = None  # score of the most frequent answer; None for dialogues
    deviation: float | None = None  # standard deviation (n - 1) of the success of one trial of every task
    rule_success: float | None = None  # the rule-based score of the same answers, if a model judged
    disagreements: int | None = None  # trials that only one of the two (judge, rule) calls right (a score of 1)
    errors: int  # trials without a result
    error_reasons: dict[str, int] = {}  # the three most frequent first lines of these errors, with counts
    by_family: dict[str, FamilyResult]
    turns_mean: float
    tool_use: ToolUse
    reward_parts: dict[str, float] = {}  # this and the next as in `StepMetrics`
    streams: StreamMetrics | None = None
    leaks: int = 0  # trials in which a search repeated the question almost word for word
    stop_reasons: dict[str, int] = {}  # trials by stop reason
    request_failures: int = 0  # this and the next as in `StepMetrics`
    replies_repaired: int = 0
    prompt_tokens: int = 0  # of the agent's and its tools' calls, as are the completion tokens
    completion_tokens: int = 0
    cost_usd: float = 0.0  # of all calls, a judge's included
    step: int | None = None  # the training step of the evaluated weights
