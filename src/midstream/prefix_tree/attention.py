"""A forward pass over a prefix trie: attention by back ends behind one interface, registered with transformers.

A packed token attends to itself and its ancestors. `Layout` describes that for a forward pass of _N queries over _P
keys of earlier passes and _N of its own; a back end computes it:

- `dense`: one call under a boolean mask [_N, _P + _N]: the oracle of the tests;
- `gather`: one call a segment, on the keys of its path gathered together;
- `cascade`: one causal call a segment and one unmasked call of its descendants on its keys, merged by log-sum-exp; the
  backward pass runs per block with the final output and log-sum-exp. Exact; memory in proportion to tokens. CPU only;
- `varlen`: all segments in one call of variable-length flash attention on gathered keys. CUDA, half precision;
- `flex`: FlexAttention under a block mask. Compiled on CUDA; on a CPU it has a forward pass alone, which runs plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from typing import Any, Literal, NamedTuple

import torch
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from midstream.prefix_tree.stages import TreeStage
from midstream.prefix_tree.tree import Tree, TreeSegment

Backend = Literal["dense", "gather", "cascade", "varlen", "flex"]
ADDED_TO_SCORES = ("attention_mask", "s_aux", "sinks", "softcap", "position_bias")  # as transformers' models pass them
KeyValues = tuple[torch.Tensor, torch.Tensor]  # one layer's keys and values, both [1, _KvHeads, _P, _D]

# (q [1, _H, _N, _D], k and v [1, _KvHeads, _P + _N, _D], layout, scale) -> one layer's attention [1, _H, _N, _D]
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "Layout", float], torch.Tensor]

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Node(NamedTuple):
    """A run of keys [key_start, key_end) and the queries that attend to it.

    The queries [start, end) are its own tokens' and attend causally (none where an earlier pass computed it); the
    queries [end, below_end) are its descendants' and attend to all of it. `parent` is the index of the node before it
    on the path, or -1.
    """

    key_start: int
    key_end: int
    start: int
    end: int
    below_end: int
    parent: int


@dataclass(frozen=True, eq=False)
class Layout:
    """Which queries attend to which keys in a forward pass; nodes come after their parents."""

    nodes: tuple[Node, ...]
    queries: int
    keys: int

    @classmethod
    def of(cls, segments: tuple[TreeSegment, ...], past: int = 0) -> Layout:
        """A pass over a whole trie, whose tokens also attend to all of `past` keys before its own."""
        queries = segments[-1].end
        stem = (Node(0, past, 0, 0, queries, -1),) if past else ()
        own = (
            Node(
                past + segment.start,
                past + segment.end,
                segment.start,
                segment.end,
                segment.subtree_end,
                segment.parent + len(stem),
            )
            for segment in segments
        )
        return cls((*stem, *own), queries, past + queries)

    @cached_property
    def causal(self) -> tuple[tuple[slice, slice], ...]:
        """(keys, queries) of each run of tokens that attends to itself."""
        return tuple(
            (slice(node.key_start, node.key_end), slice(node.start, node.end))
            for node in self.nodes
            if node.end > node.start
        )

    @cached_property
    def unmasked(self) -> tuple[tuple[slice, slice], ...]:
        """(keys, queries) of each run of tokens that its descendants attend to."""
        return tuple(
            (slice(node.key_start, node.key_end), slice(node.end, node.below_end))
            for node in self.nodes
            if node.below_end > node.end
        )

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Per node, the nodes from its root down to it."""
        paths: list[tuple[int, ...]] = []
        for index, node in enumerate(self.nodes):
            paths.append((*(paths[node.parent] if node.parent >= 0 else ()), index))
        return tuple(paths)

    def visible(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Key k is seen by the queries [first[k], last[k]): two int64 tensors [_P + _N]."""
        first = torch.empty(self.keys, dtype=torch.long)
        last = torch.empty(self.keys, dtype=torch.long)
        for node in self.nodes:
            own = node.end > node.start
            first[node.key_start : node.key_end] = torch.arange(node.start, node.end) if own else node.end
            last[node.key_start : node.key_end] = node.below_end
        return first.to(device), last.to(device)


class Packed:
    """Arguments of one forward pass over a trie to every attention layer, passed as the keyword `packed`.

    `past` are the keys and values of earlier passes, a list of layers for each, first pass first; `kept`, where given,
    receives this pass's own, by layer. Not a dataclass, because FSDP2 hands a layer copies of those, `kept` included.
    """

    def __init__(
        self,
        *,
        layout: Layout,
        backend: Backend,
        past: Sequence[list[KeyValues]] = (),
        kept: dict[int, KeyValues] | None = None,
    ) -> None:
        self.layout, self.past, self.kept = layout, past, kept
        self.backend: Backend = backend


def implementation(backend: Backend) -> str:
    """The name of a back end among transformers' attention implementations."""
    return f"midstream_{backend}"


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed: Packed,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention interface: query [1, _H, _N, _D], key and value [1, _KvHeads, _N, _D] -> [1, _N, _H, _D].

    Transformers makes no mask for an implementation that is not its own; a layer may make one. `support.choose` has
    checked dropout and sliding windows. Raises `NotImplementedError` if the layer adds something to its scores that no
    back end supports.
    """
    more["attention_mask"] = attention_mask
    added = sorted(name for name in ADDED_TO_SCORES if more.get(name) is not None)
    if added:
        raise NotImplementedError(f"attention with {added[0]}")
    layer: int = module.layer_idx  # type: ignore[assignment]
    if packed.kept is not None:
        packed.kept[layer] = (key, value)
    if packed.past:
        pieces = [*(layers[layer] for layers in packed.past), (key, value)]
        key, value = (torch.cat([pair[i] for pair in pieces], 2) for i in (0, 1))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = BACKENDS[packed.backend](query, key, value, packed.layout, scale)
    return out.transpose(1, 2).contiguous(), None


@lru_cache(maxsize=1)  # all layers of a pass ask for the same one; so in the other back ends
def _mask(layout: Layout, device: torch.device) -> torch.Tensor:
    """Return whether query (row) attends to key (column): boolean [_N, _P + _N]."""
    first, last = layout.visible(device)
    queries = torch.arange(layout.queries, device=device)[:, None]
    return (first <= queries) & (queries < last)


def _dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, scale: float) -> torch.Tensor:
    mask = _mask(layout, q.device)
    return functional.scaled_dot_product_attention(q, _per_head(k, q), _per_head(v, q), attn_mask=mask, scale=scale)


def _gather(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, scale: float) -> torch.Tensor:
    out = []
    k, v = _per_head(k, q), _per_head(v, q)
    for node, path in zip(layout.nodes, layout.paths, strict=True):
        count = node.end - node.start
        if not count:
            continue
        spans = [(layout.nodes[i].key_start, layout.nodes[i].key_end) for i in path]
        keys = torch.cat([k[:, :, a:b] for a, b in spans], 2)
        values = torch.cat([v[:, :, a:b] for a, b in spans], 2)
        alone = len(spans) == 1
        mask = None
        # Attention is causal where the last query is at the last key.
        if not alone:
            mask = torch.ones(count, keys.shape[2], dtype=torch.bool, device=q.device).tril(keys.shape[2] - count)
        piece = q[:, :, node.start : node.end]
        out.append(
            functional.scaled_dot_product_attention(piece, keys, values, attn_mask=mask, is_causal=alone, scale=scale)
        )
    return torch.cat(out, 2)


def _per_head(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Keys or values repeated for the query heads that share them."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


class _Cascade(torch.autograd.Function):
    """Flash attention over the blocks of a layout; q [1, _H, _N, _D], k and v [1, _KvHeads, _P + _N, _D].

    Sums over blocks are kept in single precision or better.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, scale: float
    ) -> torch.Tensor:
        sums = torch.promote_types(q.dtype, torch.float32)
        out, lse = torch.empty_like(q, dtype=sums), q.new_empty(q.shape[:3], dtype=sums)
        for keys, own in layout.causal:
            out[:, :, own], lse[:, :, own] = _flash(
                q[:, :, own], _per_head(k[:, :, keys], q), _per_head(v[:, :, keys], q), 0.0, True, scale=scale
            )
        for keys, below in layout.unmasked:
            folded = _fold(q[:, :, below], k)
            more, more_lse = _flash(folded, k[:, :, keys], v[:, :, keys], 0.0, False, scale=scale)
            # Merge attention over further keys into the sums, in place.
            so_far, lse_so_far = out[:, :, below], lse[:, :, below]
            more, more_lse = more.reshape(so_far.shape), more_lse.reshape(lse_so_far.shape)
            so_far.lerp_(more.to(so_far.dtype), torch.sigmoid(more_lse - lse_so_far)[..., None])
            torch.logaddexp(lse_so_far, more_lse, out=lse_so_far)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        layout, scale = ctx.layout, ctx.scale
        grad = grads[0]
        sums = torch.promote_types(q.dtype, torch.float32)
        dq = torch.empty_like(q, dtype=sums)
        dk, dv = torch.zeros_like(k, dtype=sums), torch.zeros_like(v, dtype=sums)
        for keys, own in layout.causal:
            repeated = _per_head(k[:, :, keys], q), _per_head(v[:, :, keys], q)
            args = grad[:, :, own], q[:, :, own], *repeated, out[:, :, own], lse[:, :, own]
            dq[:, :, own], key_grad, value_grad = _flash_backward(*args, 0.0, True, scale=scale)
            dk[:, :, keys] = _per_key_head(key_grad, k)
            dv[:, :, keys] = _per_key_head(value_grad, v)
        for keys, below in layout.unmasked:
            g, queries, o, sums_of = (_fold(x[:, :, below], k) for x in (grad, q, out, lse))
            args = g, queries, k[:, :, keys], v[:, :, keys], o, sums_of
            query_grad, key_grad, value_grad = _flash_backward(*args, 0.0, False, scale=scale)
            dq[:, :, below] += query_grad.reshape(dq[:, :, below].shape)
            dk[:, :, keys] += key_grad
            dv[:, :, keys] += value_grad
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def _fold(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """[1, _H, _Q, ...] -> [1, _KvHeads, _H / _KvHeads * _Q, ...]: heads that share keys are, unmasked, more queries."""
    return x.reshape(1, k.shape[1], -1, *x.shape[3:])


def _per_key_head(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The sum over the query heads that share a key head: [1, _H, _K, _D] -> [1, _KvHeads, _K, _D]."""
    return x.reshape(1, k.shape[1], -1, *x.shape[2:]).sum(2)


@lru_cache(maxsize=1)
def _gather_keys(layout: Layout, device: torch.device) -> tuple[Any, ...]:
    """Indices of all paths' keys; where each path's queries and keys end (tensors); the most of each (ints)."""
    index, query_ends, key_ends = [], [0], [0]
    most_queries = most_keys = 0
    for node, path in zip(layout.nodes, layout.paths, strict=True):
        if node.end > node.start:
            own = [torch.arange(layout.nodes[i].key_start, layout.nodes[i].key_end) for i in path]
            keys = sum(map(len, own))
            index += own
            query_ends.append(node.end)
            key_ends.append(key_ends[-1] + keys)
            most_queries, most_keys = max(most_queries, node.end - node.start), max(most_keys, keys)
    ends = (torch.tensor(values, dtype=torch.int32, device=device) for values in (query_ends, key_ends))
    return torch.cat(index).to(device), *ends, most_queries, most_keys


def _varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, scale: float) -> torch.Tensor:
    """Causal flash attention of each segment on its gathered path, aligned at the last key."""
    from torch.nn.attention.varlen import varlen_attn  # imported where used: it takes seconds

    index, *bounds = _gather_keys(layout, q.device)
    queries, keys, values = q[0].transpose(0, 1).contiguous(), k[0].transpose(0, 1)[index], v[0].transpose(0, 1)[index]
    shared_heads = q.shape[1] != k.shape[1]
    out: Any = varlen_attn(queries, keys, values, *bounds, window_size=(-1, 0), scale=scale, enable_gqa=shared_heads)
    return out.transpose(0, 1)[None]


@lru_cache(maxsize=1)
def _block_mask(layout: Layout, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask  # takes a second

    first, last = layout.visible(device)

    def seen(b: torch.Tensor, h: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (first[key] <= query) & (query < last[key])

    return create_block_mask(seen, None, None, layout.queries, layout.keys, device=device)


_compiled = cache(partial(torch.compile, dynamic=True))


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, scale: float) -> torch.Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    attend: Any = _compiled(flex_attention) if q.is_cuda else flex_attention
    mask = _block_mask(layout, q.device)
    return attend(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


BACKENDS: dict[Backend, Attention] = {
    "dense": _dense,
    "gather": _gather,
    "cascade": _Cascade.apply,  # type: ignore[dict-item]
    "varlen": _varlen,
    "flex": _flex,
}
for _name in BACKENDS:
    AttentionInterface.register(implementation(_name), _attend)


# -- a forward pass ----------------------------------------------------------------------------------------------------


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

    `past` are the keys and values of the stages above it, first stage first. Call it within `use_backend`, and let that
    last until the backward pass is done: gradient checkpointing runs the layers again.
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
        # Each keeps the newest, which may be large.
        for mask in (_mask, _gather_keys, _block_mask):
            mask.cache_clear()
