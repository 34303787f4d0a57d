"""A forward pass of any Hugging Face causal language model over a prefix trie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from midstream.prefix_tree.attention import Backend, Packed, implementation


def packed_hidden(model: PreTrainedModel, ids: torch.Tensor, positions: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Last hidden states [_N, hidden] of packed tokens; `ids` and `positions` are int64 [_N] on the model's device.

    Call it within `using(model, packed.backend)`, and let that last until the backward pass is done: gradient
    checkpointing runs the layers again.
    """
    decoder = causal_lm(model).get_decoder()
    return decoder(input_ids=ids[None], position_ids=positions[None], use_cache=False, packed=packed).last_hidden_state[
        0
    ]


def causal_lm(model: Any) -> Any:
    """The causal language model under a peft wrapper; its adapter layers are inside it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def using(model: PreTrainedModel, backend: Backend) -> Iterator[None]:
    """The model's layers attend by `backend`; afterwards as before."""
    configs = {id(one.config): one.config for one in causal_lm(model).modules() if hasattr(one, "config")}.values()
    before = [(config, config._attn_implementation) for config in configs]
    try:
        for config, _ in before:
            config._attn_implementation = implementation(backend)
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name
