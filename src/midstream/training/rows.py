"""From groups of trajectories to training rows: who is left out, who gets which advantage, and every weight.

The environment of this RL problem is the agent loop with its tools; its actions are the calls of one role (the
planner, or a policy that writes one stream). With `training.turns = "calls"` each call is a row, a turn of equation 5.
With "merged", calls that continue one another make one row, as in a stream, and so do the calls of each conversation in
a session of an agent that holds several at once (`core/sequences.py`):

    call 1   prompt | <think>..</think><python>..</python>
    call 2   prompt | <think>..</think><python>..</python><output>5</output> | <answer>5</answer>
    row      prompt | sampled .............................. not sampled .... | sampled .........

What the environment put in between is in the row, because the policy read it, and is marked as not sampled.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import TypeVar

import torch

from midstream.core.errors import EngineError, TrainingError, UnsupportedError
from midstream.core.seeds import derive_seed
from midstream.core.sequences import joined
from midstream.core.trajectory import CUT_OFF, Call, Trajectory
from midstream.training.losses import PolicyLoss, row_weights
from midstream.training.own import Advantage
from midstream.training.protocols import Row
from midstream.training.settings import Baseline, TrainedRole, TrainingConfig, Turns

GroupT = TypeVar("GroupT")
_Runs = list[tuple[list[Call], bool]]  # the calls of each row of a trajectory; whether its last call is among them


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBatch:
    """The rows of one optimizer step, and what became of everything else.

    `groups` counts all groups that came in, `groups_uniform` those with equal rewards, `groups_broken` those with fewer
    than two finished trajectories. `trajectories` is the number that the rows' weights average over. `left_out` maps a
    reason to how many trajectories, or for a reason that begins with "call" or "row" how many of these, it left out.
    """

    rows: tuple[Row, ...] = ()
    groups: int = 0
    groups_uniform: int = 0
    groups_broken: int = 0
    trajectories: int = 0
    left_out: dict[str, int] = field(default_factory=dict)


def build_rows(
    groups: Sequence[Sequence[Trajectory]],
    config: TrainingConfig = TrainingConfig(),  # noqa: B008  # immutable
    *,
    role: str = "planner",
    seed: int = 0,
    advantage: Advantage | None = None,
) -> RowBatch:
    """Turn groups into rows whose weights make the summed token loss the aggregate over the batch.

    A trajectory is finished if its status is ok and it has a reward; only finished ones enter their group's statistics.
    A group with fewer than two of them has nothing to compare and is left out whole. Averages over trajectories divide
    by the finished trajectories of the remaining groups that have at least one row: what failed is not counted, because
    an infrastructure error must not shrink the others' gradient. A uniform group
    has advantage 0 and counts in every average; with `uniform_kl_fraction` below 1 it is kept by a draw with that
    probability and its KL weight divided by it, so that the expected loss stays the same. A row whose gradient is 0
    (advantage 0, and no KL term counts) is left out, too. Averages are taken before that.

    `role` is the module that is trained, unless `config.roles` names several: each of these has advantages and averages
    of its own, and its share of the batch. `seed` is for the draw of uniform groups: a group gets the same draw in any
    split into mini-batches. `advantage` gives the advantages of a group in place of `group_advantages`: a number for
    each trajectory, or for each of its calls.

    Raises:
        UnsupportedError: no call of the roles in the usable groups has token ids and log-probabilities.
        EngineError: a call has token ids and log-probabilities of different numbers.
        TrainingError: a reward is not finite.
    """
    left_out: Counter[str] = Counter()
    usable = [finished for group in groups if len(finished := _finished(group, left_out)) > 1]
    roles = config.roles or {role: TrainedRole()}
    runs = {
        name: [[_trained_runs(trajectory, name, config.turns, left_out) for trajectory in group] for group in usable]
        for name in roles
    }
    if usable and not any(own for of_role in runs.values() for group in of_role for own in group):
        raise _nothing_to_train_on(usable, [*roles])

    learned: list[_Learned] = []
    for place, group in enumerate(usable):
        own = [list(chain(*each)) for each in zip(*(of_role[place] for of_role in runs.values()), strict=True)]
        rewards = [_reward(trajectory, each, config) for trajectory, each in zip(group, own, strict=True)]
        draw = 1.0
        if len(set(rewards)) == 1:
            names = (trajectory.id for trajectory in group)
            kept = random.Random(derive_seed(seed, "uniform_kl", *names)).random() < config.uniform_kl_fraction
            draw = 1 / config.uniform_kl_fraction if kept else 0.0
            # Its calls may differ all the same.
            left_out["uniform group whose KL term was not drawn"] += 0 if kept or advantage else len(group)
        learned.append(_Learned(group, rewards, draw))

    rows: tuple[Row, ...] = ()
    averaged: set[int] = set()
    drafted = {name: _drafts(learned, runs[name], config, advantage, left_out) for name in roles}
    shares = sum(one.share for name, one in roles.items() if any(drafted[name]))
    for name, one in roles.items():
        drafts = drafted[name]
        calls = [call for group in runs[name] for own in group for run, _ in own for call in run]
        averaged.update(place for place, own in enumerate(drafts) if own)
        share = one.share / shares if shares else 0.0
        rows += _apply_weights(drafts, config, calls, left_out, share=share, kl=one.kl)
    return RowBatch(
        rows=rows,
        groups=len(groups),
        groups_uniform=sum(len(set(group.rewards)) == 1 for group in learned),
        groups_broken=len(groups) - len(usable),
        trajectories=len(averaged),
        left_out={reason: count for reason, count in sorted(left_out.items()) if count},
    )


def split_minibatches(groups: Sequence[GroupT], count: int, seed: int) -> list[list[GroupT]]:
    """Deal groups, in a shuffled order, into `count` mini-batches whose sizes differ by at most one; none is dropped.

    Groups stay whole, so their advantages do not depend on the split; `build_rows` on each mini-batch gives weights
    that average over that mini-batch's own trajectories. `ValueError` if `count` is not in 1 to the number of groups.
    """
    if not 1 <= count <= len(groups):
        raise ValueError(
            f"cannot split {len(groups)} groups into {count} mini-batches: count must be from 1 to the number of groups"
        )
    shuffled = list(groups)
    random.Random(derive_seed(seed, "minibatches")).shuffle(shuffled)
    return [shuffled[start::count] for start in range(count)]


# -- calls as sequences ------------------------------------------------------------------------------------------------


def row_of(run: Sequence[Call], *, advantage: float | Sequence[float], kl_weight: float, trajectory_id: str) -> Row:
    """One run of `runs_of` as a row of weight 1: the first call's prompt, then everything after it.

    `advantage` is that of every sampled token, or one for each call.
    """
    prompt = run[0].prompt_ids
    of_calls = [advantage] * len(run) if isinstance(advantage, float | int) else advantage
    ids: tuple[int, ...] = ()
    sampled: tuple[bool, ...] = ()
    logprobs: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    for call, value in zip(run, of_calls, strict=True):
        appended = call.prompt_ids[len(prompt) + len(ids) :]
        ids += appended + call.completion_ids
        sampled += (False,) * len(appended) + (True,) * len(call.completion_ids)
        logprobs += (0.0,) * len(appended) + call.logprobs
        advantages += (0.0,) * len(appended) + (value,) * len(call.completion_ids)
    return Row(
        prompt_ids=prompt,
        completion_ids=ids,
        sampled=() if all(sampled) else sampled,
        old_logprobs=logprobs,
        advantage=of_calls[0],
        advantages=advantages if len(set(of_calls)) > 1 else (),
        weight=1.0,
        kl_weight=kl_weight,
        temperature=run[0].sampling.temperature or 1.0,  # greedy calls record log-probabilities at temperature 1
        trajectory_id=trajectory_id,
        role=run[0].role,
    )


def runs_of(calls: Sequence[Call], turns: Turns) -> list[list[Call]]:
    """The calls of each row of a trajectory; all have token ids."""
    return joined(calls) if turns == "merged" else [[call] for call in calls]


def tokens_after_prompt(run: Sequence[Call]) -> int:
    """Length of a run's row without its prompt: sampled tokens and those in between."""
    return len(run[-1].prompt_ids) + len(run[-1].completion_ids) - len(run[0].prompt_ids)


