"""Asking a role: again where a reply cannot be used, never again where the ledger has the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from midstream.core.engine import Request
from midstream.core.errors import EngineError
from midstream.core.trajectory import Call, Message, Sampling
from midstream.lessons.ledger import Ledger
from midstream.lessons.reflector import Reflector, RoleCall
from midstream.lessons.replies import ParsedReply, read_summary
from midstream_worlds.scripted_engine import ScriptedEngine
from support.reflectors import settings

PURPOSE = RoleCall("summariser", 1, "t1", 0)
MESSAGES = (Message(role="system", content="# Write a summary"), Message(role="user", content="..."))
GOOD = '{"summary": "it went well"}'


def ask(
    engine: Any, ledger: Ledger | None = None, *, seed: int = 5, purpose: RoleCall = PURPOSE, **more: Any
) -> ParsedReply[str]:
    client = Reflector(settings(**more), {"summariser": engine}, ledger or Ledger(), seed)
    return asyncio.run(client.ask(purpose, MESSAGES, read_summary))


def role(**more: Any) -> dict[str, Any]:
    return {"engine": "m", **more}


def test_a_usable_reply_is_the_answer():
    engine = ScriptedEngine([GOOD], name="model-x")
    assert ask(engine) == ParsedReply(value="it went well", model="model-x")
    assert engine.requests[0].messages == MESSAGES
    assert engine.requests[0].role == "summariser"


def test_an_unusable_reply_is_shown_to_its_model_with_what_was_wrong():
    engine = ScriptedEngine(["<think>a</think>It went well. <|im_start|>", GOOD])
    assert ask(engine).value == "it went well"
    first, second = engine.requests
    assert second.messages[:2] == MESSAGES
    assert first.seed != second.seed
    said, correction = second.messages[2:]
    assert (said.role, said.content) == ("assistant", "It went well. \\u003c|im_start|>")
    assert correction.role == "user"
    assert 'holds no JSON object with a text as "summary"' in correction.content


def test_what_stays_unusable_is_reported_with_the_last_reply():
    engine = ScriptedEngine(["no", "never", "I won't\n" + "x" * 1000])
    found = ask(engine)
    assert found.value is None
    assert len(engine.requests) == 3
    (lost,) = found.flaws
    assert lost.startswith("summariser, task t1, rollout 0: no usable reply when asked 3 times: ")
    assert "I won't xxx" in lost
    assert len(lost) < 500


def test_the_last_reply_is_repaired_if_possible():
    engine = ScriptedEngine(["{'summary': 'it went well',}"] * 3)
    assert ask(engine).value == "it went well"
    assert len(engine.requests) == 3


def test_a_reply_that_was_cut_off_is_not_repaired_and_reported_as_such():
    class Cut(ScriptedEngine):
        async def sample(self, request: Request) -> Call:
            return (await super().sample(request)).model_copy(update={"finish_reason": "length"})

    engine = Cut(["{'summary': 'it went well',}"] * 3)
    found = ask(engine, reflector=role(sampling=Sampling(max_tokens=7)))
    assert found.value is None
    assert "cut off after max_tokens = 7" in found.flaws[0]
    assert "cut off" in engine.requests[1].messages[-1].content


def test_a_role_has_its_own_settings_where_it_is_named():
    engine = ScriptedEngine([GOOD])
    ask(engine, summariser=role(sampling=Sampling(temperature=0.1)))
    assert engine.requests[0].sampling.temperature == 0.1


def test_the_model_is_called_as_its_server_calls_it():
    class Served(ScriptedEngine):
        async def sample(self, request: Request) -> Call:
            return (await super().sample(request)).model_copy(update={"sent": {"model": "big-1"}})

    assert ask(Served([GOOD], name="reflector")).model == "big-1"


def test_what_the_ledger_has_is_not_asked_again_and_gives_the_same():
    ledger, replies = Ledger(), ["no", '{"summary": 3}', GOOD]
    first = ask(ScriptedEngine(replies), ledger)
    silent = ScriptedEngine([])
    assert ask(silent, ledger) == first
    assert silent.requests == []


def test_after_a_kill_between_two_asks_only_the_second_is_made():
    class Dies(ScriptedEngine):
        async def sample(self, request: Request) -> Call:
            if len(self.requests) == 1:
                raise EngineError("the process was killed")
            return await super().sample(request)

    ledger = Ledger()
    with pytest.raises(EngineError):
        ask(Dies(["no"]), ledger)
    again = ScriptedEngine([GOOD])
    assert ask(again, ledger).value == "it went well"
    assert len(again.requests) == 1
    assert len(again.requests[0].messages) == 4


def test_every_answer_is_in_the_ledger_before_it_is_read():
    kept: list[str] = []

    class Watched(Ledger):
        def keep_reply(self, key: str, calls: tuple[Call, ...]) -> None:
            kept.append(calls[-1].completion)
            super().keep_reply(key, calls)

    def reply(request: Request) -> str:
        assert len(kept) == (len(request.messages) - 2) // 2
        return f"reply {len(kept)}"

    ask(ScriptedEngine(reply), Watched())
    assert kept == ["reply 0", "reply 1", "reply 2"]


@pytest.mark.parametrize(
    "other",
    [
        {"purpose": PURPOSE._replace(step=2)},
        {"purpose": PURPOSE._replace(task="t2")},
        {"purpose": PURPOSE._replace(rollout=1)},
        {"seed": 6},
        {"reflector": role(sampling=Sampling(temperature=0.2))},
    ],
)
def test_another_request_has_another_key(other: dict[str, Any]):
    ledger = Ledger()
    ask(ScriptedEngine([GOOD]), ledger)
    engine = ScriptedEngine(['{"summary": "another"}'])
    assert ask(engine, ledger, **other).value == "another"


def test_an_engine_that_failed_is_no_reply():
    def fails(request: Request) -> str:
        raise EngineError("503")

    ledger = Ledger()
    with pytest.raises(EngineError, match="503"):
        ask(ScriptedEngine(fails), ledger)
    assert ask(ScriptedEngine([GOOD]), ledger).value == "it went well"
