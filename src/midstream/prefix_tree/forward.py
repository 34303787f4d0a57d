"""A forward pass of any Hugging Face causal language model over a prefix trie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from midstream.prefix_tree.attention import MASKS, Backend, KeyValues, Layout, Packed, implementation
from midstream.prefix_tree.stages import TreeStage
from midstream.prefix_tree.tree import Tree


def stage_hidden(
    model: PreTrainedModel,
    tree: Tree,
    stage: TreeStage,
    backend: Backend,
    past: Sequence[list[KeyValues]] = (),
    *,
    keep: bool = False,
) -> tuple[torch.Tensor, list[KeyValues]]:
    """Last hidden states [_n, hidden] of a stage's tokens and, with `keep`, each layer's own keys and values.

    `past` are the keys and values of the stages above it, first stage first. Call it within `using(model, backend)`,
    and let that last until the backward pass is done: gradient checkpointing runs the layers again.
    """
    tokens = slice(stage.start, stage.end)
    ids, positions = (torch.from_numpy(values[tokens])[None].to(model.device) for values in (tree.ids, tree.positions))
    layout = Layout.of(stage.segments(tree), sum(layers[0][0].shape[2] for layers in past))
    kept: dict[int, KeyValues] = {}
    packed = Packed(layout=layout, backend=backend, past=past, kept=kept if keep else None)
    output = causal_lm(model).get_decoder()(input_ids=ids, position_ids=positions, use_cache=False, packed=packed)
    return output.last_hidden_state[0], [kept[layer] for layer in sorted(kept)]


def causal_lm(model: Any) -> Any:
    """The causal language model under a peft wrapper; its adapter layers are inside it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def use_backend(model: PreTrainedModel, backend: Backend) -> Iterator[None]:
    """The model's layers attend by `backend`; afterwards as before."""
    configs = {id(part.config): part.config for part in causal_lm(model).modules() if hasattr(part, "config")}.values()
    before = [(config, config._attn_implementation) for config in configs]
    try:
        for config, _ in before:
            config._attn_implementation = implementation(backend)
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name
        for mask in MASKS:
            mask.cache_clear()
