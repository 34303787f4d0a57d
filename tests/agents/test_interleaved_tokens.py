"""Token in, token out: a stream is one sequence of the ids that were sampled and put in, no text tokenized twice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.agents.stream_policy import ModelPolicy, PolicyConfig
from midstream.core.stream import stream_of
from midstream.core.stream_template import load_template
from midstream.core.trajectory import Message, Sampling, Trajectory
from support.interleaved import END, Pairs, Shout, Talk, Typist, play

CODEC = Pairs()
FRAGMENTS = (
    "<think>",
    "</think>",
    "<python>",
    "</python>",
    "<output>",
    "</output>",
    "<answer>",
    "</answer>",
    "a",
    "bc ",
)
SCRIPTS = st.lists(st.sampled_from((*FRAGMENTS, "<pyth", "on>", "</", "|")), max_size=30).map("".join)
CALLS = (
    "<tool>",
    "</tool>",
    '{"name": "a", "arguments": {"code": "x"}}',
    "<reasoning>",
    "</reasoning>",
    "so",
    "|",
    "|",
)
CHATS = st.lists(st.sampled_from(CALLS), max_size=30).map("".join)


def check_one_sequence(trajectory: Trajectory, given: Sequence[Sequence[int]]) -> None:
    """Each request is the one before, what was sampled, and what was `given` in between."""
    calls = [call for call in trajectory.calls if call.role == "policy"]
    puts = iter(given)
    for before, after in pairwise(calls):
        so_far = (*before.prompt_ids, *before.completion_ids)
        assert after.prompt_ids[: len(so_far)] == so_far
        rest = after.prompt_ids[len(so_far) :]
        assert not rest or rest == tuple(next(puts))


def appended(trajectory: Trajectory) -> list[str]:
    return [turn.appended for turn in trajectory.turns if turn.appended]


@given(SCRIPTS, st.integers(2, 40), st.integers(10, 200))
@settings(deadline=None)
def test_an_inline_stream_is_one_sequence(script, reply_tokens, max_tokens):
    engine = Typist(script)
    trajectory = play(engine, reply_tokens=reply_tokens, max_tokens=max_tokens, max_turns=4)
    check_one_sequence(trajectory, [CODEC.encode_text(text) for text in appended(trajectory)])
    last = trajectory.calls[-1]
    whole = (*last.prompt_ids, *last.completion_ids)
    emitted = "".join(piece.text for piece in stream_of(trajectory))
    start = len(engine.requests[0].prompt_ids)
    put_in_last = trajectory.turns[-1].appended if trajectory.turns and not trajectory.closing_calls else ""
    assert CODEC.decode(whole[start:]) + put_in_last == emitted
    sampled = sum(len(call.completion_ids) for call in trajectory.calls)
    assert sampled <= max_tokens
    assert trajectory.status == "ok"


@given(CHATS)
@settings(deadline=None)
def test_a_stream_of_messages_is_one_sequence(script):
    trajectory = play(Typist(script), template="artist-function-calling", tools=[Shout("a")], max_turns=4)
    given = [CODEC.encode_reply([Message(role="user", content=one)], ended=True) for one in appended(trajectory)]
    check_one_sequence(trajectory, given)


def test_a_dialogue_is_one_sequence():
    script = '<tool>{"name": "a", "arguments": {"code": "x"}}</tool>|Done.|Bye.|'
    trajectory = play(Typist(script), template="artist-function-calling", talk=Talk(["Do.", "More."], [[Shout("a")]]))
    given = [CODEC.encode_reply([Message(role="user", content=one)], ended=True) for one in appended(trajectory)]
    assert len(given) == 2
    check_one_sequence(trajectory, given)


def test_a_stop_string_of_ones_own_leaves_the_end_of_the_reply_to_the_environment():
    engine = Typist('<tool>{"name": "a", "arguments": {"code": "x"}}</tool>Done.|')
    policy = ModelPolicy(PolicyConfig(sampling=Sampling(stop=("</tool>",))))
    trajectory = play(engine, template="artist-function-calling", tools=[Shout("a")], policy=policy)
    results = [Message(role="user", content=one) for one in appended(trajectory)]
    check_one_sequence(trajectory, [CODEC.encode_reply(results, ended=False)])
    assert trajectory.answer == "Done."


def test_results_of_native_calls_are_messages_of_a_tool():
    script = '<tool_call>{"name": "a", "arguments": {"code": "x"}}</tool_call>|Done.|'
    trajectory = play(Typist(script), template="native", tools=[Shout("a")])
    check_one_sequence(trajectory, [CODEC.encode_reply([Message(role="tool", content="x!")], ended=True)])


def test_a_mark_may_end_in_the_middle_of_a_token():
    engine = Typist("<python>ab</python>d</python><answer>5</answer>")
    trajectory = play(engine)
    [turn] = trajectory.turns
    assert turn.calls[0].completion == "<python>ab</python>d"
    assert turn.command is not None
    assert turn.command.arguments == {"code": "ab"}
    assert engine.requests[1].messages[-1].content == "<python>ab</python>d\n<output>\nab!\n</output>\n"
    assert trajectory.answer == "5"


def test_words_say_the_same_as_the_ids():
    engine = Typist("<think>a</think><python>b</python><answer>5</answer>")
    play(engine)
    for request in engine.requests:
        text = "".join(f"[{one.role}]{one.content}" for one in request.messages if one.role != "assistant")
        text += "[assistant]" + "".join(one.content for one in request.messages if one.role == "assistant")
        assert CODEC.decode(request.prompt_ids) == text


@pytest.mark.parametrize("chat", [True, False])
def test_an_opening_is_part_of_the_prompt(chat):
    template = load_template("artist-math").model_copy(update={"opening": "<think>", "chat": chat})
    engine = Typist("hm</think><answer>5</answer>")
    assert play(engine, template=template).answer == "5"
    assert CODEC.decode(engine.requests[0].prompt_ids).endswith("<think>")
    assert engine.requests[0].sampling.max_tokens == 2048


def test_an_opening_stands_before_the_first_reply_alone():
    template = load_template("artist-math").model_copy(update={"opening": "<think>"})
    engine = Typist("hm</think><python>a</python>so<python>b</think></python><answer>5</answer>")
    trajectory = play(engine, template=template)
    assert [turn.action and turn.action.context for turn in trajectory.turns] == ["a", "b</think>"]


def test_without_ids_of_a_reply_the_stream_continues_as_text():
    engine = Typist("<python>b</python><answer>5</answer>")
    sample = engine.sample

    async def forgetful(request):
        return (await sample(request)).model_copy(update={"prompt_ids": (), "completion_ids": (), "logprobs": ()})

    engine.sample = forgetful  # type: ignore[method-assign]
    assert play(engine).answer == "5"
    assert [bool(request.prompt_ids) for request in engine.requests] == [True, False]


def test_the_budget_counts_what_is_put_in():
    engine = Typist("<python>" + "x" * 100 + "</python>|")
    trajectory = play(engine, max_tokens=100)
    assert (trajectory.stop_reason, len(engine.requests)) == ("token_limit", 1)
    assert END not in trajectory.calls[0].completion_ids
