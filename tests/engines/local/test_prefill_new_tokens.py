"""What is left to compute of a batch of prompts, and what is held of the batches before it."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from midstream.engines.local.prefill import NewTokens, Prefixes, join_cache, select_tokens

prompt = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)  # three tokens: much in common
turn = st.lists(prompt, min_size=1, max_size=6, unique=True)
turns = st.lists(turn, min_size=1, max_size=4)
ROOMY = 10_000


def prefixes_of(prompts):
    return {one[: i + 1] for one in prompts for i in range(len(one))}


def by_turns(batches):
    """(new tokens, what was held before) of each turn.

    In place of keys and values a token has a number: its prefix's.
    """
    held = Prefixes()
    numbers: dict[tuple[int, ...], int] = {}
    for prompts in batches:
        new = NewTokens(prompts, held)
        yield new, held
        fresh = torch.full((new.count,), -1)
        for one, path in new.paths.items():
            for i, place in enumerate(path):
                if place >= held.size:
                    fresh[place - held.size] = numbers.setdefault(one[: i + 1], len(numbers))
        layer = join_cache(held.layers[0] if held.layers else None, (fresh[None, None, :, None],) * 2)
        for one, path in new.paths.items():
            expected = [numbers[one[: i + 1]] for i in range(len(one))]
            assert layer[0][0, 0, torch.from_numpy(path), 0].tolist() == expected
        place = held.keep({(i, ""): one for i, one in enumerate(prompts)}, new.paths, ROOMY)
        held.layers = [select_tokens(layer, torch.from_numpy(place))]


@given(turns)
def test_only_new_prefixes_are_computed_and_those_that_need_logits(batches):
    before: set[tuple[int, ...]] = set()
    asked: dict[int, tuple[int, ...]] = {}
    for (new, held), prompts in zip(by_turns(batches), batches, strict=True):
        assert held.size == len(before)
        assert new.count == len((prefixes_of(prompts) - before) | set(prompts))
        asked |= dict(enumerate(prompts))
        before = prefixes_of(asked.values())


@given(turns)
def test_each_new_token_looks_at_its_own_path(batches):
    for new, held in by_turns(batches):
        first, last = (one.numpy() for one in new.layout.visible(torch.device("cpu")))
        kept = new.layout.keys - new.count
        order = np.concatenate([new._held, held.size + np.arange(new.count)])  # what each key is, as in `paths`
        for path in new.paths.values():
            for depth, place in enumerate(path):
                if place >= held.size:
                    query = place - held.size
                    seen = order[(first <= query) & (query < last)]
                    assert sorted(seen) == sorted(path[: depth + 1])
        assert kept == len(set(new._held))


@given(turns)
def test_nodes_come_after_their_parents_and_cover_the_new_tokens(batches):
    for new, _ in by_turns(batches):
        assert all(node.parent < i for i, node in enumerate(new.layout.nodes))
        covered = [query for node in new.layout.nodes for query in range(node.start, node.end)]
        assert covered == list(range(new.count))
        assert all(node.key_end > node.key_start for node in new.layout.nodes)


@given(st.lists(prompt, min_size=1, max_size=8, unique=True), prompt)
def test_the_longest_known_prefix_is_found(known, wanted):
    held = Prefixes()
    held.keep({(i, ""): one for i, one in enumerate(known)}, NewTokens(known, held).paths, ROOMY)
    found = held.find(wanted)
    assert len(found) == max(len(one) for one in prefixes_of(known) | {()} if wanted[: len(one)] == one)
    assert tuple(held._ids[found]) == wanted[: len(found)]


def held_after(*batches, room=ROOMY):
    """`batches` are {(order, role): prompt}."""
    held = Prefixes()
    for asked in batches:
        held.keep(asked, NewTokens(list(dict.fromkeys(asked.values())), held).paths, room)
    return held


def test_a_trajectory_holds_what_it_last_asked_in_each_role():
    held = held_after({(0, "planner"): (1, 2, 3)}, {(0, "verifier"): (7, 8)}, {(0, "planner"): (1, 2, 4, 5)})
    assert [len(held.find(one)) for one in ((1, 2, 3), (7, 8), (1, 2, 4, 5))] == [2, 2, 4]
    assert held.size == 6


def test_who_left_holds_nothing_after_the_next_batch():
    held = held_after({(0, ""): (1, 2, 3), (1, ""): (1, 5)})
    held.leave(0)
    held.keep({(1, ""): (1, 5, 6)}, NewTokens([(1, 5, 6)], held).paths, ROOMY)
    assert held.size == 3


def test_where_room_is_short_the_batch_alone_is_held():
    first, second = {(0, ""): (1, 2, 3)}, {(1, ""): (5, 6)}
    assert held_after(first, second, room=5).size == 5
    short = held_after(first, second, room=4)
    assert (short.size, len(short.find((5, 6)))) == (2, 2)


def test_what_other_weights_computed_is_not_held():
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def held():
        found = Prefixes()
        found.for_weights_of(model)
        found.keep({(0, ""): (1, 2)}, NewTokens([(1, 2)], found).paths, ROOMY)
        return found

    same = held()
    same.for_weights_of(model)
    assert same.size == 2
    swapped = held()
    swapped.for_weights_of(other)
    assert swapped.size == 0
    updated = held()
    with torch.no_grad():
        model.weight[0] += 1
    updated.for_weights_of(model)
    assert updated.size == 0
    adapted = held()
    model.adapter = torch.nn.Linear(2, 2)
    adapted.for_weights_of(model)
    assert adapted.size == 0
