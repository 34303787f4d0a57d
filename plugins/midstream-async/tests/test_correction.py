"""Corrections of stale rows, against sums by hand; and the gradient that they leave."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from midstream.training.learner import LocalLearner
from midstream.training.losses import PolicyLoss
from midstream.training.protocols import Row
from midstream.training.rows import RowBatch
from midstream.training.settings import LearnerConfig
from midstream_async.correction import corrected, factors, gradient_cosine
from midstream_async.settings import PipelineConfig


def row(old, sampled=(), advantage=2.0):
    return Row(
        prompt_ids=(1,), completion_ids=tuple(range(len(old))), sampled=sampled, old_logprobs=tuple(old),
        advantage=advantage, weight=1.0, kl_weight=1.0,
    )  # fmt: skip


def learner(*now) -> Any:
    return SimpleNamespace(logprobs=lambda rows: list(now))


W = np.array([0.3, 1.0, 1.5, 4.0])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [1, 1, 1, 1]),
        ({"decoupled": True}, [0.3, 1, 1.5, 2]),
        ({"mask": "tokens"}, [0, 1, 1, 0]),
        ({"mask": "tokens", "decoupled": True, "bound": 4.0}, [0.3, 1, 1.5, 4]),
        ({"mask": "sequences"}, [1, 1, 1, 1]),
        ({"mask": "sequences", "bound": 1.1}, [0, 0, 0, 0]),
    ],
)
def test_factors(changes, expected):
    found = factors(W, np.ones(4, dtype=bool), PipelineConfig(**changes))
    assert found == pytest.approx(expected)


def test_what_is_measured():
    now = tuple(np.log(W) - 1.0)
    batch = RowBatch(rows=(row([-1.0] * 4, sampled=(True, True, False, True)),))
    _, found = corrected([batch], learner(now), PipelineConfig(mask="tokens"))
    own = W[[0, 1, 3]]
    assert (found.tokens, found.masked) == (3, 2)
    metrics = found.metrics()
    assert metrics["sample_share"] == pytest.approx(own.sum() ** 2 / (3 * (own**2).sum()))
    assert metrics["sampler_kl"] == pytest.approx((own - 1 - np.log(own)).mean())
    assert metrics["masked_share"] == pytest.approx(2 / 3)


def test_without_correction_rows_stay_as_they_are():
    batch = RowBatch(rows=tuple(row([-1.0]) for _ in range(9)))
    [same], found = corrected([batch], learner((-1.0,), (-2.0,)), PipelineConfig())
    assert same is batch
    assert found.tokens == 2, "every eighth row is measured"


def test_decoupled_rows_have_the_gradient_of_the_weighted_clipped_ratio_to_the_newer_weights():
    old, now = [-1.0, -1.2, -0.5], (-0.8, -1.9, -0.1)
    batch = RowBatch(rows=(row(old),))
    [new], _ = corrected([batch], learner(now), PipelineConfig(decoupled=True, bound=1.3))
    [changed] = new.rows
    current = torch.tensor([-0.7, -1.8, -0.9], dtype=torch.float64, requires_grad=True)
    loss = PolicyLoss(kl_coefficient=0.0)
    result = loss.per_token(
        current,
        torch.tensor(changed.old_logprobs, dtype=torch.float64),
        None,
        torch.tensor(changed.advantages, dtype=torch.float64),
        torch.ones(3, dtype=torch.float64),
        torch.ones(3, dtype=torch.float64),
    )
    (found,) = torch.autograd.grad(result.loss.sum(), current)
    expected = []
    for place in range(3):
        weight = min(1.3, math.exp(now[place] - old[place]))
        ratio = math.exp(current[place].item() - now[place])
        expected.append(-2.0 * weight * ratio if ratio < 1.2 else 0.0)
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.fixture
def small():
    """A learner of a random Llama in double precision."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        initializer_range=0.2,
    )  # fmt: skip
    return LocalLearner(AutoModelForCausalLM.from_config(config).double().eval(), LearnerConfig())


def trajectories(learner, stale):
    """Two rows of each of nine trajectories, whose recorded log-probabilities are up to `stale` from the learner's."""
    draw = np.random.default_rng(1)
    rows = []
    for number in range(18):
        ids = tuple(draw.integers(2, 20, 5).tolist())
        made = replace(row([0.0] * 3, advantage=draw.normal()), prompt_ids=ids[:2], completion_ids=ids[2:])
        [now] = learner.logprobs([made])
        old = tuple(value + stale * draw.uniform(-1, 1) for value in now)
        rows.append(replace(made, old_logprobs=old, trajectory_id=f"t{number // 2}"))
    return RowBatch(rows=tuple(rows))


@pytest.mark.parametrize("changes", [{}, {"decoupled": True, "bound": 1.1}, {"mask": "tokens", "bound": 1.2}])
def test_the_cosine_is_that_of_the_gradient_taken_to_that_of_importance_sampling(small, changes):
    batch, loss = trajectories(small, 0.5), PolicyLoss()
    changed, _ = corrected([batch], small, PipelineConfig(**changes))
    found = gradient_cosine([batch], changed, small, loss)
    assert all(parameter.grad is None for parameter in small.parameters)

    def gradient(value):
        return torch.cat([part.flatten() for part in torch.autograd.grad(value, small.parameters)])

    def logprobs(one):
        ids = torch.tensor([one.prompt_ids + one.completion_ids])
        return small.model(ids).logits[0, 1:-1].log_softmax(-1)[range(3), ids[0, 2:]]

    # Every eighth of nine trajectories is the first and the last.
    taken = wanted = torch.zeros((), dtype=torch.float64)
    for place in (0, 16):
        both = batch.rows[place : place + 2]
        whole = sum((logprobs(one).detach() - torch.tensor(one.old_logprobs)).sum() for one in both).exp()
        for one, other in zip(both, changed[0].rows[place : place + 2], strict=True):
            wanted = wanted + whole * one.advantage * logprobs(one).sum()
            ratio = (logprobs(other) - torch.tensor(other.old_logprobs)).exp()
            advantages = torch.tensor(other.advantages or (other.advantage,) * 3)
            taken = taken + torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum()
    expected = torch.cosine_similarity(gradient(taken), gradient(wanted), dim=0).item()
    assert found == pytest.approx(expected, rel=1e-6)
    assert found < 0.99


def test_the_cosine_is_1_where_no_row_is_stale(small):
    batch = trajectories(small, 0.0)
    assert gradient_cosine([batch], [batch], small, PolicyLoss()) == pytest.approx(1.0, abs=1e-6)


def test_no_cosine_where_every_row_is_masked(small):
    batch = trajectories(small, 0.5)
    none = replace(batch, rows=tuple(replace(one, advantage=0.0) for one in batch.rows))
    assert gradient_cosine([batch], [none], small, PolicyLoss()) is None
