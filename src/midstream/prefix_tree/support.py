"""Which attention back end a model can use, found by trial: a few tokens by the trie and by plain forward passes.

A model that keeps a state from token to token, or mixes tokens elsewhere than in attention, gives other hidden states
by the trie. What a short trial cannot show (a window longer than it) is read off the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from midstream.prefix_tree.attention import BACKENDS, Backend, KeyValues, Layout, causal_lm, stage_hidden, use_backend
from midstream.prefix_tree.stages import TreeStage, stages_of
from midstream.prefix_tree.tree import Tree, tree_of

Wanted = Literal["auto", "rows"] | Backend
TRIAL = ((3, 1, 4, 1, 5, 9, 2, 6), (3, 1, 4, 1, 5, 8), (3, 1, 4, 2, 7, 1, 8), (2, 7))  # forks early, late and at once
STAGED = 12  # a budget of tokens that cuts the trial into a trunk and stages that hang on it
TOLERANCE, HALF_TOLERANCE = 1e-4, 0.05  # relative L2 distance of hidden states and gradients
LENGTH_SCALED = {"dynamic", "longrope"}  # positions that depend on the longest row of a batch


class Choice(NamedTuple):
    """A back end for rows of at most `longest` tokens; None and the reason where rows are padded instead."""

    backend: Backend | None
    reason: str = ""
    longest: float = float("inf")


def choose(model: PreTrainedModel, wanted: Wanted = "auto") -> Choice:
    """The first back end that computes what the model computes; only `wanted` is tried if it names one."""
    if wanted == "rows":
        return Choice(None, "the recipe asks for rows")
    name = type(causal_lm(model)).__name__
    hindrance = _hindrance(model)
    if hindrance:
        return Choice(None, f"{name} {hindrance}")
    candidates: tuple[Backend, ...]  # the fastest first
    if wanted != "auto":
        candidates = (wanted,)
    elif model.device.type == "cpu":
        candidates = ("cascade", "gather")
    else:
        half_on_cuda = _is_half(model) and model.device.type == "cuda"
        candidates = ("varlen", "flex", "gather") if half_on_cuda else ("flex", "gather")
    failure = ""
    for backend in candidates:
        failure = _failure(model, backend)
        if not failure:
            window = getattr(causal_lm(model).config.get_text_config(), "sliding_window", None)
            # Within its window, it is plain causal attention.
            return Choice(backend, longest=window or float("inf"))
    return Choice(None, f"{name} {failure}")


def _hindrance(model: PreTrainedModel) -> str:
    """Return why a model's configuration rules out the trie, "" if it does not."""
    config = causal_lm(model).config.get_text_config()
    other = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if other:
        return f"has layers of type {min(other)}"
    if not getattr(causal_lm(model), "_supports_attention_backend", False):
        return "accepts no attention function from outside"
    rope = getattr(config, "rope_parameters", None) or {}
    # There is a table of all layers, or one per type of layer.
    for table in (rope, *rope.values()):
        if isinstance(table, dict) and table.get("rope_type") in LENGTH_SCALED:
            return f"scales its positions by the longest row ({table['rope_type']})"
    drops = any(module.training and module.p for module in model.modules() if isinstance(module, torch.nn.Dropout))
    if drops or (model.training and getattr(config, "attention_dropout", 0)):
        return "is in training mode with dropout"
    return ""


def _is_half(model: PreTrainedModel) -> bool:
    return model.dtype in (torch.bfloat16, torch.float16)


def _failure(model: PreTrainedModel, backend: Backend) -> str:
    """Return why the back end failed its trial, "" if it passed."""
    vocabulary = causal_lm(model).get_input_embeddings().weight.shape[0]
    tree = tree_of([[token % vocabulary for token in row] for row in TRIAL])
    whole = TreeStage(0, len(tree.segments), 0, tree.unique)
    try:
        expected = _plain_hidden(model, tree)
        with torch.no_grad(), use_backend(model, backend):
            hidden, kept = stage_hidden(model, tree, whole, backend, keep=True)
            staged = torch.cat(_staged_hidden(model, backend, tree, stages_of(tree, STAGED), []))
        keys = kept[0][0]
        query_heads = getattr(causal_lm(model).config.get_text_config(), "num_attention_heads", keys.shape[1])
        layout = Layout.of(tree.segments)
        gradients = [_gradients(way, layout, keys, query_heads) for way in (backend, "dense")]
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        return f"cannot attend over a trie: {backend}: {error}".splitlines()[0].split(". ")[0]
    distances = [_distance(hidden, expected), _distance(staged, expected), *map(_distance, *gradients)]
    # The comparison is false for NaN, too.
    if not max(distances) <= (HALF_TOLERANCE if _is_half(model) else TOLERANCE):
        return f"computes something else over a trie by {backend} (relative distance {max(distances):.1g})"
    return ""


def _plain_hidden(model: PreTrainedModel, tree: Tree) -> torch.Tensor:
    """Each row's own forward pass, its hidden states put at its packed places: [_N, hidden]."""
    hidden: dict[int, torch.Tensor] = {}
    for path in tree.paths:
        ids = torch.from_numpy(tree.ids[path]).to(model.device)
        with torch.no_grad():
            own = causal_lm(model).get_decoder()(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        hidden |= dict(zip(path.tolist(), own, strict=True))
    return torch.stack([hidden[i] for i in range(tree.unique)])


def _staged_hidden(
    model: PreTrainedModel, backend: Backend, tree: Tree, stages: Sequence[TreeStage], past: list[list[KeyValues]]
) -> list[torch.Tensor]:
    """Hidden states of stages and of those below them, in packed order; finds layers that run twice and keep once."""
    hidden: list[torch.Tensor] = []
    for stage in stages:
        own, kept = stage_hidden(model, tree, stage, backend, past, keep=True)
        hidden += [own, *_staged_hidden(model, backend, tree, stage.below, [*past, kept])]
    return hidden


def _gradients(backend: Backend, layout: Layout, key: torch.Tensor, query_heads: int) -> list[torch.Tensor]:
    """Of a fixed sum of attention outputs to queries, keys and values of a layer's shape (`key`'s: [1, _K, _N, _D])."""
    _, heads, tokens, size = key.shape
    noise = np.random.default_rng(0).standard_normal((1, 2 * query_heads + 2 * heads, tokens, size))
    parts = torch.from_numpy(noise).to(key).split([query_heads, heads, heads, query_heads], dim=1)
    q, k, v = (part.clone().requires_grad_() for part in parts[:3])
    out = BACKENDS[backend](q, k, v, layout, size**-0.5)
    return list(torch.autograd.grad((out * parts[3]).sum(), [q, k, v]))


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).norm() / b.detach().double().norm())
