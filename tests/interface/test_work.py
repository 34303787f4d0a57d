"""The functions of Python with an agent of one's own, and with a server that is down."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

import midstream as ms
from midstream.core.events import Note
from midstream.evaluation.leakage import learned_tasks
from support.counting import LESSON, counting, write_questions
from support.errors import raises
from support.hf_models import save_chat_model
from support.llm_server import Body, LLMServer, prompt_of


async def counts(question, model, lessons):
    """Count in one request."""
    return await model(f"{lessons}\n{question}")


async def no_lessons(question, model):
    """Count in one request, without lessons."""
    return await model(question)


def leaves(answer, gold) -> float:
    """End the program."""
    sys.exit(3)


def at_random(answer) -> float:
    """Another reward for each of a group's answers, as training needs."""
    return random.Random(answer).random()


def reply(body: Body) -> str:
    """Right with the lesson; without it, right for half of the requests. The reflector is that of `counting`."""
    text = prompt_of(body)
    if text.lstrip("# ").split()[0].lower() in ("summarise", "contrast", "merge"):  # words: allow
        return counting(body).replace('"planner"', '"policy"')
    words = text.split("words has '")[-1].partition("'")[0].split()
    return str(len(words) if LESSON in text or random.Random(json.dumps(body)).random() < 0.5 else 0)


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """The agent, whose model is a scripted server."""
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path / "questions.jsonl", count=12)
    with LLMServer(reply) as server:
        yield ms.OwnAgent(counts, model="m", base_url=server.base_url)


def test_an_agent_of_your_own_practices(agent):
    run = ms.practice(agent, ms.tasks("questions.jsonl").train, quiet=True, epochs=1)
    assert [lesson.module for lesson in run.lessons] == ["policy"]


def test_one_that_reads_no_lessons_is_refused(agent):
    without = ms.OwnAgent(no_lessons, model="m", base_url="http://127.0.0.1:1/v1")
    with raises("lessons-not-shown", "policy"):
        ms.practice(without, ms.tasks("questions.jsonl").train, quiet=True)


def test_a_reward_that_exits_does_not_end_the_program(agent):
    with raises("no-results", "reward 'leaves' raised SystemExit: 3", "test_work.py"):
        ms.evaluate(agent, ms.tasks("questions.jsonl").test, reward=leaves, quiet=True)


def test_other_parts_that_exit_are_errors_too(agent):
    class Exits(ms.Reward):
        name, judged = "exits", False

        async def score(self, task, trajectory):
            sys.exit(4)

    with raises("tasks-failed", "SystemExit"):
        len(ms.tasks(lambda: sys.exit(5)))
    with raises("no-results", "SystemExit: 4"):
        ms.evaluate(agent, ms.tasks("questions.jsonl").test, reward=Exits, quiet=True)


@pytest.mark.parametrize("awaited", [False, True])
def test_solve_says_that_the_run_was_lost(agent, awaited):
    notes: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, Note):
            notes.append(event.text)

    lost = ms.OwnAgent(no_lessons, model="m", base_url="http://127.0.0.1:1/v1", settings={"rollout.max_attempts": 1})
    arguments = {"listener": listen, "settings": {"engines.model.max_attempts": 1}}
    found = asyncio.run(ms.asolve(lost, "?", **arguments)) if awaited else ms.solve(lost, "?", **arguments)
    assert found.error is not None
    assert [note for note in notes if found.error.summary in note]


def test_training_evaluates_on_tasks_that_it_was_given_for_it_alone(tmp_path: Path):
    write_questions(tmp_path / "questions.jsonl")
    tasks = ms.tasks(tmp_path / "questions.jsonl")
    agent = ms.OwnAgent(agent=no_lessons, model=f"local/{save_chat_model(tmp_path / 'model', 'qwen3')}")
    about: dict[str, Any] = {"reward": at_random, "steps": 1, "tasks_per_step": 2, "group_size": 4, "quiet": True}
    about["settings"] = {"engines.model.device": "cpu", "agent.sampling.max_tokens": 4}
    alone = ms.train(agent, tasks.train, out=tmp_path / "alone", **about)
    assert alone.evaluations == []
    assert set(learned_tasks(ms.RunDirectory.open(alone.path)).values()) == {"training"}
    curve = ms.train(agent, tasks.train, validation=tasks.test, out=tmp_path / "curve", **about)
    assert [(result.set_name, result.tasks) for result in curve.evaluations] == [("validation", 12)] * 2
