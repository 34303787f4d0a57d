"""The numbers a run writes down: one record a training step, one result an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from midstream.core.data import Frozen
from midstream.core.stream_metrics import StreamMetrics
from midstream.core.trajectory import Action, Trajectory, Turn


class ToolUse(Frozen):
    """How turns with an action were spent: a planner's, or each tool call of an interleaved policy.

    Shares add up to 1 over tools and "malformed" (a turn whose action is no call of a tool). What an interleaved policy
    says to a user is no such turn. `error_rate` is the share of turns whose observation is an error: a malformed
    action, an invalid command, or a tool that answered with an error. Turns that something around the model broke are
    not counted. `calls` counts the calls that reached a tool: one for a command with arguments, any number for code,
    none for what was malformed or invalid.

    `errors_followed` of the errors had a next turn; in `recoveries` of them that turn tried something else, and it
    worked (another action, an observation without an error); `recovery_rate` is their share, None without any.
    `repeats` counts the turns that did again exactly what had failed before in their trajectory, and failed again;
    `repeat_rate` is their share of all turns.
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
    named: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    errors = followed = recoveries = repeats = 0
    for trajectory in trajectories:
        turns = [turn for turn in trajectory.turns if turn.action and not turn.error]
        named.update(_named(turn) for turn in turns)
        for turn in turns:
            calls.update(_called(turn))
        failures: set[str] = set()
        for before, turn in zip([None, *turns], turns, strict=False):
            failed, attempt = _failed(turn), _attempt(turn)
            if before is not None and _failed(before):
                followed += 1
                recoveries += not failed and turn.observation is not None and attempt != _attempt(before)
            if failed:
                errors += 1
                repeats += attempt in failures
                failures.add(attempt)
    turns = named.total()
    return ToolUse(
        turns=turns,
        errors=errors,
        error_rate=errors / turns if turns else 0.0,
        share={name: count / turns for name, count in sorted(named.items())},
        calls=dict(sorted(calls.items())),
        errors_followed=followed,
        recoveries=recoveries,
        recovery_rate=recoveries / followed if followed else None,
        repeats=repeats,
        repeat_rate=repeats / turns if turns else 0.0,
    )


def _named(turn: Turn) -> str:
    return turn.action.tool if turn.action and not turn.action.error else "malformed"


def _failed(turn: Turn) -> bool:
    return turn.observation is not None and turn.observation.status == "error"


def _attempt(turn: Turn) -> str:
    """What a turn tried, for telling whether another tried the same; a sub-goal is only words about it.

    That is its command, or tool and context where they made none (an interleaved policy's malformed call has its body
    there), or the planner's text where it was malformed.
    """
    if turn.command is not None and turn.command.error is None:
        return turn.command.model_dump_json()
    action = turn.action or Action()
    texts = [call.completion for call in turn.calls if call.role == "planner"] if action.error else []
    return texts[-1] if texts else action.model_dump_json(exclude={"sub_goal"})


def _called(turn: Turn) -> list[str]:
    """The tool of every call that a turn's command made."""
    if turn.command is None or turn.command.error or turn.observation is None:
        return []
    return [one.tool for one in turn.observation.tool_calls] if turn.command.code is not None else [turn.command.tool]


def reward_parts(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The mean of each named part over the trajectories with a reward; one that lacks the part counts 0 in it."""
    scored = [one.reward.parts for one in trajectories if one.reward]
    names = dict.fromkeys(name for parts in scored for name in parts)
    return {name: fmean(parts.get(name, 0.0) for parts in scored) for name in names}


class Spent(Frozen):
    """What a run has used so far. Tokens are the servers' count, estimated where they give none.

    Time is kept apart (`timings.jsonl`), so that records repeat byte for byte.
    """

    rollouts: int = 0
    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0


class StepMetrics(Frozen):
    """One training step, without any wall-clock number: the same seed gives the same records, byte for byte.

    Means over trajectories leave out those with `status="error"`, which `trajectories_error` counts. `groups_uniform`
    had equal rewards (advantage 0, KL kept), `groups_broken` fewer than two finished trajectories (left out).
    `trajectories_retried` broke down at least once before they ended; `request_failures` counts the attempts of single
    requests that failed, `replies_repaired` the replies that were no JSON until they were mended. `kl` is the k3
    estimate per token and `clip_fraction` the share of tokens whose ratio was clipped, both over the rows of the
    update, which leave out uniform groups whose KL term was not drawn. `logprob_gap` is the mean, per token, of how far
    the learner's log-probability lies from the recorded one, over the first mini-batch before its update: 0 but for
    rounding where the learner holds the very weights that sampled. `reward_parts` holds the mean of each named part of
    the rewards (0 where a reward lacks it); `streams` what is measured of interleaved policies.

    `total_tokens` are all tokens of the update's rows; `unique_tokens` what is left of them where rows of one
    mini-batch that begin alike share their beginning: what the update has to compute. Both are 0 where the learner did
    not count. `warnings` were shown at this step.
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
        """Tokens of the update's rows for each unique one, at least 1; None where they were not counted."""
        return self.total_tokens / self.unique_tokens if self.unique_tokens else None

    @property
    def response_tokens_mean(self) -> float:
        """Tokens of a reply, a planner's one a turn; a little high where trajectories with an error hold some."""
        return self.completion_tokens / max(1, self.streams.replies if self.streams else self.tool_use.turns)


class StepTiming(Frozen):
    """The wall-clock side of a step, kept apart so that metrics stay repeatable. Times in seconds."""

    step: int
    duration_s: float
    rollout_s: float = 0.0
    update_s: float = 0.0
    cpu_s: float = 0.0
    tokens_per_s: float = 0.0


class FamilyResult(Frozen):
    """One family of an evaluation. `success` counts a task without a result as wrong."""

    tasks: int
    success: float
    turns_mean: float = 0.0


class EvaluationResult(Frozen):
    """One evaluation of one set under one sampling.

    `success` is the mean over tasks of the mean over their `trials` (avg@k); a trial left without a result by an
    infrastructure error counts as wrong in it, `errors` is the number of such trials and `success_without_errors` the
    score that leaves them out. `interval` is the 95 % confidence interval of `success` over tasks, made by
    `interval_method`. `pass_at` maps k to the chance that the best of k trials is right, `majority` is the score of
    the most frequent answer (None of dialogues), `deviation` the standard deviation (n - 1) of the success of one trial
    of every task.
    `pass_all` maps k to the chance that all of k trials are right (pass^k).
    `error_reasons` counts what these said, by its first line, the three most frequent.
    `metric` names the reward, `judged` says that a model gave it; then `rule_success` is what the rule-based reward
    said of the same answers, and `disagreements` the number of trials that only one of the two calls right (a score of
    1).
    `policy` says what was evaluated ("warm start", "trained", "random" ...), `sampling` "greedy" or "T=1". `leaks` is
    the number of trials in which a search repeated the question almost word for word. `reward_parts` and `streams` as
    in `StepMetrics`.
    `request_failures` and `replies_repaired` as in `StepMetrics`. Tokens are those of the agent's and its tools' calls;
    `cost_usd` is that of all calls, a judge's included.
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
