"""Rows as verl takes them: rewards, masks, mini-batches, and an order in which each rank has its own share."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import UnsupportedError
from midstream.core.trajectory import Call, Trajectory
from midstream.training.protocols import Row
from midstream_verl.rows import idle_row, layout, outputs_of, rows_per_rank
from support.errors import coded


def row(name, tokens=3, sampled=()):
    return Row(
        prompt_ids=(1, 2),
        completion_ids=tuple(range(10, 10 + tokens)),
        sampled=sampled,
        old_logprobs=(-0.5,) * tokens,
        advantage=1.0,
        weight=0.25,
        kl_weight=0.25,
        trajectory_id=name,
    )


def test_the_last_row_of_a_trajectory_has_its_reward():
    outputs = outputs_of([[row("a"), row("b"), row("a")], [row("c")]], {"a": 1.0, "b": 0.5, "c": 0.0})
    found = [(one.trajectory, one.index, one.minibatch, one.reward) for one in outputs]
    assert found == [(0, 0, 0, 0.0), (1, 0, 0, 0.5), (0, 1, 0, 1.0), (2, 0, 1, 0.0)]


def test_text_of_the_environment_is_masked():
    mixed, plain = outputs_of([[row("a", 3, (True, False, True)), row("b", 2)]], {"a": 0.0, "b": 0.0})
    assert (mixed.mask, plain.mask) == ([1, 0, 1], [1, 1])


def test_mini_batches_and_rows_without_a_loss_are_left_out():
    nothing = dataclasses.replace(row("b"), sampled=(False, False, False))
    outputs = outputs_of([[], [nothing], [row("a"), nothing]], {"a": 1.0, "b": 1.0})
    assert [(one.row.trajectory_id, one.minibatch) for one in outputs] == [("a", 0)]


def test_a_row_whose_calls_differ_in_advantage_is_refused():
    differs = dataclasses.replace(row("a"), advantages=(1.0, 0.0, 0.5))
    with pytest.raises(
        UnsupportedError, check=coded("cluster-unsupported", "advantage", fix='training.turns = "calls"')
    ):
        outputs_of([[differs]], {"a": 1.0})


def test_a_step_without_a_gradient_has_one_row_without_a_loss():
    call = Call(role="planner", prompt_ids=(1, 2), completion_ids=(3,), logprobs=(-0.5,))
    [output] = outputs_of([[idle_row([Trajectory(id="a", task_id="t", closing_calls=(call,))], "planner")]], {"a": 1.0})
    assert (output.row.advantage, output.row.weight, output.row.kl_weight) == (0.0, 0.0, 0.0)
    assert (output.row.trajectory_id, output.row.completion_ids) == ("a", (3,))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), min_size=1), st.integers(1, 5))
def test_each_rank_has_its_share_of_each_mini_batch(rows, ranks):
    names = sorted({number for number, _ in rows})
    minibatches, lengths = [names.index(number) for number, _ in rows], [length for _, length in rows]
    size = rows_per_rank(minibatches, ranks)
    whole = size * ranks * len(names)
    padding = range(len(rows), whole)
    order = layout(minibatches, lengths, padding, ranks)
    assert sorted(order) == list(range(whole))
    for place, number in enumerate(order):  # as verl cuts it: equal shares of ranks, then equal mini-batches
        if number < len(rows):
            assert minibatches[number] == place // size % len(names)


def test_tokens_are_even_over_ranks():
    lengths = [100, 90, 10, 5, 50, 45]
    order = layout([0] * 6, lengths, [], 2)
    loads = Counter({rank: sum(lengths[place] for place in order[3 * rank : 3 * rank + 3]) for rank in range(2)})
    assert max(loads.values()) <= 155
