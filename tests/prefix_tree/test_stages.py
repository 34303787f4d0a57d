"""Stages: every token in exactly one, whole subtrees or a trunk, within the budget wherever that can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.prefix_tree.stages import LEAST_SHARE, SLACK, TreeStage, stages_of
from midstream.prefix_tree.tree import tree_of
from support.tries import SEQUENCES, batches


def walk(stages, trunks=()):
    """Each stage with the trunks above it, in the order in which they run."""
    for stage in stages:
        yield stage, trunks
        yield from walk(stage.below, (*trunks, stage))


def size(tree, stage, work=None):
    """The work of a stage's own tokens."""
    work = np.ones(tree.unique, np.int64) if work is None else work
    return int(work[stage.start : stage.end].sum())


def path(tree, index):
    """A segment and those before it, from the root."""
    return [*(path(tree, tree.segments[index].parent) if tree.segments[index].parent >= 0 else []), index]


budgets = st.integers(1, 60)


@given(batches(), budgets)
def test_every_token_is_in_exactly_one_stage_after_its_ancestors(sequences, budget):
    tree = tree_of(sequences)
    stages = [stage for stage, _ in walk(stages_of(tree, budget))]
    assert [i for one in stages for i in range(one.first, one.last)] == list(range(len(tree.segments)))
    assert [token for one in stages for token in range(one.start, one.end)] == list(range(tree.unique))
    for one in stages:
        assert one.start == tree.segments[one.first].start
        assert one.end == tree.segments[one.last - 1].end


@given(batches(), budgets)
def test_what_a_stage_continues_is_all_of_the_trunks_above_it(sequences, budget):
    """So its queries see all kept keys, and in a stage of whole subtrees every ancestor is there or above."""
    tree = tree_of(sequences)
    for stage, trunks in walk(stages_of(tree, budget)):
        above = [i for one in trunks for i in range(one.first, one.last)]
        for index in range(stage.first, stage.last):
            outside = [i for i in path(tree, index) if not stage.first <= i < stage.last]
            assert outside == above


@given(batches(), budgets)
def test_a_stage_with_others_below_is_one_unbranched_trunk(sequences, budget):
    tree = tree_of(sequences)
    for stage, _ in walk(stages_of(tree, budget)):
        inside = range(stage.first, stage.last)
        if stage.below:
            assert [tree.segments[i].parent for i in inside][1:] == list(inside)[:-1]
            assert all(tree.segments[one.first].parent == stage.last - 1 for one in stage.below)
        else:
            assert all(tree.segments[i].subtree_end <= stage.end for i in inside)


def keeps_the_budget(tree, stage, trunks, budget, work=None):
    """An unbranched trunk may take more than there is room for; so may a subtree alone, up to `SLACK` times as much."""
    room = max(budget - sum(size(tree, one, work) for one in trunks), budget / LEAST_SHARE)
    inside = range(stage.first, stage.last)
    parents = [tree.segments[i].parent for i in inside][1:]
    unbranched, alone = parents == list(inside)[:-1], all(parent >= stage.first for parent in parents)
    return unbranched or size(tree, stage, work) <= room * (SLACK if alone else 1)


@given(batches(), budgets)
def test_whole_subtrees_keep_the_budget(sequences, budget):
    tree = tree_of(sequences)
    assert all(keeps_the_budget(tree, stage, trunks, budget) for stage, trunks in walk(stages_of(tree, budget)))


@given(batches())
def test_what_fits_is_one_stage(sequences):
    tree = tree_of(sequences)
    assert stages_of(tree, tree.unique) == (TreeStage(0, len(tree.segments), 0, tree.unique),)


@given(batches(), budgets, st.data())
def test_work_is_counted_where_it_is_given(sequences, budget, data):
    tree = tree_of(sequences)
    work = np.array(data.draw(st.lists(st.integers(1, 9), min_size=tree.unique, max_size=tree.unique)))
    stages = list(walk(stages_of(tree, budget, work)))
    assert [token for one, _ in stages for token in range(one.start, one.end)] == list(range(tree.unique))
    assert all(keeps_the_budget(tree, stage, trunks, budget, work) for stage, trunks in stages)


def test_a_batch_by_hand():
    """A trunk of 6 with branches of 2, 3 and 4, and a row that shares nothing."""
    trunk = (1, 1, 1, 1, 1, 1)
    tree = tree_of([(*trunk, 2, 2), (*trunk, 3, 3, 3), (*trunk, 4, 4, 4, 4), (5, 5, 5)])
    [shared, alone] = stages_of(tree, 12)
    assert (shared.start, shared.end) == (0, 6)
    assert [(one.start, one.end) for one in shared.below] == [(6, 11), (11, 15)]
    assert (alone.start, alone.end, alone.below) == (15, 18, ())


def test_subtrees_are_spread_evenly():
    """Ten branches of 4 under a budget for 7 of them: five and five, not seven and three."""
    tree = tree_of([(branch, 0, 0, 0) for branch in range(10)])
    assert [one.end - one.start for one in stages_of(tree, 28)] == [20, 20]


@pytest.mark.matrix(1)
@pytest.mark.parametrize("budget", [1, 7, 50, 10**6])
def test_nested_prefixes_and_forks_down_one_path(budget):
    """However often a path forks, stages nest to a bound, and hold the whole trie."""
    nested = [tuple(range(end)) for end in range(1, 2000)]
    assert [one.end - one.start for one, _ in walk(stages_of(tree_of(nested), budget))] == [1999]
    comb = tree_of([(*range(at), 1000 + at) for at in range(1, 3000)])
    assert sum(size(comb, one) for one, _ in walk(stages_of(comb, budget))) == comb.unique


def test_unshared_rows_are_stages_of_whole_rows():
    tree = tree_of(SEQUENCES, share=False)
    stages = stages_of(tree, 20)
    assert all(not one.below for one in stages)
    assert {one.start for one in stages} <= {one.start for one in tree.segments}
