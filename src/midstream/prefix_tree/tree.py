"""The prefix trie of a batch of token sequences, laid out in depth-first order.

    sequences          trie                 packed
    1 2 3 4            1 2 -- 3 -- 4        ids        1 2 3 4 5 9
    1 2 3 5                    \\- 5         positions  0 1 2 3 3 2
    1 2 9                  \\- 9             segments   [0,2) [2,3) [3,4) [4,5) [5,6)

Tokens that sequences begin with in common are stored once. In depth-first order all descendants of a segment are one
contiguous range, so attention over the trie is a few calls on slices (`attention.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class TreeSegment(NamedTuple):
    """An unbranched run of packed tokens [start, end); all its descendants are [end, subtree_end).

    `parent` is the index of the segment that it continues; -1 for a root.
    """

    start: int
    end: int
    subtree_end: int
    parent: int


@dataclass(frozen=True, eq=False)
class Tree:
    """A batch of _S sequences as a trie of _N tokens.

    `ids` and `positions` (depth in the sequence) are int64 [_N]. `paths[i]` are the packed indices of sequence i's
    tokens, from first to last, so `ids[paths[i]]` is the sequence. `segments` are in packed order and cover it.
    """

    ids: Ints
    positions: Ints
    segments: tuple[TreeSegment, ...]
    paths: tuple[Ints, ...]

    @property
    def unique(self) -> int:
        """Tokens of the trie."""
        return len(self.ids)

    @cached_property
    def total(self) -> int:
        """Tokens of all sequences."""
        return sum(map(len, self.paths))

    @cached_property
    def pairs(self) -> int:
        """Attention pairs of the trie: each token attends to itself and to those before it in its sequence."""
        return int(self.positions.sum()) + self.unique


def tree_of(sequences: Sequence[Sequence[int]], *, share: bool = True) -> Tree:
    """The trie of `sequences`, none of them empty; with `share` off, each is a root of its own (padding-free rows)."""
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    if not share:
        ends = np.cumsum([len(array) for array in arrays], dtype=np.int64).tolist()
        spans = [(end - len(array), end) for end, array in zip(ends, arrays, strict=True)]
        return Tree(
            ids=np.concatenate(arrays),
            positions=np.concatenate([np.arange(len(array)) for array in arrays]),
            segments=tuple(TreeSegment(start, end, end, -1) for start, end in spans),
            paths=tuple(np.arange(start, end) for start, end in spans),
        )
    order = sorted(range(len(arrays)), key=lambda i: tuple(sequences[i]))
    pieces: list[Ints] = []  # the tokens that each sequence adds to those before it, in lexicographic order
    starts: list[int] = []
    parents: list[int] = []  # the packed index that a piece continues
    paths: dict[int, Ints] = {}
    path, before, used = np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    for i in order:
        shared = common_prefix(before, arrays[i])
        added = len(arrays[i]) - shared
        if added:
            pieces.append(arrays[i][shared:])
            starts.append(used)
            parents.append(int(path[shared - 1]) if shared else -1)
        path = np.concatenate([path[:shared], np.arange(used, used + added)])
        paths[i], before, used = path, arrays[i], used + added
    lengths = [len(piece) for piece in pieces]
    positions = np.empty(used, np.int64)
    for start, length, parent in zip(starts, lengths, parents, strict=True):
        positions[start : start + length] = np.arange(length) + (positions[parent] + 1 if parent >= 0 else 0)
    return Tree(
        ids=np.concatenate(pieces) if pieces else np.zeros(0, np.int64),
        positions=positions,
        segments=_segments(starts, lengths, parents),
        paths=tuple(paths[i] for i in range(len(arrays))),
    )


def common_prefix(a: Ints, b: Ints) -> int:
    """Return the number of tokens that two sequences share at their beginning."""
    shorter = min(len(a), len(b))
    differ = a[:shorter] != b[:shorter]
    return int(differ.argmax()) if differ.any() else shorter


def _segments(starts: Sequence[int], lengths: Sequence[int], parents: Sequence[int]) -> tuple[TreeSegment, ...]:
    """Cut pieces wherever another branches off inside them. Piece j begins at `starts[j]`, after `parents[j]`."""
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    cuts = sorted({*ends, *(parent + 1 for parent in parents if parent >= 0)})
    first = [0, *cuts[:-1]]
    ending_at = {end: index for index, end in enumerate(cuts)}  # which segment ends there
    continued = {
        start: ending_at[parent + 1] if parent >= 0 else -1 for start, parent in zip(starts, parents, strict=True)
    }
    parent_of = [continued.get(start, index - 1) for index, start in enumerate(first)]
    subtree_ends = list(cuts)
    # Children come after their parent.
    for index in range(len(cuts) - 1, -1, -1):
        if parent_of[index] >= 0:
            subtree_ends[parent_of[index]] = max(subtree_ends[parent_of[index]], subtree_ends[index])
    return tuple(map(TreeSegment, first, cuts, subtree_ends, parent_of))
