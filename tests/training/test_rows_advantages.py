"""Group-relative advantages against verl's, and the cases where ours differ on purpose."""

import json
import random
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
    ours = group_advantages(
        given["rewards"],
        given["group"],
        normalize_by_std=given["normalize_by_std"],
        epsilon=given["epsilon"],
    )
    theirs = torch.tensor([row[0] for row in case["expected"]["token_advantages"]], dtype=torch.float64)
    if case["id"] == SINGLETON:
        assert theirs.tolist() == [0.7]
        assert ours.tolist() == [0.0]
    else:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_all_verl_cases_are_here():
    assert len(GOLDEN) == 11
    assert SINGLETON in {case["id"] for case in GOLDEN}


def test_order_of_interleaved_groups_does_not_matter():
    rewards, names = [1.0, 0.0, 0.25, 0.5, 1.0, 0.0, 0.75], ["a", "b", "a", "b", "a", "b", "a"]
    straight = group_advantages(rewards, names)
    order = list(range(len(rewards)))
    random.Random(3).shuffle(order)
    mixed = group_advantages([rewards[i] for i in order], [names[i] for i in order])
    torch.testing.assert_close(mixed, straight[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("normalize_by_std", [True, False])
def test_uniform_groups_are_exactly_zero_where_their_mean_is_inexact(normalize_by_std):
    rewards = [0.1] * 3 + [1.0, 0.0]
    assert sum([0.1] * 3) / 3 != 0.1
    ours = group_advantages(rewards, ["u"] * 3 + ["v"] * 2, normalize_by_std=normalize_by_std)
    assert ours[:3].tolist() == [0.0, 0.0, 0.0]
    assert ours[3] > 0 > ours[4]


def test_tensor_keeps_its_dtype_and_tensor_ids_are_compared_by_value():
    rewards, ids = [1.0, 0.0, 0.0, 1.0], [7, 7, 8, 8]
    ours = group_advantages(torch.tensor(rewards, dtype=torch.float32), torch.tensor(ids))
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), group_advantages(rewards, ids), rtol=0, atol=1e-6)
    assert group_advantages(torch.tensor([1, 0]), ["q", "q"]).dtype == torch.float64


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_named(bad):
    with raises("not-finite", bad, "place 2", "task-9"):
        group_advantages([1.0, 0.0, bad], ["t", "t", "task-9"])


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="as many group ids, got 1"):
        group_advantages([1.0, 0.0], ["q"])


def test_no_rewards_give_no_advantages():
    assert group_advantages([], []).tolist() == []


def test_leaving_one_out_compares_with_the_others_alone():
    """By hand: 1 - mean(0, 0.5), 0 - mean(1, 0.5), 0.5 - mean(1, 0); the reward itself is in no baseline."""
    rewards = [1.0, 0.0, 0.5]
    ours = group_advantages(rewards, ["q"] * 3, baseline="leave_one_out", normalize_by_std=False)
    assert ours.tolist() == pytest.approx([0.75, -0.75, 0.0], abs=1e-12)
    scaled = group_advantages(rewards, ["q"] * 3, baseline="leave_one_out", epsilon=0.0)
    assert scaled.tolist() == pytest.approx([1.5, -1.5, 0.0], abs=1e-12)


def test_leaving_one_out_of_a_uniform_group_or_one_of_one_gives_zero():
    ours = group_advantages([0.1] * 3 + [1.0], ["u"] * 3 + ["one"], baseline="leave_one_out", normalize_by_std=False)
    assert ours.tolist() == [0.0] * 4
