"""From groups of trajectories to training rows: who is left out, who gets which advantage, and every weight.

The environment of this RL problem is the agent loop with its tools; its actions are the calls of one role (the
planner, or a policy that writes one stream). Calls that continue one another are one row, any other call is one: its
prompt, what follows, the log-probabilities recorded when tokens were drawn.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from midstream.core.errors import EngineError, UnsupportedError
from midstream.core.protocols import Row
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Call, Trajectory
from midstream.training.advantages import Baseline, group_advantages
from midstream.training.losses import DEFAULT_AGGREGATION, Aggregation, row_weights
from midstream.training.sequences import joined, row_of, tokens_after_prompt
from midstream.training.settings import OverlongConfig

AdvantageOver = Literal["trajectories", "turns"]
Credit = Literal["broadcast", "final"]
GroupT = TypeVar("GroupT")
_Runs = list[tuple[list[Call], bool]]  # the calls of each row of a trajectory; whether its last call is among them


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBatch:
    """The rows of one optimizer step, and what became of everything else.

    `groups` counts all groups that came in, `groups_uniform` those with equal rewards, `groups_broken` those with fewer
    than two finished trajectories. `trajectories` is the number that the rows' weights average over. `left_out` maps a
    reason to how many trajectories it left out (calls, where the reason begins with "call").
    """

    rows: tuple[Row, ...] = ()
    groups: int = 0
    groups_uniform: int = 0
    groups_broken: int = 0
    trajectories: int = 0
    left_out: dict[str, int] = field(default_factory=dict)


def build_rows(
    groups: Sequence[Sequence[Trajectory]],
    *,
    role: str = "planner",
    aggregation: Aggregation = DEFAULT_AGGREGATION,
    horizon: int | None = None,
    advantage_over: AdvantageOver = "trajectories",
    credit: Credit = "broadcast",
    baseline: Baseline = "group_mean",
    normalize_by_std: bool = True,
    epsilon: float = 1e-6,
    overlong: OverlongConfig | None = None,
    mask_cut_off: bool = False,
    uniform_kl_fraction: float = 1.0,
    seed: int = 0,
) -> RowBatch:
    """Turn groups into rows whose weights make the summed token loss the aggregate over the batch.

    A trajectory is finished if its status is ok and it has a reward; only finished ones enter their group's statistics.
    A group with fewer than two of them has nothing to compare and is left out whole. Averages over trajectories divide
    by the finished trajectories of the remaining groups that have at least one row: what failed is not counted, because
    an infrastructure error must not shrink the others' gradient; T is the trajectory's number of rows. A uniform group
    has advantage 0 and counts in every average; with `uniform_kl_fraction` below 1 it is kept by a draw with that
    probability and its KL weight divided by it, so that the expected loss stays the same. Averages are taken before the
    draw.

    Args:
        groups: _P groups of the trajectories of one task under one policy.
        role: the module that is trained.
        aggregation: see `losses.row_weights`; tokens are the sampled ones.
        horizon: of seq-mean-token-sum-norm; None takes the largest `max_tokens` the calls were sampled with.
        advantage_over: statistics over a group's trajectories (the paper) or over its rows, which lets long
            trajectories weigh more (the released code).
        credit: give the advantage to every row of a trajectory (the paper) or to that of its last call alone.
        baseline: see `group_advantages`.
        normalize_by_std: see `group_advantages`.
        epsilon: see `group_advantages`.
        overlong: added to each reward, by the length of the trajectory's longest row.
        mask_cut_off: leave out the rows of trajectories that met their limit of tokens; no average counts them.
        uniform_kl_fraction: share of uniform groups whose KL term is computed, in [0, 1].
        seed: of the draw; the same group gets the same draw in any split into mini-batches.

    Raises:
        UnsupportedError: no call of `role` in the usable groups has token ids and log-probabilities.
        EngineError: a call has token ids and log-probabilities of different numbers.
        TrainingError: a reward is not finite.
        ValueError: `uniform_kl_fraction` is outside [0, 1].
    """
    if not 0 <= uniform_kl_fraction <= 1:
        raise ValueError(f"uniform_kl_fraction must lie in [0, 1], got {uniform_kl_fraction}")
    left_out: Counter[str] = Counter()
    usable = [finished for group in groups if len(finished := _finished(group, left_out)) > 1]
    runs = [[_trained_runs(one, role, left_out) for one in group] for group in usable]
    _check_some_ids(usable, runs, role)

    drafts: list[list[Row]] = []  # one list a trajectory
    uniform = 0
    for group, group_runs in zip(usable, runs, strict=True):
        rewards = [_reward(one, own, overlong) for one, own in zip(group, group_runs, strict=True)]
        draw = 1.0
        if len(set(rewards)) == 1:
            uniform += 1
            draw = _draw(group, uniform_kl_fraction, seed)
            left_out["uniform group whose KL term was not drawn"] += 0 if draw else len(group)
        copies = [1] * len(group) if advantage_over == "trajectories" else [len(own) for own in group_runs]
        settings = {"baseline": baseline, "normalize_by_std": normalize_by_std, "epsilon": epsilon}
        advantages = _advantages(rewards, copies, group[0].task_id, settings)
        for one, own, advantage in zip(group, group_runs, advantages, strict=True):
            masked = mask_cut_off and _cut_off(one, own)
            left_out["trajectory that met its limit of tokens (its reward still counts in its group)"] += masked
            drafts.append([] if masked else _rows_of(one, own, advantage, draw, credit))

    calls = [call for group_runs in runs for own in group_runs for run, _ in own for call in run]
    horizon = horizon or max((call.sampling.max_tokens for call in calls), default=None)
    return RowBatch(
        rows=_weighted(drafts, aggregation, horizon),
        groups=len(groups),
        groups_uniform=uniform,
        groups_broken=len(groups) - len(usable),
        trajectories=sum(map(bool, drafts)),
        left_out={reason: count for reason, count in sorted(left_out.items()) if count},
    )


def split_minibatches(groups: Sequence[GroupT], count: int, seed: int) -> list[list[GroupT]]:
    """Deal groups, in a shuffled order, into `count` mini-batches whose sizes differ by at most one; none is dropped.

    Groups stay whole, so their advantages do not depend on the split; `build_rows` on each mini-batch gives weights
    that average over that mini-batch's own trajectories.

    Raises:
        ValueError: `count` is below 1 or above the number of groups.
    """
    if not 1 <= count <= len(groups):
        raise ValueError(f"cannot split {len(groups)} groups into {count} mini-batches: count must lie between the two")
    shuffled = list(groups)
    random.Random(derive_seed(seed, "minibatches")).shuffle(shuffled)
    return [shuffled[start::count] for start in range(count)]


def _finished(group: Sequence[Trajectory], left_out: Counter[str]) -> list[Trajectory]:
    finished = []
    for one in group:
        if one.status == "error":
            left_out[f"trajectory error: {one.error.type if one.error else 'unknown'}"] += 1
        elif one.reward is None:
            left_out["trajectory without a reward"] += 1
        else:
            finished.append(one)
    if len(finished) < 2:
        left_out["group with fewer than two finished trajectories"] += len(finished)
    return finished


def _trained_runs(trajectory: Trajectory, role: str, left_out: Counter[str]) -> _Runs:
    """The calls of `role` that have token ids, as the rows they make."""
    spoken = [call for call in trajectory.calls if call.role == role]
    trained = []
    for call in spoken:
        if not (call.prompt_ids and call.completion_ids and call.logprobs):
            left_out["call without token ids"] += 1
            continue
        if len(call.completion_ids) != len(call.logprobs):
            raise EngineError(
                f"a {role} call of trajectory {trajectory.id} has {len(call.completion_ids)} completion ids "
                f"but {len(call.logprobs)} log-probabilities",
                cause=f"the engine {call.engine!r} did not record them together at sampling",
                fix="train on an engine whose token_exact is true, such as transformers_local",
            )
        trained.append(call)
    if not trained:
        left_out["trajectory without a row (its reward still counts in its group)"] += 1
    return [(run, run[-1] is spoken[-1]) for run in joined(trained)]


def _check_some_ids(usable: Sequence[Sequence[Trajectory]], runs: Sequence[Sequence[_Runs]], role: str) -> None:
    """Refuse to train on an engine that gives text alone, or on a role that never spoke."""
    if not usable or any(own for group in runs for own in group):
        return
    seen = Counter(call.role for group in usable for one in group for call in one.calls)
    if role in seen:
        raise UnsupportedError(
            f"none of {seen[role]} {role} calls has token ids and log-probabilities",
            cause="the engine returns text only; what was not recorded at sampling cannot be trained on",
            fix=f"give the {role} an engine whose token_exact is true (transformers_local, or vLLM with token ids)",
        )
    raise UnsupportedError(
        f"no call of role {role!r} in {sum(map(len, usable))} trajectories",
        cause=f"the agent's calls have the roles {', '.join(sorted(seen)) or '(none)'}",
        fix="train one of those roles",
    )


def _reward(trajectory: Trajectory, runs: _Runs, overlong: OverlongConfig | None) -> float:
    """The reward that is learnt from: the recorded one, less what the trajectory's length costs."""
    value = trajectory.reward.value if trajectory.reward else float("nan")
    if overlong is None:
        return value
    return value + overlong.added(max((tokens_after_prompt(run) for run, _ in runs), default=0))


