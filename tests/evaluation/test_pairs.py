"""Two evaluations, task by task."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import UsageError
from midstream.core.trajectory import Turn
from midstream.evaluation.pairs import Evaluated, Paired, compare, difference_interval, tool_shifts
from support.errors import coded
from support.evaluations import Trials, evaluated


def side(name: str, scores: dict[str, Trials], **about: Any) -> Evaluated:
    result, trajectories = evaluated(scores, **about)
    return Evaluated(name=name, result=result, trajectories=trajectories)


def compared(first: dict[str, Trials], other: dict[str, Trials], **settings: Any) -> Paired:
    return compare(side("A", first), side("B", other), **settings)


def tasks(*scores: float | None) -> dict[str, Trials]:
    return {f"t{i}": [one] for i, one in enumerate(scores)}


def test_wins_losses_ties_and_the_difference():
    found = compared(tasks(0, 0, 1, 1), tasks(1, 1, 1, 0))
    assert (found.wins, found.losses, found.ties, found.tasks) == (2, 1, 1, 4)
    assert (found.first_success, found.other_success, found.difference) == (0.5, 0.75, 0.25)
    assert found.verdict == "no evidence of a difference"
    assert [pair.task_id for pair in found.differing] == ["t0", "t1", "t3"]
    assert found.differing[0].other.answers == ("Paris",)
    assert found.differing[0].gold == "Paris"


def test_better_and_worse_are_mirrored():
    ahead = compared(tasks(*[0] * 40), tasks(*[1] * 20, *[0] * 20))
    behind = compared(tasks(*[1] * 20, *[0] * 20), tasks(*[0] * 40))
    assert (ahead.verdict, behind.verdict) == ("better", "worse")
    assert 0.3 < ahead.interval[0] < 0.5 < ahead.interval[1] < 0.7
    assert (behind.interval[1], behind.difference) == (pytest.approx(-ahead.interval[0], abs=0.03), -0.5)


def test_one_evaluation_with_itself():
    found = compared(tasks(0, 1, 1), tasks(0, 1, 1))
    assert (found.verdict, found.difference, found.ties) == ("the same", 0, 3)


def test_equal_scores_of_other_answers_are_not_the_same():
    result, trajectories = evaluated(tasks(0, 1))
    changed = [one.model_copy(update={"answer": "Rome"}) if not one.reward.value else one for one in trajectories]
    found = compare(side("A", tasks(0, 1)), Evaluated(name="B", result=result, trajectories=changed))
    assert (found.verdict, found.ties) == ("no evidence of a difference", 2)
    assert found.interval[0] < 0 < found.interval[1]  # two ties do not make two agents equal


def test_the_same_again_at_another_time_is_the_same():
    result, trajectories = evaluated(tasks(0, 1))
    later = [one.model_copy(update={"started_at": 5.0, "duration_s": 2.0}) for one in trajectories]
    found = compare(side("A", tasks(0, 1)), Evaluated(name="B", result=result, trajectories=later))
    assert found.verdict == "the same"


def test_equal_answers_by_another_way_are_not_the_same():
    result, trajectories = evaluated(tasks(0, 1))
    longer = [one.model_copy(update={"turns": (Turn(index=1),)}) for one in trajectories]
    found = compare(side("A", tasks(0, 1)), Evaluated(name="B", result=result, trajectories=longer))
    assert found.verdict == "no evidence of a difference"


def test_pairs_without_a_result_are_left_out_and_counted():
    found = compared({"a": [1], "b": [None], "c": [1, 0], "d": [0]}, {"a": [1], "b": [1], "c": [None, 0], "e": [1]})
    assert (found.tasks, found.left_out, found.only_first, found.only_other) == (2, 1, 1, 1)
    assert found.runs_left_out == 1, "the first trial of c; b is a task left out"
    assert found.first_success == pytest.approx((1 + 0.5) / 2)
    assert found.other_success == 0.5  # a lost trial is no wrong one where another has a result


def test_several_trials_are_one_value_a_task():
    found = compared({"a": [1, 0, 1], "b": [0, 0, 1]}, {"a": [0, 1, 1], "b": [0, 1, 1]})
    assert (found.wins, found.ties) == (1, 1)
    assert found.difference == pytest.approx(1 / 6)


def test_several_comparisons_widen_the_interval():
    one, many = (compared(tasks(*[0] * 40), tasks(*[1] * 12, *[0] * 28), comparisons=n) for n in (1, 5))
    assert (one.level, many.level) == (0.95, 0.99)
    assert many.interval[0] < one.interval[0] < one.interval[1] < many.interval[1]


@pytest.mark.parametrize(
    ("other", "code", "values"),
    [
        (side("B", tasks(1), metric="F1"), "not-comparable", ("'held-out'", "exact match in A", "F1 in B")),
        (side("B", tasks(1), judged=True), "not-comparable", ("exact match, a model, in B",)),
        (side("B", {"x": [1]}), "not-comparable", ("'held-out'",)),
        (side("B", tasks(1), gold="Rome"), "inputs-changed", ("'t0'", "'Paris' in A", "'Rome' in B")),
        (side("B", tasks(None)), "no-results", ("'held-out'",)),
    ],
)
def test_what_cannot_be_compared_is_refused(other, code, values):
    with pytest.raises(UsageError, check=coded(code, *values)) as caught:
        compare(side("A", tasks(1)), other)
    assert len(str(caught.value).splitlines()) >= 2


def test_another_question_under_one_id_is_refused():
    other = side("B", tasks(1))
    asked = [one.model_copy(update={"question": "another?"}) for one in other.trajectories]
    with pytest.raises(UsageError, check=coded("inputs-changed", "'t0'", "'question t0?' in A", "'another?' in B")):
        compare(side("A", tasks(1)), Evaluated(name="B", result=other.result, trajectories=asked))


@pytest.mark.parametrize(("won", "sure"), [(4, False), (5, False), (6, True), (12, True)])
def test_few_tasks_that_differ_are_as_sure_as_a_coin_says(won, sure):
    """A coin falls 5 times in a row to one side or the other once in 16, 6 times once in 32."""
    low, _ = difference_interval([1.0] * won + [0.0] * (200 - won))
    assert (low > 0) == sure


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=30))
def test_an_interval_of_differences_is_never_empty_and_in_range(differences):
    low, high = difference_interval(differences)
    assert -1 <= low < high <= 1


# --- shares of turns by tool ------------------------------------------------------------------------------------------


def test_shares_are_of_all_turns_and_equal_sides_do_not_differ():
    side = [Counter(search=3, python=1), Counter(search=1), Counter()]
    shifts = tool_shifts(side, side)
    assert {name: (shift.first, shift.other) for name, shift in shifts.items()} == {
        "python": (0.2, 0.2),
        "search": (0.8, 0.8),
    }
    assert all(shift.interval == pytest.approx((0, 0)) for shift in shifts.values())


def test_a_tool_of_one_side_and_a_side_without_turns():
    shifts = tool_shifts([Counter(search=2)] * 3, [Counter()] * 3)
    assert (shifts["search"].first, shifts["search"].other) == (1.0, 0.0)
    assert tool_shifts([Counter()], [Counter()]) == {}


def test_the_interval_is_that_of_resampled_tasks():
    """The delta method against the paired bootstrap of the two ratios."""
    draw = random.Random(7)
    sides = [[Counter(search=draw.randint(0, most), python=draw.randint(1, 3)) for _ in range(200)] for most in (4, 6)]
    found = tool_shifts(*sides)["search"]

    def difference(places: list[int]) -> float:
        before, after = ([task[i] for i in places] for task in sides)
        totals = [sum(side, Counter()) for side in (before, after)]
        return totals[1]["search"] / totals[1].total() - totals[0]["search"] / totals[0].total()

    resampled = sorted(difference(draw.choices(range(200), k=200)) for _ in range(400))
    assert found.interval == pytest.approx((resampled[10], resampled[-11]), abs=0.015)
    assert sum(found.interval) / 2 == pytest.approx(found.other - found.first)
