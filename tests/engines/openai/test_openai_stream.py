"""Server-sent events and the reply they add up to, in whatever pieces they come."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import TransientError
from midstream.engines.openai.reply import CheckedReply, checked_reply
from midstream.engines.openai.stream import DONE, EventParser, StreamedReply, event_object
from support.llm_server import completion, events_of


def events_in(*chunks: bytes) -> list[str]:
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)] + list(parser.end())


def reply_of(*chunks: bytes, token_ids: bool = False) -> CheckedReply:
    reply = StreamedReply()
    for event in events_in(*chunks):
        if event == DONE:
            reply.done = True
        else:
            reply.add(event_object(event))
    return checked_reply(reply.whole(), "", token_ids=token_ids)


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    chunk = {"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b": ping\n\n:\n\ndata:a\n\n", ["a"]),
        (b"event: x\nid: 7\nretry: 10\ndata:  a\n\n", [" a"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: a", ["a"]),
        (b"data: a\n", ["a"]),
        (b"data\n\n", [""]),
        (b"error: a\n\n", ["a"]),
        (b"data: \xff\n\n", ["\ufffd"]),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_the_format_of_events(raw: bytes, events: list[str]):
    assert events_in(raw) == events
    assert events_in(*(raw[i : i + 1] for i in range(len(raw)))) == events


def chunks_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(
    text=st.text(max_size=40),
    chat=st.booleans(),
    exact=st.booleans(),
    ends=st.sampled_from([b"\n", b"\r\n"]),
    comment=st.booleans(),
    cuts=st.lists(st.integers(min_value=0, max_value=10_000), max_size=30),
)
def test_any_split_gives_the_same_reply(
    text: str, chat: bool, exact: bool, ends: bytes, comment: bool, cuts: list[int]
):
    body = {"model": "m", "return_token_ids": True, "logprobs": True}
    whole = completion(body | ({"messages": [{"content": "q"}]} if chat else {"prompt": "q"}), text)
    events = events_of(whole)
    if comment:
        events.insert(1, b": still thinking\n\n")
    raw = b"".join(events).replace(b"\n", ends)
    expected = checked_reply(whole, "", token_ids=exact)
    assert reply_of(raw, token_ids=exact) == expected
    assert reply_of(*chunks_of(raw, cuts), token_ids=exact) == expected


@given(text=st.text(alphabet="aé€😀", min_size=1), cuts=st.lists(st.integers(min_value=0, max_value=10_000)))
def test_a_character_may_be_cut_in_two(text: str, cuts: list[int]):
    raw = delta(content=text) + delta("stop") + b"data: [DONE]\n\n"
    assert reply_of(*chunks_of(raw, cuts)).text == text


@given(keep=st.integers(min_value=0, max_value=10_000))
def test_a_stream_that_is_cut_anywhere_is_no_reply(keep: int):
    raw = delta(content="some text") + delta("stop") + b"data: [DONE]\n\n"
    with pytest.raises(TransientError):
        reply_of(raw[: keep % raw.index(b"[DONE]")])


@pytest.mark.parametrize(
    ("pieces", "text", "emitted"),
    [
        ([{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}], "ab", "ab"),
        ([{"content": None}, {"content": "a"}], "a", "a"),
        ([{"reasoning_content": "hm"}, {"content": "a"}], "a", "a"),
        ([{"reasoning": "hm"}, {"content": None}], "", ""),
        ([{"refusal": "I will "}, {"refusal": "not"}], "I will not", "I will not"),
        ([{"content": ""}, {"refusal": "no"}], "no", "no"),
    ],
)
def test_forms_of_a_delta(pieces: list[dict[str, Any]], text: str, emitted: str):
    reply = StreamedReply()
    chunks = [event_object(event) for event in events_in(*(delta(**piece) for piece in pieces), delta("stop"))]
    found = [piece for chunk in chunks for piece in reply.add(chunk)]
    assert "".join(piece.text for piece in found if piece.kind == "text") == emitted
    reply.done = True
    assert checked_reply(reply.whole(), "", token_ids=False).text == text


def test_only_the_first_choice_counts():
    other = b'data: {"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": "stop"}]}\n\n'
    raw = delta(content="a") + other + delta("stop") + b"data: [DONE]\n\n"
    assert reply_of(raw).text == "a"


@pytest.mark.parametrize(
    "raw",
    [
        b"data: nonsense\n\n",
        b"data: [1]\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        delta("stop") + b"data: [DONE]\n\n",  # no text
        delta("error", content="a") + b"data: [DONE]\n\n",
        delta(content="a") + b"data: [DONE]\n\n",
        delta("stop", content="a"),
        b"data: [DONE]\n\n",
        b"",
    ],
)
def test_what_is_no_reply(raw: bytes):
    with pytest.raises(TransientError):
        reply_of(raw)


@given(
    st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from("choices delta content text usage logprobs token_ids index".split()), inner
                )
            ),
            max_leaves=8,
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_any_chunks_are_a_reply_or_a_named_error(chunks: list[Any], finished: bool):
    raw = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    try:
        reply = reply_of(raw + (delta("stop") + b"data: [DONE]\n\n" if finished else b""))
    except TransientError:
        return
    assert finished
    assert reply.finish_reason == "stop"
