"""Texts that can be learned: what a place holds, and which version of a marked text a run reads."""

from __future__ import annotations

import asyncio
import threading

import pytest

import midstream as ms
from midstream.core.agent import RunContext
from midstream.core.task import Task
from midstream.core.texts import SHOWN, Text, kind_of, text
from midstream.core.trajectory import Trajectory
from midstream.rollout import Environment, RolloutConfig, rollout
from support.errors import raises
from support.rollouts import StubReward


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    """Texts that a test marks are gone after it."""
    monkeypatch.setattr(Text, "marked", {})
    return Text


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("planner", "lesson"),
        ("policy", "lesson"),
        ("planner.prompt", "text"),
        ("planner.examples", "example"),
        ("tools.search", "text"),
        ("tools.find_examples", "text"),
        ("tools.server.examples", "text"),
        ("texts.system", "text"),
        ("texts.examples", "text"),
        ("", "lesson"),
    ],
)
def test_a_place_says_what_it_holds(place, kind):
    assert kind_of(place) == kind


def test_outside_of_a_run_a_text_is_its_default():
    system = ms.text("system", "You are careful.")
    assert (str(system), f"{system} Answer.") == ("You are careful.", "You are careful. Answer.")
    assert SHOWN.get() is None


def test_a_notebook_may_mark_a_text_again():
    text("system", "One.")
    marked = text("system", "Two.")
    assert (str(Text.marked["system"]), f"{marked:>6}!") == ("Two.", "  Two.!")


@pytest.mark.parametrize(
    ("name", "default"), [("a b", "x"), ("", "x"), ("a.b", "x"), ("system", ""), ("system", " \n")]
)
def test_a_name_is_a_word_and_a_default_is_a_text(name, default):
    with raises("name-invalid", repr(name)):
        text(name, default)
    assert not Text.marked, "what is wrong is not marked, so that it can be corrected"
    assert str(text("system", "Right.")) == "Right."


class Reads:
    """An agent whose answer is a marked text: read at first, after a wait in which others run, and in a thread."""

    name = "reads"

    def __init__(self, read: Text) -> None:
        self.read = read

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        texts = [str(self.read)]
        await asyncio.sleep(0.01)
        texts.append(await asyncio.to_thread(str, self.read))
        texts.append(await asyncio.create_task(self.later()))
        assert len(set(texts)) == 1
        return Trajectory(id="", task_id="", question=task.question, answer=texts[0], stop_reason="answered")

    async def later(self) -> str:
        await asyncio.sleep(0.001)
        return str(self.read)

    async def close(self) -> None: ...


def answers(read, learned):
    """What rollouts of as many tasks read at once, each with its own version."""
    tasks = [Task(id=f"t{number}", question=f"{number} ?", answer="x") for number in range(len(learned))]
    environment = Environment(
        agent=Reads(read), tools=(), engines={}, reward=StubReward(), config=RolloutConfig(max_attempts=1)
    )
    lessons = {task.id: table for task, table in zip(tasks, learned, strict=True)}
    groups = asyncio.run(rollout(environment, tasks, group_size=2, seed=1, lessons=lessons))
    assert not [one.error for group in groups for one in group.trajectories if one.error]
    return [[one.answer for one in group.trajectories] for group in groups]


def test_runs_at_once_read_each_its_own_version():
    system = text("system", "default")
    learned = [{"texts.system": "one"}, {}, {"texts.system": "two", "policy": "- a lesson"}, {"texts.other": "three"}]
    assert answers(system, learned) == [["one"] * 2, ["default"] * 2, ["two"] * 2, ["default"] * 2]
    assert str(system) == "default"


def test_runs_in_threads_read_each_their_own_version():
    system, found = text("system", "default"), {}

    def work(version):
        found[version] = answers(system, [{"texts.system": version}] * 3)

    threads = [threading.Thread(target=work, args=(version,)) for version in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {version: [[version] * 2] * 3 for version in ("one", "two")}
