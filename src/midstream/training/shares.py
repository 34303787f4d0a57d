"""Which rank computes which rows of an update."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from midstream.prefix_tree.cost import Cost
from midstream.prefix_tree.tree import common_prefix
from midstream.training.protocols import Row


def shares(rows: Sequence[Row], ranks: int, cost: Cost, *, shared: bool) -> list[list[int]]:
    """Divide rows among ranks, so that the rank with the most work has as little as possible; places, by rank.

    Work is operations: of tokens, attention pairs and predicted tokens, what rows of a rank share counted once
    (`shared`; else equal rows once). Rows stay in the order of their trie, where neighbors share the most, so a task's
    subtree is on one rank but where it is cut to relieve the slowest one, which computes the task's prompt again.
    """
    sequences = [row.prompt_ids + row.completion_ids for row in rows]
    order = sorted(range(len(rows)), key=lambda i: sequences[i])
    arrays = [np.asarray(sequences[i], np.int64) for i in order]
    common = [0, *(common_prefix(a, b) for a, b in pairwise(arrays))][: len(rows)]
    if not shared:
        common = [0 if length < len(array) else length for length, array in zip(common, arrays, strict=True)]

    def work(place: int, known: int) -> int:
        """Operations of a row whose first `known` tokens are computed already."""
        row, length = rows[order[place]], len(arrays[place])
        predicted = (
            length - max(known, len(row.prompt_ids))
            if not row.sampled
            else sum(row.sampled[max(0, known - len(row.prompt_ids)) :])
        )
        pairs = (length * (length + 1) - known * (known + 1)) // 2
        return (length - known) * cost.token + pairs * cost.pair + predicted * cost.predicted

    alone = [work(place, 0) for place in range(len(order))]
    after = [work(place, common[place]) for place in range(len(order))]

    def cut(most: float) -> list[list[int]]:
        """Neighbors together up to `most` of work a share."""
        found: list[list[int]] = []
        left = 0.0
        for place, index in enumerate(order):
            if found and after[place] <= left:
                found[-1].append(index)
                left -= after[place]
            else:
                found.append([index])
                left = most - alone[place]
        return found

    low, high = max(alone, default=0), sum(alone)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(cut(middle)) <= ranks else (middle + 1, high)
    found = [sorted(places) for places in cut(low)]
    return found + [[] for _ in range(ranks - len(found))]
