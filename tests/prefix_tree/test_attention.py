"""Attention over the trie: every back end equals softmax row by row, output and gradient, and needs little memory."""

from __future__ import annotations

import inspect
import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.varlen import varlen_attn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface

from midstream.prefix_tree.attention import Layout, Node, Packed, implementation
from midstream.prefix_tree.tree import tree_of
from support.tries import SEQUENCES, batches

WITH_BACKWARD = ["dense", "gather", "cascade"]  # on a CPU
ALONE = Layout.of(tree_of([(1, 2, 3)]).segments)


def tensors(queries, keys, groups=1, dtype=torch.float64, seed=0, key_heads=2, size=8):
    """q [1, _H, queries, size], k and v [1, _KvHeads, keys, size], wanting gradients."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [(1, key_heads * groups, queries, size), (1, key_heads, keys, size), (1, key_heads, keys, size)]
    return [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def attend(backend, q, k, v, layout, scale=None):
    """As a model's layer calls it, the first keys being those of an earlier pass: [1, _H, _N, _D]."""
    left = k.shape[2] - q.shape[2]
    past = [[(k[:, :, :left], v[:, :, :left])]] if left else []
    packed = Packed(layout=layout, backend=backend, past=past)
    attend = AttentionInterface()[implementation(backend)]
    out, weights = attend(
        SimpleNamespace(layer_idx=0), q, k[:, :, left:], v[:, :, left:], None, packed=packed, scaling=scale
    )
    assert weights is None
    assert out.is_contiguous()
    return out.transpose(1, 2)


def plain(q, k, v, seen, scale=None):
    """Softmax written out: query n looks at the keys `seen[n]` alone."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = scale or 1 / math.sqrt(q.shape[-1])
    rows = []
    for n, keys in enumerate(seen):
        scores = torch.einsum("hd,hkd->hk", q[0, :, n], k[0, :, keys]) * scale
        rows.append(torch.einsum("hk,hkd->hd", scores.softmax(-1), v[0, :, keys]))
    return torch.stack(rows, 1)[None]


def seen_by(tree, past=0):
    """Per packed token, the keys it looks at: `past` of an earlier pass, then its path to itself."""
    seen = [[]] * tree.unique
    for path in tree.paths:
        for depth, token in enumerate(path.tolist()):
            seen[token] = [*range(past), *(past + path[: depth + 1]).tolist()]
    return seen


def split(tree, earlier):
    """The layout of a pass over all but the segments `earlier`, whose keys come first; and what each query sees.

    An earlier segment has no queries of its own here; its descendants among the queries are one range, as ever.
    """
    tokens = [range(one.start, one.end) for one in tree.segments]
    order = [t for i in sorted(earlier) for t in tokens[i]]
    rest = [t for i, one in enumerate(tokens) if i not in earlier for t in one]
    key_at = {token: key for key, token in enumerate([*order, *rest])}
    queries = sorted(rest)

    def before(token):
        return sum(one < token for one in queries)

    nodes = []
    for one in tree.segments:
        start, end, below = before(one.start), before(one.end), before(one.subtree_end)
        nodes.append(Node(key_at[one.start], key_at[one.end - 1] + 1, start, end, below, one.parent))
    everything = seen_by(tree)
    layout = Layout(tuple(nodes), len(queries), tree.unique)
    return layout, [[key_at[token] for token in everything[query]] for query in queries]


def require_equal(backend, tree, past=0, groups=1, scale=None, seed=0):
    """Output and gradients as the oracle's."""
    layout = Layout.of(tree.segments, past)
    require_layout_equal(backend, layout, seen_by(tree, past), groups, scale, seed)


def require_layout_equal(backend, layout, seen, groups=1, scale=None, seed=0):
    q, k, v = tensors(layout.queries, layout.keys, groups, seed=seed)
    weights = torch.randn(q.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=q.dtype)
    expected = plain(q, k, v, seen, scale)
    out = attend(backend, q, k, v, layout, scale)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    wanted = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    got = torch.autograd.grad((out * weights).sum(), (q, k, v))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


# -- against the oracle, in double precision ---------------------------------------------------------------------------


@pytest.mark.matrix(3)
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("past", [0, 5])
@pytest.mark.parametrize("backend", WITH_BACKWARD)
def test_output_and_gradients_equal_softmax_row_by_row(backend, past, groups):
    require_equal(backend, tree_of(SEQUENCES), past, groups)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("backend", WITH_BACKWARD)
