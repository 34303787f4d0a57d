"""Calls that continue one another are one sequence, in which what was not sampled is marked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.core.sequences import joined
from midstream.core.trajectory import Call, Sampling, Score, Trajectory
from midstream.training.rows import build_rows, row_of, tokens_after_prompt
from midstream.training.settings import LearnerConfig, TrainingConfig
from support.exact import LOSS, learner_of, model_of
from support.sessions import call as session_call
from support.sessions import sessions

PROMPT = (1, 2, 3)


def call(prompt_ids, completion_ids, temperature=1.0):
    return Call(
        role="policy",
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        logprobs=tuple(-float(one) for one in completion_ids),
        sampling=Sampling(temperature=temperature),
    )


def stream(parts, prompt=PROMPT):
    """The calls of a stream whose parts are (what is appended, what is sampled then)."""
    calls, ids = [], tuple(prompt)
    for appended, sampled in parts:
        ids += tuple(appended)
        calls.append(call(ids, tuple(sampled)))
        ids += tuple(sampled)
    return calls


def row(run):
    return row_of(run, advantage=0.5, kl_weight=0.25, trajectory_id="t")


def test_a_stream_is_one_row_by_hand():
    [run] = joined(stream([((), (10, 11)), ((20, 21, 22), (12,))]))
    made = row(run)
    assert made.prompt_ids == PROMPT
    assert made.completion_ids == (10, 11, 20, 21, 22, 12)
    assert made.sampled == (True, True, False, False, False, True)
    assert made.old_logprobs == (-10.0, -11.0, 0.0, 0.0, 0.0, -12.0)
    assert (made.advantage, made.weight, made.kl_weight, made.trajectory_id) == (0.5, 1.0, 0.25, "t")
    assert tokens_after_prompt(run) == 6


def test_a_call_by_itself_needs_no_mask():
    assert row([call(PROMPT, (10, 11))]).sampled == ()


def test_a_stream_that_continues_with_nothing_in_between_needs_none_either():
    [run] = joined(stream([((), (10,)), ((), (11,))]))
    assert (row(run).completion_ids, row(run).sampled) == ((10, 11), ())


tokens = st.lists(st.integers(4, 99), min_size=1, max_size=5)
parts = st.lists(st.tuples(st.lists(st.integers(4, 99), max_size=5), tokens), min_size=1, max_size=6)


@given(parts)
def test_every_token_of_a_stream_is_in_its_row_once_and_as_it_was(parts):
    calls = stream(parts)
    [run] = joined(calls)
    made = row(run)
    assert made.prompt_ids + made.completion_ids == calls[-1].prompt_ids + calls[-1].completion_ids
    mask = made.sampled or (True,) * len(made.completion_ids)
    assert len(mask) == len(made.old_logprobs) == len(made.completion_ids) == tokens_after_prompt(run)
    recorded = zip(made.completion_ids, made.old_logprobs, strict=True)
    by_policy = [pair for pair, one in zip(recorded, mask, strict=True) if one]
    assert by_policy == [pair for one in calls for pair in zip(one.completion_ids, one.logprobs, strict=True)]
    assert {value for value, one in zip(made.old_logprobs, mask, strict=True) if not one} <= {0.0}


@given(st.lists(st.tuples(tokens, tokens), min_size=2, max_size=5, unique_by=lambda pair: tuple(pair[0])))
def test_calls_that_are_asked_from_scratch_stay_apart(asked):
    """As a planner's are: every prompt has its own first token."""
    calls = [call((place, *prompt), tuple(completion)) for place, (prompt, completion) in enumerate(asked)]
    assert joined(calls) == [[one] for one in calls]


def test_one_other_token_breaks_a_stream():
    first, second = stream([((), (10, 11)), ((20,), (12,))])
    retold = second.model_copy(update={"prompt_ids": (*PROMPT, 10, 99, 20)})
    shorter = second.model_copy(update={"prompt_ids": (*PROMPT, 10)})
    assert joined([first, second]) == [[first, second]]
    assert joined([first, retold]) == [[first], [retold]]
    assert joined([first, shorter]) == [[first], [shorter]]


