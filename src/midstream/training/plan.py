"""How a batch of rows is computed: as a trie where that pays, else as padded rows; cut to what may be held at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from midstream.core.protocols import Row
from midstream.prefix_tree.cost import Cost
from midstream.prefix_tree.stages import Stage, stages_of
from midstream.prefix_tree.support import Choice
from midstream.prefix_tree.tree import Tree, tree_of
from midstream.training.batch import Batch
from midstream.training.passes import Plan
from midstream.training.settings import LOGITS, LearnerConfig


def plan_of(rows: Sequence[Row], tree: Tree, attention: Choice, cost: Cost, config: LearnerConfig) -> Plan:
    """A plan for `rows`, whose trie is `tree`. By the one way and the other, only rounding differs."""
    heads_at_once = max(1, LOGITS // cost.vocabulary)
    distinct = _distinct(rows)
    chunks = list(padded_chunks([len(one) for one in distinct], config.chunk_tokens))
    padded = sum(cost.padded(len(chunk), len(distinct[chunk[-1]])) for chunk in chunks)
    backend = attention.backend if len(distinct[-1]) <= attention.longest else None
    if backend and (config.attention != "auto" or (cost.counts and cost.trie(tree, backend) < padded)):
        batch = Batch.of(rows, tree, tree.paths)
        stages = stages_of(tree, config.chunk_tokens, cost.work(tree, batch.heads))
        return Plan(batch=batch, stages=stages, backend=backend, heads_at_once=heads_at_once)
    flat = tree_of(distinct, share=False)
    place = {one: flat.paths[i] for i, one in enumerate(distinct)}
    return Plan(
        batch=Batch.of(rows, flat, [place[row.prompt_ids + row.completion_ids] for row in rows]),
        stages=tuple(_stage(flat, chunk) for chunk in chunks),
        backend=None,
        heads_at_once=heads_at_once,
    )


def _distinct(rows: Sequence[Row]) -> list[tuple[int, ...]]:
    """Equal sequences once (rollouts of one task often sample the same action), from the shortest on."""
    return sorted(dict.fromkeys(row.prompt_ids + row.completion_ids for row in rows), key=len)


def _stage(flat: Tree, chunk: range) -> Stage:
    return Stage(chunk.start, chunk.stop, flat.segments[chunk.start].start, flat.segments[chunk.stop - 1].end)


def padded_chunks(lengths: Sequence[int], limit: int) -> Iterator[range]:
    """Places of rows, in order, in pieces of at most `limit` padded tokens (a longer row goes alone)."""
    first = longest = 0
    for i, length in enumerate(lengths):
        longest = max(longest, length)
        if i > first and (i + 1 - first) * longest > limit:
            yield range(first, i)
            first, longest = i, length
    if lengths:
        yield range(first, len(lengths))
