"""The memory of a model in training, part by part and moment by moment: what `midstream plan` divides among GPUs.

The bytes of an update are bounds that tests/test_memory.py compares with PyTorch's tensors. Driver and allocator
overheads are allowances. Prefixes that variable-length attention gathers on a GPU are not included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from midstream.recipe.memory import GIB, PROMPT_TOKENS, SLACK, WIDTHS, Shape
from midstream.training.settings import BUCKET, LOGITS, LearnerConfig

_CONTEXT_BYTES = GIB // 2  # allowance: what a process takes of a card before it does anything
TRUNKS = 3  # allowance: nested prefixes held at once: instructions, a task, a rollout's memory
_FLOAT = 4
_LOGIT_BYTES = 12  # at the peak of an update: three float32 tensors of logits
_DRAW_BYTES = 32  # while sampling: logits four times in float32, their sum twice in float64

Moment = Literal["always", "update", "step", "sampling"]


def kept_bytes(shape: Shape, width: int, *, lora: bool) -> int:
    """Bytes that one layer keeps of one token for the backward pass, with attention that keeps no score matrix."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = (2 * query + 2 * key) * width
    norms = 2 * shape.hidden * _FLOAT  # always in float32
    if not lora:
        return attention + norms + 4 * (shape.hidden + shape.intermediate) * width
    if width == _FLOAT:
        return attention + norms + (2 * shape.hidden + 4 * shape.intermediate) * width
    copies = (5 * shape.hidden + query + shape.intermediate) * _FLOAT  # each adapter's input, in float32
    return attention + norms + copies + 3 * shape.intermediate * width


def largest(shape: Shape) -> int:
    """Number of weights of the largest part that runs as a whole: a layer, or the table of a vocabulary."""
    return max(shape.layer, shape.vocabulary * shape.hidden)


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of one thing, the moment when they are needed, and the formula behind them.

    `host`: they are in host memory, next to the device, because of `learner.offload`.
    """

    name: str
    bytes: int
    formula: str
    moment: Moment = "always"
    host: bool = False


def peak(parts: list[Part]) -> int:
    """Bytes on the device at the peak: update, optimizer step and sampling take place one after another."""
    moments: tuple[Moment, ...] = ("update", "step", "sampling")
    here = [part for part in parts if not part.host]
    total = {moment: sum(part.bytes for part in here if part.moment == moment) for moment in ("always", *moments)}
    return total["always"] + max(total[moment] for moment in moments)


def offloaded(parts: list[Part]) -> int:
    """Bytes in host memory of what `learner.offload` takes off the device."""
    return sum(part.bytes for part in parts if part.host)


def weights(shape: Shape, dtype: str) -> Part:
    """The model itself."""
    count, width = shape.parameters, WIDTHS[dtype]
    return Part("weights", count * width, f"{count:,} parameters x {width} ({dtype})")


def update(shape: Shape, dtype: str, learner: LearnerConfig, roles: int = 1) -> list[Part] | None:
    """What training adds to the weights; None for a LoRA target whose layers are unknown.

    Each of the trained `roles` may have an adapter. A bound for rows of up to `learner.chunk_tokens` tokens; attention
    by "dense" or "gather" copies more.
    """
    width = WIDTHS[dtype]
    if learner.lora is None:
        parts = _all_weights(shape, width, learner)
    elif learner.lora.target == "all-linear":
        parts = _adapter(shape.adapter(learner.lora.rank) * (roles if learner.lora.per_role else 1), learner)
    else:
        return None
    # Padded rows fill a chunk exactly; a prefix tree may hold a few chunks' worth of tokens.
    tokens = learner.chunk_tokens * (1 if learner.attention == "rows" else SLACK)
    per_token = token_bytes(shape, width, learner)
    parts.append(Part("activations", tokens * per_token, f"{tokens:,} tokens x {per_token:,}", "update"))
    if learner.attention != "rows":
        # Keys and values of prefixes that several stages of a tree attend to, at most three quarters of its tokens:
        # with their gradient, and once more as their passes left them (of every trunk, if that is not recomputed).
        copies = 2 + (1 if learner.recompute_activations else TRUNKS)
        longest, each = tokens * 3 // 4, shape.kv_bytes(width)
        formula = f"up to {copies} copies x {longest:,} tokens x {each:,} of keys and values"
        parts.append(Part("shared prefixes", copies * longest * each, formula, "update"))
    logits = min(LOGITS, tokens * shape.vocabulary)
    return [*parts, Part("logits", logits * _LOGIT_BYTES, f"{logits:,} at a time x {_LOGIT_BYTES}", "update")]


def _all_weights(shape: Shape, width: int, learner: LearnerConfig) -> list[Part]:
    """Gradient, AdamW and reference policy where all weights are trained."""
    count, head = shape.parameters, shape.vocabulary * shape.hidden
    masters = width < _FLOAT
    parts = [
        Part("gradient", count * _FLOAT, f"parameters x {_FLOAT}"),
        *_adamw(count, learner, masters=masters),
        Part("reference policy", count * width, f"a frozen copy: parameters x {width}", host=learner.offload),
    ]
    if learner.offload:
        formula = f"one layer or table at a time: {largest(shape):,} x {width}"
        parts.append(Part("reference policy's layer", largest(shape) * width, formula, "update"))
    if not (learner.offload or masters):
        parts.append(Part("AdamW's step", count * width, f"temporary values: parameters x {width}", "step"))
    each = width + _FLOAT if masters else width  # as it is computed, and as it is added
    formula = f"before it is added to the rest: {head:,} x {each}"
    return [*parts, Part("the head's gradient", head * each, formula, "update")]


def _adapter(count: int, learner: LearnerConfig) -> list[Part]:
    """Weights, gradient and AdamW of adapters of `count` numbers, all in float32."""
    if not learner.offload:
        formula = f"{count:,} x 4 (weights, gradient, AdamW's two moments) x 4 (float32)"
        parts = [Part("LoRA adapter", 4 * count * _FLOAT, formula)]
    else:
        formula = f"{count:,} x 2 (weights, gradient) x 4 (float32)"
        parts = [Part("LoRA adapter", 2 * count * _FLOAT, formula), *_adamw(count, learner)]
    return [*parts, Part("reference policy", 0, "the model without its adapter")]


def _adamw(count: int, learner: LearnerConfig, *, masters: bool = False) -> list[Part]:
    """AdamW's state for `count` trained numbers in float32, and what a streamed step holds of it at a time."""
    host = learner.offload
    parts = [Part("AdamW", 2 * count * _FLOAT, f"two moments x parameters x {_FLOAT}", host=host)]
    if masters:
        parts.append(Part("masters", count * _FLOAT, f"parameters x {_FLOAT} (float32)", host=host))
    if host or masters:
        bucket = min(BUCKET, count)
        copies = (2 + masters) * host + 2  # what is in host memory, and two temporary values
        formula = f"{bucket:,} parameters at a time x {copies} x {_FLOAT}"
        parts.append(Part("AdamW's step", bucket * copies * _FLOAT, formula, "step"))
    return parts


