"""Which calls of a session continue one another, and why the others do not."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.sequences import Split, joined, splits, trainable
from midstream.core.trajectory import Call, ErrorInfo, Message, Sampling
from support.sessions import call, sessions

SYSTEM, USER = Message(role="system", content="Be brief."), Message(role="user", content="How high?")
TOOL, MORE = Message(role="tool", content="105"), Message(role="user", content="And 7 more?")


def said(text, **fields):
    return Message(role="assistant", content=text, fields=fields)


def asked(messages, prompt_ids, completion="105", completion_ids=(90, 91), *, temperature=1.0, tools=None):
    return Call(
        role="policy",
        messages=tuple(messages),
        prompt_ids=prompt_ids,
        completion=completion,
        completion_ids=completion_ids,
        logprobs=(-1.0,) * len(completion_ids),
        sampling=Sampling(temperature=temperature),
        sent={} if tools is None else {"tools": tools},
    )


def begins(call, other):
    whole = other.prompt_ids + other.completion_ids
    return call.prompt_ids[: len(whole)] == whole


def one_by_one(calls):
    """`joined`, as its docstring says it."""
    runs = []
    for each in calls:
        fitting = [run for run in runs if begins(each, run[-1]) and run[-1].sampling == each.sampling]
        if fitting:
            max(fitting, key=lambda run: len(run[-1].prompt_ids + run[-1].completion_ids)).append(each)
        else:
            runs.append([each])
    return runs


@given(sessions())
def test_each_call_continues_the_longest_open_sequence_that_it_extends(session):
    # Of two open ends that are equal either may be taken: what is compared is the sequences.
    delivered = [each for each in session if each.delivered]
    made, wanted = ([[(one.prompt_ids, one.completion_ids) for one in run] for run in runs] for runs in
                    (joined(delivered), one_by_one(delivered)))  # fmt: skip
    assert sorted(made) == sorted(wanted)
    runs = joined(delivered)
    assert sorted(map(id, delivered)) == sorted(id(one) for run in runs for one in run)
    places = [next(place for place, one in enumerate(delivered) if one is run[0]) for run in runs]
    assert places == sorted(places)


@given(sessions())
def test_splits_are_the_rows_that_begin_with_tokens_of_an_earlier_call(session):
    delivered = [each for each in session if each.delivered]
    places = {id(one): place for place, one in enumerate(delivered)}

    def shared(place, of):
        whole = delivered[of].prompt_ids + delivered[of].completion_ids
        prompt = delivered[place].prompt_ids
        return next((at for at in range(min(len(prompt), len(whole))) if prompt[at] != whole[at]), None) or (
            0 if prompt[:1] != whole[:1] else min(len(prompt), len(whole))
        )

    wanted = {}
    for run in joined(delivered):
        place = places[id(run[0])]
        if (most := max((shared(place, of) for of in range(place)), default=0)) > 0:
            wanted[place] = (most, max(of for of in range(place) if shared(place, of) == most))
    assert {split.call: (split.shared, split.of) for split in splits(delivered)} == wanted


def test_two_conversations_at_once_are_two_rows():
    first, other = call((1, 2), (3,)), call((5, 6), (7,))
    then, after = call((1, 2, 3, 4), (8,)), call((5, 6, 7, 4), (9,))
    assert joined([first, other, then, after]) == [[first, then], [other, after]]
    assert splits([first, other, then, after]) == []


def test_a_second_branch_begins_a_row_that_later_calls_continue():
    first, one, other = call((1,), (2,)), call((1, 2, 3), (4,)), call((1, 2, 5), (6,))
    after = call((1, 2, 5, 6), (7,))
    assert joined([first, one, other, after]) == [[first, one], [other, after]]
    assert splits([first, one, other, after]) == [Split(call=2, of=1, shared=2, why="branch")]


HEAD = (1, 2, 3)
FIRST = asked([SYSTEM, USER], HEAD)
THOUGHT = asked([SYSTEM, USER], HEAD, "<think>So.</think>105", (80, 81, 90, 91))
SECOND = asked([SYSTEM, USER, said("105"), MORE], (*HEAD, 90, 91, 4, 5), "112", (92,))


@pytest.mark.parametrize(
    ("earlier", "later", "why"),
    [
        ([FIRST], asked([Message(role="system", content="It is noon."), USER], (1, 9, 3)), "another conversation"),
        ([FIRST], asked([SYSTEM, MORE], (1, 2, 9)), "another conversation"),
        ([FIRST], FIRST, "branch"),
        ([FIRST, SECOND], asked([SYSTEM, USER, said("105"), TOOL], (*HEAD, 90, 91, 7)), "branch"),
        ([SECOND], FIRST, "branch"),
        (
            [FIRST, SECOND],
            asked([SYSTEM, USER, said("1"), MORE, said("112"), MORE], (*HEAD, 89, 4, 5, 92, 4, 5)),
            "history changed",
        ),
        ([FIRST, SECOND], asked([SYSTEM, USER, TOOL], (*HEAD, 7)), "history changed"),
        ([FIRST], asked([SYSTEM, USER, MORE], (*HEAD, 4, 5)), "history changed"),
        ([THOUGHT], asked([SYSTEM, USER, said("105"), MORE], (*HEAD, 90, 91, 4, 5)), "reply changed"),
        ([FIRST], asked([SYSTEM, USER, said("105", tool_calls=[{"id": "1"}]), TOOL], (*HEAD, 90, 6)), "reply changed"),
        ([FIRST], asked([SYSTEM, USER, said("105"), MORE], (*HEAD, 88, 4, 5)), "tokens changed"),
        ([FIRST], asked([SYSTEM, USER], (1, 2, 9)), "tokens changed"),
        ([FIRST], asked([SYSTEM, USER, said("105"), MORE], (1, 7, 3, 90, 91, 4), tools=["add"]), "tools changed"),
        ([FIRST], SECOND.model_copy(update={"sampling": Sampling(temperature=0.5)}), "temperature changed"),
    ],
)
def test_why_a_call_does_not_continue(earlier, later, why):
    assert [(split.call, split.why) for split in splits([*earlier, later])] == [(len(earlier), why)]


def test_prompts_without_messages_are_compared_as_text():
    first = call((1, 2), (3,)).model_copy(update={"prompt": "How high?"})
    retold = call((1, 9), (3,)).model_copy(update={"prompt": "How high? 105. And"})
    [split] = splits([first, retold])
    assert split.why == "tokens changed"
    [split] = splits([first, retold.model_copy(update={"prompt": "How low?"})])
    assert split.why == "another conversation"


def test_what_training_can_use():
    assert trainable(FIRST)
    for change in ({"delivered": False}, {"logprobs": ()}, {"error": ErrorInfo(type="E", message="")}):
        assert not trainable(FIRST.model_copy(update=change))


@pytest.mark.matrix(1)
@pytest.mark.parametrize("differ", ["first", "last"])
def test_a_thousand_long_calls_are_joined_fast(differ):
    body = tuple(range(100_000, 107_000))
    starts = [(place, *body) if differ == "first" else (*body, place) for place in range(500)]
    calls = [call(start, (1, 2)) for start in starts]
    calls += [call((*start, 1, 2, *range(990)), (3,)) for start in starts]
    began = process_time()
    assert len(joined(calls)) == 500
    assert process_time() - began < 2


lengths = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)


def joined_before(calls):
    """`joined` as it was before calls of one trajectory could interleave: only the call just before is continued."""
    runs = []
    for each in calls:
        before = runs[-1][-1] if runs else None
        if before is not None and before.sampling.temperature == each.sampling.temperature and begins(each, before):
            runs[-1].append(each)
            continue
        runs.append([each])
    return runs


@given(st.lists(st.tuples(lengths, lengths, st.booleans()), min_size=1, max_size=8))
def test_streams_and_planners_have_the_rows_that_they_had(parts):
    """Each part continues the stream, or asks from scratch with a first token of its own."""
    calls, ids = [], (100,)
    for place, (appended, sampled, scratch) in enumerate(parts, 101):
        ids = ((place,) if scratch else ids) + appended
        calls.append(call(ids, sampled))
        ids += sampled
    assert joined(calls) == joined_before(calls)
