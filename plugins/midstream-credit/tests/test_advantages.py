"""Advantages of calls, by hand."""

from __future__ import annotations

import math

import pytest

from midstream.components.tables import parse_component
from midstream.core.trajectory import Call, Observation, Score, Trajectory, Turn
from midstream.recipe.schema import load_recipe
from support.errors import raises

HALF = 1 / math.sqrt(2)  # (1 - 1/2) / std(1, 0)


def advantages(kind, group, **settings):
    """Of a group of (reward, calls): each call is its prompt, and whether its turn ended in an error."""
    trajectories, calls, rewards = [], [], []
    for place, (reward, own) in enumerate(group):
        made, turns = [], []
        for prompt, failed, *of_call in own:
            call = Call(role="planner", prompt_ids=tuple(prompt), completion_ids=(1,), logprobs=(-1.0,))
            call = call.model_copy(update={"reward": of_call[0]}) if of_call else call
            observation = Observation(status="error" if failed else "ok", text=".")
            turns.append(Turn(index=len(turns) + 1, calls=(call,), observation=observation))
            made.append(call)
        trajectories.append(
            Trajectory(id=str(place), task_id="t", turns=tuple(turns), reward=Score(min(1.0, max(0.0, reward))))
        )
        calls.append(trajectories[-1].calls)
        rewards.append(reward)
    part = parse_component("advantage", {"type": kind, **settings}, "training.advantage")
    return part.config.build(None)(rewards, trajectories, calls)


def approx(values):
    return [pytest.approx(own, abs=1e-5) for own in values]


def test_gigpo_compares_calls_from_equal_states_alone():
    """Both begin alike; the second calls saw different states, which have nothing to compare with."""
    group = [(1.0, [([1, 2], False), ([1, 3], False)]), (0.0, [([1, 2], False), ([1, 4], False)])]
    assert advantages("gigpo", group, discount=1.0) == approx([[2 * HALF, HALF], [-2 * HALF, -HALF]])
    assert advantages("gigpo", group, discount=1.0, weight=0.0) == approx([[HALF, HALF], [-HALF, -HALF]])


def test_gigpo_prefers_the_shorter_way_among_equal_outcomes():
    """A uniform group: A_E is 0, and at the first state 1 call is left against 2."""
    group = [(1.0, [([1], False)]), (1.0, [([1], False), ([2], False)])]
    (one,), (first, second) = advantages("gigpo", group, discount=0.5)
    assert one == pytest.approx(HALF, abs=1e-5)
    assert (first, second) == (pytest.approx(-HALF, abs=1e-5), 0.0)


def test_gigpo_finds_a_state_twice_in_one_trajectory():
    group = [(1.0, [([1], False), ([1], False)]), (0.0, [([2], False)])]
    found = advantages("gigpo", group, discount=0.5, normalize_by_std=False)
    assert found == approx([[0.5 + (0.5 - 0.75), 0.5 + (1.0 - 0.75)], [-0.5]])


def test_gigpo_counts_an_error_where_states_are_equal():
    group = [(1.0, [([1], True), ([2], False)]), (1.0, [([1], False), ([3], False)])]
    assert advantages("gigpo", group) == approx([[0.0, 0.0], [0.0, 0.0]])
    found = advantages("gigpo", group, error_cost=0.2, normalize_by_std=False)
    assert found == approx([[-0.1, 0.0], [0.1, 0.0]])


def test_return_to_go_counts_what_came_after_a_call_and_its_error():
    group = [(1.0, [([1], True), ([2], False)]), (1.0, [([1], False), ([2], False)])]
    found = advantages("return_to_go", group, error_cost=0.2, normalize_by_std=False)
    assert found == approx([[-0.1, 0.0], [0.1, 0.0]])
    over_all = advantages("return_to_go", group, error_cost=0.2, normalize_by_std=False, by="group")
    assert over_all == approx([[0.8 - 0.95, 0.05], [0.05, 0.05]])


def test_rewards_of_calls_are_in_their_return_and_in_those_before():
    group = [(0.0, [([1], False), ([2], False, 0.5)]), (0.0, [([1], False, 0.5), ([2], False)])]
    found = advantages("return_to_go", group, discount=0.5, normalize_by_std=False)
    assert found == approx([[0.25 - 0.375, 0.25], [0.5 - 0.375, -0.25]])


def test_a_trajectory_without_a_trained_call_has_no_numbers():
    assert advantages("gigpo", [(1.0, []), (0.0, [([1], False)])])[0] == []
    assert advantages("return_to_go", [(1.0, []), (0.0, [([1], False)])])[0] == []


@pytest.mark.parametrize("settings", [{"discount": 0.0}, {"by": "call"}, {"error_cost": -1.0}])
def test_impossible_settings(settings):
    with raises("recipe-invalid", next(iter(settings))):
        parse_component("advantage", {"type": "return_to_go", **settings}, "training.advantage")


def test_the_variant_is_the_advantage_with_the_papers_coefficient():
    training = load_recipe("flow-grpo-tiny", ["training.variant=gigpo", "training.loss={}"]).training
    assert (training.advantage.type, training.turns) == ("gigpo", "calls")
