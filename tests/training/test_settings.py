"""What a variant sets, that its loss is TRL's, and that what is not supported is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from midstream.core.errors import RecipeError
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe, parse_recipe
from midstream.training.losses import PolicyLoss, row_weights
from midstream.training.settings import VARIANTS, OverlongConfig, TrainingConfig
from support.errors import coded, raises

CASES = json.loads((Path(__file__).parent / "golden" / "rl.json").read_text())["cases"]


def trl_cases():
    return [
        pytest.param(case["input"], case["expected"], id=case["id"]) for case in CASES if case["kind"] == "trl_loss"
    ]


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def close(ours, theirs):
    torch.testing.assert_close(ours, f64(theirs), rtol=0, atol=1e-9)


def test_there_are_39_cases_of_trl():
    assert len(trl_cases()) == 39


@pytest.mark.parametrize(("given", "expected"), trl_cases())
def test_a_recipes_loss_is_trls_or_is_refused(given, expected):
    """As the learner computes it: the variant's settings, flat sampled tokens, explicit weights."""
    variant, sequence = given["loss_type"], given["importance_level"] == "sequence"
    own = {name: given[name] for name in ("clip_low", "clip_high")}
    table = {
        "variant": variant,
        "loss": {"kl_coefficient": given["beta"]} | ({"surrogate": "gspo"} if sequence else {}),
    }
    if variant == "sapo":
        with raises("unknown-type", variant):
            TrainingConfig.model_validate(table)
        return
    if variant == "cispo":
        own["clip_high"] -= 1  # TRL's is the bound itself
    loss = TrainingConfig.model_validate(table).loss.model_copy(update=own)
    logprobs, mask = f64(given["logprob"]).requires_grad_(), f64(given["mask"])
    chosen = (mask if given["tool_mask"] is None else mask * f64(given["tool_mask"])) > 0
    lengths = chosen.sum(-1)
    weights = row_weights(lengths.tolist(), loss.aggregation, horizon=given["max_completion_length"])
    weights = f64(weights).repeat_interleave(lengths)
    old, reference = (f64(given[name])[chosen] for name in ("old_logprob", "ref_logprob"))
    advantages = f64(given["sequence_advantages"]).repeat_interleave(lengths)
    rows = torch.arange(len(lengths)).repeat_interleave(lengths)
    result = loss.per_token(logprobs[chosen], old, reference, advantages, weights, weights, rows=rows)
    total = result.loss.sum()
    total.backward()
    close(total, expected["loss"])
    close(logprobs.grad, expected["grad"])
    assert not logprobs.grad[~chosen].any()


def test_what_each_variant_sets():
    def settings(name):
        config = TrainingConfig.model_validate({"variant": name})
        loss = config.loss
        clip = (loss.clip_low, loss.clip_high)
        return loss.aggregation, clip, config.baseline, config.normalize_by_std, loss.kl_coefficient

    assert {name: settings(name) for name in (None, *VARIANTS)} == {
        None: ("trajectory-turn-token", (0.2, 0.2), "group_mean", True, 0.001),
        "grpo": ("seq-mean-token-mean", (0.2, 0.2), "group_mean", True, 0.04),
        "bnpo": ("token-mean", (0.2, 0.2), "group_mean", True, 0.001),
        "dr_grpo": ("seq-mean-token-sum-norm", (0.2, 0.2), "group_mean", False, 0.0),
        "dapo": ("token-mean", (0.2, 0.28), "group_mean", True, 0.0),
        "rloo": ("seq-mean-token-sum", (0.2, 0.2), "leave_one_out", False, 0.001),
        "cispo": ("token-mean", (0.2, 4.0), "group_mean", True, 0.0),
        "gspo": ("seq-mean-token-mean", (3e-4, 4e-4), "group_mean", True, 0.0),
        "arpo": ("seq-mean-token-mean", (0.2, 0.2), "group_mean", True, 0.0),
        "gigpo": ("trajectory-turn-token", (0.2, 0.2), "group_mean", True, 0.01),
    }
    turns = {name: TrainingConfig.model_validate({"variant": name}).turns for name in (None, *VARIANTS)}
    assert turns == {None: "calls", **dict.fromkeys(VARIANTS, "merged"), "gigpo": "calls"}


def test_cispo_bounds_the_weight_and_keeps_every_tokens_gradient():
    loss = TrainingConfig(variant="cispo").loss
    logprobs = f64([-1.0, -1.0, -1.0, -1.0]).requires_grad_()
    old, advantages = f64([-1.0, -4.0, -4.0, -0.5]), f64([1.0, 1.0, -1.0, 2.0])
    result = loss.per_token(logprobs, old, None, advantages, f64([1.0] * 4), f64([1.0] * 4))
    result.loss.sum().backward()
    close(logprobs.grad, [-1.0, -5.0, 5.0, -2 * f64(-0.5).exp().item()])
    assert result.clipped.tolist() == [False, True, True, False]


