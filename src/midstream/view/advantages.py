"""The advantages of a group as training computed them, from its rewards and the recipe's settings, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from midstream.runs.segments import Entry

_EPSILON = 1e-6  # as in `training.rows.group_advantages`


def advantages(group: Sequence[Entry], training: Mapping[str, Any]) -> tuple[list[float | None], str]:
    """The advantage of each trajectory, and why the group was not trained on, "" if it was.

    A_i = (R_i - baseline) / (std(R) + epsilon), std with ddof=1 (arXiv 2510.05592, eq. 7), over the trajectories that
    ended with a reward; without `normalize_by_std` only the baseline is subtracted. None where the recipe has an
    advantage of its own, counts a reward once for each row, penalizes length or shuffles rewards: what was computed
    then depends on more than the rewards.
    """
    finished = [place for place, entry in enumerate(group) if entry.status == "ok" and entry.score is not None]
    rewards = [entry.score for entry in group if entry.status == "ok" and entry.score is not None]
    found: list[float | None] = [None] * len(group)
    if len(finished) < 2:
        return found, "fewer than two rollouts have a reward, and there is nothing to compare"
    if (
        training.get("advantage") is not None
        or training.get("overlong") is not None
        or training.get("shuffle_rewards")
        or training.get("advantage_over", "trajectories") != "trajectories"
        or not all(map(math.isfinite, rewards))
    ):
        return found, ""
    if len(set(rewards)) < 2:
        for place in finished:
            found[place] = 0.0
        return found, "all rewards are equal: every advantage is 0"
    mean, std = fmean(rewards), stdev(rewards)
    scale = len(rewards) / (len(rewards) - 1) if training.get("baseline") == "leave_one_out" else 1.0
    for place, reward in zip(finished, rewards, strict=True):
        centered = (reward - mean) * scale
        found[place] = centered / (std + _EPSILON) if training.get("normalize_by_std", True) else centered
    return found, ""
