"""Requirements on a comparison: `no-regression`, `better`, and `difference >= -0.05`.

Each is decided on the interval of the difference, set by set: the one that `midstream compare` prints, or a wider one
where several decisions share the error (Bonferroni):

    no-regression         fails where all of the interval is below 0; else it holds, and names the loss not ruled out
    better                holds where all of it is above 0; else it is undecided, or fails where all of it is below 0
    difference >= -0.05   holds where all of it keeps the bound (at most 5 points worse), fails where none of it does

Runs that an infrastructure error ended say nothing about the agents, so each is decided with all of them against the
later agent and with all of them for it: where the two differ, it is undecided. So it is on a set of the first that the
later one lacks, unless it names another: `hard: no-regression`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from midstream.core.errors import UsageError
from midstream.core.metrics import EvaluationResult
from midstream.core.text import counted
from midstream.core.trajectory import Trajectory
from midstream.evaluation.estimates import Interval, value
from midstream.evaluation.pairs import PAIRED, GroupDifference, Paired, difference_interval, half_width
from midstream.report.comparison import ComparedRun, Comparison, GroupComparison
from midstream.report.evaluation import evaluated_trajectories
from midstream_ci.requirements import ERROR, Decision, Outcome, Requirement, decide_bounds

NO_REGRESSION, BETTER = "no-regression", "better"
_FORM = re.compile(
    rf"(?:([^:<>]+):)?\s*(?:({NO_REGRESSION}|{BETTER})|difference\s*([<>]=?)\s*([+-]?\d+(?:\.\d+)?)\s*(%?))"
)
Compared = Comparison | GroupComparison


def parse_comparison(text: str) -> Requirement:
    """Read `[SET:] no-regression`, `better` or `difference >= NUMBER[%]`. Raises `UsageError`."""
    words = text.strip()
    found = _FORM.fullmatch(words)
    name, metric, operator, number, percent = found.groups() if found else ("", "", "", "", "")
    bound = float(number or 0) / (100 if percent else 1)
    if found is None or not -1 <= bound <= 1:
        raise UsageError(
            f"{text!r} is not a requirement on a comparison",
            code="requirement-invalid",
            fix=f"{NO_REGRESSION}, {BETTER}, or e.g. 'difference >= -5%', 'hard: {NO_REGRESSION}'",
        )
    return Requirement(
        text=words,
        metric=metric or "difference",
        operator=operator or ">",
        bound=bound,
        set_name=name.strip() if name else None,
    )


def decide_comparison(comparison: Compared, requirements: Sequence[Requirement]) -> list[Decision]:
    """Decide each requirement on each difference that it is about.

    Raises `UsageError` if nothing is compared, or for a requirement on a set that is not there.
    """
    if not comparison.found:
        raise UsageError(
            "a requirement cannot be decided: the runs share no set that can be compared",
            code="not-comparable",
            fix="midstream compare without --require says why",
        )
    absent = list(_absent(comparison))
    sets = dict.fromkeys([*(pair.set_name for pair in comparison.found), *(name for name, _ in absent)])
    for requirement in requirements:
        if requirement.set_name not in (None, *sets):
            raise UsageError(
                f"{requirement.text!r} is about a set that is not compared",
                code="requirement-invalid",
                fix=f"name one of: {', '.join(sets)}",
            )
    chosen = [
        (requirement, pair)
        for requirement in requirements
        for pair in comparison.found
        if requirement.set_name in (None, pair.set_name)
    ]
    # An interval of a pair never becomes narrower than the one that is printed.
    error = ERROR / max(1, len(chosen))
    decided = [_decide(requirement, comparison, pair, min(error, 1 - pair.level)) for requirement, pair in chosen]
    return decided + [
        Decision(
            requirement=requirement.text,
            of=of,
            outcome="undecided",
            measured=None,
            interval=None,
            reason="it cannot be compared: midstream compare says why; name a set to decide on that alone",
        )
        for requirement in requirements
        for name, of in absent
        if requirement.set_name in (None, name)
    ]


def without_result(comparison: Compared, pair: Paired | GroupDifference) -> str:
    """What infrastructure errors left without a result, in words; "" for nothing."""
    if isinstance(pair, Paired):
        lost = [(pair.left_out, "task"), (pair.runs_left_out, "run" if not pair.left_out else "other run")]
    else:
        results = [result for name in (pair.first, pair.other) for result in _of(comparison, name, pair)]
        lost = [(sum(result.errors for result in results), "run")]
    return " and ".join(counted(count, noun) for count, noun in lost if count)


def _runs(comparison: Compared, name: str) -> Sequence[ComparedRun]:
    """The runs that a pair calls by this name."""
    if isinstance(comparison, GroupComparison):
        return comparison.groups.get(name, ())
    return [run for run in comparison.runs if run.name == name]


def _of(comparison: Compared, name: str, pair: Paired | GroupDifference) -> list[EvaluationResult]:
    return [run.results[pair.set_name, pair.sampling] for run in _runs(comparison, name)]


def _absent(comparison: Compared) -> Iterator[tuple[str, str]]:
    """(set, what a decision is on) of what the first has, and a later one has not, or not so that it compares."""
    names = (
        list(comparison.groups) if isinstance(comparison, GroupComparison) else [run.name for run in comparison.runs]
    )
    found = {(pair.other, pair.set_name, pair.sampling) for pair in comparison.found}
    keys = dict.fromkeys(key for name in names[:1] for run in _runs(comparison, name) for key in run.results)
    for other in names[1:]:
        for set_name, sampling in keys:
            if (other, set_name, sampling) not in found:
                yield set_name, f"{other} against {names[0]}, {set_name} {sampling}"


def _trials(comparison: Compared, name: str, pair: Paired | GroupDifference) -> Iterator[Trajectory]:
    for run in _runs(comparison, name):
        yield from evaluated_trajectories(run.run, run.results[pair.set_name, pair.sampling])


def _values(comparison: Compared, name: str, pair: Paired) -> dict[str, tuple[float, float] | None]:
    """Each task's mean over its trials, those without a result counted as wrong, and as right; None if all are."""
    tasks: dict[str, list[Trajectory]] = {}
    for trial in _trials(comparison, name, pair):
        tasks.setdefault(trial.task_id, []).append(trial)

    def mean(trials: Sequence[Trajectory], lost: float) -> float:
        return fmean(value(trial) if trial.status == "ok" else lost for trial in trials)

    return {
        task: (mean(trials, 0.0), mean(trials, 1.0)) if any(trial.status == "ok" for trial in trials) else None
        for task, trials in tasks.items()
    }