@given(batches(), st.integers(0, 3), st.sampled_from([1, 2]))
def test_any_trie(backend, sequences, past, groups):
    require_equal(backend, tree_of(sequences), past, groups)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("backend", WITH_BACKWARD)
@given(batches(), st.data())
def test_segments_of_an_earlier_pass_are_seen_by_their_own_descendants_only(backend, sequences, data):
    tree = tree_of(sequences)
    inner = [i for i, one in enumerate(tree.segments) if one.subtree_end > one.end]
    picked = data.draw(st.sets(st.sampled_from(inner))) if inner else set()
    earlier = {i for i in picked if _all_before(tree, i) <= picked}
    layout, seen = split(tree, earlier)
    require_layout_equal(backend, layout, seen)


def _all_before(tree, index):
    before = set()
    while tree.segments[index].parent >= 0:
        index = tree.segments[index].parent
        before.add(index)
    return before


@pytest.mark.parametrize("backend", WITH_BACKWARD)
def test_the_models_own_scale_is_used(backend):
    require_equal(backend, tree_of(SEQUENCES), groups=2, scale=0.7)


@pytest.mark.parametrize("backend", WITH_BACKWARD)
def test_unshared_sequences_do_not_see_each_other(backend):
    require_equal(backend, tree_of(SEQUENCES, share=False))


@pytest.mark.slow
@pytest.mark.parametrize("backend", WITH_BACKWARD)
def test_segments_longer_than_a_kernels_block(backend):
    """Flash attention works in blocks of a few hundred: forks before, at and behind their edges."""
    trunk = tuple(range(700))
    tree = tree_of([(*trunk[:at], 1000 + at) for at in (31, 256, 512, 700)] + [(*trunk[:512], *range(900, 1500))])
    q, k, v = tensors(tree.unique, tree.unique, groups=2)
    mask = torch.zeros(tree.unique, tree.unique, dtype=torch.bool)
    for n, keys in enumerate(seen_by(tree)):
        mask[n, keys] = True
    scores = (q @ k.repeat_interleave(2, 1).mT / math.sqrt(8)).masked_fill(~mask, -math.inf)
    expected = scores.softmax(-1) @ v.repeat_interleave(2, 1)
    out = attend(backend, q, k, v, Layout.of(tree.segments))
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    wanted = torch.autograd.grad(expected.square().sum(), (q, k, v))
    for one, other in zip(torch.autograd.grad(out.square().sum(), (q, k, v)), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=0)


@pytest.mark.parametrize("backend", ["gather", "cascade"])
def test_large_scores_do_not_overflow(backend):
    """Log-sum-exps hundreds apart are merged without an infinity."""
    tree = tree_of(SEQUENCES)
    q, k, v = tensors(tree.unique, tree.unique)
    q = q * 300
    layout = Layout.of(tree.segments)
    torch.testing.assert_close(attend(backend, q, k, v, layout), plain(q, k, v, seen_by(tree)), atol=1e-12, rtol=0)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("past", [0, 5])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_equals_softmax_row_by_row(past, groups):
    """Its output; its backward pass needs CUDA."""
    tree = tree_of(SEQUENCES)
    layout = Layout.of(tree.segments, past)
    q, k, v = (x.detach() for x in tensors(layout.queries, layout.keys, groups))
    out = attend("flex", q, k, v, layout)
    torch.testing.assert_close(out, plain(q, k, v, seen_by(tree, past)), atol=1e-12, rtol=0)


# -- variable-length flash attention, whose kernel a CPU lacks ---------------------------------------------------------


def emulated_varlen(q, k, v, query_ends, key_ends, most_queries, most_keys, *, window_size, scale, enable_gqa):
    """What PyTorch's `varlen_attn` documents, by plain softmax; causal means aligned at the last key."""
    inspect.signature(varlen_attn).bind(
        q, k, v, query_ends, key_ends, most_queries, most_keys,
        window_size=window_size, scale=scale, enable_gqa=enable_gqa,
    )  # fmt: skip
    assert query_ends.dtype == key_ends.dtype == torch.int32
    assert window_size == (-1, 0)
    assert enable_gqa == (q.shape[1] != k.shape[1])
    spans = [ends.tolist() for ends in (query_ends, key_ends)]
    assert [(ends[0], ends[-1]) for ends in spans] == [(0, len(q)), (0, len(k))]
    assert max(query_ends.diff()) == most_queries
    assert max(key_ends.diff()) == most_keys
    out = []
    for (start, end), (first, last) in zip(*map(pairwise, spans), strict=True):
        seen = [list(range(last - first - (end - query) + 1)) for query in range(start, end)]
        piece = plain(*(x.transpose(0, 1)[None] for x in (q[start:end], k[first:last], v[first:last])), seen, scale)
        out.append(piece[0].transpose(0, 1))
    return torch.cat(out)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("past", [0, 5])