def test_what_a_policy_writes_in_one_stream_is_one_turn_and_a_planners_calls_are_one_each():
    merged = ("artist-tiny", "search-r1-7b", "text-tiny", "function-calling-tiny", "own-agent-tiny")
    found = {name: load_recipe(name).training.turns for name in (*merged, "flow-grpo-tiny", "agentflow-7b")}
    assert found == {**dict.fromkeys(merged, "merged"), "flow-grpo-tiny": "calls", "agentflow-7b": "calls"}
    assert load_recipe("artist-tiny", ["training.turns=calls"]).training.turns == "calls"


def test_what_a_recipe_says_itself_stands():
    own = TrainingConfig.model_validate(
        {"variant": "dapo", "normalize_by_std": False, "loss": {"clip_high": 0.3, "kl_coefficient": 0.01}}
    )
    assert (own.loss.clip_high, own.loss.kl_coefficient, own.normalize_by_std) == (0.3, 0.01, False)
    assert own.loss.aggregation == "token-mean"
    made = TrainingConfig(variant="rloo", loss=PolicyLoss(clip_low=0.1))
    assert (made.loss.clip_low, made.loss.aggregation) == (0.1, "seq-mean-token-sum")


def test_a_resolved_recipe_is_read_back_the_same():
    recipe = load_recipe("flow-grpo-tiny", ["training.variant=dr_grpo"])
    assert recipe.training.loss.aggregation == "seq-mean-token-sum-norm"
    assert parse_recipe(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize(
    ("name", "road"),
    [
        ("sapo", "training.loss.type"),
        ("grop", "grpo"),
    ],
)
def test_a_recipe_with_another_variant_is_refused_with_the_nearest_road(name, road):
    with raises("unknown-type", name, road, "grpo, bnpo, dr_grpo, dapo, rloo, cispo, gspo, arpo, gigpo"):
        load_recipe("flow-grpo-tiny", [f"training.variant={name}"])


@pytest.mark.parametrize(
    ("override", "road"),
    [
        ("steps=5", "training.steps? "),
        ("training.algorithm=grpo", 'training.variant = "grpo"'),
        ("trainings.steps=5", "did you mean 'training'?"),
    ],
)
def test_a_setting_in_another_place_is_named_with_its_own(override, road):
    with raises("recipe-invalid", road):
        load_recipe("flow-grpo-tiny", [override])


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("training.variant=3", "training.variant = 3"),
        ("training={variant='dapo', loss=3}", "training.loss = 3"),
        ("training={variant='dapo', loss={clip=3}}", "training.loss.clip = 3"),
        ("training.overlong={limit=10}", "training.overlong.buffer"),
        ("training.overlong={limit=10,buffer=11}", "buffer 11 exceeds limit 10"),
        ("training.resample_uniform=-1", "training.resample_uniform = -1"),
        ("training.baseline=median", "training.baseline = 'median'"),
    ],
)
def test_impossible_settings_are_named(override, value):
    with pytest.raises(RecipeError, check=coded("recipe-invalid", value)):
        load_recipe("flow-grpo-tiny", [override])


@pytest.mark.parametrize(
    ("tokens", "added"),
    [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20480, -1.0), (20481, -1.0), (10**6, -1.0)],
)
def test_the_punishment_of_length_is_equation_13(tokens, added):
    """DAPO's own numbers: 20,480 tokens at most, the last 4,096 of them punished."""
    assert OverlongConfig(limit=20480, buffer=4096).added(tokens) == pytest.approx(added)


@pytest.mark.parametrize("fraction", [-0.1, 0.0, 1.1, float("nan")])
def test_the_share_of_uniform_groups_is_a_probability(fraction):
    with pytest.raises(ValidationError):
        TrainingConfig(uniform_kl_fraction=fraction)


def test_roles_are_named_once_and_a_list_of_them_is_replaced_as_a_whole():
    assert [*TrainingConfig.model_validate({"roles": "planner"}).roles] == ["planner"]
    with pytest.raises(ValidationError, match="named twice"):
        TrainingConfig.model_validate({"roles": ["planner", "planner"]})
    with raises("recipe-invalid", "training.roles is a list"):
        load_recipe("agentflow-small", ['training.roles=["planner", "verifier"]', "training.roles.planner.share=2"])


def test_every_trained_module_is_asked_through_the_trained_engine_and_the_first_is_one():
    with raises("setting-conflict", "leaves out 'planner'"):
        resolve(load_recipe("agentflow-small", ['training.roles=["verifier"]', "agent.verifier.engine=policy"]))
    with raises("setting-conflict", "'verifier'", "'policy'"):
        resolve(load_recipe("agentflow-small", ['training.roles=["planner", "verifier"]']))


def test_an_advantage_takes_the_place_of_what_a_variant_sets():
    config = TrainingConfig.model_validate({"variant": "dr_grpo", "advantage": "gigpo"})
    assert (config.normalize_by_std, config.loss.aggregation) == (True, "seq-mean-token-sum-norm")
