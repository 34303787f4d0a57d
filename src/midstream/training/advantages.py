"""Group-relative advantages: how much better than its group a trajectory did (arXiv 2510.05592, eq. 7)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import torch

from midstream.core.errors import TrainingError

Baseline = Literal["group_mean", "leave_one_out"]


def group_advantages(
    rewards: Sequence[float] | torch.Tensor,
    group_ids: Sequence[Hashable] | torch.Tensor,
    *,
    baseline: Baseline = "group_mean",
    normalize_by_std: bool = True,
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """A_i = (R_i - baseline) / (std(R) + epsilon) within each group; std has ddof=1.

    Members of a group may stand anywhere in the sequence. A uniform group gets exactly 0, and so does a group of one,
    which has nothing to compare with (verl returns the raw reward there).

    Args:
        rewards: _N rewards; a 1-D floating tensor keeps its dtype and device.
        group_ids: _N group names, one per reward.
        baseline: mean(R) of the group (GRPO), or of the others alone (RLOO, arXiv 2402.14740), which does not depend
            on R_i: G / (G - 1) times the first's difference.
        normalize_by_std: divide by the standard deviation (GRPO); without it (Dr. GRPO, RLOO) only the baseline is
            taken off.
        epsilon: added to the standard deviation.

    Returns:
        1-D tensor [_N], float64 unless `rewards` is a floating tensor.

    Raises:
        ValueError: the two sequences differ in length.
        TrainingError: a reward is NaN or infinite.
    """
    floating = isinstance(rewards, torch.Tensor) and rewards.is_floating_point()
    values = torch.as_tensor(rewards, dtype=None if floating else torch.float64)
    names = group_ids.tolist() if isinstance(group_ids, torch.Tensor) else list(group_ids)
    if values.ndim != 1 or len(names) != len(values):
        raise ValueError(f"rewards of shape {tuple(values.shape)} need as many group ids, got {len(names)}")
    _check_finite(values, names)

    members: dict[Hashable, list[int]] = {}
    for place, name in enumerate(names):
        members.setdefault(name, []).append(place)
    advantages = torch.zeros_like(values)
    for places in members.values():
        group = values[places]
        if bool((group == group[0]).all()):
            continue  # also a group of one; the mean of equal floats may be off by an ulp, so 0 is set, not computed
        centred = group - group.mean()
        if baseline == "leave_one_out":
            centred *= len(group) / (len(group) - 1)
        advantages[places] = centred / (group.std() + epsilon) if normalize_by_std else centred
    return advantages


def _check_finite(values: torch.Tensor, names: Sequence[Hashable]) -> None:
    broken = torch.nonzero(~torch.isfinite(values)).flatten().tolist()
    if broken:
        place = broken[0]
        raise TrainingError(
            f"reward {values[place].item()} at place {place} in group {names[place]!r} is not finite",
            cause="the reward function divided by zero or passed on a broken score",
            fix="make the reward return a number in [0, 1], or raise RewardError where it cannot judge",
        )