def _cut_off(trajectory: Trajectory, runs: _Runs) -> bool:
    """Whether the stream, or the last reply of it, met its limit of tokens."""
    last = [run[-1].finish_reason for run, is_last in runs if is_last]
    return trajectory.stop_reason == "token_limit" or last == ["length"]


def _draw(group: Sequence[Trajectory], fraction: float, seed: int) -> float:
    """1/fraction if the uniform group is kept, else 0. Depends on the group and the seed alone."""
    draw = random.Random(derive_seed(seed, "uniform_kl", *(one.id for one in group))).random()
    return 1 / fraction if draw < fraction else 0.0


def _advantages(rewards: Sequence[float], copies: Sequence[int], group: str, settings: dict[str, Any]) -> list[float]:
    """One advantage per trajectory of the group; each reward counts as often as `copies` says."""
    counted = [reward for reward, times in zip(rewards, copies, strict=True) for _ in range(times)]
    values = iter(group_advantages(counted, [group] * len(counted), **settings).tolist())
    return [([next(values) for _ in range(times)] or [0.0])[0] for times in copies]


def _rows_of(trajectory: Trajectory, runs: _Runs, advantage: float, draw: float, credit: Credit) -> list[Row]:
    """The rows of one trajectory with weight 1; `kl_weight` holds the draw until the normaliser is known."""
    return [
        row_of(
            run,
            advantage=advantage if credit == "broadcast" or last else 0.0,
            kl_weight=draw,
            trajectory_id=trajectory.id,
        )
        for run, last in runs
    ]


def _weighted(drafts: Sequence[Sequence[Row]], aggregation: Aggregation, horizon: int | None) -> tuple[Row, ...]:
    """Multiply in the normaliser, taken over all rows, then let go of those that were not drawn."""
    rows = [row for own in drafts for row in own]
    places = [place for place, own in enumerate(drafts) for _ in own]  # ids of trajectories might repeat, places cannot
    lengths = [sum(row.sampled) if row.sampled else len(row.completion_ids) for row in rows]
    weights = row_weights(lengths, aggregation, places, horizon=horizon)
    return tuple(
        replace(row, weight=weight, kl_weight=weight * row.kl_weight)
        for row, weight in zip(rows, weights, strict=True)
        if row.kl_weight
    )
