"""Group-relative advantages against verl's, and the cases where ours differ on purpose."""

import json
from pathlib import Path

import pytest
import torch

from midstream.training.rows import group_advantages
from support.errors import raises

CASES = json.loads((Path(__file__).parent / "golden" / "rl.json").read_text())["cases"]
GOLDEN = [case for case in CASES if case["kind"] == "group_advantage"]
SINGLETON = "group_advantage-010"


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["id"])
def test_agrees_with_verl(case):
    given = case["input"]
    ours = torch.zeros(len(given["rewards"]), dtype=torch.float64)
    for name in set(given["group"]):
        places = [place for place, group in enumerate(given["group"]) if group == name]
        own = [given["rewards"][place] for place in places]
        advantages = group_advantages(own, normalize_by_std=given["normalize_by_std"], epsilon=given["epsilon"])
        ours[places] = torch.tensor(advantages, dtype=torch.float64)
    theirs = torch.tensor([row[0] for row in case["expected"]["token_advantages"]], dtype=torch.float64)
    if case["id"] == SINGLETON:
        assert theirs.tolist() == [0.7]
        assert ours.tolist() == [0.0]
    else:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_all_verl_cases_are_here():
    assert len(GOLDEN) == 11
    assert SINGLETON in {case["id"] for case in GOLDEN}


@pytest.mark.parametrize("normalize_by_std", [True, False])
def test_uniform_groups_are_exactly_zero_where_their_mean_is_inexact(normalize_by_std):
    assert sum([0.1] * 3) / 3 != 0.1
    assert group_advantages([0.1] * 3, normalize_by_std=normalize_by_std) == [0.0, 0.0, 0.0]
    better, worse = group_advantages([1.0, 0.0], normalize_by_std=normalize_by_std)
    assert better > 0 > worse


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_named(bad):
    with raises("not-finite", bad, "place 2", "task-9"):
        group_advantages([1.0, 0.0, bad], task="task-9")


def test_no_rewards_give_no_advantages():
    assert group_advantages([]) == []


def test_leaving_one_out_compares_with_the_others_alone():
    """By hand: 1 - mean(0, 0.5), 0 - mean(1, 0.5), 0.5 - mean(1, 0); the reward itself is in no baseline."""
    rewards = [1.0, 0.0, 0.5]
    ours = group_advantages(rewards, baseline="leave_one_out", normalize_by_std=False)
    assert ours == pytest.approx([0.75, -0.75, 0.0], abs=1e-12)
    scaled = group_advantages(rewards, baseline="leave_one_out", epsilon=0.0)
    assert scaled == pytest.approx([1.5, -1.5, 0.0], abs=1e-12)


def test_leaving_one_out_of_a_uniform_group_or_one_of_one_gives_zero():
    for rewards in ([0.1] * 3, [1.0]):
        ours = group_advantages(rewards, baseline="leave_one_out", normalize_by_std=False)
        assert ours == [0.0] * len(rewards)
