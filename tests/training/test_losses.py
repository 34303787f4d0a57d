"""Losses against verl's and TRL's values and gradients, and the modes that are ours."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import torch
from pydantic import ValidationError

from midstream.training.losses import (
    Aggregation,
    PolicyLoss,
    clipped_policy_loss,
    clipped_tokens,
    kl_estimate,
    row_weights,
    token_ratio,
)
from midstream.training.settings import VARIANTS
from support.errors import raises

CASES = json.loads((Path(__file__).parent / "golden" / "rl.json").read_text())["cases"]


def cases(kind):
    return [pytest.param(case["input"], case["expected"], id=case["id"]) for case in CASES if case["kind"] == kind]


def trl_cases():
    """The loss types with a clipped ratio; `test_settings.py` has the others."""
    clipped = VARIANTS.keys() - {"cispo"}
    chosen = [case for case in CASES if case["kind"] == "trl_loss" and case["input"]["loss_type"] in clipped]
    token_level = [case for case in chosen if case["input"]["importance_level"] == "token"]
    return [pytest.param(case["input"], case["expected"], id=case["id"]) for case in token_level]


def aggregate(values, mask, mode, trajectory_ids=None, *, horizon=None):
    """Reduce values [rows, tokens] to the scalar that the learner reaches by the rows' weights."""
    lengths = [int(n) for n in mask.sum(-1).tolist()]
    weights = row_weights(lengths, mode, trajectory_ids, horizon=horizon or mask.shape[-1])
    return (values.where(mask > 0, 0.0).sum(-1) * values.new_tensor(weights)).sum()


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def close(ours, theirs):
    torch.testing.assert_close(ours, f64(theirs), rtol=0, atol=1e-9)


def as_verl_divides(values, mask, mode):
    """verl divides a row's sum by its tokens + 1e-8; ours divides by its tokens."""
    count = mask.sum(-1, keepdim=True)
    return values * count / (count + 1e-8) if mode == "seq-mean-token-mean" else values


def test_every_golden_kind_is_tested():
    kinds = Counter(case["kind"] for case in CASES)
    assert kinds == {
        "group_advantage": 11,
        "flow_grpo_broadcast": 1,
        "policy_loss": 33,
        "kl": 7,
        "total_loss": 3,
        "trl_loss": 39,
    }
    assert len(trl_cases()) == 22


@pytest.mark.parametrize(("given", "expected"), cases("policy_loss"))
def test_policy_loss_agrees_with_verl(given, expected):
    logprobs, old, mask = f64(given["logprob"]).requires_grad_(), f64(given["old_logprob"]), f64(given["mask"])
    advantages = f64(given["advantages"])
    clip = {"clip_low": given["clip_low"], "clip_high": given["clip_high"]}
    values = clipped_policy_loss(token_ratio(logprobs, old), advantages, **clip, dual_clip=given["dual_clip_c"])
    loss = aggregate(as_verl_divides(values, mask, given["aggregation"]), mask, given["aggregation"])
    loss.backward()
    close(loss, expected["loss"])
    close(logprobs.grad, expected["grad"])
    clipped = clipped_tokens(token_ratio(logprobs, old), advantages, **clip)
    close((clipped * mask).sum() / (mask.sum() + 1e-8), expected["clipfrac"])


@pytest.mark.parametrize(("given", "expected"), cases("kl"))
def test_kl_agrees_with_verl(given, expected):
    logprobs, mask = f64(given["logprob"]).requires_grad_(), f64(given["mask"])
    values = kl_estimate(logprobs, f64(given["ref_logprob"]), given["estimator"])
    mean = aggregate(values, mask, "token-mean")
    mean.backward()
    close(values, expected["per_token"])
    close(mean, expected["token_mean"])
    close(logprobs.grad, expected["grad_token_mean"])


@pytest.mark.parametrize(("given", "expected"), cases("total_loss"))
def test_total_loss_agrees_with_verl(given, expected):
    """As the learner computes it: flat tokens with explicit weights."""
    logprobs, chosen = f64(given["logprob"]).requires_grad_(), f64(given["mask"]) > 0
    lengths = chosen.sum(-1)
    weights = f64(row_weights(lengths.tolist(), given["aggregation"])).repeat_interleave(lengths)
    loss = PolicyLoss(
        clip_low=given["clip_low"],
        clip_high=given["clip_high"],
        dual_clip=given["dual_clip_c"],
        kl_coefficient=given["beta"],
        kl_kind=given["kl"],
    )
    old, reference, advantages = (f64(given[key])[chosen] for key in ("old_logprob", "ref_logprob", "advantages"))
    result = loss.per_token(logprobs[chosen], old, reference, advantages, weights, weights)
    result.loss.sum().backward()
    close(result.loss.sum(), expected["loss"])
    close(logprobs.grad, expected["grad"])
    close(result.kl.mean(), expected["kl"])
    assert logprobs.grad[~chosen].abs().max() == 0


