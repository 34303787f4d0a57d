"""Metrics that a run records: one record per training step, one result per evaluation.

The metrics of interleaved policies follow ARTIST's analysis (arXiv 2505.01441).
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import fsum
from pathlib import Path
from typing import Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from midstream.core.data import Frozen
from midstream.core.stream import POLICY
from midstream.core.text import shorten
from midstream.core.trajectory import Call, Trajectory, Turn

_MARK = re.compile(r"</?[\w|-]+>")
_FLAGS = ("timed_out", "right_as_number")  # parts of a reward that are there only where they are 1


class ToolUse(Frozen):
    """Counts of turns with an action: a planner's turns, or each tool call of an interleaved policy.

    Turns that something around the model broke are not counted, nor is what a policy says to a user.
    """

    turns: int = 0
    errors: int = 0  # turns whose observation is an error: a malformed action, an invalid command, or a tool's error
    error_rate: float = 0.0  # errors / turns
    share: dict[str, float] = {}  # of turns, by tool and "malformed" (an action that calls no tool); adds up to 1
    # Calls that reached each tool: one for a command with arguments, any number for code, none for malformed or
    # invalid ones.
    calls: dict[str, int] = {}

    @property
    def unreadable(self) -> str:
        """The problem where every action is malformed, with what to do; "" elsewhere."""
        if self.share.get("malformed") != 1:
            return ""
        return (
            f"all {self.turns:,} replies that should act are malformed: the model does not keep to the form that the "
            "agent reads; take a stronger model, or begin with a warm start"
        )


def tools_of(trajectory: Trajectory) -> Iterator[str]:
    """The tool of each turn that counts in `ToolUse`, or "malformed"."""
    for turn in trajectory.turns:
        if turn.action is not None and not turn.error:
            yield turn.action.tool if not turn.action.error else "malformed"


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


class Tally:
    """Sums up trajectories, given or added one at a time: their tools, their streams, the parts of their rewards."""

    def __init__(self, trajectories: Iterable[Trajectory] = ()) -> None:
        self._tools: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._errors = 0
        self._streams: Counter[str] = Counter()  # by field of `StreamMetrics`
        self._to_answer: list[int] = []  # calls of the streams with an answer
        # What was said besides the tool calls of each stretch, in words and in tokens.
        self._words: list[int] = []
        self._tokens: list[float] = []
        self._has_ids = True
        self._scored = 0
        self._parts: dict[str, list[float]] = {}
        for trajectory in trajectories:
            self.add(trajectory)

    def add(self, trajectory: Trajectory) -> None:
        """Count one trajectory."""
        self._add_tools(trajectory)
        if trajectory.status != "ok":
            return
        self._add_stream(trajectory)
        if trajectory.reward:
            self._scored += 1
            for name, value in trajectory.reward.parts.items():
                self._parts.setdefault(name, []).append(value)

    def tools(self) -> ToolUse:
        """The turns with an action, of all trajectories."""
        turns = self._tools.total()
        return ToolUse(
            turns=turns,
            errors=self._errors,
            error_rate=self._errors / turns if turns else 0.0,
            share={name: count / turns for name, count in sorted(self._tools.items())},
            calls=dict(sorted(self._calls.items())),
        )

    def streams(self) -> StreamMetrics | None:
        """The finished trajectories of interleaved policies; None without any."""
        counts, besides = self._streams, self._tokens if self._has_ids else self._words
        if not counts["trajectories"]:
            return None
        calls = counts["calls"]
        return StreamMetrics(
            trajectories=counts["trajectories"],
            replies=counts["replies"],
            calls=calls,
            correct=counts["correct"],
            reasoning_per_call=sum(besides) / calls if calls else None,
            unit="tokens" if self._has_ids else "words",
            answered=len(self._to_answer),
            steps_to_answer=sum(self._to_answer) / len(self._to_answer) if self._to_answer else None,
        )

    def parts(self) -> dict[str, float]:
        """The mean of each named part of the rewards of finished trajectories.

        It is over the rewards that have the part: the tasks of one set may have different rewards. A part that is there
        only where it is 1 ("timed_out") is a share of all rewards.
        """
        return {
            name: fsum(values) / (self._scored if name.endswith(_FLAGS) else len(values))
            for name, values in self._parts.items()
        }

    def _add_tools(self, trajectory: Trajectory) -> None:
        self._tools.update(tools_of(trajectory))
        for turn in trajectory.turns:
            if turn.action is None or turn.error or turn.observation is None:
                continue
            self._errors += turn.observation.status == "error"
            if turn.command is not None and not turn.command.error:
                made = turn.observation.tool_calls
                self._calls.update([turn.command.tool] if turn.command.code is None else [call.tool for call in made])

    def _add_stream(self, trajectory: Trajectory) -> None:
        replies = sum(call.role == POLICY and call.error is None for call in trajectory.calls)
        if not replies:
            return
        # Other turns answer a user.
        calling = [turn for turn in trajectory.turns if turn.observation is not None]
        correct = sum(turn.observation is not None and turn.observation.status == "ok" for turn in calling)
        self._streams.update(trajectories=1, replies=replies, calls=len(calling), correct=correct)
        if trajectory.stop_reason == "answered":
            self._to_answer.append(len(calling))
        for calls, bodies in _stretches(calling):
            text = "".join(call.completion for call in calls)
            said, called = (len(_MARK.sub(" ", part).split()) for part in (text, " ".join(bodies)))
            self._words.append(max(0, said - called))
            said, called = (len(_MARK.sub("", part)) for part in (text, "".join(bodies)))
            # The tokens of a reply are divided between its calls and the rest by characters.
            tokens = sum(len(call.completion_ids) for call in calls)
            self._tokens.append(tokens * max(0, said - called) / max(1, len(text)))
            self._has_ids &= all(call.completion_ids for call in calls)


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


def branches(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    """Counts of trajectories that forked from others, and of what they did not have to sample."""
    forks = [trajectory for trajectory in trajectories if trajectory.fork_of]
    replayed = [[call for call in fork.calls if call.replayed] for fork in forks]
    early = sum(len(calls) < fork.fork_at for fork, calls in zip(forks, replayed, strict=True))
    counts = {
        "trajectories that forked": len(forks),
        "forks that left the trunk early, as a request differed": early,
        "tokens of replies that were replayed": sum(len(call.completion_ids) for calls in replayed for call in calls),
    }
    return {name: count for name, count in counts.items() if count}


def tool_marks(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    """Results of simulated and degraded tools in these trajectories, by mark."""
    turns = (turn for trajectory in trajectories for turn in trajectory.turns)
    counts = Counter(mark for turn in turns if turn.observation for mark in turn.observation.marks)
    return dict(sorted(counts.items()))


def no_contrast(groups: int, idle: int, reward_mean: float, tools: ToolUse, *, answered: bool = True) -> str:
    """Return why a step or update has nothing to learn from, with what to do; "" if it has something.

    `idle` groups are uniform or broken; `answered` is false if no stream held an answer.
    """
    if groups and tools.unreadable:
        return tools.unreadable
    if not groups or idle < groups:
        return ""
    if not answered:
        return "no reply holds an answer between its marks: the model does not know the form; take another template"
    if reward_mean == 0:
        return "all rewards are 0: the tasks are too hard for the model, or the reward does not read its answers"
    if reward_mean == 1:
        return "all rewards are 1: the model solves every task; take harder ones"
    return "the rewards of each group are equal: raise the group size or the temperature, or take other tasks"


def malformed_example(trajectories: Iterable[Trajectory], run: Path) -> str:
    """The first malformed reply, what is wrong with it and how to see it, for a message; "" without one."""
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.action is not None and turn.action.error:
                reply = turn.calls[0].completion.strip() if turn.calls else ""
                shown = f"{trajectory.id}, turn {turn.index}: {turn.action.error}: {shorten(reply, 80)!r}"
                return f" E.g. {shown}; the whole of it: midstream show {shlex.quote(str(run))} {trajectory.id}"
    return ""


class Spent(Frozen):
    """The use of a run so far. Tokens are counted by the servers, or estimated if a server gives no count.

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
    reward_parts: dict[str, float] = {}  # mean of each named part of the rewards, as `Tally.parts` has it
    trajectories: int = 0
    trajectories_error: int = 0  # those that ended in an error
    trajectories_retried: int = 0  # those that failed at least once before they ended
    limits: dict[str, int] = {}  # those that context or time ended, by stop reason; not written if empty
    request_failures: int = 0  # failed attempts at single requests
    replies_repaired: int = 0  # replies that were not valid JSON and were repaired
    groups: int = 0
    # Of equal rewards: advantage 0; `uniform_kl_fraction` of them keep their KL term. Without one they have no rows.
    groups_uniform: int = 0
    groups_broken: int = 0  # with fewer than two finished trajectories: left out
    samples_left_out: dict[str, int] = {}  # by reason
    turns_mean: float = 0.0
    tool_use: ToolUse = ToolUse()
    tool_marks: dict[str, int] = {}  # results of simulated and degraded tools, by mark; not written if empty
    schedules: dict[str, float] = {}  # the stage, probabilities of simulated and degraded tools; not written if empty
    streams: StreamMetrics | None = None  # of interleaved policies
    branches: dict[str, int] = {}  # of rollouts that branch: forks, and what they shared; not written if empty
    rows: int = 0  # training rows
    rows_split: dict[str, int] = {}  # rows that a conversation was split into, by reason; not written if empty
    tokens_by_role: dict[str, int] = {}  # sampled tokens of the rows, where several roles are trained; else not written
    prompt_tokens: int = 0  # of the trained module's prompts
    completion_tokens: int = 0  # sampled tokens
    total_tokens: int = 0  # of the update's rows; 0 if the learner did not count them
    unique_tokens: int = 0  # computed by the update, prefixes shared in a mini-batch counted once; 0 likewise
    loss: float = 0.0  # mean
    kl: float = 0.0  # estimate of the divergence per token (`training.loss.kl_kind`), over the rows of the update
    entropy: float | None = None  # mean per token in nats, of the update's rows; not written without an entropy bonus
    clip_fraction: float = 0.0  # share of tokens whose ratio was clipped, over the rows of the update
    # Of rows that older weights sampled (not written if 0), with w = learner's probability of a token / recorded one:
    # the effective share of the sample, (sum w)^2 / (n sum w^2); the estimate of KL(sampled || learner's) per token;
    # the share of tokens that a mask left out; of some steps, the cosine of the gradient to the on-policy one.
    sample_share: float | None = None
    sampler_kl: float | None = None
    masked_share: float | None = None
    gradient_cosine: float | None = None
    # Mean absolute difference between the learner's log-probability and the recorded one, per token of the first
    # mini-batch before its update; 0 up to rounding if the learner holds the weights that sampled.
    logprob_gap: float = 0.0
    grad_norm: float = 0.0  # before clipping
    learning_rate: float = 0.0
    warnings: tuple[str, ...] = ()  # shown at this step

    @model_serializer(mode="wrap")
    def _written(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        optional = (
            *("limits", "rows_split", "tool_marks", "schedules", "branches", "entropy", "tokens_by_role"),
            *("sample_share", "sampler_kl", "masked_share", "gradient_cosine"),
        )
        return {name: value for name, value in dump(self).items() if name not in optional or value}

    @property
    def no_contrast(self) -> str:
        """The reason why the step had nothing to learn from; "" if it had something."""
        idle, answered = self.groups_uniform + self.groups_broken, self.streams is None or self.streams.answered > 0
        return no_contrast(self.groups, idle, self.reward_mean, self.tool_use, answered=answered)

    @property
    def sharing(self) -> float | None:
        """Tokens of the update's rows per unique token, at least 1; None if they were not counted."""
        return self.total_tokens / self.unique_tokens if self.unique_tokens else None


def waits_of(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """`tail_s` and `busy` of a step's trajectories; {} if no reply has a time."""
    spans = []
    for each in trajectories:
        if calls := [call for call in each.calls if call.started_at]:
            ends = (call.started_at + call.duration_s for call in calls)
            spans.append((min(call.started_at for call in calls), max(ends)))
    if not spans:
        return {}
    ends = sorted(end for _, end in spans)
    whole = ends[-1] - min(start for start, _ in spans)
    busy = sum(end - start for start, end in spans) / (len(spans) * whole) if whole else 1.0
    return {"tail_s": ends[-1] - ends[(3 * len(ends) + 3) // 4 - 1], "busy": busy}


class StepTiming(Frozen):
    """Wall-clock times of a step in seconds, kept apart so that metrics are repeatable."""

    step: int
    duration_s: float
    rollout_s: float = 0.0  # that the update waited for rollouts
    update_s: float = 0.0
    tail_s: float | None = None  # from when three quarters of the rollouts had their last reply until the last one had
    busy: float | None = (
        None  # mean share of the rollouts that were under way, from the first request to the last reply
    )
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
    error_reasons: dict[str, int] = {}  # the three most frequent summaries of these errors, with counts
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
    replies_cached: int = 0  # replies that an earlier evaluation had sampled (`--cache`)
    learned: str = ""  # why the agent knows these tasks ("runs/x: training"): no evidence of what it can do on new ones

    @model_serializer(mode="wrap")
    def _written(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        seldom = {name for name in ("learned", "replies_cached") if not getattr(self, name)}
        return {name: value for name, value in dump(self).items() if name not in seldom}
