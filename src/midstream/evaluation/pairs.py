"""Two evaluations of the same tasks, task by task, or two groups of runs: which is better, by how much, how surely.

A task's value is the mean over its trials with a result. A task without any result on a side (infrastructure errors)
is left out and counted: it says nothing about the agents. Two runs have an interval over tasks; two groups, such as the
seeds of two recipes, have one over runs, on the tasks that they were evaluated on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from statistics import fmean, variance
from typing import Literal

from midstream.core.data import Frozen
from midstream.core.errors import UsageError
from midstream.core.metrics import EvaluationResult, tools_of
from midstream.core.trajectory import Trajectory, without_clocks
from midstream.evaluation.estimates import Interval, bootstrap, t_interval, t_quantile, value

Verdict = Literal["better", "worse", "no evidence of a difference", "the same"]
# Means of trials carry rounding errors.
_EQUAL = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """One evaluation: its name, its numbers and its trajectories, which may be iterated twice."""

    name: str
    result: EvaluationResult
    trajectories: Iterable[Trajectory]


class Side(Frozen):
    """One side of a task: its mean over trials, and each trial's answer (None: none, or no result)."""

    value: float
    answers: tuple[str | None, ...]


class Pair(Frozen):
    """One task on both sides."""

    task_id: str
    question: str
    gold: str | None
    first: Side
    other: Side

    @property
    def difference(self) -> float:
        """The value of `other` less that of `first`; 0 if only rounding differs."""
        apart = self.other.value - self.first.value
        return apart if abs(apart) > _EQUAL else 0.0


class ToolShift(Frozen):
    """The share of turns that one tool has on each side, and the 95 % interval of how much more `other` has."""

    first: float
    other: float
    interval: Interval


class Preference(Frozen):
    """What a person, shown both answers without names, chose on the `asked` tasks whose answers differ.

    The answer of `other` was `preferred` on some of the `decided` tasks, neither on `equal` ones; `interval` is exact.
    """

    preferred: int
    decided: int
    equal: int
    asked: int
    interval: Interval


class Paired(Frozen):
    """`other` against `first` on the tasks that both have a result of.

    `difference` is the mean over tasks of how much more `other` has, `interval` its interval of confidence `level`;
    `verdict` says how `other` is, "the same" where every trajectory is equal but for its clocks. `wins` counts the
    tasks on which `other` is better. `left_out` tasks lack a result on a side, `only_first` and `only_other` are in one
    evaluation alone; `runs_left_out` counts the trials without a result, of either side, of tasks that are compared.
    `tools` are the shares of turns by tool, as in `ToolUse`, on the tasks that are compared. `differing` are the tasks
    that are no tie. `preference` is what people chose in the viewer.
    """

    first: str
    other: str
    set_name: str
    sampling: str
    metric: str
    tasks: int
    first_success: float
    other_success: float
    difference: float
    interval: Interval
    level: float
    verdict: Verdict
    wins: int
    losses: int
    ties: int
    left_out: int
    only_first: int
    only_other: int
    runs_left_out: int = 0
    tools: dict[str, ToolShift] = {}
    differing: tuple[Pair, ...] = ()
    preference: Preference | None = None


def compare(first: Evaluated, other: Evaluated, *, comparisons: int = 1) -> Paired:
    """Compare two evaluations task by task.

    With several `comparisons` against the same first each gets the level 1 - 0.05 / `comparisons` (Bonferroni), so that
    all of their intervals hold the truth together in 95 %. Raises `UsageError` if the evaluations were scored by
    different rewards, share no task, or have other questions or answers under one id, or if no shared task has a result
    on both sides.
    """
    check_rewards([(side.name, side.result) for side in (first, other)])
    ours, theirs = _by_task(first), _by_task(other)
    shared = [task for task in ours if task in theirs]
    if not shared:
        what = f"{first.name} and {other.name} have no task of {first.result.set_name!r} in common"
        raise UsageError(what, code="not-comparable", fix="evaluate both on the same set with the same seed")
    pairs = []
    for task in shared:
        one, two = ours[task], theirs[task]
        for what, mine, yours in (("question", one.question, two.question), ("gold answer", one.gold, two.gold)):
            if mine != yours:
                raise UsageError(
                    f"task {task!r} has the {what} {mine!r:.80} in {first.name}, {yours!r:.80} in {other.name}",
                    code="inputs-changed",
                    cause="the set was changed between the two evaluations, or ids are used twice",
                    fix="evaluate both on the same set",
                )
        sides = one.side(), two.side()
        if sides[0] is not None and sides[1] is not None:
            pairs.append(Pair(task_id=task, question=one.question, gold=one.gold, first=sides[0], other=sides[1]))
    if not pairs:
        what = f"no task of {first.result.set_name!r} has a result in both {first.name} and {other.name}"
        raise UsageError(what, code="no-results", fix="run those again: midstream resume DIR --retry-errors")
    differences, level = [pair.difference for pair in pairs], 1 - 0.05 / comparisons
    # Equal answers alone do not make two agents the same: every turn has to be equal.
    same = all(ours[task] == theirs[task] for task in shared)
    same = same and _digests(first, set(shared)) == _digests(other, set(shared))
    low, high = interval = (0.0, 0.0) if same else difference_interval(differences, 1 - level)
    verdict: Verdict = "better" if low > _EQUAL else "worse" if high < -_EQUAL else "no evidence of a difference"
    compared = [trial for pair in pairs for side in (ours, theirs) for trial in side[pair.task_id].trials]
    return Paired(
        first=first.name,
        other=other.name,
        set_name=first.result.set_name,
        sampling=first.result.sampling,
        metric=first.result.metric,
        tasks=len(pairs),
        first_success=fmean(pair.first.value for pair in pairs),
        other_success=fmean(pair.other.value for pair in pairs),
        difference=fmean(differences),
        interval=interval,
        level=level,
        verdict="the same" if same else verdict,
        wins=sum(difference > 0 for difference in differences),
        losses=sum(difference < 0 for difference in differences),
        ties=sum(difference == 0 for difference in differences),
        left_out=len(shared) - len(pairs),
        only_first=len(ours) - len(shared),
        only_other=len(theirs) - len(shared),
        runs_left_out=sum(score is None for score, _ in compared),
        tools=tool_shifts(*([side[pair.task_id].tools for pair in pairs] for side in (ours, theirs))),
        differing=tuple(pair for pair in pairs if pair.difference),
    )


