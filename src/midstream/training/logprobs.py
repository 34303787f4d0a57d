"""Log-probabilities of sampled tokens by one forward pass. The language-model head runs on their positions only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from midstream.core.errors import UnsupportedError
from midstream.core.protocols import Row


class TokenSequence(NamedTuple):
    """What makes two rows one forward pass: their tokens, which of them were sampled, and at which temperature.

    `sampled` is `Row.sampled`: () where the whole completion was.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    temperature: float = 1.0
    sampled: tuple[bool, ...] = ()

    @classmethod
    def of(cls, row: Row) -> TokenSequence:
        """A row's."""
        return cls(row.prompt_ids, row.completion_ids, row.temperature, row.sampled)

    @property
    def length(self) -> int:
        """All its tokens."""
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def predicted(self) -> int:
        """Its sampled tokens."""
        return sum(self.sampled) if self.sampled else len(self.completion_ids)


def completion_logprobs(model: PreTrainedModel, sequences: Sequence[TokenSequence]) -> torch.Tensor:
    """Log-probabilities of all sampled tokens, flat [_N], at each sequence's sampling temperature."""
    ids, sampled = padded(sequences, model.device)
    mask = sampled[:, 1:]
    logits = at_least_single(head(model, hidden_states(model, ids[:, :-1])[mask]))
    temperatures = [one.temperature or 1.0 for one in sequences for _ in range(one.predicted)]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / logits.new_tensor(temperatures)[:, None]
    return -functional.cross_entropy(logits, ids[:, 1:][mask], reduction="none")


def hidden_states(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Last hidden states [rows, _T, hidden]. Rows are padded on the right, where causal attention never looks."""
    return _causal_lm(model).get_decoder()(input_ids=ids, use_cache=False).last_hidden_state


def head(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [..., _V] of hidden states."""
    return _output_layer(model)(hidden)


def at_least_single(logits: torch.Tensor) -> torch.Tensor:
    """Logits of a half-precision model in single precision, where their softmax belongs; others as they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _output_layer(model: PreTrainedModel) -> torch.nn.Module:
    return _causal_lm(model).get_output_embeddings()  # type: ignore[return-value]


def _causal_lm(model: Any) -> Any:
    """The causal language model under a peft wrapper; its adapter layers are inside it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def padded(sequences: Sequence[TokenSequence], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids int64, was-sampled bool), both [rows, longest], padded on the right with id 0."""
    longest = max(one.length for one in sequences)
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    mask = torch.zeros(len(sequences), longest, dtype=torch.bool)
    for i, one in enumerate(sequences):
        ids[i, : one.length] = torch.tensor(one.prompt_ids + one.completion_ids)
        mask[i, len(one.prompt_ids) : one.length] = torch.tensor(one.sampled) if one.sampled else True
    return ids.to(device), mask.to(device)


@torch.no_grad()
def require_plain_head(model: PreTrainedModel) -> None:
    """Refuse a model that changes hidden states before its head, or logits after it.

    In one forward pass the head answers with a ramp: what comes out otherwise was scaled or capped, also where the
    model's own logits are too small to show it.
    """
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def answer(head: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        ramp = torch.linspace(-100, 100, output.numel(), device=output.device, dtype=output.dtype).view_as(output)
        seen.append((inputs[0], ramp))
        return ramp

    hook = _output_layer(model).register_forward_hook(answer)
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    hidden, ramp = seen[0]
    expected = hidden_states(model, ids)
    if torch.allclose(hidden, expected, atol=1e-3, rtol=1e-2) and torch.allclose(logits.to(ramp), ramp):
        return
    raise UnsupportedError(
        f"{type(model).__name__} scales or caps its logits",
        cause="the learner computes log-probabilities from the head on the last hidden states alone",
        mend="train a model that does neither (Llama, Qwen, Mistral, GPT-2 and their kin)",
    )
