"""Function calls of chat models: what servers send becomes text, and the text goes back as they want it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.agents.interleaved import InterleavedLoop, StreamConfig
from midstream.agents.stream_policy import ModelPolicy, PolicyConfig
from midstream.core.agent import RunContext
from midstream.core.engine import Request
from midstream.core.errors import EngineError, TransientError
from midstream.core.stream_template import load_template
from midstream.core.task import Task
from midstream.core.tool import ToolResult
from midstream.core.trajectory import Message
from midstream.engines.openai.reply import as_fields, with_calls
from midstream.engines.openai.stream import StreamedCalls
from support.errors import coded
from support.http_engine import ask, engine_for
from support.llm_server import LLMServer, completion

ADD = {"type": "function", "function": {"name": "add", "description": "a sum", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def call(name: Any = "add", arguments: Any = '{"a": 1}', **more: Any) -> dict[str, Any]:
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}} | more


def chat(*said: tuple[str, str]) -> tuple[Message, ...]:
    return tuple(Message.model_validate({"role": role, "content": content}) for role, content in said)


def read(block: str) -> Any:
    return json.loads(block.removeprefix("<tool_call>").removesuffix("</tool_call>"))


# -- as text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [None, [], ""])
def test_a_message_without_calls_is_its_content(nothing: object):
    assert with_calls("hm", nothing) == "hm"
    assert with_calls(None, nothing) is None


@pytest.mark.parametrize(("content", "text"), [(None, CALL), ("", CALL), ("I add.", "I add.\n" + CALL)])
def test_calls_are_text_after_the_content(content: str | None, text: str):
    assert with_calls(content, [call()]) == text
    assert with_calls(content, [call(), call("look", "")]) == (
        text + '\n<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    )


@pytest.mark.parametrize(
    ("sent", "emitted"),
    [
        ('{"a": "é"}', {"a": "é"}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
        ('{"a": NaN}', '{"a": NaN}'),
        ("[" * 100_000, "[" * 100_000),
        ('{"a": ' + "9" * 5000 + "}", '{"a": ' + "9" * 5000 + "}"),
        (7, 7),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_arguments_are_reported_as_they_were_sent(sent: object, emitted: object):
    assert read(with_calls(None, [call(arguments=sent)])) == {"name": "add", "arguments": emitted}


@given(name=st.text(), arguments=st.text() | st.dictionaries(st.text(), st.text()))
def test_no_argument_ends_its_call(name: str, arguments: Any):
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments | {"x": CALL})
    block = with_calls(None, [call(name + CALL, arguments)])
    assert (block.count("<tool_call>"), block.count("</tool_call>")) == (1, 1)
    assert read(block)["name"] == name + CALL


@pytest.mark.parametrize(
    "calls", ["add", 1, {"a": 1}, [1], [None], [{}], [{"function": {}}], [{"function": "add"}], [call(name=7)]]
)
def test_what_is_no_call_is_a_broken_answer(calls: object):
    with pytest.raises(TransientError):
        with_calls("hm", calls)
    with pytest.raises(TransientError):
        with_calls(["parts"], [call()])


# -- in a stream -----------------------------------------------------------------------------------------------------


def streamed(*deltas: object) -> Any:
    calls = StreamedCalls()
    for delta in deltas:
        calls.add(delta)
    return with_calls(None, calls.whole())


def part(arguments: object, name: str | None = None, **more: Any) -> list[dict[str, Any]]:
    return [{"function": {"name": name, "arguments": arguments}} | more]


TWO = CALL + "\n" + CALL.replace("add", "sub").replace("1", "2")


@pytest.mark.parametrize(
    "deltas",
    [
        [part("", "add", index=0, id="x"), part('{"a"', index=0), part(": 1}", index=0)],
        [part(None, "add", index=0), part('{"a": 1}', index=0)],
        [part('{"a": 1}', "add", index=0, id="x"), part("", index=0, id="x"), None, []],
        [part({"a": 1}, "add")],
    ],
)
def test_pieces_of_one_call(deltas: list[object]):
    assert streamed(*deltas) == CALL


@pytest.mark.parametrize(
    "deltas",
    [
        [part("", "add", index=0), part("", "sub", index=1), part('{"a": 2}', index=1), part('{"a": 1}', index=0)],
        [part('{"a": 1}', "add", index=0, id="x"), part('{"a": 2}', "sub", index=0, id="y")],
        [part('{"a": 1}', "add", id="x"), part('{"a": 2}', "sub", id="y")],
        [part('{"a": 1}', "add", index=0, id="x") + part('{"a": 2}', "sub", index=1, id="y")],
    ],
    ids=["mixed", "all of number 0", "without numbers", "one delta"],
)
def test_pieces_of_two_calls(deltas: list[object]):
    assert streamed(*deltas) == TWO


@pytest.mark.parametrize("delta", ["add", [1], [{}], [{"index": 0, "function": None}], part('{"a": 1}', index=0)])
def test_pieces_of_no_call_are_a_broken_answer(delta: object):
    with pytest.raises(TransientError):
        streamed(delta)


# -- as fields -------------------------------------------------------------------------------------------------------


def sent(number: int, name: str = "add", arguments: str = '{"a": 1}') -> dict[str, Any]:
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(number: int, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call{number:05d}", "content": content}


def test_a_conversation_goes_out_with_calls_and_results():
    said = chat(
        ("system", "be brief"), ("user", "add"), ("assistant", f"I add.\n{TWO}"), ("tool", "1"), ("tool", "2"),
        ("assistant", CALL), ("tool", "3"), ("assistant", "Done."), ("user", "more"),
    )  # fmt: skip
    assert as_fields(said) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": "I add.", "tool_calls": [sent(1), sent(2, "sub", '{"a": 2}')]},
        answer(1, "1"),
        answer(2, "2"),
        {"role": "assistant", "content": None, "tool_calls": [sent(3)]},
        answer(3, "3"),
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "more"},
    ]


BAD = [
    "<tool_call>{bad</tool_call>",
    '<tool_call>{"name": "add", "arguments": "{bad"}</tool_call>',
    '<tool_call>{"name": "a name", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "add", "id": 1}</tool_call>',
    '<tool_call>[{"name": "add"}, {"name": 1}]</tool_call>',
    "<tool_call>[]</tool_call>",
    "<tool_call>[1]</tool_call>",
    '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
    "<tool_call></tool_call>",
]


@pytest.mark.parametrize("bad", BAD)
def test_an_invalid_call_stays_text_and_its_result_comes_from_the_user(bad: str):
    assert as_fields(chat(("assistant", bad + CALL), ("tool", "no JSON"), ("tool", "1"))) == [
        {"role": "assistant", "content": bad, "tool_calls": [sent(1)]},
        answer(1, "1"),
        {"role": "user", "content": "no JSON"},
    ]
    assert as_fields(chat(("assistant", f" {bad}"), ("tool", "no JSON"))) == [
        {"role": "assistant", "content": f" {bad}"},
        {"role": "user", "content": "no JSON"},
    ]


def test_a_list_of_calls_has_a_result_for_each():
    both = '<tool_call>[{"name": "add"}, {"name": "sub", "arguments": {"a": 2}}]</tool_call>'
    [reply, *results] = as_fields(chat(("assistant", both + CALL), ("tool", "1"), ("tool", "2"), ("tool", "3")))
    assert reply["tool_calls"] == [sent(1, "add", "{}"), sent(2, "sub", '{"a": 2}'), sent(3)]
    assert results == [answer(1, "1"), answer(2, "2"), answer(3, "3")]
    odd = both.replace('"sub"', '"a name"')
    [reply, *results] = as_fields(chat(("assistant", odd + CALL), ("tool", "1"), ("tool", "2"), ("tool", "3")))
    assert (reply["content"], reply["tool_calls"]) == (odd, [sent(1)])
    assert results == [answer(1, "3"), {"role": "user", "content": "1"}, {"role": "user", "content": "2"}]


def test_results_and_calls_that_do_not_match_are_not_lost():
    assert as_fields(chat(("tool", "0"), ("assistant", CALL), ("tool", "1"), ("tool", "2"), ("user", "u"))) == [
        {"role": "user", "content": "0"},
        {"role": "assistant", "content": None, "tool_calls": [sent(1)]},
        answer(1, "1"),
        {"role": "user", "content": "2"},
        {"role": "user", "content": "u"},
    ]
    assert as_fields(chat(("assistant", TWO), ("tool", "1")))[0] == {
        "role": "assistant",
        "content": TWO.split("\n")[1],
        "tool_calls": [sent(1)],
    }
    assert as_fields(chat(("assistant", CALL))) == [{"role": "assistant", "content": CALL}]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.sampled_from([CALL, TWO, "hm", *BAD]))))
def test_every_call_that_goes_out_has_its_result_and_every_result_goes_out(said: list[tuple[str, str]]):
    fields = as_fields(chat(*said))
    emitted = [one for one in fields if one["role"] in ("user", "tool")]
    assert sorted(one["content"] for one in emitted) == sorted(text for role, text in said if role != "assistant")
    waiting: list[str] = []
    for one in fields:
        if one["role"] == "tool":
            assert one["tool_call_id"] == waiting.pop(0)
        else:
            assert not waiting
            waiting = [made["id"] for made in one.get("tool_calls", ())]
    assert not waiting


# -- over HTTP -------------------------------------------------------------------------------------------------------

CHAT = Request(role="policy", messages=chat(("user", "1 + 0 ?")), tools=(ADD,))


def calling(*calls: object, content: str | None = None):
    """A server's reply with calls in it."""

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        made = completion(body, "")
        made["choices"][0] |= {"finish_reason": "tool_calls", "message": {"content": content, "tool_calls": [*calls]}}
        return made

    return reply


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("content", [None, "I add."])
def test_a_model_that_calls_says_so_in_its_text(stream: bool, content: str | None):
    with LLMServer(calling(call(), call("sub", '{"a": 2}', id="y"), content=content)) as server:
        [made] = ask(engine_for(server, stream=stream), CHAT)
    assert made.completion == (f"{content}\n{TWO}" if content else TWO)
    assert (made.finish_reason, made.failures) == ("tool_calls", ())
    assert server.bodies[0]["tools"] == [ADD]
    assert made.sent["tools"] == 1
    assert "add" not in json.dumps(made.sent)


