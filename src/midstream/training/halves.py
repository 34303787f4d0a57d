"""A causal language model in two halves, padded rows in and hidden states out, then its head where it is asked for."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from midstream.core.errors import UnsupportedError
from midstream.prefix_tree.forward import causal_lm


def hidden_states(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Last hidden states [rows, _T, hidden]. Rows are padded on the right, where causal attention never looks."""
    return causal_lm(model).get_decoder()(input_ids=ids, use_cache=False).last_hidden_state


def head(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [..., _V] of hidden states."""
    return _output_layer(model)(hidden)


def at_least_single(logits: torch.Tensor) -> torch.Tensor:
    """Logits of a half-precision model in single precision, where their softmax belongs; others as they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _output_layer(model: PreTrainedModel) -> torch.nn.Module:
    return causal_lm(model).get_output_embeddings()  # type: ignore[return-value]


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
        fix="train a model that does neither (Llama, Qwen, Mistral, GPT-2 and their kin)",
    )
