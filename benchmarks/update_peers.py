"""Three ways to compute one policy update, each by its own code, and the dense batch that says what the machine can do.

- `Midstream`: `LocalLearner` as a recipe without any settings makes it;
- `update_trl.Trl`: `GRPOTrainer`'s own loss and log-probabilities over micro-batches, padded as it pads them;
- `PaddingFree`: a micro-batch's rows behind one another in one sequence, each attending to itself by flash attention,
  the head on completion positions alone: what trainers do that waste nothing on padding and share nothing;
- `Unshared`: plain transformers on rows of one length, for the FLOP/s that this model reaches on this machine.

All share one model object; the first three leave the same gradient in it. TRL and padding-free rows are computed in the
same micro-batches: eight rows, TRL's default, or as many short ones as have 8,192 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel
from update_shapes import Work, inputs_of, rows_work

from midstream.prefix_tree.attention import causal_lm
from midstream.training.learner import LocalLearner
from midstream.training.losses import PolicyLoss
from midstream.training.protocols import Row

MICRO_BATCH_ROWS, MICRO_BATCH_TOKENS = 8, 8192
KL = 0.001  # the paper's
NOISE = 0.05  # of recorded log-probabilities, so that some tokens are clipped
HEAD_POSITIONS = 2048  # of which a padding-free trainer holds logits at once


class Peer(Protocol):
    """`gradient` adds the loss's gradient to the model's, old log-probabilities given and no KL term.

    `update` is all that a step computes: log-probabilities of the policy that sampled and of the reference, then the
    gradient with the KL term. Both return the loss.
    """

    def gradient(self) -> float: ...
    def update(self) -> float: ...


@dataclass
class Midstream:
    """Ours."""

    learner: LocalLearner
    rows: Sequence[Row]

    def gradient(self) -> float:
        return self.learner.forward_backward(self.rows, PolicyLoss(kl_coefficient=0)).loss

    def update(self) -> float:
        old = self.learner.logprobs(self.rows)
        rows = [replace(row, old_logprobs=logprobs) for row, logprobs in zip(self.rows, old, strict=True)]
        return self.learner.forward_backward(rows, PolicyLoss(kl_coefficient=KL)).loss


@contextmanager
def attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    """The model with another attention implementation."""
    config: Any = model.config  # the one that all layers hold
    before, config._attn_implementation = config._attn_implementation, name
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def training(model: PreTrainedModel) -> Iterator[None]:
    """Transformers recomputes activations, and TRL counts accumulation, only in a model that is in training."""
    model.train()
    try:
        yield
    finally:
        model.eval()


@contextmanager
def reference(model: Any) -> Iterator[None]:
    """The reference policy without a gradient: the base model of an adapter; else the policy stands for it."""
    with torch.no_grad():
        if hasattr(model, "disable_adapter"):
            with model.disable_adapter():
                yield
        else:
            yield


def micro_batches(rows: Sequence[Row]) -> Iterator[slice]:
    """The rows of each, in order."""
    start = tokens = 0
    for i, row in enumerate(rows):
        own = len(row.prompt_ids) + len(row.completion_ids)
        if i - start >= MICRO_BATCH_ROWS and tokens + own > MICRO_BATCH_TOKENS:
            yield slice(start, i)
            start, tokens = i, 0
        tokens += own
    yield slice(start, len(rows))


# --- padding-free rows ------------------------------------------------------------------------------------------------


@dataclass
class PaddingFree:
    """Rows behind one another."""

    model: PreTrainedModel
    rows: Sequence[Row]

    def gradient(self) -> float:
        return self._backward(self.rows, 0.0, None)

    def update(self) -> float:
        with torch.no_grad():
            old = self._logprobs()
        with reference(self.model):
            anchor = self._logprobs()
        ends = iter(old.tolist())
        rows = [replace(row, old_logprobs=tuple(next(ends) for _ in row.completion_ids)) for row in self.rows]
        return self._backward(rows, KL, anchor)

    def _logprobs(self) -> torch.Tensor:
        with attention(self.model, "padding_free"):
            return torch.cat([packed_logprobs(self.model, self.rows[one]) for one in micro_batches(self.rows)])

    def _backward(self, rows: Sequence[Row], beta: float, anchor: torch.Tensor | None) -> float:
        loss, total, start = PolicyLoss(kl_coefficient=beta), 0.0, 0
        with training(self.model), attention(self.model, "padding_free"):  # the backward pass may compute it again
            for taken in micro_batches(rows):
                part = rows[taken]
                new = packed_logprobs(self.model, part)
                lengths = torch.tensor([len(row.completion_ids) for row in part])
                numbers = torch.tensor([[row.advantage, row.weight, row.kl_weight] for row in part])
                advantages, weights, kl_weights = numbers.repeat_interleave(lengths, 0).T.to(new.device)
                old = new.new_tensor([value for row in part for value in row.old_logprobs])
                own = None if anchor is None else anchor[start : start + len(new)]
                value = loss.per_token(new, old, own, advantages, weights, kl_weights).loss.sum()
                value.backward()
                total, start = total + value.item(), start + len(new)
        return total


def packed_logprobs(model: PreTrainedModel, rows: Sequence[Row]) -> torch.Tensor:
    """Flat log-probabilities of all completion tokens; the model's attention is padding-free."""
    inputs, spans, predicting, start = inputs_of(rows), [], [], 0
    for row, ids in zip(rows, inputs, strict=True):
        spans.append((start, start + len(ids)))
        predicting += range(start + len(row.prompt_ids) - 1, start + len(ids))
        start += len(ids)
    base, device = causal_lm(model), model.device
    hidden = base.get_decoder()(
        input_ids=torch.tensor([token for ids in inputs for token in ids], device=device)[None],
        position_ids=torch.cat([torch.arange(len(ids)) for ids in inputs])[None].to(device),
        use_cache=False,
        spans=spans,
    ).last_hidden_state[0]
    picked = hidden[torch.tensor(predicting, device=device)]
    targets = torch.tensor([token for row in rows for token in row.completion_ids], device=device)
    pieces = zip(picked.split(HEAD_POSITIONS), targets.split(HEAD_POSITIONS), strict=True)
    return torch.cat([_scored(base.get_output_embeddings(), *piece) for piece in pieces])