def test_the_next_request_brings_the_results():
    said = (*CHAT.messages, *chat(("assistant", CALL), ("tool", "1")))
    with LLMServer(lambda body: "It is 1.") as server:
        [made] = ask(engine_for(server), Request(role="policy", messages=said, tools=(ADD,)))
        ask(engine_for(server), Request(role="policy", messages=said))
        ask(engine_for(server, provider="transformers"), Request(role="policy", messages=said, tools=(ADD,)))
    assert made.messages == said
    assert server.bodies[0]["messages"] == as_fields(said)
    assert "tools" not in server.bodies[1]
    assert server.bodies[2]["tools"] == [ADD]
    assert server.bodies[1]["messages"] == server.bodies[2]["messages"] == [one.wire() for one in said]


@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_call_is_asked_for_again(stream: bool):
    replies = iter([calling(call(name=None)), calling(call())])
    with LLMServer(lambda body: next(replies)(body)) as server:
        [made] = ask(engine_for(server, stream=stream), CHAT)
    assert made.completion == CALL
    assert made.failures == ("the answer holds a tool call without a function's name",)


def test_a_server_that_refuses_tools_is_an_error_at_once():
    with LLMServer(faults=[400]) as server, pytest.raises(EngineError, check=coded("request-refused", 400)):
        ask(engine_for(server), CHAT)


