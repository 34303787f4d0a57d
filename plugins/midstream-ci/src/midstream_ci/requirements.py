"""Requirements on an evaluation, such as `success >= 0.8`, decided on its interval.

A requirement holds if the whole interval satisfies it, fails if no part of it does, and is undecided in between: then
more tasks would decide it. So an agent exactly at the threshold passes, and fails, in at most 2.5 % of evaluations
each; several requirements share this error (Bonferroni). Where every task is right or wrong this is exact (Clopper and
Pearson 1934); Wilson's interval, which reports have, errs by up to 4 % on one side and less on the other.

Runs that an infrastructure error ended say nothing about the agent: a requirement holds only if it would with all of
them right and with all of them wrong.

Numbers of turns have no largest value, so that equal ones, which have no spread, have no interval either: they decide
as they are if at least 30 tasks have them. A sum is a lower bound where something was not counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from midstream.components.component import Component, EngineConfig
from midstream.core.errors import UsageError
from midstream.core.metrics import EvaluationResult
from midstream.core.text import counted
from midstream.core.trajectory import Trajectory
from midstream.evaluation.estimates import Interval, exact_interval, majority, mean_interval, t_quantile, value
from midstream.recipe.inputs import run_recipe
from midstream.report.evaluation import evaluated_trajectories
from midstream.runs import RunDirectory

Outcome = Literal["holds", "fails", "undecided"]
EXIT_CODES: dict[Outcome, int] = {"fails": 3, "undecided": 4, "holds": 0}
"""What a command ends with; of several requirements, the first of these that occurs."""
MEANS = ("success", "majority", "turns", "pass@K", "pass^K")
"""Means over tasks, decided on the interval."""
TOTALS = ("errors", "cost_usd", "tokens")
"""Facts of the evaluation itself, decided as they are: the share of runs with an error, and sums over all runs."""
ERROR = 0.05
_MOST_TASKS = 3000
# Other values than one that all of so many tasks have are rare: 88 % of tasks have it, at a confidence of 97.5 %.
_EQUAL_TASKS = 30

_FORM = re.compile(r"(?:([^:<>]+):)?\s*([\w@^]+)\s*([<>]=?)\s*(\d+(?:\.\d+)?)\s*(%?)")
_TRIALS = re.compile(r"pass([@^])([1-9]\d?)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """A metric of one set, or of every set, and the bound that it must keep; shares are from 0 to 1."""

    text: str
    metric: str
    operator: str
    bound: float
    set_name: str | None = None

    @property
    def is_least(self) -> bool:
        """Whether the bound is the least that is allowed, not the most."""
        return self.operator.startswith(">")

    def met_by(self, measured: float) -> bool:
        """Return whether a value keeps the bound."""
        if measured == self.bound:
            return self.operator.endswith("=")
        return (measured > self.bound) == self.is_least


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What became of a requirement on one set: the value, the interval that decided it, and why, in words."""

    requirement: str
    of: str
    outcome: Outcome
    measured: float | None
    interval: Interval | None
    reason: str

    def __str__(self) -> str:
        return f"{self.outcome}: {self.requirement} on {self.of}: {self.reason}"


def exit_code(decisions: Sequence[Decision]) -> int:
    """The exit code of a command: 0 if everything holds, 3 if something fails, else 4."""
    return next(
        code for outcome, code in EXIT_CODES.items() if not code or any(d.outcome == outcome for d in decisions)
    )


def decide_bounds(requirement: Requirement, low: float, high: float) -> Outcome:
    """Decide by an interval: `holds` needs all of it to keep the bound, `fails` none of it."""
    worst, best = (low, high) if requirement.is_least else (high, low)
    return "holds" if requirement.met_by(worst) else "undecided" if requirement.met_by(best) else "fails"