def test_varlen_asks_its_kernel_for_the_right_keys(monkeypatch, past, groups):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", emulated_varlen)
    require_equal("varlen", tree_of(SEQUENCES), past, groups)


def test_varlen_with_segments_of_an_earlier_pass(monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", emulated_varlen)
    layout, seen = split(tree_of(SEQUENCES), {2, 3})
    require_layout_equal("varlen", layout, seen)


# -- half precision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", WITH_BACKWARD)
def test_bfloat16_is_within_its_rounding(backend):
    """Against single precision on the same rounded inputs: a few units in the last place, 2**-8 of a value near 1."""
    tree = tree_of(SEQUENCES)
    layout = Layout.of(tree.segments, 5)
    half = tensors(layout.queries, layout.keys, groups=2, dtype=torch.bfloat16)
    single = [x.detach().float().requires_grad_() for x in half]
    weights = torch.randn(half[0].shape, generator=torch.Generator().manual_seed(1))
    out, expected = attend(backend, *half, layout), plain(*single, seen_by(tree, 5))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, atol=0.02, rtol=0.01)
    got = torch.autograd.grad((out.float() * weights).sum(), half)
    for one, other in zip(got, torch.autograd.grad((expected * weights).sum(), single), strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.float() - other).norm() < 0.015 * other.norm()


# -- memory ------------------------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The most elements of any tensor that is made or viewed within it."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.elements = max(self.elements, *made, 0)
        return out


def largest(backend, tree):
    """The largest tensor of a forward and a backward pass, in elements."""
    q, k, v = tensors(tree.unique, tree.unique, groups=2)
    with Largest() as seen:
        attend(backend, q, k, v, Layout.of(tree.segments)).sum().backward()
    return seen.elements


def test_cascade_makes_nothing_larger_than_its_queries():
    tree = tree_of([(*range(400), *range(1000 * i, 1000 * i + 60)) for i in range(1, 11)])
    queries = tree.unique * 4 * 8
    assert largest("cascade", tree) == queries
    assert largest("dense", tree) >= tree.unique**2 > 30 * tree.unique


# -- the layout --------------------------------------------------------------------------------------------------------


def test_a_pass_over_a_whole_trie():
    tree = tree_of([(1, 2, 3), (1, 2, 4)])
    layout = Layout.of(tree.segments, past=7)
    assert layout.nodes == (
        Node(0, 7, 0, 0, 4, -1), Node(7, 9, 0, 2, 4, 0), Node(9, 10, 2, 3, 3, 1), Node(10, 11, 3, 4, 4, 1),
    )  # fmt: skip
    assert (layout.queries, layout.keys) == (4, 11)
    assert layout.paths == ((0,), (0, 1), (0, 1, 2), (0, 1, 3))
    first, last = layout.visible(torch.device("cpu"))
    assert first.tolist() == [0] * 7 + [0, 1, 2, 3]
    assert last.tolist() == [4] * 7 + [4, 4, 3, 4]


@given(batches(), st.integers(0, 3))
def test_visible_says_what_each_query_sees(sequences, past):
    tree = tree_of(sequences)
    first, last = Layout.of(tree.segments, past).visible(torch.device("cpu"))
    for query, keys in enumerate(seen_by(tree, past)):
        assert [key for key in range(len(first)) if first[key] <= query < last[key]] == keys


def test_a_pass_keeps_its_own_keys_and_values_by_layer():
    tree = tree_of(SEQUENCES)
    q, k, v = tensors(tree.unique, 5 + tree.unique)
    kept = {}
    two, three = ((k[:, :, part], v[:, :, part]) for part in (slice(0, 2), slice(2, 5)))
    packed = Packed(
        layout=Layout.of(tree.segments, 5), backend="cascade", past=[[(k, v), two], [(k, v), three]], kept=kept
    )
    own_k, own_v = k[:, :, 5:], v[:, :, 5:]
    AttentionInterface()[implementation("cascade")](SimpleNamespace(layer_idx=1), q, own_k, own_v, None, packed=packed)
    assert set(kept) == {1}
    assert all(one is other for one, other in zip(kept[1], (own_k, own_v), strict=True))
