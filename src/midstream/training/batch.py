"""Rows as one batch of packed tokens: which hidden states predict which tokens, however they are computed.

Three levels, because rows share prefixes: a head is a packed position at a sampling temperature, where the
language-model head runs once; a choice is a head and one of the tokens that were drawn there; a token is one row's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise, repeat

import numpy as np
import torch
from numpy.typing import NDArray

from midstream.core.errors import TrainingError
from midstream.core.protocols import Row
from midstream.prefix_tree.tree import Ints, Tree


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Batch:
    """_P heads in packed order, _U choices ordered by head, _M tokens ordered by row.

    `heads` [_P] are packed indices, `temperatures` [_P] theirs. `choice_heads` and `choice_ids` [_U] index heads and
    name token ids; `choices` [_M] index choices. `rows` are in the order of their tokens, and row i's are those from
    `row_ends[i]` up to `row_ends[i + 1]`.
    """

    tree: Tree
    rows: tuple[Row, ...]
    row_ends: Ints
    heads: Ints
    temperatures: NDArray[np.float64]
    choice_heads: Ints
    choice_ids: Ints
    choices: Ints

    @classmethod
    def of(cls, rows: Sequence[Row], tree: Tree, paths: Sequence[Ints]) -> Batch:
        """`paths[i]` are the packed indices of row i's tokens in `tree`."""
        places = [_sampled_places(row) for row in rows]
        lengths = [len(own) for own in places]
        predictors = np.concatenate([path[own - 1] for path, own in zip(paths, places, strict=True)])
        ids = tree.ids[np.concatenate([path[own] for path, own in zip(paths, places, strict=True)])]
        kinds, kind = np.unique([row.temperature or 1.0 for row in rows], return_inverse=True)
        head_keys = predictors * len(kinds) + np.repeat(kind, lengths)
        span = int(ids.max(initial=0)) + 1
        choice_keys, choices = np.unique(head_keys * span + ids, return_inverse=True)
        heads, choice_heads = np.unique(choice_keys // span, return_inverse=True)
        return cls(
            tree=tree,
            rows=tuple(rows),
            row_ends=np.cumsum([0, *lengths]),
            heads=heads // len(kinds),
            temperatures=kinds[heads % len(kinds)],
            choice_heads=choice_heads,
            choice_ids=choice_keys % span,
            choices=choices,
        )

    def chunks(self, start: int, end: int, size: int) -> Iterator[Chunk]:
        """The heads at packed indices [start, end), at most `size` at a time, with their choices and tokens."""
        first, last = np.searchsorted(self.heads, [start, end]).tolist()
        for a, b in pairwise([*range(first, last, size), last]):
            u, v = np.searchsorted(self.choice_heads, [a, b]).tolist()
            tokens = np.flatnonzero((self.choices >= u) & (self.choices < v))
            yield Chunk(slice(a, b), slice(u, v), tokens)

    def per_token(self, values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
        """A number a row, repeated for its tokens: [_M], of `like`'s kind."""
        return like.new_tensor(values).repeat_interleave(torch.from_numpy(np.diff(self.row_ends)).to(like.device))

    def recorded(self, like: torch.Tensor) -> torch.Tensor:
        """Each token's log-probability as it was recorded: [_M], of `like`'s kind."""
        return like.new_tensor(
            [value for row in self.rows for value in compress(row.old_logprobs, row.sampled or repeat(True))]
        )

    def by_row(self, values: torch.Tensor) -> list[tuple[float, ...]]:
        """Values of choices [_U], row by row, one for each completion token; 0 for those that were not sampled."""
        left = iter(values[torch.from_numpy(self.choices).to(values.device)].tolist())
        return [
            tuple(next(left) if sampled else 0.0 for sampled in row.sampled or repeat(True, len(row.completion_ids)))
            for row in self.rows
        ]


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """Some heads of a batch, their choices, and the indices [_m] of the tokens that made them."""

    heads: slice
    choices: slice
    tokens: Ints


def _sampled_places(row: Row) -> Ints:
    """Positions of a row's sampled tokens in its sequence."""
    start = len(row.prompt_ids)
    if not start:
        raise TrainingError(
            f"a row of trajectory {row.trajectory_id} has no prompt",
            code="empty-prompt",
            cause="no token comes before its first one, so nothing predicts it",
            fix="record at least one prompt token (the tokenizer's first one)",
        )
    if row.sampled:
        return start + np.flatnonzero(row.sampled)
    return np.arange(start, start + len(row.completion_ids))