def _scored(head: Any, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Log-probabilities; on a GPU logits are computed again for the backward pass rather than kept."""

    def score(hidden: torch.Tensor) -> torch.Tensor:
        return -functional.cross_entropy(head(hidden).float(), targets, reduction="none")

    return checkpoint(score, hidden, use_reentrant=False) if hidden.is_cuda else score(hidden)  # type: ignore[return-value]


def _rows_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    spans: list[tuple[int, int]],
    scaling: float,
    **ignored: Any,
) -> tuple[torch.Tensor, None]:
    """Each row on itself; query, key and value are [1, heads, tokens, width of a head]."""
    if query.is_cuda:
        ends = torch.tensor([0, *(end for _, end in spans)], dtype=torch.int32, device=query.device)
        longest = max(end - start for start, end in spans)
        q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
        gqa = query.shape[1] != key.shape[1]
        out = varlen_attn(q, k, v, ends, ends, longest, longest, window_size=(-1, 0), scale=scaling, enable_gqa=gqa)
        return out[None], None  # type: ignore[index]
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    attend = functional.scaled_dot_product_attention
    own = [attend(query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], is_causal=True, scale=scaling) for a, b in spans]
    return torch.cat(own, 2).transpose(1, 2).contiguous(), None


AttentionInterface.register("padding_free", _rows_attention)


def recorded(learner: LocalLearner, rows: Sequence[Row]) -> list[Row]:
    """The rows with the policy's own log-probabilities, a little off, as those of the policy that sampled."""
    generator = torch.Generator().manual_seed(0)

    def near(values: Sequence[float]) -> tuple[float, ...]:
        return tuple((torch.tensor(values) + NOISE * torch.randn(len(values), generator=generator)).tolist())

    old = learner.logprobs(rows)
    return [replace(row, old_logprobs=near(own)) for row, own in zip(rows, old, strict=True)]


# --- what the machine can do ------------------------------------------------------------------------------------------


@dataclass
class Unshared:
    """`count` rows of one length, nothing shared, nothing padded: forward and backward of plain cross-entropy."""

    model: PreTrainedModel
    length: int
    count: int
    predicted: int  # positions of each row that go through the head

    @classmethod
    def like(cls, model: PreTrainedModel, rows: Sequence[Row]) -> Unshared:
        """Rows as long as `rows` are on average, as many as make a micro-batch."""
        whole = rows_work(rows)
        length = whole.tokens // len(rows)
        return cls(model, length, max(1, MICRO_BATCH_TOKENS // length), max(1, whole.predicted // len(rows)))

    @property
    def work(self) -> Work:
        """What it computes."""
        pairs = self.count * self.length * (self.length + 1) // 2
        return Work(self.count * self.length, pairs, self.count * self.predicted)

    def gradient(self) -> float:
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(3, self.model.config.vocab_size, (self.count, self.length), generator=generator)
        ids = ids.to(self.model.device)
        with training(self.model):
            logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=self.predicted).logits
            targets = ids[:, -self.predicted :]
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
            loss.backward()
        return loss.item()