class Says:
    """A tool that says what it is emitted."""

    name, description, timeout_s, output_tokens = "say", "says it", 5.0, 100
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(text=f"said {arguments['text']}")

    async def close(self) -> None:
        pass


def test_an_agent_continues_after_invalid_calls():
    steps = [
        [call("say", '{"text": "a"}'), call("unknown", "{}", id="y")],
        [call("say", '{"text":'), call("say", '{"text": "</tool_call>"}', id="y")],
    ]

    def reply(body: dict[str, Any]) -> str | dict[str, Any]:
        said = sum(one["role"] == "assistant" for one in body["messages"])
        return calling(*steps[said])(body) if said < len(steps) else "The end."

    agent = InterleavedLoop(policy=ModelPolicy(PolicyConfig()), template=load_template("native"), config=StreamConfig())
    with LLMServer(reply) as server:
        context = RunContext(tools=[Says()], engines={"policy": engine_for(server)}, seed=1)
        found = asyncio.run(agent.run(Task(id="t", question="q", answer="x"), context))
    assert (found.stop_reason, found.answer, found.request_failures) == ("answered", "The end.", 0)
    assert [turn.observation.status for turn in found.turns if turn.observation] == ["ok", "error", "error", "ok"]
    emitted = server.bodies[-1]["messages"][2:]
    assert [(one["role"], len(one.get("tool_calls", ()))) for one in emitted] == [
        ("assistant", 2), ("tool", 0), ("tool", 0), ("assistant", 1), ("tool", 0), ("user", 0)
    ]  # fmt: skip
    assert '"{\\"text\\":"' in emitted[3]["content"]
    assert "cannot be read" in emitted[5]["content"]


def test_a_reply_of_opening_marks_takes_no_time():
    reply = "</tool_call>" + "<tool_call>" * 50_000
    began = time.process_time()
    fields = as_fields([Message(role="assistant", content=reply), Message(role="tool", content="1")])
    assert fields == [{"role": "assistant", "content": reply}, {"role": "user", "content": "1"}]
    assert time.process_time() - began < 5