def parse_requirement(text: str) -> Requirement:
    """Read `[SET:] METRIC OPERATOR NUMBER[%]`, e.g. `success >= 0.8`, `hard: pass@4 > 50%`, `cost_usd <= 2`.

    Raises `UsageError`.
    """
    metrics = (*MEANS, *TOTALS)
    found = _FORM.fullmatch(text.strip())
    if found is None or not (found[2] in metrics or _TRIALS.fullmatch(found[2])):
        fix = f"e.g. 'success >= 0.8', 'hard: pass@4 >= 50%', 'cost_usd <= 2'; metrics: {', '.join(metrics)}"
        raise UsageError(f"{text!r} is not a requirement", code="requirement-invalid", fix=fix)
    name, metric, operator, number, percent = found.groups()
    bound = float(number) / (100 if percent else 1)
    if bound > 1 and metric not in ("turns", "cost_usd", "tokens"):
        fix = f"{metric} {operator} {bound:g}%"
        raise UsageError(f"{text!r}: {metric} is at most 1", code="requirement-invalid", fix=fix)
    is_share = metric not in ("turns", *TOTALS)
    if is_share and bound == (1 if operator.startswith(">") else 0):
        raise UsageError(
            f"{text!r} can never hold: however many tasks agree, the interval of {metric} has a width",
            code="requirement-invalid",
            fix=f"name a bound that an interval can keep, e.g. {metric} {'>= 0.95' if bound else '<= 0.05'}",
        )
    set_name = name.strip() if name else None
    return Requirement(text=text.strip(), metric=metric, operator=operator, bound=bound, set_name=set_name)


def require_decidable(requirements: Sequence[Requirement], sets: Sequence[str], trials: int) -> None:
    """Raise `UsageError` for a requirement on another set, or on more trials of a task than there are."""
    for requirement in requirements:
        if not sets or requirement.set_name not in (None, *sets):
            raise UsageError(
                f"{requirement.text!r} is about a set that is not evaluated",
                code="requirement-invalid",
                fix=f"name one of: {', '.join(dict.fromkeys(sets))}" if sets else "evaluate first: midstream eval",
            )
        kind = _TRIALS.fullmatch(requirement.metric)
        if kind is not None and int(kind[2]) > trials:
            raise UsageError(
                f"{requirement.text!r} cannot be decided: each task is tried {counted(trials, 'time')}",
                code="requirement-invalid",
                fix=f"name K, from 1 to {trials}, as in pass@{trials}, or evaluate with more --trials",
            )


def require_priced(requirements: Sequence[Requirement], engines: Mapping[str, Component]) -> None:
    """Raise `UsageError` for a requirement on costs if an engine has no price: what it costs would count as 0."""
    asked = next((requirement for requirement in requirements if requirement.metric == "cost_usd"), None)
    if asked is not None and (names := _unpriced(engines)):
        raise UsageError(
            f"{asked.text!r} cannot be decided: engines.{names[0]} has no price",
            code="requirement-invalid",
            fix=f"set engines.{names[0]}.price_prompt_usd and price_completion_usd (dollars per million tokens; 0 for "
            "a model of your own), or require tokens instead",
        )


def _unpriced(engines: Mapping[str, Component]) -> list[str]:
    return [
        name for name, engine in engines.items() if isinstance(engine.config, EngineConfig) and not engine.config.priced
    ]


def decide(run: RunDirectory, requirements: Sequence[Requirement]) -> list[Decision]:
    """Decide each requirement on each set that it is about, in every sampling of it.

    Raises `UsageError` as `require_decidable`.
    """
    results = list(run.evaluations.read())
    trials = min((result.trials for result in results), default=0)
    require_decidable(requirements, [result.set_name for result in results], trials)
    pairs = [
        (requirement, result)
        for requirement in requirements
        for result in results
        if requirement.set_name in (None, result.set_name)
    ]
    error = ERROR / max(1, sum(requirement.metric not in TOTALS for requirement, _ in pairs))
    needs_prices = any(requirement.metric == "cost_usd" for requirement in requirements)
    # Reading a recipe imports components of your own, which other requirements do not need.
    unpriced = _unpriced(run_recipe(run).engines) if needs_prices else []
    return [
        _decide_total(requirement, result, unpriced)
        if requirement.metric in TOTALS
        else _decide_mean(requirement, result, _by_task(run, result), error)
        for requirement, result in pairs
    ]


def set_label(result: EvaluationResult) -> str:
    """The name of a set and its sampling."""
    return f"{result.set_name} {result.sampling}"


def _decide_total(requirement: Requirement, result: EvaluationResult, unpriced: Sequence[str]) -> Decision:
    tokens = result.prompt_tokens + result.completion_tokens
    measured = {
        "errors": result.errors / max(1, result.tasks * result.trials),
        "cost_usd": result.cost_usd,
        "tokens": float(tokens),
    }[requirement.metric]
    unknown = ""
    if requirement.metric != "errors" and not (tokens or result.cost_usd or result.replies_cached):
        unknown = "no request was counted"
    elif requirement.metric == "cost_usd" and unpriced:
        unknown = f"engines.{unpriced[0]} has no price"
    return Decision(
        requirement=requirement.text,
        of=set_label(result),
        outcome=decide_bounds(requirement, measured, math.inf if unknown else measured),
        measured=measured,
        interval=None,
        reason=f"{measured:,.6g}" + f" or more: {unknown}" * bool(unknown),
    )