def _are_same(comparison: Compared, pair: Paired | GroupDifference) -> bool:
    """Whether equal trajectories show equal agents: answers alone, as of functions of your own, do not."""
    if pair.verdict != "the same" or without_result(comparison, pair):
        return False
    runs = [run for name in (pair.first, pair.other) for run in _runs(comparison, name)]
    agents: list[Any] = [run.run.info().resolved["agent"] for run in runs]
    same_type = len({agent["type"] for agent in agents}) == 1
    return same_type and all(trial.calls for trial in _trials(comparison, pair.first, pair))


def _interval(pair: Paired | GroupDifference, error: float) -> Interval | None:
    """The interval of a difference that misses the truth in this share of cases."""
    is_known = pair.verdict != "the same" and math.isclose(error, 1 - pair.level)
    if pair.interval is None or is_known:
        return pair.interval
    if isinstance(pair, Paired):
        return difference_interval([*(task.difference for task in pair.differing), *[0.0] * pair.ties], error)
    values = (pair.first_values, pair.other_values)
    differences = [after - before for before, after in zip(*values, strict=True)] if pair.method == PAIRED else []
    half = half_width([differences] if differences else values, error)
    return pair.difference - half, pair.difference + half


def _intervals(comparison: Compared, pair: Paired | GroupDifference, error: float) -> tuple[Interval, Interval] | None:
    """The interval with what has no result counted against the later agent, and for it; None without one."""
    if isinstance(pair, Paired) and (pair.left_out or pair.runs_left_out):
        before, after = (_values(comparison, name, pair) for name in (pair.first, pair.other))
        worst, best = list[float](), list[float]()
        for task in filter(after.__contains__, before):
            one, two = before[task], after[task]
            # Rounded: what only rounding makes differ is a tie. A task that a side has no result of may be anything.
            worst.append(round(two[0] - one[1], 9) if one and two else -1.0)
            best.append(round(two[1] - one[0], 9) if one and two else 1.0)
        return difference_interval(worst, error), difference_interval(best, error)
    interval = _interval(pair, error)
    if interval is None or isinstance(pair, Paired):
        return interval and (interval, interval)
    # A group's values have its lost runs as wrong.
    lost = []
    for name in (pair.first, pair.other):
        shares = [result.errors / (result.tasks * result.trials) for result in _of(comparison, name, pair)]
        lost.append(fmean(shares or [0.0]))
    low, high = interval
    return (low - lost[0], high - lost[0]), (low + lost[1], high + lost[1])


def _decide(requirement: Requirement, comparison: Compared, pair: Paired | GroupDifference, error: float) -> Decision:
    outcome: Outcome
    are_same = _are_same(comparison, pair)
    intervals = ((0.0, 0.0), (0.0, 0.0)) if are_same else _intervals(comparison, pair, error)
    interval = None
    if intervals is None:
        outcome, reason = "undecided", f"{pair.difference:+.3f}, {getattr(pair, 'method', 'no interval')}"
    else:
        (low, worst), (_, high) = intervals
        interval = low, high
        reason = f"{pair.difference:+.3f}, {100 * (1 - error):.4g}% interval {low:+.3f} to {high:+.3f}"
        outcome = decide_bounds(requirement, low, high)
        if requirement.metric == NO_REGRESSION:
            outcome = "fails" if high < 0 else "undecided" if worst < 0 else "holds"
            if outcome == "holds" and low < 0:
                reason += f"; a loss of up to {-low:.3f} is not ruled out"
        if are_same and requirement.metric == BETTER:
            outcome, reason = "fails", "every trajectory is the same"
    if lost := without_result(comparison, pair):
        reason += f"; {lost} without a result: against {pair.other} for the lower bound, for it for the upper one; "
        reason += "midstream resume RUN --retry-errors"
    if isinstance(pair, Paired) and pair.only_first:
        reason += f"; {counted(pair.only_first, 'task')} only {pair.first} has: not compared"
    return Decision(
        requirement=requirement.text,
        of=f"{pair.other} against {pair.first}, {pair.set_name} {pair.sampling}",
        outcome=outcome,
        measured=pair.difference,
        interval=interval,
        reason=reason,
    )
