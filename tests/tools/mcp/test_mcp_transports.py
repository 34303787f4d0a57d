"""What a server sends, cut into lines, parsed as messages, held back: for any bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from midstream.tools.mcp.transports import OPEN_REQUESTS, Link, call_of, lines_of, messages_of

REPLY = {"jsonrpc": "2.0", "id": 7, "result": {"content": []}}


def lines(pieces: Iterable[bytes], limit: int) -> list[tuple[bytes, bool]]:
    """The lines of a stream whose bytes arrive in these pieces, by a reader with a buffer of 100 bytes."""

    async def run() -> list[tuple[bytes, bool]]:
        stream = asyncio.StreamReader(limit=100)
        found = []

        async def read() -> None:
            async for line in lines_of(stream, limit):
                found.append(line)

        reading = asyncio.create_task(read())
        for piece in pieces:
            stream.feed_data(piece)
            await asyncio.sleep(0)
        stream.feed_eof()
        await reading
        return found

    return asyncio.run(run())


@given(st.lists(st.binary(max_size=200)), st.integers(1, 50))
def test_lines_are_the_same_however_the_bytes_arrive(texts, size):
    texts = [text.replace(b"\n", b" ") for text in texts]
    stream = b"".join(text + b"\n" for text in texts)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert lines(pieces, 10_000) == [(text + b"\n", True) for text in texts]


@given(st.integers(0, 40_000), st.integers(1, 9_000))
def test_only_both_ends_of_a_long_line_are_kept(length, size):
    line = b"a" * 100 + b"." * length + b"z" * 100 + b"\n"
    pieces = [line[start : start + size] for start in range(0, len(line), size)]
    [(kept, whole), following] = lines([*pieces, b"next\n"], 5_000)
    assert whole == (len(line) <= 5_000)
    assert len(kept) <= max(5_000, 2 * 512)
    assert kept.startswith(b"a" * 100)
    assert kept.endswith(b"z" * 100 + b"\n")
    assert following == (b"next\n", True)


@given(st.binary())
def test_any_bytes_are_messages_or_noise(line):
    assert isinstance(messages_of(line), list)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=9))
def test_an_invalid_result_is_an_error_for_its_call(value):
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
def test_noise_is_not_a_message(line):
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
def test_the_id_of_a_long_reply_is_found_at_its_ends(line):
    assert call_of(line) == [7]


@pytest.mark.parametrize(
    "line", [b'{"result":{"a":[{"id":7}]}}', b'{"result":"id: 7}', b"xxxx", b'{"a":1,"id":7,"b":2}']
)
def test_an_id_that_may_be_part_of_the_result_is_not_taken(line):
    assert call_of(line) == []


def delivered(*messages: JSONRPCMessage, sent: int = 0) -> int:
    """How many of a server's messages reach the SDK, the last of them after `sent` answers to it."""

    async def run() -> int:
        link, received = Link(max_reply_mb=1, hide=str), 0
        link._inbox, sdk_reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)

        async def sdk() -> None:
            nonlocal received
            with sdk_reads:
                async for _ in sdk_reads:
                    received += 1

        reading = asyncio.create_task(sdk())
        for number, message in enumerate(messages):
            if len(messages) - number <= sent:
                link._sent(
                    JSONRPCError.model_validate({"jsonrpc": "2.0", "id": "a", "error": {"code": 1, "message": ""}})
                )
            await link._deliver(SessionMessage(message))
        link.end()
        await reading
        return received

    return asyncio.run(run())


def test_a_few_requests_of_the_server_pass_at_a_time():
    request = JSONRPCRequest(jsonrpc="2.0", id="a", method="roots/list")
    assert delivered(*[request] * (OPEN_REQUESTS + 2)) == OPEN_REQUESTS
    assert delivered(*[request] * (OPEN_REQUESTS + 2), sent=1) == OPEN_REQUESTS + 1


def test_notifications_do_not_reach_the_sdk():
    note = JSONRPCNotification(jsonrpc="2.0", method="notifications/message")
    reply = JSONRPCResponse.model_validate(REPLY)
    assert delivered(note, reply, note) == 1
