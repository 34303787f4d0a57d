"""The scripted engine returns what it is given."""

from __future__ import annotations

import asyncio

import pytest

from midstream.core.engine import Engine, Request
from midstream.core.errors import EngineError
from midstream.core.trajectory import Message
from midstream_worlds.scripted_engine import ScriptedEngine
from support.errors import coded


def test_a_list_of_replies_is_used_up_in_order():
    engine = ScriptedEngine(["one", "two"])
    request = Request(role="planner", prompt="p")
    assert [asyncio.run(engine.sample(request)).completion for _ in range(2)] == ["one", "two"]
    with pytest.raises(EngineError, check=coded("no-scripted-reply", "planner")):
        asyncio.run(engine.sample(request))
    assert engine.requests == [request] * 3


def test_a_function_sees_the_request_and_the_call_records_it():
    engine = ScriptedEngine(lambda request: request.messages[-1].content.upper(), name="echo")
    request = Request(role="verifier", messages=(Message(role="user", content="é"),))
    call = asyncio.run(engine.sample(request))
    assert (call.role, call.engine, call.messages, call.completion) == ("verifier", "echo", request.messages, "É")
    assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (2, 2)
    assert (call.prompt_ids, call.completion_ids, call.logprobs) == ((), (), ())
    assert isinstance(engine, Engine)
    assert not engine.token_exact


def test_token_ids_are_bytes():
    engine = ScriptedEngine(["é"], token_ids=True)
    call = asyncio.run(engine.sample(Request(role="planner", prompt="ab")))
    assert engine.token_exact
    assert (call.prompt_ids, call.completion_ids, call.logprobs) == ((97, 98), (0xC3, 0xA9), (0.0, 0.0))
