"""Two groups of runs: intervals over seeds that equal those of R, paired where the seeds are the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from midstream.evaluation.estimates import t_quantile
from midstream.evaluation.pairs import NO_SPREAD, ONE_RUN, PAIRED, UNPAIRED, Member, compare_groups
from support.errors import raises
from support.evaluations import evaluated

# Student's sleep data, which comes with R as `sleep`; t.test(extra ~ group) and t.test(Pair(..)) give these intervals.
SLEEP = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0), (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)
WELCH, PAIRS = (-0.2054832, 3.3654832), (0.7001142, 2.4598858)
RESULT, _ = evaluated({"t0": [1.0]})


def members(values: Sequence[float], start: int = 0, **changes: object) -> list[Member]:
    return [
        Member(
            name=f"run {seed}",
            seed=seed,
            result=RESULT.model_copy(update={"success": value, **changes}),
            tasks=frozenset({("question t0?", "Paris")}),
        )
        for seed, value in enumerate(values, start)
    ]


def test_groups_with_the_same_seeds_are_paired_whatever_their_order() -> None:
    first, other = map(members, SLEEP)
    found = compare_groups(("a", first), ("b", other[::-1]))
    assert (found.method, found.verdict, found.first_seeds) == (PAIRED, "better", tuple(range(10)))
    assert found.interval == pytest.approx(PAIRS, abs=1e-6)
    assert found.difference == pytest.approx(1.58)


@pytest.mark.parametrize("start", [1, 20])
def test_groups_with_other_seeds_are_not_paired(start: int) -> None:
    found = compare_groups(("a", members(SLEEP[0])), ("b", members(SLEEP[1], start)))
    assert (found.method, found.verdict) == (UNPAIRED, "no evidence of a difference")
    assert found.interval == pytest.approx(WELCH, abs=1e-6)
    twice = members(SLEEP[0][:5]) + members(SLEEP[0][5:])  # a seed that occurs twice has no one partner
    assert compare_groups(("a", twice), ("b", members(SLEEP[1]))).interval == pytest.approx(WELCH, abs=1e-6)


@pytest.mark.parametrize(
    ("first", "other", "method"),
    [((0.5,), (0.7, 0.8), ONE_RUN), ((0.5,), (0.7,), ONE_RUN), ((0.5, 0.4), (0.7, 0.6), NO_SPREAD)],
)
def test_without_a_spread_over_runs_there_is_no_interval(
    first: tuple[float, ...], other: tuple[float, ...], method: str
) -> None:
    """Agents whose runs never differ would otherwise be better with certainty."""
    found = compare_groups(("a", members(first)), ("b", members(other)))
    assert (found.method, found.interval, found.verdict) == (method, None, None)


def test_several_groups_share_the_confidence() -> None:
    first, other = map(members, SLEEP)
    one, two = (compare_groups(("a", first), ("b", other), comparisons=count).interval for count in (1, 2))
    assert one is not None
    assert two is not None
    assert two[0] < one[0]
    assert (two[1] - two[0]) / (one[1] - one[0]) == pytest.approx(t_quantile(9, 0.025) / t_quantile(9))


def test_other_rewards_and_other_tasks_are_refused() -> None:
    first = members((0.1, 0.2))
    with raises("not-comparable", "exact match", "judge"):
        compare_groups(("a", first), ("b", members((0.1, 0.2), metric="judge")))
    other = [Member(name="x", seed=0, result=RESULT, tasks=frozenset({("question t0?", "Rome")}))]
    with raises("not-comparable", "x", "0 are in both"):
        compare_groups(("a", first), ("b", other))


@pytest.mark.parametrize(
    ("freedom", "error", "quantile"),
    [(1, 0.05, 12.706205), (2, 0.05, 4.302653), (5, 0.05, 2.570582), (30, 0.05, 2.042272), (2, 0.01, 9.924843)],
)
def test_quantiles_of_students_t(freedom: float, error: float, quantile: float) -> None:
    assert t_quantile(freedom, error) == pytest.approx(quantile, rel=1e-5)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("start", [0, 100], ids=["paired", "unpaired"])
def test_the_interval_holds_the_truth_in_95_percent(start: int) -> None:
    """Five seeds a group; a part of each seed's luck is shared by both groups, one group varies more."""
    draw, held = random.Random(3), 0
    for _ in range(500):
        luck = [draw.gauss(0, 0.05) for _ in range(5)]
        first = members([0.5 + part + draw.gauss(0, 0.02) for part in luck])
        luck = luck if start == 0 else [draw.gauss(0, 0.05) for _ in range(5)]
        other = members([0.6 + part + draw.gauss(0, 0.06) for part in luck], start)
        interval = compare_groups(("a", first), ("b", other)).interval
        assert interval is not None
        held += interval[0] <= 0.1 <= interval[1]
    assert 465 <= held <= 487
