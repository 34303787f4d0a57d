"""Kept replies: what makes a request equal, what is never kept, and an evaluation that asks only what changed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

import midstream as ms
from midstream.core.engine import Request
from midstream.core.errors import EngineError
from midstream.core.trajectory import Call, Message, Sampling, Usage
from midstream.engines.cached import CachedEngine, ReplyFile
from midstream.report.run import run_blocks
from support.llm_server import LLMServer

IDENTITY = {"model": "m"}
ASKED = Request(role="planner", messages=(Message(role="user", content="45 + 17 ?"),), seed=3)


class Counting:
    """Answers with the number of its requests."""

    name, token_exact = "counting", False

    def __init__(self, fails: int = 0) -> None:
        self.requests, self._fails = 0, fails

    async def sample(self, request: Request) -> Call:
        self.requests += 1
        if self.requests <= self._fails:
            raise EngineError("down", code="endpoint-failed")
        usage = Usage(prompt_tokens=7, completion_tokens=2, cost_usd=0.5)
        return request.answered(self.name, str(self.requests), usage=usage, failures=("429: slow down",))

    async def close(self) -> None:
        """Nothing to close."""


def answered(engine: Counting, directory: Path, *requests: Request, identity=IDENTITY) -> list[Call]:
    async def go() -> list[Call]:
        cached = CachedEngine(engine, identity, ReplyFile(directory))
        try:
            return [await cached.sample(request) for request in requests]
        finally:
            await cached.close()

    return asyncio.run(go())


def test_an_equal_request_is_not_asked_again(tmp_path):
    engine = Counting()
    [first, second] = answered(engine, tmp_path, ASKED, replace(ASKED, role="judge", order=9, deadline_s=1e9))
    [later] = answered(engine, tmp_path, ASKED)
    assert engine.requests == 1
    assert first.completion == second.completion == later.completion == "1"
    assert (second.role, second.usage.cost_usd, second.usage.prompt_tokens, second.failures) == ("judge", 0.0, 7, ())
    assert "cached" not in first.sent
    assert second.sent["cached"] is later.sent["cached"] is True


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 4},
        {"messages": (Message(role="user", content="45 + 18 ?"),)},
        {"messages": (Message(role="system", content="45 + 17 ?"),)},
        {"messages": (), "prompt": "45 + 17 ?"},
        {"sampling": Sampling(temperature=0.3)},
        {"tools": ({"type": "function"},)},
        {"json_schema": {"type": "object"}},
        {"options": {"logit_bias": {"3": 1}}},
        {"continues": True},
    ],
    ids=str,
)
def test_what_differs_is_asked(tmp_path, changed):
    engine = Counting()
    answered(engine, tmp_path, ASKED, replace(ASKED, **changed))
    assert engine.requests == 2


def test_another_model_is_asked(tmp_path):
    engine = Counting()
    for model in ("m", "n"):
        answered(engine, tmp_path, ASKED, identity={"model": model})
    assert engine.requests == 2


def test_an_error_is_not_kept(tmp_path):
    engine = Counting(fails=1)
    with pytest.raises(EngineError):
        answered(engine, tmp_path, ASKED)
    assert answered(engine, tmp_path, ASKED)[0].completion == "2"


@pytest.mark.parametrize("damage", ["", "{", "null", '{"role": 3}'])
def test_a_damaged_entry_is_asked_again_and_replaced(tmp_path, damage, caplog):
    engine = Counting()
    answered(engine, tmp_path, ASKED)
    [path] = tmp_path.iterdir()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE replies SET value = ?", (damage,))
    connection.close()
    assert [answered(engine, tmp_path, ASKED)[0].completion for _ in range(2)] == ["2", "2"]
    assert caplog.text.count("cannot be read") == 1


def test_replies_of_another_version_are_asked_again_with_a_word(tmp_path, caplog):
    (tmp_path / "replies-0.sqlite").touch()
    engine = Counting()
    assert [answered(engine, tmp_path, ASKED)[0].completion for _ in range(2)] == ["1", "1"]
    assert caplog.text.count("another version") == 1


class TestAnEvaluation:
    @pytest.fixture
    def evaluated(self, tmp_path):
        """A function that evaluates with one cache; returns the run and how many requests the server got."""
        rows = [{"question": f"{number} + 2 ?", "answer": f"{number + 2}"} for number in range(2)]
        (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with LLMServer(lambda body: "<answer>2</answer>") as server:

            def run(name: str, **options) -> tuple[ms.Run, int]:
                before = len(server.bodies)
                tasks = ms.tasks(tmp_path / "q.jsonl").test
                place = {"base_url": server.base_url, "model": "m", "cache": tmp_path / "cache"}
                found = ms.evaluate("direct", tasks, out=tmp_path / name, quiet=True, **{**place, **options})
                return found, len(server.bodies) - before

            yield run

    def test_another_reward_asks_nothing_and_more_trials_ask_the_rest(self, evaluated):
        first, asked = evaluated("first", trials=2)
        again, asked_again = evaluated("again", trials=2, reward={"type": "f1"})
        more, asked_more = evaluated("more", trials=3)
        assert (asked, asked_again, asked_more) == (4, 0, 2)
        assert [run.evaluations[0].replies_cached for run in (first, again, more)] == [0, 4, 4]
        assert [t.answer for t in first.trajectories()] == [t.answer for t in again.trajectories()]
        assert "4 replies of an earlier evaluation" in str(run_blocks(again.directory))
        assert any("B has 4 replies of an earlier evaluation" in note for note in ms.compare(first, more).notes)

    def test_a_reply_from_the_cache_costs_no_budget(self, evaluated):
        evaluated("first")
        found, asked = evaluated("again", budget="1 tokens")
        assert asked == 0
        assert found.status == "finished"

    def test_a_resumed_evaluation_has_its_cache(self, evaluated):
        evaluated("first")
        run, _ = evaluated("again")
        assert run.directory.info().evaluation.cache.endswith("cache")