@pytest.mark.parametrize(("given", "expected"), trl_cases())
def test_loss_types_agree_with_trl(given, expected):
    logprobs, mask = f64(given["logprob"]).requires_grad_(), f64(given["mask"])
    if given["tool_mask"] is not None:
        mask = mask * f64(given["tool_mask"])
    clip = {"clip_low": given["clip_low"], "clip_high": given["clip_high"]}
    advantages = f64(given["sequence_advantages"])[:, None]
    values = clipped_policy_loss(token_ratio(logprobs, f64(given["old_logprob"])), advantages, **clip)
    values = values + given["beta"] * kl_estimate(logprobs, f64(given["ref_logprob"]), "k3")
    mode = VARIANTS[given["loss_type"]]["loss"]["aggregation"]
    loss = aggregate(values, mask, mode, horizon=given["max_completion_length"])
    loss.backward()
    close(loss, expected["loss"])
    close(logprobs.grad, expected["grad"])
    assert logprobs.grad[mask == 0].abs().max() == 0


def test_extreme_log_ratios_stay_finite():
    logprobs = f64([-1e4, 0.0, -1.0]).requires_grad_()
    loss = clipped_policy_loss(
        token_ratio(logprobs, f64([0.0, -1e4, -1.0])), f64([-1.0, -1.0, 1.0]), clip_low=0.2, clip_high=0.2
    )
    kl = kl_estimate(logprobs, f64([0.0, -1e4, -1e4]), "k3")
    (loss + kl).sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(kl).all()
    assert torch.isfinite(logprobs.grad).all()


def test_dual_clip_bounds_negative_advantages_alone():
    old, logprobs = f64([0.0, 0.0]), f64([2.0, 2.0])
    kwargs = {"clip_low": 0.2, "clip_high": 0.2}
    free = clipped_policy_loss(token_ratio(logprobs, old), f64([-1.0, 1.0]), **kwargs)
    bound = clipped_policy_loss(token_ratio(logprobs, old), f64([-1.0, 1.0]), **kwargs, dual_clip=3.0)
    close(free, [f64(2.0).exp().item(), -1.2])
    close(bound, [3.0, -1.2])


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_plus_keeps_the_value_and_takes_the_gradient_of_k2(kind):
    reference = f64([-1.0, -0.5, -3.0])
    logprobs = f64([-2.0, -0.25, -1.0]).requires_grad_()
    value = kl_estimate(logprobs, reference, kind + "+")
    close(value, kl_estimate(logprobs, reference, kind).tolist())
    (gradient,) = torch.autograd.grad(value.sum(), logprobs)
    close(gradient, (logprobs - reference).tolist())


def test_unknown_names_are_refused_with_the_known_ones():
    ones = torch.ones(1, 1)
    with raises("unknown-type", "k4", "k3+"):
        kl_estimate(ones, ones, "k4")
    with raises("unknown-type", "'mean'", "token-mean"):
        aggregate(ones, ones, "mean")


def test_trajectory_turn_token_by_hand():
    """Trajectory a has one turn of 2 tokens; b has three turns of 1, 3 and 2 tokens."""
    values = f64([[1.0, 3.0, 9.0], [6.0, 9.0, 9.0], [1.0, 2.0, 6.0], [4.0, 8.0, 9.0]]).requires_grad_()
    mask = f64([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]])
    loss = aggregate(values, mask, "trajectory-turn-token", ["a", "b", "b", "b"])
    close(loss, (2.0 + (6.0 + 3.0 + 6.0) / 3) / 2)
    loss.backward()
    close(values.grad, [[1 / 4, 1 / 4, 0], [1 / 6, 0, 0], [1 / 18, 1 / 18, 1 / 18], [1 / 12, 1 / 12, 0]])
    assert aggregate(values, mask, "seq-mean-token-mean").item() != loss.item()


def test_trajectory_order_does_not_matter():
    values, mask = f64([[1.0, 3.0], [6.0, 0.0], [4.0, 8.0]]), f64([[1, 1], [1, 0], [1, 1]])
    straight = aggregate(values, mask, "trajectory-turn-token", ["a", "b", "b"])
    mixed = aggregate(values[[1, 0, 2]], mask[[1, 0, 2]], "trajectory-turn-token", ["b", "a", "b"])
    assert straight == mixed == 4.0


def test_rows_without_tokens_are_neither_turns_nor_trajectories():
    values = f64([[2.0, 4.0], [7.0, 7.0], [7.0, 7.0]])
    mask = f64([[1, 1], [0, 0], [0, 0]])
    for mode in get_args(Aggregation):
        with_them = aggregate(values, mask, mode, ["a", "a", "b"])
        assert with_them == aggregate(values[:1], mask[:1], mode, ["a"])


