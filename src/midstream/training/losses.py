"""The policy loss: clipped surrogate plus KL, per token, with explicit weights.

One flat per-token loss serves every aggregation: `row_weights` turns a mode into one number per row, and the loss of a
batch is sum over tokens of weight * clipped policy loss + beta * kl_weight * KL (arXiv 2510.05592, eq. 5, negated).
torch is imported for types alone, so recipes are validated where it is not installed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, get_args

from pydantic import Field

from midstream.core.data import Settings
from midstream.core.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

Aggregation = Literal[
    "trajectory-turn-token", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
]
KlKind = Literal["k1", "k2", "k3", "k1+", "k2+", "k3+"]

# verl's bounds: exp of a log-ratio stays finite, and one token's k3 cannot outweigh a batch.
MAX_LOG_RATIO = 20.0
MAX_K3 = 10.0


def clipped_policy_loss(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) per token, to minimize; `ratio` is rho, with gradient.

    `advantages` broadcast to the shape of `ratio`, which is the shape of the loss. Where A < 0, `dual_clip` bounds the
    loss by -dual_clip * A (arXiv 1912.09729).
    """
    loss = (-advantages * ratio).maximum(-advantages * ratio.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip is None:
        return loss
    return loss.minimum(-advantages * dual_clip).where(advantages < 0, loss)


def clipped_tokens(ratio: torch.Tensor, advantages: torch.Tensor, *, clip_low: float, clip_high: float) -> torch.Tensor:
    """Boolean, per token: the clip took effect, so the token has no gradient from the policy term."""
    return ((ratio > 1 + clip_high) & (advantages > 0)) | ((ratio < 1 - clip_low) & (advantages < 0))


def token_ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    """rho = exp(logprobs - old_logprobs) per token: the policy's probability over the recorded one."""
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """GSPO's ratio of a token's row: the geometric mean of its tokens' ratios (arXiv 2507.18071, eq. 7 and 14).

    `rows`, int64 [_N], numbers the row of each token. The value is the row's; the gradient is that of the token's own
    log-probability times it (GSPO-token), so that the calls of a row may have advantages of their own; where they have
    one, it is GSPO's.
    """
    difference = (logprobs - old_logprobs).detach()
    sums = difference.new_zeros(int(rows.max()) + 1).index_add(0, rows, difference)
    mean = sums / rows.bincount().clamp(min=1)
    value = mean.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()[rows]
    return value * (logprobs - logprobs.detach()).exp()


def kl_estimate(logprobs: torch.Tensor, ref_logprobs: torch.Tensor, kind: KlKind = "k3") -> torch.Tensor:
    """Per-token estimate of KL(policy || reference) from tokens drawn from the policy.

    With d = logprobs - ref_logprobs: k1 = d; k2 = d^2 / 2; k3 = exp(-d) + d - 1, with d held within +-20 and the value
    at most 10. A trailing "+" keeps the estimator's value and gives it the gradient of k2, whose expectation is the
    gradient of the KL. Both log-probabilities have the same shape, and so has the result.
    """
    difference = logprobs - ref_logprobs
    k2 = 0.5 * difference.square()
    if kind in ("k2", "k2+"):
        return k2
    if kind in ("k1", "k1+"):
        value = difference
    elif kind in ("k3", "k3+"):
        inverse = (-difference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        value = (inverse.exp() - inverse - 1).clamp(max=MAX_K3)
    else:
        raise _unknown("KL estimator", kind, KlKind)
    return k2 - k2.detach() + value.detach() if kind.endswith("+") else value


def row_weights(
    lengths: Sequence[int],
    mode: Aggregation,
    trajectory_ids: Sequence[Hashable] | None = None,
    *,
    horizon: int | None = None,
) -> list[float]:
    """One weight per row, so that sum over all tokens of weight * value is the aggregate of the values.

    Rows without tokens count nowhere: not as rows, not as turns, not as trajectories.

    | mode                    | weight of a token in a row of n tokens                                            |
    |-------------------------|-----------------------------------------------------------------------------------|
    | trajectory-turn-token   | 1 / (trajectories * the trajectory's rows * n): Flow-GRPO, arXiv 2510.05592 eq. 5 |
    | token-mean              | 1 / tokens in the batch: DAPO, arXiv 2503.14476                                   |
    | seq-mean-token-mean     | 1 / (rows * n): GRPO, arXiv 2402.03300                                            |
    | seq-mean-token-sum      | 1 / rows                                                                          |
    | seq-mean-token-sum-norm | 1 / (rows * horizon): Dr. GRPO, arXiv 2503.20783                                  |

    `lengths` are the rows' token counts. trajectory-turn-token requires a trajectory id per row,
    seq-mean-token-sum-norm the `horizon`, a constant number of tokens; otherwise `ValueError`.
    """
    if not any(lengths):
        return [0.0] * len(lengths)
    rows = sum(length > 0 for length in lengths)
    if mode == "token-mean":
        total = sum(lengths)
        return [1 / total if n else 0.0 for n in lengths]
    if mode == "seq-mean-token-mean":
        return [1 / (rows * n) if n else 0.0 for n in lengths]
    if mode == "seq-mean-token-sum":
        return [1 / rows if n else 0.0 for n in lengths]
    if mode == "seq-mean-token-sum-norm":
        if horizon is None or horizon < 1:
            raise ValueError(f"{mode} needs a positive horizon, got {horizon}")
        return [1 / (rows * horizon) if n else 0.0 for n in lengths]
    if mode != "trajectory-turn-token":
        raise _unknown("aggregation", mode, Aggregation)
    if trajectory_ids is None or len(trajectory_ids) != len(lengths):
        given = "none" if trajectory_ids is None else len(trajectory_ids)
        raise ValueError(f"{mode} needs one trajectory id per row: {len(lengths)} rows, {given} given")
    turns = Counter(name for name, n in zip(trajectory_ids, lengths, strict=True) if n)
    return [1 / (len(turns) * turns[name] * n) if n else 0.0 for name, n in zip(trajectory_ids, lengths, strict=True)]


def _unknown(what: str, given: str, known: object) -> UnsupportedError:
    message = f"{what} {given!r} is not supported"
    return UnsupportedError(message, code="unknown-type", fix=f"use one of {', '.join(get_args(known))}")


class TokenLoss(NamedTuple):
    """Result of `PolicyLoss.per_token` for _N tokens.

    `loss` [_N] is weighted and carries the gradient: its sum is the batch's loss. `kl` [_N] is the unweighted estimate
    and `clipped` [_N] the tokens whose ratio was clipped, both for the log, without a gradient.
    """

    loss: torch.Tensor
    kl: torch.Tensor
    clipped: torch.Tensor


class PolicyLoss(Settings):
    """Settings of the loss, and the loss itself. The defaults are the paper's; its released code clips at 0.2 and 0.3.

    Attributes:
        surrogate: `ppo`: the clipped ratio times the advantage. `gspo`: the same with one ratio a row, at the cost of a
            forward pass. `cispo`: the ratio, at most 1 + `clip_high` and detached, weighs advantage times
            log-probability (arXiv 2506.13585)
        clip_low: the lower bound of the ratio is 1 - `clip_low`
        clip_high: the upper bound of the ratio is 1 + `clip_high`
        dual_clip: verl's second bound, of the loss of negative advantages (3.0 there)
        kl_coefficient: beta; 0 needs no reference policy
        kl_kind: `k1`, `k2`, `k3`, or with `+` for the gradient of k2; k1 as a penalty has a gradient of mean 0
        entropy_coefficient: of a bonus, the entropy of the distribution that a token was drawn from, weighted as KL is
        aggregation: `trajectory-turn-token` (the paper), `token-mean`, `seq-mean-token-mean`, `seq-mean-token-sum` or
            `seq-mean-token-sum-norm`, which divides by the most tokens that a row could have
        type: a function of yours in place of the clipped loss, `"my_loss.py:name"`, with its settings in this table
    """

    whole_rows: ClassVar[bool] = False  # the loss of a token depends on the other tokens of its row

    surrogate: Literal["ppo", "gspo", "cispo"] = "ppo"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.2, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)
    kl_coefficient: float = Field(default=0.001, ge=0)
    kl_kind: KlKind = "k3"
    entropy_coefficient: float = Field(default=0.0, ge=0)
    aggregation: Aggregation = "trajectory-turn-token"
    type: str | None = None

    def per_token(
        self,
        logprobs: torch.Tensor,
        old_logprobs: torch.Tensor,
        ref_logprobs: torch.Tensor | None,
        advantages: torch.Tensor,
        weights: torch.Tensor,
        kl_weights: torch.Tensor,
        *,
        rows: torch.Tensor | None = None,
    ) -> TokenLoss:
        """weight * clipped policy loss + beta * kl_weight * KL for each token; every tensor is [_N].

        `logprobs` are the policy's at the sampling temperature and carry the gradient, `old_logprobs` were recorded at
        sampling, `ref_logprobs` are the reference policy's: `ValueError` if they are None and `kl_coefficient` is not
        0. Each token has the advantage of its call and the weights of its row. `rows`, int64, numbers its row, where
        `needs_rows`; then all tokens of a row are here. The entropy bonus is the learner's.
        """
        policy, clipped = self.policy(logprobs, old_logprobs, advantages, rows)
        if ref_logprobs is None:
            if self.kl_coefficient:
                raise ValueError(f"kl_coefficient {self.kl_coefficient} needs ref_logprobs")
            return TokenLoss(weights * policy, policy.detach().new_zeros(policy.shape), clipped)
        kl = kl_estimate(logprobs, ref_logprobs, self.kl_kind)
        return TokenLoss(weights * policy + self.kl_coefficient * kl_weights * kl, kl.detach(), clipped)

    @property
    def needs_rows(self) -> bool:
        """Whether `per_token` needs all tokens of a row at once."""
        return self.whole_rows or self.surrogate == "gspo"

    def policy(
        self,
        logprobs: torch.Tensor,
        old_logprobs: torch.Tensor,
        advantages: torch.Tensor,
        rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The policy loss of each token, unweighted and with gradient, and which tokens were clipped; all [_N]."""
        if self.surrogate == "cispo":
            ratio = token_ratio(logprobs.detach(), old_logprobs)
            return -ratio.clamp(max=1 + self.clip_high) * advantages * logprobs, ratio > 1 + self.clip_high
        if self.surrogate == "ppo":
            ratio = token_ratio(logprobs, old_logprobs)
        elif rows is None:
            raise ValueError("the surrogate gspo needs rows")
        else:
            ratio = sequence_ratio(logprobs, old_logprobs, rows)
        clip = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        loss = clipped_policy_loss(ratio, advantages, **clip, dual_clip=self.dual_clip)
        return loss, clipped_tokens(ratio.detach(), advantages, **clip)