# -- advantages --------------------------------------------------------------------------------------------------------


def group_advantages(
    rewards: Sequence[float],
    *,
    task: str = "",
    baseline: Baseline = "group_mean",
    normalize_by_std: bool = True,
    epsilon: float = 1e-6,
) -> list[float]:
    """A_i = (R_i - baseline) / (std(R) + epsilon) of one group; std has ddof=1 (arXiv 2510.05592, eq. 7).

    A uniform group gets exactly 0, and so does a group of one, which has nothing to compare with (verl returns the raw
    reward there).

    The baseline is mean(R) of the group (GRPO), or of the others alone (RLOO, arXiv 2402.14740), which does not depend
    on R_i: its difference is G / (G - 1) times the first one's. Without `normalize_by_std` (Dr. GRPO, RLOO) only the
    baseline is subtracted. `task` is for messages. Raises `TrainingError` if a reward is NaN or infinite.
    """
    for place, reward in enumerate(rewards):
        if not math.isfinite(reward):
            raise TrainingError(
                f"reward {reward} at place {place} in group {task!r} is not finite",
                code="not-finite",
                fix="make the reward return a number in [0, 1], or raise RewardError where it cannot judge",
            )
    if len(set(rewards)) < 2:
        # The mean of equal floats may be off by an ulp, so 0 is set, not computed.
        return [0.0] * len(rewards)
    values = torch.tensor(rewards, dtype=torch.float64)
    centered = values - values.mean()
    if baseline == "leave_one_out":
        centered *= len(values) / (len(values) - 1)
    return (centered / (values.std() + epsilon) if normalize_by_std else centered).tolist()


