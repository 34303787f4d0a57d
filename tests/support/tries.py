"""Sequences that share prefixes, for the tests of the trie: drawn by hypothesis, and one by hand."""

from __future__ import annotations

from hypothesis import strategies as st

# Forks early, late and at the root; one sequence that is a prefix of another, one that is there twice.
SEQUENCES = (
    (3, 1, 4, 1, 5, 9, 2, 6, 5),
    (3, 1, 4, 1, 5, 9, 8),
    (3, 1, 4, 1, 5),
    (3, 1, 4, 7, 7, 7, 7, 1, 8, 2),
    (3, 1, 4, 7, 7, 7, 7, 1, 8, 2),
    (3, 1, 4, 7, 7, 7, 7, 1, 8, 3),
    (2, 7, 1),
    (2, 7, 1, 8),
)


def batches(tokens: int = 3, longest: int = 12, most: int = 12) -> st.SearchStrategy[list[tuple[int, ...]]]:
    """Batches of non-empty sequences of few distinct tokens, which so share prefixes of any length."""
    return st.lists(
        st.lists(st.integers(0, tokens - 1), min_size=1, max_size=longest).map(tuple), min_size=1, max_size=most
    )


def prefixes(sequences: list[tuple[int, ...]] | tuple[tuple[int, ...], ...]) -> set[tuple[int, ...]]:
    """Every prefix of every sequence, once: the naive trie."""
    return {one[:end] for one in sequences for end in range(1, len(one) + 1)}
