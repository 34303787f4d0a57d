"""Two groups of runs, such as the seeds of two recipes: how far their mean success differs, over runs.

The interval is over runs, on the tasks that they were evaluated on; `evaluation/pairs.py` compares two runs over tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from midstream.core.data import Frozen
from midstream.core.errors import UsageError
from midstream.core.metrics import EvaluationResult
from midstream.evaluation.estimates import Interval, t_quantile
from midstream.evaluation.pairs import Verdict, check_rewards

PAIRED = "Student's t over differences paired by seed"
UNPAIRED = "Welch's t over runs, not paired: the groups have other seeds"
ONE_RUN = "no interval over runs: a group has one"
NO_SPREAD = "no interval over runs: their differences have no spread"


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One run of a group: its seed, its result, the questions and gold answers that it was evaluated on."""

    name: str
    seed: int
    result: EvaluationResult
    tasks: frozenset[tuple[str, str | None]]


class GroupDifference(Frozen):
    """`other` against `first`: `difference` of their mean success, and its interval of confidence `level` over runs.

    Values are one a run, in the order of the seeds. `method` says how the interval is made, or why it is missing.
    """

    first: str
    other: str
    set_name: str
    sampling: str
    metric: str
    first_seeds: tuple[int, ...]
    other_seeds: tuple[int, ...]
    first_values: tuple[float, ...]
    other_values: tuple[float, ...]
    difference: float
    interval: Interval | None
    level: float
    method: str
    verdict: Verdict | None


def compare_groups(
    first: tuple[str, Sequence[Member]], other: tuple[str, Sequence[Member]], *, comparisons: int = 1
) -> GroupDifference:
    """Compare the members of two groups on one set and sampling.

    Runs are paired if both groups have the same seeds, each once; then what a seed decides (tasks, draws, first
    weights) cancels out. With several `comparisons` each gets the level 1 - 0.05 / `comparisons` (Bonferroni).

    Raises:
        UsageError: the members were scored by different rewards, or evaluated on different tasks.
    """
    (first_name, ours), (other_name, theirs) = first, other
    head = ours[0]
    check_rewards([(member.name, member.result) for member in (*ours, *theirs)])
    for member in (*ours, *theirs):
        if member.tasks != head.tasks:
            raise UsageError(
                f"{member.name} has {len(member.tasks):,} tasks of {head.result.set_name!r}, {head.name} "
                f"{len(head.tasks):,}; {len(head.tasks & member.tasks):,} are in both",
                code="not-comparable",
                cause="means over other tasks are two quantities; a set's seed, count or file differs",
                fix="evaluate all on the same set, or compare two runs on what they share: midstream compare RUN RUN",
            )
    ours, theirs = (sorted(group, key=lambda member: member.seed) for group in (ours, theirs))
    seeds = [tuple(member.seed for member in group) for group in (ours, theirs)]
    values = [tuple(member.result.success for member in group) for group in (ours, theirs)]
    error = 0.05 / comparisons
    if seeds[0] == seeds[1] and len(set(seeds[0])) == len(seeds[0]):
        differences = [after - before for before, after in zip(*values, strict=True)]
        half, method = _half_width([differences], error), PAIRED
    else:
        half, method = _half_width(values, error), UNPAIRED
    apart = fmean(values[1]) - fmean(values[0])
    interval = verdict = None
    if min(map(len, values)) < 2:
        method = ONE_RUN
    elif not half:
        method = NO_SPREAD
    else:
        interval = apart - half, apart + half
        verdict = "better" if interval[0] > 0 else "worse" if interval[1] < 0 else "no evidence of a difference"
    return GroupDifference(
        first=first_name,
        other=other_name,
        set_name=head.result.set_name,
        sampling=head.result.sampling,
        metric=head.result.metric,
        first_seeds=seeds[0],
        other_seeds=seeds[1],
        first_values=values[0],
        other_values=values[1],
        difference=apart,
        interval=interval,
        level=1 - error,
        method=method,
        verdict=verdict,
    )


def _half_width(samples: Sequence[Sequence[float]], error: float) -> float:
    """Half the width of the t interval of a mean, or of the difference of two (Welch); 0 without a spread."""
    squares = [variance(sample) / len(sample) if len(sample) > 1 else 0.0 for sample in samples]
    if not (total := sum(squares)) > 1e-18:  # rounding alone
        return 0.0
    # Welch and Satterthwaite's degrees of freedom; of one sample those of Student's t.
    freedom = total**2 / sum(
        square**2 / (len(sample) - 1) for square, sample in zip(squares, samples, strict=True) if square
    )
    return t_quantile(freedom, error) * math.sqrt(total)
