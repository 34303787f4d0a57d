"""Corrections of stale rows, against sums by hand; and the gradient that they leave."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from midstream.training.losses import PolicyLoss
from midstream.training.protocols import Row
from midstream.training.rows import RowBatch
from midstream_async.correction import corrected, factors
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