def _advantages(task: str, rewards: Sequence[float], runs: Sequence[_Runs], config: TrainingConfig) -> list[float]:
    """One advantage per trajectory of a group; over turns, a reward counts once for each row of its trajectory."""
    copies = [1 if config.advantage_over == "trajectories" else len(own) for own in runs]
    counted = [reward for reward, times in zip(rewards, copies, strict=True) for _ in range(times)]
    values = group_advantages(counted, task=task, baseline=config.baseline, normalize_by_std=config.normalize_by_std)
    advantages, first = [], 0
    for times in copies:
        advantages.append(values[first] if times else 0.0)
        first += times
    return advantages


@dataclass(frozen=True, slots=True)
class _Learned:
    """The finished trajectories of a group, their rewards to learn from, and the factor of their KL weights."""

    trajectories: Sequence[Trajectory]
    rewards: list[float]
    draw: float


def _drafts(
    groups: Sequence[_Learned],
    runs: Sequence[Sequence[_Runs]],
    config: TrainingConfig,
    advantage: Advantage | None,
    left_out: Counter[str],
) -> list[list[Row]]:
    """Rows of weight 1, one list a trajectory."""
    drafts: list[list[Row]] = []
    for group, group_runs in zip(groups, runs, strict=True):
        # As they were made: conversations that alternate are several runs.
        made = [_in_order(trajectory, own) for trajectory, own in zip(group.trajectories, group_runs, strict=True)]
        values: Sequence[float | Sequence[float]]
        if advantage is None or not any(made):
            values = _advantages(group.trajectories[0].task_id, group.rewards, group_runs, config)
        else:
            values = advantage(group.rewards, group.trajectories, made)
        for trajectory, own, calls, value in zip(group.trajectories, group_runs, made, values, strict=True):
            by_call = dict(zip(map(id, calls), value if isinstance(value, Sequence) else repeat(value), strict=False))
            cut_off = trajectory.stop_reason in CUT_OFF or any(
                last and run[-1].finish_reason == "length" for run, last in own
            )
            masked = config.mask_cut_off and cut_off
            left_out["trajectory that a limit ended (its reward still counts in its group)"] += masked
            drafts.append(
                [
                    row_of(
                        run,
                        advantage=[by_call[id(call)] if config.credit == "broadcast" or last else 0.0 for call in run],
                        kl_weight=group.draw,
                        trajectory_id=trajectory.id,
                    )
                    for run, last in ([] if masked else own)
                ]
            )
    return drafts


# -- what is trained on ------------------------------------------------------------------------------------------------


def _finished(group: Sequence[Trajectory], left_out: Counter[str]) -> list[Trajectory]:
    finished = []
    for trajectory in group:
        if trajectory.status == "error":
            left_out[f"trajectory error: {trajectory.error.type if trajectory.error else 'unknown'}"] += 1
        elif trajectory.reward is None:
            left_out["trajectory without a reward"] += 1
        else:
            finished.append(trajectory)
    if len(finished) < 2:
        left_out["group with fewer than two finished trajectories"] += len(finished)
    return finished


