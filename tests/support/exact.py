"""What an update must equal: small models of several families, a ragged batch, and its loss sample by sample.

The oracle runs each row's own sequence alone through the model's plain forward pass, and writes the loss out.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from midstream.training.learner import LocalLearner
from midstream.training.losses import PolicyLoss
from midstream.training.protocols import Row
from midstream.training.settings import LearnerConfig

VOCABULARY = 48
_SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 128, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
_CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_SHARED),
    "qwen2": lambda: Qwen2Config(**_SHARED),
    "qwen3": lambda: Qwen3Config(**_SHARED, head_dim=8),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1,
    ),
    "mistral": lambda: MistralConfig(**_SHARED, sliding_window=8),
    "gemma3": lambda: Gemma3TextConfig(
        **_SHARED, head_dim=8, query_pre_attn_scalar=8, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    ),
}  # fmt: skip
LOSS = PolicyLoss(clip_low=0.2, clip_high=0.3, dual_clip=1.5, kl_coefficient=0.3)


class DoubleNorm(nn.Module):
    """Root-mean-square norm in the type of its input; transformers' own goes through single precision."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(norm.weight.detach().clone())
        self.epsilon = norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)


def model_of(
    family: str, *, dtype: torch.dtype = torch.float64, double_norm: bool = True, seed: int = 0
) -> PreTrainedModel:
    """A random model, with logits so large that a wrong one shows; Llama's kin with norms in double precision."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(_CONFIGS[family]()).to(dtype).eval()
    if double_norm:
        norms = [(name, one) for name, one in model.named_modules() if hasattr(one, "variance_epsilon")]
        for name, one in norms:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, DoubleNorm(one))
    return model


def learner_of(model: PreTrainedModel, config: LearnerConfig) -> LocalLearner:
    """A learner whose policy has moved away from its reference, as after some steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name that is being retired
        learner = LocalLearner(model, config)
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for one in learner.parameters:
            one += 0.01 * torch.randn(one.shape, generator=draw, dtype=torch.float64).to(one.dtype)
    return learner


# -- rows --------------------------------------------------------------------------------------------------------------


def ragged_rows(seed: int = 0) -> list[Row]:
    """Two tasks of an agent with memory and one interleaved agent, with everything that makes a batch awkward.

    Turns vary in number; completions are equal, or one the beginning of another, or fork late; some never reappear in
    a later prompt and some do; tool output between sampled tokens is masked; there are two temperatures, one of them on
    a sequence that is there at the other too; two rows share nothing with any.
    """
    draw = random.Random(seed)

    def ids(size: int) -> tuple[int, ...]:
        return tuple(draw.choices(range(2, VOCABULARY), k=size))

    static, tail = ids(14), ids(2)
    rows: list[Row] = []

    def add(prompt: tuple[int, ...], completion: tuple[int, ...], **other: Any) -> None:
        rows.append(
            Row(
                prompt_ids=prompt, completion_ids=completion, old_logprobs=(0.0,) * len(completion),
                advantage=draw.gauss(0, 1.5), weight=draw.uniform(0.01, 0.1), kl_weight=draw.uniform(0, 0.1), **other,
            )
        )  # fmt: skip

    for task in range(2):
        query, first = ids(5), ids(7)
        openings = (first, first, first[:4], (*first[:6], 1), ids(6))  # equal, the beginning of another, a late fork
        for rollout, opening in enumerate(openings):
            memory: tuple[int, ...] = ()
            for turn in range(1 + rollout % 3):
                completion = opening if turn == 0 else ids(3 + turn)
                add((*static, *query, *memory, *tail), completion, temperature=(1.0, 0.7)[task])
                memory += ids(4)  # what was learnt, in other words than the completion's
    conversation, asked = ids(9), ids(3)
    for _ in range(3):
        said, observed, answer = ids(4), ids(5), ids(3)
        spoken = (True,) * 4 + (False,) * 5 + (True,) * 3
        add((*static, *asked), (*said, *observed, *answer), sampled=spoken)
        add((*static, *asked, *said, *observed), answer)  # continues the row above, whose completion reappears
        add((*static, *asked), (*said, *observed, *answer), sampled=(False,) * 9 + (True,) * 3)
    add(rows[0].prompt_ids, rows[0].completion_ids, temperature=0.7)
    add(conversation, ids(8), temperature=1.3)
    add(ids(1), ids(1))
    return rows


