"""The trie: no token lost, none there twice, and laid out as attention needs it."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.prefix_tree.tree import TreeSegment, common_prefix, tree_of
from support.tries import SEQUENCES, batches, prefixes


def path_of(tree, index):
    """Token by token, the ids from the root to the end of a segment."""
    spans = []
    while index >= 0:
        spans.append(tree.segments[index])
        index = spans[-1].parent
    return tuple(int(token) for one in reversed(spans) for token in tree.ids[one.start : one.end])


def require_depth_first(tree):
    """Segments cover the tokens, follow their parents, and whatever descends from one is one contiguous range."""
    assert [one.start for one in tree.segments] == [0, *(one.end for one in tree.segments)][:-1]
    assert tree.segments[-1].end == tree.unique
    ancestors = []
    for index, one in enumerate(tree.segments):
        assert one.start < one.end <= one.subtree_end
        assert -1 <= one.parent < index
        ancestors.append({index} | (ancestors[one.parent] if one.parent >= 0 else set()))
    for index, one in enumerate(tree.segments):
        below = [j for j, of in enumerate(ancestors) if index in of and j != index]
        covered = [token for j in below for token in range(tree.segments[j].start, tree.segments[j].end)]
        assert covered == list(range(one.end, one.subtree_end))


@given(batches(), st.booleans())
def test_rows_to_trie_to_rows_is_the_identity(sequences, share):
    tree = tree_of(sequences, share=share)
    assert [tuple(tree.ids[path].tolist()) for path in tree.paths] == sequences
    for path in tree.paths:
        assert tree.positions[path].tolist() == list(range(len(path)))
        assert (np.diff(path) > 0).all()


@given(batches())
def test_counts_agree_with_a_naive_count(sequences):
    tree, naive = tree_of(sequences), prefixes(sequences)
    assert tree.total == sum(map(len, sequences))
    assert tree.unique == len(tree.ids) == len(tree.positions) == len(naive)
    assert tree.pairs == sum(map(len, naive))


@given(batches())
def test_every_prefix_is_there_once(sequences):
    tree = tree_of(sequences)
    at = {}
    for sequence, path in zip(sequences, tree.paths, strict=True):
        for end, token in enumerate(path.tolist(), start=1):
            assert at.setdefault(token, sequence[:end]) == sequence[:end]
    assert set(at) == set(range(tree.unique))
    assert len(set(at.values())) == len(at)


@given(batches(), st.booleans())
def test_segments_are_in_depth_first_order(sequences, share):
    require_depth_first(tree_of(sequences, share=share))


@given(batches())
def test_segments_are_cut_only_where_a_sequence_ends_or_others_fork(sequences):
    tree = tree_of(sequences)
    for index, one in enumerate(tree.segments):
        assert path_of(tree, index) in prefixes(sequences)
        children = [other.start for other in tree.segments if other.parent == index]
        ends_here = path_of(tree, index) in sequences
        assert ends_here or len(children) >= 2
        assert tree.positions[one.start : one.end].tolist() == list(
            range(len(path_of(tree, index)) - (one.end - one.start), len(path_of(tree, index)))
        )


@given(batches())
def test_unshared_sequences_lie_side_by_side_in_their_order(sequences):
    tree = tree_of(sequences, share=False)
    assert tree.ids.tolist() == [token for one in sequences for token in one]
    assert tree.unique == tree.total
    assert tree.pairs == sum(len(one) * (len(one) + 1) // 2 for one in sequences)
    assert all(one.parent == -1 and one.end == one.subtree_end for one in tree.segments)


@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_the_sequences_does_not_change_the_trie(sequences, random):
    shuffled = list(sequences)
    random.shuffle(shuffled)
    one, other = tree_of(sequences), tree_of(shuffled)
    assert one.ids.tolist() == other.ids.tolist()
    assert one.segments == other.segments


def test_a_batch_by_hand():
    tree = tree_of([(1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 9), (1, 2)])
    assert tree.ids.tolist() == [1, 2, 3, 4, 5, 9]
    assert tree.positions.tolist() == [0, 1, 2, 3, 3, 2]
    assert tree.segments == (
        TreeSegment(0, 2, 6, -1), TreeSegment(2, 3, 5, 0), TreeSegment(3, 4, 4, 1), TreeSegment(4, 5, 5, 1),
        TreeSegment(5, 6, 6, 0),
    )  # fmt: skip
    assert [path.tolist() for path in tree.paths] == [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 5], [0, 1]]
    assert (tree.total, tree.unique, tree.pairs) == (13, 6, 1 + 2 + 3 + 4 + 4 + 3)


def test_equal_sequences_share_one_path():
    tree = tree_of([(4, 5), (4, 5), (4, 5)])
    assert (tree.unique, tree.total) == (2, 6)
    assert {tuple(path.tolist()) for path in tree.paths} == {(0, 1)}


def test_token_ids_of_a_large_vocabulary_are_kept():
    largest = 2**31
    assert tree_of([(largest, 0), (largest, 1)]).ids.tolist() == [largest, 0, 1]


def test_the_batch_of_the_other_tests_has_every_kind_of_fork():
    tree = tree_of(SEQUENCES)
    require_depth_first(tree)
    assert [one.parent for one in tree.segments].count(-1) == 2
    assert tree.unique == len(prefixes(SEQUENCES)) < tree.total


@pytest.mark.matrix(1)
@pytest.mark.parametrize("share", [True, False])
def test_thousands_of_nested_prefixes(share):
    count = 3000
    sequence = tuple(range(count))
    nested = [sequence[: end + 1] for end in range(0, count)]
    random.Random(0).shuffle(nested)
    tree = tree_of(nested, share=share)
    if share:
        assert tree.unique == len(tree.segments) == count
        assert all(one.subtree_end == count for one in tree.segments)
        assert [one.parent for one in tree.segments] == list(range(-1, count - 1))
    else:
        assert tree.unique == tree.total == count * (count + 1) // 2
    assert tree.pairs == (count * (count + 1) // 2 if share else sum(n * (n + 1) // 2 for n in range(1, count + 1)))


def test_a_thousand_forks_down_one_path():
    """At each token of one long sequence another leaves it."""
    trunk = (0,) * 1000
    forks = [(*trunk[:at], 1) for at in range(1000)]
    tree = tree_of([trunk, *forks])
    assert tree.unique == 2000
    ends = [one.subtree_end for one in tree.segments if tree.ids[one.start] == 0]
    assert all(later < earlier for earlier, later in pairwise(ends))


@given(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), max_size=9))
def test_common_prefix_counts_equal_leading_tokens(a, b):
    shared = common_prefix(np.array(a, dtype=np.int64), np.array(b, dtype=np.int64))
    assert a[:shared] == b[:shared]
    assert shared == min(len(a), len(b)) or a[shared] != b[shared]