def token_bytes(shape: Shape, width: int, learner: LearnerConfig) -> int:
    """Bytes of activations for each token: what all layers keep, and the gradients of one layer.

    With recomputed activations: the inputs of all layers, and one layer in full with its gradients.
    """
    kept = kept_bytes(shape, width, lora=learner.lora is not None)
    if not learner.recompute_activations:
        return (shape.layers + 1) * kept
    return shape.layers * shape.hidden * width + 2 * kept


def sampling(shape: Shape, dtype: str, batch: int, max_tokens: int) -> Part:
    """Key-value cache and logits of sampling `batch` requests in process, with the shortest prompts."""
    row, width = PROMPT_TOKENS + max_tokens, WIDTHS[dtype]
    cache = shape.kv_bytes(width)
    formula = f"{batch} rows x ({row:,} tokens x {cache:,} of cache + {shape.vocabulary:,} x {_DRAW_BYTES})"
    return Part("sampling", batch * (row * cache + shape.vocabulary * _DRAW_BYTES), formula, "sampling")


def engine_parts(
    shape: Shape,
    dtype: str,
    learner: LearnerConfig | None,
    *,
    sampled: tuple[int, int] | None,
    on_card: bool,
    roles: int = 1,
) -> list[Part] | None:
    """Everything that a model in this process takes; None for a LoRA target whose layers are unknown.

    `learner` and the number of trained `roles`: of a model that is trained. `sampled`: the most requests at once, and
    the new tokens of one.
    """
    parts = [weights(shape, dtype)]
    if learner is not None:
        added = update(shape, dtype, learner, roles)
        if added is None:
            return None
        parts += added
    if sampled is not None:
        parts.append(sampling(shape, dtype, *sampled))
    return [*parts, Part("the process itself", _CONTEXT_BYTES, "an allowance")] if on_card else parts
