"""A trie cut into stages: forward passes that fit into a budget, each token in exactly one of them.

A stage is a run of whole neighboring subtrees. Where a subtree is too large, its trunk (down to where it forks) is a
stage of its own, whose keys and values are kept for the stages of what descends from it:

    trunk 3500 tokens -- task 1 |  stages: trunk, then (task 1, task 2), then (task 3)
                      |- task 2 |
                      '- task 3 |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from midstream.prefix_tree.tree import Tree, TreeSegment

Numbers = NDArray[np.float64]
# A subtree up to SLACK times too large goes whole if its trunk takes less than 1 / SHORT of the room.
SLACK, SHORT = 2, 8
MOST_TRUNKS = 50  # one above the other; what forks more often than that is not cut further
LEAST_SHARE = 4  # however much the trunks above a stage hold, this part of the budget is left to it


@dataclass(frozen=True, slots=True)
class TreeStage:
    """Segments [first, last) of a trie, its tokens [start, end), and the stages that continue from the last one."""

    first: int
    last: int
    start: int
    end: int
    below: tuple[TreeStage, ...] = ()

    def segments(self, tree: Tree) -> tuple[TreeSegment, ...]:
        """Its segments as a trie of their own, counted from 0; what descends from them in other stages is left out."""
        return tuple(
            TreeSegment(
                segment.start - self.start,
                segment.end - self.start,
                min(segment.subtree_end, self.end) - self.start,
                max(segment.parent - self.first, -1),
            )
            for segment in tree.segments[self.first : self.last]
        )


def stages_of(tree: Tree, budget: float, work: Numbers | None = None) -> tuple[TreeStage, ...]:
    """The whole trie in stages, each of which, with the trunks above it, takes about `budget`, where that can be.

    `budget` is in the unit of `work`, numbers [_N] of the tokens (None: 1 each). A longer trunk goes alone, and what
    hangs on it gets a quarter. A subtree that is a little too large and forks soon goes whole and alone, as any does
    below `MOST_TRUNKS` trunks.
    """
    work = np.ones(tree.unique) if work is None else work
    own = np.add.reduceat(work, [segment.start for segment in tree.segments]).tolist()  # of each segment
    children: list[list[int]] = [[] for _ in range(len(own) + 1)]  # the last are the roots
    for index, segment in enumerate(tree.segments):
        children[segment.parent].append(index)
    total = list(own)
    for index in range(len(own) - 1, -1, -1):
        if tree.segments[index].parent >= 0:
            total[tree.segments[index].parent] += total[index]
    return _Planner(tree, own, total, children, budget).plan(children[-1], 0.0, 0)


@dataclass(frozen=True, slots=True)
class _Planner:
    tree: Tree
    own: Sequence[float]
    total: Sequence[float]
    children: Sequence[Sequence[int]]
    budget: float

    def plan(self, siblings: Sequence[int], held: float, trunks: int) -> tuple[TreeStage, ...]:
        """Stages of neighboring subtrees below `trunks` trunks of `held` work: as even as whole subtrees allow."""
        room = max(self.budget - held, self.budget / LEAST_SHARE)
        fitting = sum(self.total[i] for i in siblings if not self._is_cut(i, room))
        even = fitting / max(1, -(-fitting // room))
        stages: list[TreeStage] = []
        together: list[int] = []
        load = 0.0
        for index in siblings:
            work = self.total[index]
            if together and (load + work > room or load + work / 2 > even):
                stages.append(self._stage(together))
                together, load = [], 0.0
            # The trunk goes down to where it forks, with what hangs on that.
            if self._is_cut(index, room) and trunks < MOST_TRUNKS:
                last, trunk = self._trunk_of(index)
                below = self.plan(self.children[last], held + trunk, trunks + 1)
                start, end = self.tree.segments[index].start, self.tree.segments[last].end
                stages.append(TreeStage(index, last + 1, start, end, below))
            else:
                together.append(index)
                load += work
        return (*stages, self._stage(together)) if together else tuple(stages)

    def _stage(self, siblings: Sequence[int]) -> TreeStage:
        """Whole subtrees."""
        segments = self.tree.segments
        end = segments[siblings[-1]].subtree_end
        last = siblings[-1] + 1
        while last < len(segments) and segments[last].start < end:
            last += 1
        return TreeStage(siblings[0], last, segments[siblings[0]].start, end)

    def _is_cut(self, index: int, room: float) -> bool:
        """Return whether a subtree is too large for one pass. Cut at a short trunk, it would be many short passes."""
        slack = SLACK if self._trunk_of(index)[1] < room / SHORT else 1
        return self.total[index] > slack * room

    def _trunk_of(self, index: int) -> tuple[int, float]:
        """The last segment before a subtree forks, and the work up to there."""
        last, work = index, self.own[index]
        while len(self.children[last]) == 1:
            last = self.children[last][0]
            work += self.own[last]
        return last, work
