"""Log-probabilities of completions by one forward pass. The language-model head runs on completion positions only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from midstream.core.errors import UnsupportedError

TokenSequence = tuple[tuple[int, ...], tuple[int, ...], float]  # prompt ids, completion ids, temperature


def completion_logprobs(model: PreTrainedModel, sequences: Sequence[TokenSequence]) -> torch.Tensor:
    """Log-probabilities of all completion tokens, flat [_N], at each sequence's sampling temperature."""
    ids, completion = padded(sequences, model.device)
    mask = completion[:, 1:]
    logits = head(model, hidden_states(model, ids[:, :-1])[mask]).float()
    temperatures = [temperature or 1.0 for _, completion_ids, temperature in sequences for _ in completion_ids]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / logits.new_tensor(temperatures)[:, None]
    return -functional.cross_entropy(logits, ids[:, 1:][mask], reduction="none")


def hidden_states(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Last hidden states [rows, _T, hidden]. Rows are padded on the right, where causal attention never looks."""
    return _causal_lm(model).get_decoder()(input_ids=ids, use_cache=False).last_hidden_state


def head(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [..., _V] of hidden states."""
    return _output_layer(model)(hidden)


def _output_layer(model: PreTrainedModel) -> torch.nn.Module:
    return _causal_lm(model).get_output_embeddings()  # type: ignore[return-value]


def _causal_lm(model: Any) -> Any:
    """The causal language model under a peft wrapper; its adapter layers are inside it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def padded(sequences: Sequence[TokenSequence], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids int64, is-completion bool), both [rows, longest], padded on the right with id 0."""
    longest = max(len(prompt) + len(completion) for prompt, completion, _ in sequences)
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    mask = torch.zeros(len(sequences), longest, dtype=torch.bool)
    for i, (prompt, completion, _) in enumerate(sequences):
        end = len(prompt) + len(completion)
        ids[i, :end] = torch.tensor(prompt + completion)
        mask[i, len(prompt) : end] = True
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