def test_a_row_has_one_temperature():
    first, second = stream([((), (10,)), ((20,), (11,))])
    hotter = second.model_copy(update={"sampling": Sampling(temperature=0.5)})
    assert joined([first, hotter]) == [[first], [hotter]]


def test_greedy_calls_have_log_probabilities_of_temperature_one():
    assert row([call(PROMPT, (10,), temperature=0.0)]).temperature == 1.0
    assert row([call(PROMPT, (10,), temperature=0.7)]).temperature == 0.7


# -- sessions of several conversations at once -------------------------------------------------------------------------


def trajectories(session):
    """Two of one task, of which the first holds the session."""
    other = session_call((9,), (8,), first=100_000)
    return [
        Trajectory(id="a", task_id="t", closing_calls=tuple(session), reward=Score(1.0)),
        Trajectory(id="b", task_id="t", closing_calls=(other,), reward=Score(0.0)),
    ]


@given(sessions())
def test_every_delivered_token_is_trained_once_behind_exactly_what_it_was_sampled_behind(session):
    batch = build_rows([trajectories(session)], TrainingConfig(turns="merged"), role="policy")
    wanted = {}  # by log-probability, of which each sampled token has its own: the sequence that ends with the token
    for one in session:
        for place, value in enumerate(one.logprobs, 1):
            if one.delivered:
                wanted[value] = one.prompt_ids + one.completion_ids[:place]
    found = []
    for made in (made for made in batch.rows if made.trajectory_id == "a"):
        mask, ids = made.sampled or (True,) * len(made.completion_ids), made.prompt_ids + made.completion_ids
        assert len(mask) == len(made.old_logprobs) == len(made.completion_ids)
        for place, (value, sampled) in enumerate(zip(made.old_logprobs, mask, strict=True), len(made.prompt_ids) + 1):
            if sampled:
                found.append((value, ids[:place]))
            else:
                assert value == 0.0
    assert sorted(found) == sorted(wanted.items())
    lost = sum(not one.delivered for one in session)
    assert batch.left_out.get("call whose reply the agent never received", 0) == lost


def test_a_lost_last_reply_does_not_take_the_credit():
    session = [session_call((1,), (2,)), session_call((1, 2, 3), (4,), first=5, delivered=False)]
    batch = build_rows([trajectories(session)], TrainingConfig(turns="merged"), role="policy")
    [first, _] = batch.rows
    assert (first.completion_ids, first.old_logprobs) == ((2,), (-1.0,))
    assert batch.left_out == {"call whose reply the agent never received": 1}


@pytest.mark.matrix(1)
@pytest.mark.parametrize("attention", ["rows", "dense"])  # padded; a prefix tree
@given(session=sessions(most=8))
@settings(max_examples=8)
def test_rows_have_the_gradient_of_their_calls_one_by_one(attention, session):
    learner = learner_of(model_of("llama"), LearnerConfig(attention=attention))
    delivered = [  # with log-probabilities that the model could have given: some ratios are clipped, some are not
        one.model_copy(update={"logprobs": tuple(-2.0 - (-value % 7) / 2 for value in one.logprobs)})
        for one in session
        if one.delivered
    ]

    def gradient(runs):
        learner.optimizer.zero_grad()
        made = [row_of(run, advantage=0.5, kl_weight=0.25, trajectory_id="t") for run in runs]
        stats = learner.forward_backward(made, LOSS)
        return stats, {name: one.grad.clone() for name, one in learner.model.named_parameters() if one.grad is not None}

    rows, ours = gradient(joined(delivered))
    calls, theirs = gradient([[one] for one in delivered])
    assert rows.tokens == calls.tokens == sum(len(one.completion_ids) for one in delivered)
    assert ours.keys() == theirs.keys()
    assert max(one.abs().max().item() for one in theirs.values()) > 0.01
    for name, one in theirs.items():
        torch.testing.assert_close(ours[name], one, atol=1e-10, rtol=0)
