"""Functions as agents: in the event loop, and in threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import midstream as ms
from midstream.core.trajectory import Trajectory
from midstream_worlds.scripted_engine import ScriptedEngine


@ms.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def play(tmp_path: Path, solve: Any, **parts: Any) -> Trajectory:
    tasks = tmp_path / "q.jsonl"
    tasks.write_text(json.dumps({"question": "2 + 2 ?", "answer": "4"}), encoding="utf-8")
    run = ms.evaluate(ms.OwnAgent(solve, **parts), ms.tasks(tasks).test, out=tmp_path / "run", quiet=True)
    [trajectory] = run.trajectories()
    return trajectory


def test_one_that_is_not_async_waits_for_tools_and_models(tmp_path):
    def solve(question, tools, model):
        return f"{tools['add'](a=1, b=2)} {model('Hi')}"

    found = play(tmp_path, solve, model=ScriptedEngine(lambda request: "hello"), tools=[add])
    assert found.answer == "3 hello"
    assert [turn.command.tool for turn in found.turns] == ["add"]


def test_an_async_one_awaits_them(tmp_path):
    async def solve(question, tools):
        return f"{await tools['add'](a=1, b=2)}"

    assert play(tmp_path, solve, tools=[add]).answer == "3"


def test_it_may_return_a_reward(tmp_path):
    found = play(tmp_path, lambda question: ms.Outcome(answer="4", reward=0.25, feedback="nearly"))
    assert (found.answer, found.reward.value, found.reward.feedback) == ("4", 0.25, "nearly")
