"""Calls that continue one another are one sequence, in which what was not sampled is marked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from midstream.core.sequences import joined
from midstream.core.trajectory import Call, Sampling
from midstream.training.rows import row_of, tokens_after_prompt

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
