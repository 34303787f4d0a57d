"""What Python users get wrong: each error has its code, the value and what to do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import midstream as ms
from midstream.core.task import Task
from midstream.rewards.own import own_reward
from support import fake_run
from support.counting import write_questions
from support.errors import raises


@ms.tool
def shout(text: str) -> str:
    """Write a text in capitals."""
    return text.upper()


AGENT = ms.Interleaved(model="ollama/m", tools=[shout])


@pytest.fixture(autouse=True)
def questions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(10)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_questions(tmp_path / "questions.jsonl")


CASES = {
    "no model": (lambda: ms.AgentFlow(tools=[shout]), "missing-option", "AgentFlow", "ollama/"),
    "no tools": (lambda: ms.AgentFlow(model="ollama/m"), "missing-option", "no tools", "Interleaved"),
    "no provider": (lambda: ms.Interleaved(model="olama/m"), "unknown-name", "olama/m", "ollama/"),
    "an address alone": (lambda: ms.Interleaved(base_url="http://localhost:1/v1"), "missing-option", "model"),
    "a tool twice": (lambda: ms.Interleaved(model="ollama/m", tools=[shout, shout]), "name-clash", "shout"),
    "no tool": (lambda: ms.Interleaved(model="ollama/m", tools=["pyton"]), "unknown-tool", "pyton"),
    "no such tasks": (lambda: ms.tasks("bambogle"), "unknown-name", "bambogle"),
    "no such file": (lambda: len(ms.tasks("nowhere.jsonl")), "file-not-found", "nowhere.jsonl"),
    "no tasks to evaluate": (lambda: ms.evaluate(AGENT), "missing-option", "tasks"),
    "nothing to compare with": (lambda: ms.compare("runs/a"), "missing-option", "1 run"),
    "errors of a new evaluation": (lambda: ms.evaluate("direct", retry_errors=True), "option-without-effect", "out"),
    "an agent as the question": (lambda: ms.solve("What?", AGENT), "empty-value", "solve(agent"),  # type: ignore[arg-type]
    "weights from a recipe of lessons": (
        lambda: ms.train("lessons-simulated", ms.tasks("test.jsonl").split(train=1.0).train),
        "setting-conflict",
        "learn_lessons",
    ),
    "a directory as tasks": (lambda: ms.train("direct", "runs/mine"), "component-invalid", "runs/mine"),  # type: ignore[arg-type]
    "no tasks to learn from": (lambda: ms.learn_lessons(AGENT), "missing-option", "tasks"),
    "no split train": (lambda: len(ms.tasks("test.jsonl").train), "unknown-split", "train"),
    "lessons on test": (
        lambda: ms.learn_lessons(AGENT, ms.tasks("test.jsonl")),
        "unknown-split",
        "tasks.test",
        "split(",
    ),
    "a budget": (
        lambda: ms.learn_lessons(AGENT, ms.tasks("questions.jsonl").train, budget="two usd"),
        "setting-range",
        "two usd",
    ),
    "a setting": (lambda: ms.solve(AGENT, "?", settings={"rollout.concurency": 1}), "recipe-invalid", "concurency"),
    "another package's agent": (lambda: ms.evaluate(object(), ms.tasks("test.jsonl")), "component-invalid", "object"),
    "the agent of a run": (lambda: ms.Run("nowhere"), "not-a-run", "nowhere"),
    "a parameter of a reward": (lambda: ms.reward(lambda reply: 1.0), "component-invalid", "reply", "gold"),
    "weights over HTTP": (
        lambda: ms.train(AGENT, ms.tasks("questions.jsonl").train, quiet=True), "not-trainable", "model",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "code", "values"), [(c, code, v) for c, code, *v in CASES.values()], ids=list(CASES))
def test_it_says_what_and_how(call, code, values, tmp_path):
    with raises(code, *values):
        call()
    assert not list(Path(tmp_path).glob("runs/*/run.json")), "nothing is left behind"


def test_a_lambda_and_a_closure_are_rewards(tmp_path):
    """They have no place in a file: their run can be continued by the same program alone."""
    assert ms.reward(found := lambda answer, gold: answer == gold) is found


def test_settings_come_after_the_planners_model():
    agent = ms.AgentFlow(
        "ollama/m",
        [shout],
        planner_model="ollama/p",
        settings={"engines.planner.model": "q", "engines.model.model": "n"},
    )
    engines = agent.table()["engines"]
    assert (engines["planner"]["model"], engines["model"]["model"]) == ("q", "n")
    assert agent.table()["agent"]["planner"]["engine"] == "planner"


def test_a_reward_that_returns_an_array_is_refused():
    config = own_reward("reward", "my:reward", lambda answer: np.array([0.5, 1.0]))
    reward = config().build(cast(Any, None))
    with raises("reward-out-of-range", "array"):
        asyncio.run(reward.score(Task(id="t", question="?", answer="1"), fake_run.solved()))