def _trained_runs(trajectory: Trajectory, role: str, turns: Turns, left_out: Counter[str]) -> _Runs:
    """The calls of `role` that have token ids and reached the agent, as the rows they make."""
    # A refused request, such as a prompt that was too long, sampled nothing.
    sampled = [call for call in trajectory.calls if call.role == role and call.error is None]
    # What the agent never received had no part in its reward; the same tokens, asked again, are in another call.
    calls = [call for call in sampled if call.delivered]
    left_out["call whose reply the agent never received"] += len(sampled) - len(calls)
    trained = []
    for call in calls:
        if not (call.prompt_ids and call.completion_ids and call.logprobs):
            left_out["call without token ids"] += 1
            continue
        if len(call.completion_ids) != len(call.logprobs):
            raise EngineError(
                f"a {role} call of trajectory {trajectory.id} has {len(call.completion_ids)} completion ids "
                f"but {len(call.logprobs)} log-probabilities of engine {call.engine!r}",
                code="token-ids-missing",
                fix="train on an engine whose token_exact is true, such as transformers_local",
            )
        trained.append(call)
    if not trained:
        left_out["trajectory without a row (its reward still counts in its group)"] += 1
    return [(run, run[-1] is calls[-1]) for run in runs_of(trained, turns)]


def _in_order(trajectory: Trajectory, runs: _Runs) -> list[Call]:
    own = {id(call) for run, _ in runs for call in run}
    return [call for call in trajectory.calls if id(call) in own]


def _nothing_to_train_on(usable: Sequence[Sequence[Trajectory]], roles: Sequence[str]) -> UnsupportedError:
    """The engine gives text alone, or the roles made no call."""
    seen = Counter(call.role for group in usable for trajectory in group for call in trajectory.calls)
    wanted = " and ".join(roles)
    if made := sum(seen[role] for role in roles):
        return UnsupportedError(
            f"none of {made} {wanted} calls has token ids and log-probabilities",
            code="token-ids-missing",
            fix=f"give the {wanted} an engine whose token_exact is true (transformers_local, or vLLM with token ids)",
        )
    return UnsupportedError(
        f"no call of role {wanted!r} in {sum(map(len, usable))} trajectories",
        code="unknown-role",
        cause=f"the agent's calls have the roles {', '.join(sorted(seen)) or '(none)'}",
        fix="train one of those roles",
    )


def _reward(trajectory: Trajectory, runs: _Runs, config: TrainingConfig) -> float:
    """The reward to learn from: the recorded one, less what the length of the trajectory's longest row costs."""
    value = trajectory.reward.value if trajectory.reward else float("nan")
    if config.overlong is None:
        return value
    return value + config.overlong.added(max((tokens_after_prompt(run) for run, _ in runs), default=0))


def _apply_weights(
    drafts: Sequence[Sequence[Row]],
    config: TrainingConfig,
    calls: Sequence[Call],
    left_out: Counter[str],
    *,
    share: float,
    kl: float,
) -> tuple[Row, ...]:
    """Multiply in the normalizer, taken over all rows of a role, then drop those not drawn and those of gradient 0."""
    rows = [row for own in drafts for row in own]
    # Ids of trajectories might repeat, places cannot.
    places = [place for place, own in enumerate(drafts) for _ in own]
    lengths = [sum(row.sampled) if row.sampled else len(row.completion_ids) for row in rows]
    horizon = max((call.sampling.max_tokens for call in calls), default=None)
    weights = row_weights(lengths, config.loss.aggregation, places, horizon=horizon)
    drawn = [
        replace(row, weight=share * weight, kl_weight=share * weight * row.kl_weight * kl)
        for row, weight in zip(rows, weights, strict=True)
        if row.kl_weight or row.advantage or row.advantages  # neither: of a uniform group that was not drawn
    ]
    if (config.loss.kl_coefficient and kl) or config.loss.entropy_coefficient or type(config.loss) is not PolicyLoss:
        # What a loss of your own is at advantage 0 is not known.
        return tuple(drawn)
    kept = tuple(row for row in drawn if row.advantage or row.advantages)
    left_out["row whose gradient is 0 (advantage 0, no KL term)"] += len(drawn) - len(kept)
    return kept