def _by_task(run: RunDirectory, result: EvaluationResult) -> list[list[Trajectory]]:
    tasks: dict[str, list[Trajectory]] = {}
    for trajectory in evaluated_trajectories(run, result):
        tasks.setdefault(trajectory.task_id, []).append(trajectory)
    return list(tasks.values())


def _decide_mean(
    requirement: Requirement, result: EvaluationResult, tasks: Sequence[Sequence[Trajectory]], error: float
) -> Decision:
    is_share = requirement.metric != "turns"
    # Lost runs counted as wrong, then as right.
    sides = [[_value(requirement, trials, lost) for trials in tasks] for lost in (0.0, 1.0)]
    intervals = [_interval(side, error) if is_share else _mean_interval(side, error) for side in sides]
    low, high = intervals[0][0], intervals[1][1]
    if not is_share and result.errors:
        # A run that was cut off says nothing of its turns.
        low, high = 0.0, math.inf
    outcome, measured = decide_bounds(requirement, low, high), fmean(sides[0])
    level = f"{100 * (1 - error):.4g}%"
    reason = f"{measured:.3f}, {level} interval {low:.3f} to {high:.3f} of {counted(len(tasks), 'task')}"
    if not is_share and not result.errors and len(set(sides[0])) == 1:
        reason = f"{measured:.3f} in every one of {counted(len(tasks), 'task')}"
        if len(tasks) < _EQUAL_TASKS:
            reason += f": no spread, and so no interval; from {_EQUAL_TASKS} such tasks on the value itself decides"
    elif outcome == "undecided":
        needed = _needed(sides[0], requirement, error) if is_share and not result.errors else ""
        reason += f"; {requirement.bound:g} is within it{needed}"
    else:
        deciding = "lower" if requirement.is_least == (outcome == "holds") else "upper"
        reason += f", decided by its {deciding} bound"
    if result.errors:
        how = "wrong for the lower bound, right for the upper one" if is_share else "of unknown length"
        reason += f"; {counted(result.errors, 'run')} without a result: {how}; midstream resume --retry-errors"
    return Decision(
        requirement=requirement.text,
        of=set_label(result),
        outcome=outcome,
        measured=measured,
        interval=(low, high),
        reason=reason,
    )


def _interval(values: Sequence[float], error: float) -> Interval:
    if set(values) <= {0.0, 1.0}:
        return exact_interval(round(sum(values)), len(values), error)
    return mean_interval(values, error)[0]


def _value(requirement: Requirement, trials: Sequence[Trajectory], lost: float) -> float:
    """A task's value; of runs that ended in an error it is `lost`."""
    if requirement.metric == "turns":
        return fmean(len(trial.turns) for trial in trials)
    if requirement.metric == "majority":
        return lost if any(trial.status != "ok" for trial in trials) else majority(trials)
    values = [value(trial) if trial.status == "ok" else lost for trial in trials]
    if requirement.metric == "success":
        return fmean(values)
    kind = _TRIALS.fullmatch(requirement.metric)
    assert kind is not None, requirement.metric
    most = int(kind[2])
    right, every = sum(each >= 1 for each in values), math.comb(len(values), most)
    if kind[1] == "@":
        return 1 - math.comb(len(values) - right, most) / every
    return math.comb(right, most) / every


def _mean_interval(values: Sequence[float], error: float) -> Interval:
    """Student's interval of a mean that is at least 0; without a spread that of `_EQUAL_TASKS` is their value."""
    if len(set(values)) == 1:
        # Of few tasks, as of one, it is as wide as can be.
        return (values[0], values[0]) if len(values) >= _EQUAL_TASKS else (0.0, math.inf)
    half = t_quantile(len(values) - 1, error) * stdev(values) / math.sqrt(len(values))
    return max(0.0, fmean(values) - half), fmean(values) + half


def _needed(values: Sequence[float], requirement: Requirement, error: float) -> str:
    """In words, how many tasks would decide if this share of them stayed right."""
    if not set(values) <= {0.0, 1.0}:
        return ""
    share, count = fmean(values), len(values)
    while count < _MOST_TASKS:
        count = math.ceil(count * 1.1)
        if decide_bounds(requirement, *exact_interval(round(share * count), count, error)) != "undecided":
            return f"; with this share, about {count:,} tasks would decide"
    return ""
