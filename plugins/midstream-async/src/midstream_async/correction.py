"""Corrections of rows that older weights sampled, and how far those are from the newest.

    w = exp(log pi_now(token) - log pi_sampled(token)),   pi_now: the learner's weights before the update

A weight multiplies the advantage of its token: the clipped loss is linear in it, and its clip does not depend on it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from midstream.training.learner import LocalLearner
from midstream.training.losses import PolicyLoss
from midstream.training.protocols import Learner, Row
from midstream.training.rows import RowBatch
from midstream_async.settings import AheadConfig

_PROBE = 8
_MOST = 20.0  # of |log w|


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """Sums over the sampled tokens of a mini-batch."""

    tokens: int = 0
    masked: int = 0
    weights: float = 0.0  # of w before any bound
    squares: float = 0.0
    gap: float = 0.0  # of |log w|
    kl: float = 0.0  # of the estimate w - 1 - log w of KL(pi_sampled || pi_now), in nats

    @classmethod
    def total(cls, parts: Sequence[Correction]) -> Correction:
        """The sums over several mini-batches."""
        return cls(**{name: sum(getattr(part, name) for part in parts) for name in cls.__slots__})

    def metrics(self, *, decoupled: bool = False) -> dict[str, float]:
        """Fields of `StepMetrics`: the effective share of the sample, KL and masked share. Nothing without tokens.

        `decoupled` rows hold the learner's log-probabilities, so the gap to those that were recorded is given, too.
        """
        if not self.tokens:
            return {}
        return ({"logprob_gap": self.gap / self.tokens} if decoupled else {}) | {
            "sample_share": self.weights**2 / (self.tokens * self.squares) if self.squares else 0.0,
            "sampler_kl": self.kl / self.tokens,
            "masked_share": self.masked / self.tokens,
        }


def corrected(
    batches: Sequence[RowBatch], learner: Learner, config: AheadConfig
) -> tuple[Sequence[RowBatch], Correction]:
    """The mini-batches with their corrections, and what there was to correct.

    Where nothing is corrected, every eighth row is measured.
    """
    if not config.decoupled and config.mask == "none":
        probe = [row for batch in batches for row in batch.rows][::_PROBE]
        return batches, Correction.total([_measured(*pair) for pair in _with_logprobs(probe, learner)])
    results: list[RowBatch] = []
    found: list[Correction] = []
    for batch in batches:
        rows = []
        for row, now in _with_logprobs(batch.rows, learner):
            sampled, weights = _ratios(row, now)
            kept = factors(weights, sampled, config)
            advantages = np.array(row.advantages or (row.advantage,) * len(now))
            changes = {"advantages": tuple((advantages * kept).tolist())}
            rows.append(replace(row, **changes, **({"old_logprobs": tuple(now)} if config.decoupled else {})))
            found.append(replace(_measured(row, now), masked=int((kept[sampled] == 0).sum())))
        results.append(replace(batch, rows=tuple(rows)))
    return results, Correction.total(found)


def gradient_cosine(
    sampled: Sequence[RowBatch], changed: Sequence[RowBatch], learner: LocalLearner, loss: PolicyLoss
) -> float | None:
    """The cosine of the gradient that a step takes, to an estimate of the on-policy one; None if one of them is 0.

    Both are of every eighth trajectory, without KL and bonus, before the update. `changed` are the mini-batches that
    the step trains on, `sampled` the same ones as they were sampled. The estimate is that of importance sampling: the
    advantages of a trajectory times the product of its tokens' w, without a clip. It is 1 where all w are.
    """
    plain = loss.model_copy(update={"kl_coefficient": 0.0, "entropy_coefficient": 0.0})
    pairs = [pair for old, new in zip(sampled, changed, strict=True) for pair in zip(old.rows, new.rows, strict=True)]
    probed = set([*dict.fromkeys(row.trajectory_id for row, _ in pairs)][::_PROBE])
    pairs = [pair for pair in pairs if pair[0].trajectory_id in probed]
    found = [(row, now, *_ratios(row, now)) for row, now in _with_logprobs([row for row, _ in pairs], learner)]
    logs: defaultdict[str, float] = defaultdict(float)
    for row, _, _, weights in found:
        logs[row.trajectory_id] += float(np.log(weights).sum())
    rows = []
    for row, now, _, _ in found:
        weight = math.exp(min(max(logs[row.trajectory_id], -_MOST), _MOST))
        advantages = np.array(row.advantages or (row.advantage,) * len(now)) * weight
        rows.append(replace(row, old_logprobs=tuple(now), advantages=tuple(advantages.tolist())))
    taken, wanted = (_gradient(learner, each, plain) for each in ([row for _, row in pairs], rows))
    squares = _dot(taken, taken) * _dot(wanted, wanted)
    return _dot(taken, wanted) / math.sqrt(squares) if squares else None


def _gradient(learner: LocalLearner, rows: Sequence[Row], loss: PolicyLoss) -> list[torch.Tensor]:
    """The gradient of a loss, and none is left in the learner."""
    learner.forward_backward(rows, loss)
    found = [parameter.grad for parameter in learner.parameters]
    for parameter in learner.parameters:
        parameter.grad = None
    return [each for each in found if each is not None]


def _dot(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    return sum(float((mine * its).sum()) for mine, its in zip(one, other, strict=True))


def factors(weights: np.ndarray, sampled: np.ndarray, config: AheadConfig) -> np.ndarray:
    """What multiplies the advantage of each token of a row [_N]: `weights` [_N] are w, `sampled` [_N] the policy's."""
    found = np.minimum(weights, config.bound) if config.decoupled else np.ones(len(weights))
    if config.mask == "tokens":
        found = found * ((weights <= config.bound) & (weights >= 1 / config.bound))
    elif config.mask == "sequences" and sampled.any():
        mean = abs(float(np.log(weights[sampled]).mean()))
        found = found * float(mean <= math.log(config.bound))
    return found


def _with_logprobs(rows: Sequence[Row], learner: Learner) -> zip[tuple[Row, tuple[float, ...]]]:
    return zip(rows, learner.logprobs(rows), strict=True)


def _ratios(row: Row, now: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Of a row's tokens [_N]: whether the policy sampled them, and w, 1 for the others."""
    sampled = np.array(row.sampled or (True,) * len(now))
    return sampled, np.exp(np.where(sampled, np.clip(np.array(now) - np.array(row.old_logprobs), -_MOST, _MOST), 0.0))


def _measured(row: Row, now: Sequence[float]) -> Correction:
    sampled, weights = _ratios(row, now)
    own = weights[sampled]
    return Correction(
        tokens=len(own),
        weights=float(own.sum()),
        squares=float((own**2).sum()),
        gap=float(np.abs(np.log(own)).sum()),
        kl=float((own - 1 - np.log(own)).sum()),
    )