@pytest.mark.parametrize("mode", get_args(Aggregation))
def test_nothing_to_average_is_zero(mode):
    assert aggregate(torch.full((2, 3), float("inf")), torch.zeros(2, 3), mode, ["a", "b"]) == 0


@pytest.mark.parametrize("ids", [None, ["a"]])
def test_trajectory_ids_are_required(ids):
    with pytest.raises(ValueError, match="one trajectory id per row: 2 rows"):
        aggregate(torch.ones(2, 3), torch.ones(2, 3), "trajectory-turn-token", ids)


def test_horizon_is_required_where_there_is_no_mask():
    with pytest.raises(ValueError, match="positive horizon"):
        row_weights([1, 2], "seq-mean-token-sum-norm")


def test_infinities_under_the_mask_do_not_reach_the_gradient():
    values = f64([[1.0, float("inf"), float("nan")]]).requires_grad_()
    loss = aggregate(values, f64([[1, 0, 0]]), "token-mean")
    loss.backward()
    assert loss == 1.0
    assert values.grad.tolist() == [[1.0, 0.0, 0.0]]


def test_prompt_tokens_get_no_gradient():
    """Each row's log-probabilities start with its prompt; only completion positions are in the mask."""
    logprobs = (torch.randn(2, 5, dtype=torch.float64, generator=torch.manual_seed(0)) * 0.1 - 1).requires_grad_()
    chosen = f64([[0, 0, 1, 1, 1], [0, 0, 1, 0, 0]]) > 0
    ones = torch.ones(4, dtype=torch.float64)
    PolicyLoss().per_token(logprobs[chosen], -ones, -1.5 * ones, ones, ones / 4, ones / 4).loss.sum().backward()
    assert logprobs.grad[~chosen].tolist() == [0.0] * 6
    assert (logprobs.grad[chosen] != 0).all()


def test_weights_and_kl_weights_scale_their_own_terms():
    logprobs, ones = f64([-1.0, -1.0]), f64([1.0, 1.0])
    result = PolicyLoss(kl_coefficient=0.1).per_token(
        logprobs, logprobs, f64([-2.0, -1.0]), ones, 0.5 * ones, 0.25 * ones
    )
    k3 = f64(-1.0).exp().item()  # exp(-1) + 1 - 1 on the first token, 0 on the second
    close(result.loss, [-0.5 + 0.1 * 0.25 * k3, -0.5])
    close(result.kl, [k3, 0.0])
    assert result.clipped.tolist() == [False, False]


def test_what_is_for_the_log_has_no_gradient():
    logprobs, ones = f64([-1.0, -0.5]).requires_grad_(), f64([1.0, 1.0])
    result = PolicyLoss().per_token(logprobs, -ones, -ones, ones, ones, ones)
    assert result.loss.requires_grad
    assert not result.kl.requires_grad
    assert result.clipped.tolist() == [False, True]


def test_no_reference_is_needed_without_a_kl_term():
    logprobs, ones = f64([-1.0, -0.5]), f64([1.0, 1.0])
    result = PolicyLoss(kl_coefficient=0).per_token(logprobs, -ones, None, ones, ones, ones)
    close(result.loss, [-1.0, -1.2])
    close(result.kl, [0.0, 0.0])
    with pytest.raises(ValueError, match=r"kl_coefficient 0\.001 needs ref_logprobs"):
        PolicyLoss().per_token(logprobs, -ones, None, ones, ones, ones)


def test_the_defaults_are_the_papers():
    assert PolicyLoss().model_dump() == {
        "surrogate": "ppo",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "dual_clip": None,
        "kl_coefficient": 0.001,
        "kl_kind": "k3",
        "entropy_coefficient": 0.0,
        "aggregation": "trajectory-turn-token",
        "type": None,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_low": 0.0}, "greater than 0"),
        ({"clip_low": 1.0}, "less than 1"),
        ({"clip_high": -0.1}, "greater than 0"),
        ({"clip_high": float("inf")}, "finite"),
        ({"dual_clip": 1.0}, "greater than 1"),
        ({"kl_coefficient": -0.001}, "greater than or equal to 0"),
        ({"kl_coefficient": float("nan")}, "finite|greater than or equal to 0"),
        ({"kl_kind": "k4"}, "'k1', 'k2', 'k3'"),
        ({"aggregation": "mean"}, "'trajectory-turn-token', 'token-mean'"),
        ({"clip": 0.2}, "Extra inputs"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        PolicyLoss(**settings)


def test_settings_load_without_torch():
    """Recipes are validated where torch is not installed."""
    code = (
        "import sys; from midstream.training.losses import PolicyLoss; PolicyLoss(); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