def near_policy(rows: Sequence[Row], model: Any, seed: int = 0) -> list[Row]:
    """The rows as if a policy close to the model's had sampled them: some ratios within the clip, some outside."""
    draw = random.Random(seed)
    out = []
    for row in rows:
        with torch.no_grad():
            values = plain_logprobs(model, row).tolist()
        drawn = row.sampled or (True,) * len(values)
        old = tuple(
            value + draw.gauss(0, 0.4) if one else 0.0 for value, one in zip(_spread(values, drawn), drawn, strict=True)
        )
        out.append(replace(row, old_logprobs=old))
    return out


def _spread(values: Sequence[float], drawn: Sequence[bool]) -> list[float]:
    left = iter(values)
    return [next(left) if one else 0.0 for one in drawn]


# -- the oracle --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """What plain forward passes give for rows: per row, in their order, and over all of them."""

    rows: list[Row]
    logprobs: list[tuple[float, ...]]
    reference: list[tuple[float, ...]]
    gradient: dict[str, torch.Tensor]
    loss: float
    kl_sum: float
    gap_sum: float
    clipped: int
    tokens: int


def plain_logprobs(model: Any, row: Row) -> torch.Tensor:
    """Of a row's sampled tokens, by one forward pass over its sequence alone."""
    logits = model(input_ids=torch.tensor([row.prompt_ids + row.completion_ids])).logits[
        0, len(row.prompt_ids) - 1 : -1
    ]
    logprobs = (logits / row.temperature).log_softmax(-1)
    taken = logprobs.gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]
    return taken[torch.tensor(row.sampled)] if row.sampled else taken


def expected(learner: LocalLearner, rows: Sequence[Row], loss: PolicyLoss = LOSS) -> Expected:
    """By copies of the learner's models, which it cannot have touched."""
    policy: Any = copy.deepcopy(learner.model)
    before: Any = copy.deepcopy(learner.reference) if learner.reference is not None else policy
    policy.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    logprobs, references = [], []
    kl_sum = gap_sum = clipped = 0.0
    for row in rows:
        drawn = row.sampled or (True,) * len(row.completion_ids)
        new = plain_logprobs(policy, row)
        with torch.no_grad(), nullcontext() if learner.reference is not None else policy.disable_adapter():
            reference = plain_logprobs(before, row)
        old = new.new_tensor([value for value, one in zip(row.old_logprobs, drawn, strict=True) if one])
        ratio = (new - old).exp()
        low, high = 1 - loss.clip_low, 1 + loss.clip_high
        surrogate = torch.minimum(ratio * row.advantage, ratio.clamp(low, high) * row.advantage)
        if row.advantage < 0 and loss.dual_clip:
            surrogate = surrogate.clamp(min=loss.dual_clip * row.advantage)
        kl = (reference - new).exp() - (reference - new) - 1
        total = total + (loss.kl_coefficient * row.kl_weight * kl - row.weight * surrogate).sum()
        kl_sum += kl.sum().item()
        gap_sum += (new - old).abs().sum().item()
        clipped += ((ratio > high) if row.advantage > 0 else (ratio < low)).sum().item()
        logprobs.append(tuple(_spread(new.tolist(), drawn)))
        references.append(tuple(_spread(reference.tolist(), drawn)))
    total.backward()
    return Expected(
        rows=list(rows),
        logprobs=logprobs,
        reference=references,
        gradient={name: one.grad for name, one in policy.named_parameters() if one.grad is not None},
        loss=total.item(),
        kl_sum=kl_sum,
        gap_sum=gap_sum,
        clipped=int(clipped),
        tokens=sum(map(len, logprobs)) - sum(row.sampled.count(False) for row in rows),
    )