def check_rewards(results: Sequence[tuple[str, EvaluationResult]]) -> None:
    """Raise `UsageError` if results of one set, each with its run's name, were scored by different rewards."""
    (first, head), *others = results
    for other, result in others:
        if (result.metric, result.judged) != (head.metric, head.judged):
            ours, theirs = (each.metric + ", a model," * each.judged for each in (head, result))
            what = f"{head.set_name!r} was scored by {ours} in {first} and by {theirs} in {other}"
            raise UsageError(what, code="not-comparable", fix="evaluate both with the same reward")


def difference_interval(differences: Sequence[float], error: float = 0.05) -> Interval:
    """The paired bootstrap's interval of a mean difference: tasks are resampled, each with its difference.

    Two made-up pairs are resampled with them, one won and one lost by the size (root mean square) that the differences
    have which are not 0; by 1 if all are 0. Without them few differing tasks would look surer than they are (five won,
    none lost: [0.01, 0.09] of 100 tasks, though a coin falls so once in 16). On 0/1 values they are those of Bonett and
    Price (2012); they move the interval towards 0 by two tasks' share.
    """
    apart = [difference**2 for difference in differences if difference]
    size = math.sqrt(fmean(apart)) if apart else 1.0
    return bootstrap([*differences, size, -size], error)


def tool_shifts(first: Sequence[Counter[str]], other: Sequence[Counter[str]]) -> dict[str, ToolShift]:
    """Return how each tool's share of all turns differs; both have, task by task, the number of turns by tool.

    A share is a ratio of two sums over tasks. Its interval is that of a mean, of what each task adds to the difference
    if the sums are known (the delta method), so that a task with many turns counts as one task.
    """
    sides = []  # of each: shares, turns of each task, and their mean
    for tasks in (first, other):
        turns = [task.total() for task in tasks]
        total = sum(tasks, Counter[str]())
        sides.append((tasks, {name: count / sum(turns) for name, count in total.items()}, turns, fmean(turns)))
    shifts = {}
    for name in sorted({name for _, shares, _, _ in sides for name in shares}):
        (before, after), added = [shares.get(name, 0.0) for _, shares, _, _ in sides], []
        for (tasks, _, turns, mean), share in zip(sides, (before, after), strict=True):
            added.append([(task[name] - share * n) / (mean or 1) for task, n in zip(tasks, turns, strict=True)])
        difference = [after - before + more - less for less, more in zip(*added, strict=True)]
        shifts[name] = ToolShift(first=before, other=after, interval=t_interval(difference))
    return shifts


@dataclass(frozen=True, slots=True)
class _Task:
    """Parts of a task's trials that are compared: values and answers, None and None without a result, and tools."""

    question: str
    gold: str | None
    trials: list[tuple[float | None, str | None]] = field(default_factory=list)
    tools: Counter[str] = field(default_factory=Counter)  # turns by tool, of the trials with a result

    def side(self) -> Side | None:
        finished = [score for score, _ in self.trials if score is not None]
        answers = tuple(answer for _, answer in self.trials)
        return Side(value=fmean(finished), answers=answers) if finished else None


def _by_task(evaluated: Evaluated) -> dict[str, _Task]:
    tasks: dict[str, _Task] = {}
    for trial in evaluated.trajectories:
        task = tasks.setdefault(trial.task_id, _Task(trial.question, trial.gold))
        task.trials.append((value(trial), trial.answer) if trial.status == "ok" else (None, None))
        if trial.status == "ok":
            task.tools.update(tools_of(trial))
    return tasks


def _digests(evaluated: Evaluated, tasks: Collection[str]) -> dict[str, bytes]:
    """A digest of all trials of each task, without their clocks."""
    digests: dict[str, bytes] = {}
    for trial in evaluated.trajectories:
        if trial.task_id in tasks:
            text = without_clocks(trial).model_dump_json().encode("utf-8", "surrogatepass")
            digests[trial.task_id] = blake2b(digests.get(trial.task_id, b"") + text, digest_size=16).digest()
    return digests


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
        half, method = half_width([differences], error), PAIRED
    else:
        half, method = half_width(values, error), UNPAIRED
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


def half_width(samples: Sequence[Sequence[float]], error: float) -> float:
    """Half the width of the t interval of a mean, or of the difference of two (Welch); 0 without a spread."""
    squares = [variance(sample) / len(sample) if len(sample) > 1 else 0.0 for sample in samples]
    # What is left is rounding alone.
    if not (total := sum(squares)) > 1e-18:
        return 0.0
    # Welch and Satterthwaite's degrees of freedom; of one sample those of Student's t.
    freedom = total**2 / sum(
        square**2 / (len(sample) - 1) for square, sample in zip(squares, samples, strict=True) if square
    )
    return t_quantile(freedom, error) * math.sqrt(total)
