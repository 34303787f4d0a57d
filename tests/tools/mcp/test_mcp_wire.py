"""What a server sends, cut into lines, sorted into messages, held back: for any bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from midstream.tools.mcp.wire import FLOOD, OPEN_REQUESTS, TOO_LONG, Flood, Gate, LineBuffer, failures, messages_of

REPLY = {"jsonrpc": "2.0", "id": 7, "result": {"content": []}}


@given(st.lists(st.binary(max_size=60)), st.integers(1, 50))
def test_lines_are_the_same_however_the_bytes_arrive(lines, size):
    lines = [line.replace(b"\n", b" ") for line in lines]
    stream, buffer = b"".join(line + b"\n" for line in lines), LineBuffer(10_000)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [found for piece in pieces for found in buffer.feed(piece)] == [(line, True) for line in lines]


@given(st.integers(0, 40_000), st.integers(1, 9_000))
def test_a_long_line_keeps_both_ends_and_little_memory(length, size):
    line = b"a" * 100 + b"." * length + b"z" * 100
    buffer = LineBuffer(5_000)
    for start in range(0, len(line), size):
        assert not list(buffer.feed(line[start : start + size]))
        assert len(buffer._kept) <= max(5_000, 2 * 512)
    [(kept, whole)] = list(buffer.feed(b"\n"))
    assert whole == (len(line) <= 5_000)
    assert kept.startswith(b"a" * 100)
    assert kept.endswith(b"z" * 100)
    assert list(buffer.feed(b"next\n")) == [(b"next", True)]


def test_a_line_without_an_end_is_a_flood():
    buffer = LineBuffer(1000)
    for _ in range(32):
        assert not list(buffer.feed(b"x" * 1000))
    with pytest.raises(Flood, match="a line of more than"):
        list(buffer.feed(b"x"))


@given(st.binary())
def test_any_bytes_are_messages_or_noise(line):
    assert isinstance(messages_of(line), list)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=9))
def test_any_result_is_a_reply_or_an_error_for_its_call(value):
    [message] = messages_of(json.dumps({**REPLY, "result": value}).encode())
    assert isinstance(message, JSONRPCError)
    assert message.id == 7


@given(st.text(alphabet=st.characters(codec=None, categories=["Cs", "Lu", "So"]), max_size=20))
def test_half_a_surrogate_pair_becomes_a_question_mark(text):
    [message] = messages_of(json.dumps({**REPLY, "result": {"text": text}}).encode())
    assert isinstance(message, JSONRPCResponse)
    # Two halves in a row are one character once they have been JSON.
    whole = json.loads(json.dumps(text)).encode("utf-8", "replace").decode()
    assert message.result == {"text": whole}


@pytest.mark.parametrize("line", [b"", b"Listening ...", b"{}", b"[[]]", b"null", b"7", b'{"id": 7}\x00', b'"id":7'])
def test_noise_is_no_message(line):
    assert messages_of(line) == []


def test_a_batch_is_its_messages():
    note = {"jsonrpc": "2.0", "method": "notifications/progress"}
    kinds = [type(message) for message in messages_of(json.dumps([REPLY, note, "noise"]).encode())]
    assert kinds == [JSONRPCResponse, JSONRPCNotification]


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"result":{"id":8,"content":[...',
        b' { "jsonrpc" : "2.0" , "id" : 7 , "result":',
        b'{"id":7,"jsonrpc":"2.0","result":...',
        b'{"result":{"id":8},...,"jsonrpc":"2.0","id":7}',
        b'{"result":{"id":8},...,"id": 7, "jsonrpc":"2.0" } \r',
    ],
)
def test_the_call_of_a_reply_that_is_not_read_whole_is_told_by_its_ends(line):
    [error] = failures(line, TOO_LONG, "too long")
    assert isinstance(error, JSONRPCError)
    assert (error.id, error.error.code) == (7, TOO_LONG)


@pytest.mark.parametrize(
    "line", [b'{"result":{"a":[{"id":7}]}}', b'{"result":"id: 7}', b"xxxx", b'{"a":1,"id":7,"b":2}']
)
def test_an_id_that_may_be_part_of_the_result_is_not_taken(line):
    assert failures(line, TOO_LONG, "too long") == []


def test_the_gate_lets_a_few_requests_through_at_a_time():
    gate, request = Gate(), JSONRPCRequest(jsonrpc="2.0", id="a", method="roots/list")
    assert [gate.admit(request) for _ in range(OPEN_REQUESTS + 2)] == [True] * OPEN_REQUESTS + [False] * 2
    gate.sent(JSONRPCError.model_validate({"jsonrpc": "2.0", "id": "a", "error": {"code": 1, "message": ""}}))
    assert gate.admit(request)
    assert not gate.admit(request)


def test_the_gate_ends_a_flood_and_a_reply_starts_the_count_again():
    gate, note = Gate(), JSONRPCNotification(jsonrpc="2.0", method="notifications/message")
    reply = JSONRPCResponse.model_validate(REPLY)
    for _ in range(2):
        assert not any(gate.admit(note) for _ in range(FLOOD))
        assert gate.admit(reply)
    for _ in range(FLOOD):
        gate.admit(note)
    with pytest.raises(Flood, match="notifications/message"):
        gate.admit(note)
