"""What rounds of verification and refinement do to right and wrong answers, and whether they pay.

The model of deep self-evolving reasoning (DSER, arXiv 2510.17498): a chain's answer is right or wrong, and a
round makes a wrong one right with probability p (improvement) and a right one wrong with probability q (degradation).
After t rounds the expected accuracy is

    a_t = limit + (a_0 - limit) (1 - p - q)^t,    limit = p / (p + q)

A round thus keeps the share |1 - p - q| of the distance from the limit. The limit is above 1/2, so that a vote of many
chains tends to the right answer, if p > q. Departures: the paper's probabilities are of one question; here they are
estimated over the tasks of a set, with intervals that hold when tasks differ, and a plan gives each task its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from statistics import NormalDist, fmean
from typing import Literal

from midstream.core.data import Frozen
from midstream.evaluation.estimates import Interval, mean_interval, t_quantile, wilson
from midstream_extra.dser import Dser, winner

State = tuple[Hashable | None, bool]  # what equal answers have in common, and whether this one is right
Chain = Sequence[State]  # of rounds 0, 1, ...
Attempt = Sequence[Chain]  # all chains of one trajectory
Counts = Sequence[tuple[int, int]]  # of each task: (hits, trials)
Advice = Literal["refine", "do not refine", "undecided"]

_NEAR = 0.001  # of expected accuracy: plans this near the best are as good
_MOST_ROUNDS = 64


class Estimate(Frozen):
    """A probability with its 95 % interval, from `trials` in several tasks.

    `design_effect` is the factor by which differences between tasks raise the variance over independent trials.
    """

    value: float
    interval: Interval
    trials: int
    design_effect: float = 1.0


class Round(Frozen):
    """One round: over tasks, the mean accuracy of its `chains` (Avg@K) and of their vote (Cons@K).

    `expected` is Avg@K by the closed form, from the accuracy of round 0.
    """

    number: int
    chains: int
    average: float
    interval: Interval
    consensus: float
    consensus_interval: Interval
    expected: float


class Plan(Frozen):
    """K chains of T rounds, the agent runs of a task, and the expected accuracy of their vote."""

    K: int
    T: int
    agent_runs: int
    expected: float


class RefinementStudy(Frozen):
    """What an evaluation with a strategy shows about refinement.

    `start`, `improvement` and `degradation` are a_0, p and q; `gain` is the interval of p - q, `lift` that of the limit
    minus a_0. `cut_short` chains ended before their last round. `plan` is the best one for a `budget` of agent
    runs of a task, `votes_only` the best without refinement; both are given also where the advice is not to refine.
    """

    strategy: str
    tasks: int
    chains: int
    cut_short: int
    start: Estimate
    improvement: Estimate
    degradation: Estimate
    limit: float
    limit_interval: Interval
    speed: float
    gain: Interval
    lift: Interval
    rounds: tuple[Round, ...]
    agent_runs: float  # of a trajectory, on average
    budget: int
    plan: Plan
    votes_only: Plan
    advice: Advice
    reason: str
    set_name: str = ""
    sampling: str = ""
    metric: str = ""
    left_out: int = 0  # attempts without a result


def expected_accuracy(start: float, improvement: float, degradation: float, rounds: int) -> float:
    """The accuracy a_t after `rounds` of the two-state chain, in the closed form above."""
    limit = limit_of(improvement, degradation)
    return limit + (start - limit) * (1 - improvement - degradation) ** rounds


def limit_of(improvement: float, degradation: float) -> float:
    """p / (p + q); 1/2 if no round ever changes an answer, where the closed form does not use it."""
    return improvement / (improvement + degradation) if improvement + degradation else 0.5


def estimate(counts: Counts) -> Estimate:
    """A share of all trials with its 95 % interval over tasks, whose own shares may differ.

    Wilson's score interval with the effective number of trials: their number over the design effect, which is the
    variance between tasks (that of a ratio estimate, Cochran 1977, section 6.3) over the binomial one, and at least 1.
    A variance known from few tasks counts less, as in `estimates.effective_tasks`. Where all trials are alike, nothing
    shows whether tasks differ, and each task counts as one trial. Without any trial the interval is [0, 1].
    """
    tried = [(hits, trials) for hits, trials in counts if trials]
    total, tasks = sum(trials for _, trials in tried), len(tried)
    if not total:
        return Estimate(value=0.0, interval=(0.0, 1.0), trials=0)
    share = sum(hits for hits, _ in tried) / total
    if share in (0.0, 1.0) or tasks == 1:
        return Estimate(value=share, interval=wilson(share, tasks), trials=total, design_effect=total / tasks)
    between = tasks / (tasks - 1) * sum((hits - share * trials) ** 2 for hits, trials in tried)
    effect = max(1.0, between / (total * share * (1 - share)))
    known = (NormalDist().inv_cdf(0.975) / t_quantile(tasks - 1)) ** 2 if effect > 1 else 1.0
    return Estimate(value=share, interval=wilson(share, total / effect * known), trials=total, design_effect=effect)


def combined(function: Callable[..., float], rising: Sequence[Estimate], falling: Sequence[Estimate]) -> Interval:
    """The 95 % interval of a function of independent estimates, which rises with the first and falls with the others.

    The distances to the value at each estimate's end are squared and added (Newcombe 1998 for a difference; Zou and
    Donner 2008, MOVER). The arguments of `function` are the values of `rising`, then of `falling`.
    """
    parts = [*rising, *falling]
    values = [part.value for part in parts]
    middle = function(*values)

    def half(upper: bool) -> float:
        moved = 0.0
        for place, part in enumerate(parts):
            end = part.interval[upper == (place < len(rising))]
            moved += (function(*values[:place], end, *values[place + 1 :]) - middle) ** 2
        return math.sqrt(moved)

    return middle - half(upper=False), middle + half(upper=True)


def study_of(tasks: Sequence[Sequence[Attempt]], strategy: Dser, *, budget: int, runs: float) -> RefinementStudy:
    """Estimate a_0, p and q from the attempts at each task, and advise for a `budget` of agent runs of a task.

    `runs` are the agent runs that an attempt took, on average. Attempts without a chain are left out before.
    """
    begun = [chain for attempts in tasks for attempt in attempts for chain in attempt]
    chains = [[chain for attempt in attempts for chain in attempt if chain] for attempts in tasks]
    started = [(sum(chain[0][1] for chain in found), len(found)) for found in chains]
    improved, degraded = ([_changes(found, was_right=was) for found in chains] for was in (False, True))
    start, improvement, degradation = map(estimate, (started, improved, degraded))
    p, q = improvement.value, degradation.value
    gain = combined(lambda p, q: p - q, [improvement], [degradation])
    lift = combined(lambda p, q, a: limit_of(p, q) - a, [improvement], [degradation, start])
    counted = ((started, start), (improved, improvement), (degraded, degradation))
    each = list(zip(*(_shrunk(*pair) for pair in counted), strict=True))
    plans = list(_plans(each, budget))
    plan, votes_only = _best(plans), _best(plan for plan in plans if plan.T == 0)
    advice, reason = _advice(improvement, degradation, gain, lift, plan, votes_only)
    return RefinementStudy(
        strategy=str(strategy),
        tasks=len(tasks),
        chains=len(begun),
        cut_short=sum(len(chain) <= strategy.T for chain in begun),
        start=start,
        improvement=improvement,
        degradation=degradation,
        limit=limit_of(p, q),
        limit_interval=combined(limit_of, [improvement], [degradation]),
        speed=abs(1 - p - q),
        gain=gain,
        lift=lift,
        rounds=tuple(_rounds(tasks, strategy.T, lambda number: expected_accuracy(start.value, p, q, number))),
        agent_runs=runs,
        budget=budget,
        plan=plan,
        votes_only=votes_only,
        advice=advice,
        reason=reason,
    )


def _changes(chains: Sequence[Chain], *, was_right: bool) -> tuple[int, int]:
    """(rounds that changed an answer that was right or wrong, rounds that began with such an answer)."""
    after = [new for chain in chains for (_, old), (_, new) in pairwise(chain) if old == was_right]
    return sum(new != was_right for new in after), len(after)


def _rounds(tasks: Sequence[Sequence[Attempt]], last: int, expected: Callable[[int], float]) -> Iterable[Round]:
    for number in range(last + 1):
        averages, votes, reached = list[float](), list[float](), 0
        for attempts in tasks:
            rights, voted = list[bool](), list[bool]()
            for attempt in attempts:
                states = {place: chain[number] for place, chain in enumerate(attempt) if len(chain) > number}
                rights += [right for _, right in states.values()]
                if states:
                    best = winner({place: key for place, (key, _) in states.items()})
                    voted.append(best is not None and states[best][1])
            if rights:
                averages.append(fmean(rights))
                votes.append(fmean(voted))
                reached += len(rights)
        if averages:
            yield Round(
                number=number,
                chains=reached,
                average=fmean(averages),
                interval=mean_interval(averages)[0],
                consensus=fmean(votes),
                consensus_interval=mean_interval(votes)[0],
                expected=expected(number),
            )


# --- plans ------------------------------------------------------------------------------------------------------------


@cache
def vote_accuracy(chains: int, accuracy: float) -> float:
    """The probability that a vote of independent chains is right if wrong answers agree: the worst case for a vote.

    More than half of the chains must be right; of a tie, half of the cases are.
    """
    if accuracy in (0.0, 1.0):
        return accuracy
    least, total = chains // 2, 0.0
    for right in range(least, chains + 1):
        ways = math.lgamma(chains + 1) - math.lgamma(right + 1) - math.lgamma(chains - right + 1)
        share = math.exp(ways + right * math.log(accuracy) + (chains - right) * math.log1p(-accuracy))
        total += share / 2 if 2 * right == chains else share if 2 * right > chains else 0.0
    return min(1.0, total)


def _shrunk(counts: Counts, pooled: Estimate) -> list[float]:
    """Each task's share, drawn toward that of all tasks by how little tasks differ.

    The mean of a beta-binomial posterior, whose correlation within a task follows from the design effect: tasks that do
    not differ more than by chance all have the share of all.
    """
    total = pooled.trials
    size = sum(trials**2 for _, trials in counts) / total if total else 0.0
    if size <= 1 or pooled.design_effect <= 1 or pooled.value in (0.0, 1.0):
        return [pooled.value] * len(counts)
    correlation = min(1.0, (pooled.design_effect - 1) / (size - 1))
    weight = 1 / correlation - 1
    return [
        (hits + weight * pooled.value) / (trials + weight) if trials + weight else pooled.value
        for hits, trials in counts
    ]


def _plans(each: Sequence[tuple[float, float, float]], budget: int) -> Iterable[Plan]:
    """The plans within the budget, of odd K; `each` has a task's a_0, p and q."""
    for rounds in range(min(_MOST_ROUNDS, (budget - 1) // 2) + 1):
        most = budget // (1 + 2 * rounds)
        after = [round(min(1.0, max(0.0, expected_accuracy(*task, rounds))), 3) for task in each]
        # Every odd number up to 15, then steps of about a fifth: the vote changes slowly there.
        sizes = {*range(1, 16, 2), *(int(15 * 1.2**step) // 2 * 2 + 1 for step in range(60))}
        for chains in sorted({size for size in sizes if size <= most} | {most - (most % 2 == 0)}):
            found = fmean(vote_accuracy(chains, accuracy) for accuracy in after)
            yield Plan(K=chains, T=rounds, agent_runs=chains * (1 + 2 * rounds), expected=found)


def _best(plans: Iterable[Plan]) -> Plan:
    """The plan with the fewest agent runs among those that are expected to score as much as the best."""
    known = list(plans)
    most = max(plan.expected for plan in known)
    return min((plan for plan in known if plan.expected >= most - _NEAR), key=lambda plan: plan.agent_runs)


def _advice(
    improvement: Estimate, degradation: Estimate, gain: Interval, lift: Interval, plan: Plan, votes_only: Plan
) -> tuple[Advice, str]:
    """The advice, by the intervals of p - q and of limit - a_0, and its reason."""
    for missing, kind in ((improvement, "wrong"), (degradation, "right")):
        if not missing.trials:
            return "undecided", f"no round began with a {kind} answer: more tasks, or harder or easier ones, are needed"
    if gain[1] <= 0:
        return "do not refine", "a round makes right answers wrong more often (q) than wrong ones right (p)"
    if lift[1] <= 0:
        return "do not refine", "the limit p / (p + q) is not above the accuracy of one run"
    if gain[0] <= 0:
        return "undecided", "the intervals leave open whether p is above q: more tasks or chains are needed"
    if lift[0] <= 0:
        return "undecided", "the intervals leave open whether the limit is above the accuracy of one run"
    if plan.T == 0:
        return "do not refine", "a vote over single runs is expected to score as much for this budget"
    more = plan.expected - votes_only.expected
    return "refine", f"expected to score {100 * more:.1f} points more than the best vote without rounds"
