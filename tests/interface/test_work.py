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
from midstream.components.own import load
from midstream.core.events import Note
from midstream.core.task import task_keys
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


def double(number: int) -> int:
    """Doubles."""
    return 2 * number


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


def test_an_agent_of_your_own_learns_lessons(agent):
    run = ms.learn_lessons(agent, ms.tasks("questions.jsonl").train, quiet=True, epochs=1)
    assert [lesson.module for lesson in run.lessons] == ["policy"]


def learned(run: ms.Run, purpose: str) -> set[str]:
    return {key for key, found in learned_tasks(run.directory).items() if found == purpose}


def keys_of(tasks: ms.Tasks) -> set[str]:
    return {key for task in tasks for key in task_keys(task.id, task.question)}


def test_a_sample_is_all_that_is_learned_from(agent):
    own = ms.tasks("questions.jsonl")
    few = own.train.sample(3)
    run = ms.learn_lessons(agent, few, validation=own.test.sample(2), budget="0 rollouts", quiet=True)
    assert learned(run, "lessons") == keys_of(few)
    assert learned(run, "gate") == keys_of(own.test.sample(2))
    with raises("setting-conflict", "sample(3)"):
        ms.learn_lessons(agent, ms.tasks("gazetteer").train.sample(3), quiet=True)


def test_a_recipe_keeps_its_settings_with_other_tasks(agent, tmp_path):
    own = ms.tasks("questions.jsonl").train
    recipe = tmp_path / "mine.toml"
    engine = {key: agent.table()["engines"]["model"][key] for key in ("model", "base_url")}
    head = f'extends = "direct"\nname = "mine"\n[engines.model]\nmodel = "{engine["model"]}"\n'
    head += f'base_url = "{engine["base_url"]}"\n[evaluation]\ntrials = 3\n'
    recipe.write_text(head + "[lessons]\nbatch_size = 2\nepochs = 9\nreflector.engine = 'model'\n")
    run = ms.learn_lessons(recipe, own, budget="0 rollouts", quiet=True)
    table = run.directory.info().resolved
    assert (table["lessons"]["batch_size"], table["lessons"]["epochs"]) == (2, 9)
    assert table["lessons"]["tasks"] + table["lessons"]["gate"]["tasks"] == len(own)
    assert table["evaluation"]["trials"] == 3


def test_one_that_reads_no_lessons_is_refused(agent):
    without = ms.OwnAgent(no_lessons, model="m", base_url="http://127.0.0.1:1/v1")
    with raises("lessons-not-shown", "policy"):
        ms.learn_lessons(without, ms.tasks("questions.jsonl").train, quiet=True)


def test_a_reward_that_exits_does_not_end_the_program(agent):
    with raises("reward-failed", "reward 'leaves' raised SystemExit: 3", "test_work.py"):
        ms.evaluate(agent, ms.tasks("questions.jsonl").test, reward=leaves, quiet=True)


def test_other_parts_that_exit_are_errors_too(agent):
    class Exits(ms.Reward):
        name, judged = "exits", False

        async def score(self, task, trajectory):
            sys.exit(4)

    with raises("tasks-failed", "SystemExit"):
        len(ms.tasks(lambda: sys.exit(5)))
    with raises("component-failed", "SystemExit: 4"):
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
    few = tasks.train.sample(2)
    curve = ms.train(agent, few, validation=tasks.test, out=tmp_path / "curve", **about)
    assert learned(curve, "training") == keys_of(few)
    assert [(result.set_name, result.tasks) for result in curve.evaluations] == [("validation", 12)] * 2
    recipe = tmp_path / "mine.toml"
    model = {**agent.table()["engines"]["model"], "device": "cpu"}
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in model.items())
    recipe.write_text(f'extends = "direct"\nname = "mine"\ntraining.steps = 7\n[engines.model]\n{settings}\n')
    with raises("budget-spent"):
        ms.train(recipe, few, tasks_per_step=2, budget="0 rollouts", out=tmp_path / "recipe", quiet=True)
    assert ms.Run(tmp_path / "recipe").directory.info().resolved["training"]["steps"] == 7


def test_a_recipe_is_scored_by_the_table_of_another_reward(tmp_path):
    settings = {"tasks.regions": 1, "evaluation.sets": [{"name": "test", "families": ["lookup"], "per_family": 2}]}
    run = ms.evaluate(
        "atlas-teacher", reward={"type": "atlas_copying"}, settings=settings, out=tmp_path / "run", quiet=True
    )
    assert [one.reward.value for one in run.trajectories()] == [1.0, 1.0]
    assert 'type = "atlas_copying"' in run.directory.recipe()


@pytest.mark.parametrize("tools", [[ms.wrapped(3, "degraded")], [ms.wrapped(["python"], "degraded")], [None]])
def test_what_is_no_tool_is_refused(tools):
    with pytest.raises(ms.UsageError) as refused:
        ms.Interleaved(model="ollama/qwen2.5:7b", tools=tools)
    assert refused.value.code == "tool-invalid"


def test_wrapped_tools_are_tables_of_the_recipe():
    simulated = ms.wrapped("python,local_search", "simulated", engine="model")
    tools = ms.wrapped(ms.wrapped(simulated, "degraded", error=0.5), "degraded", noise=0.1)
    table = ms.AgentFlow(model="ollama/qwen2.5:7b", tools=tools).table()
    assert list(table["tools"]) == ["python", "local_search"]
    wrappers = {"simulated": {"engine": "model"}, "degraded": {"error": 0.5, "noise": 0.1}}
    assert table["wrappers"] == dict.fromkeys(table["tools"], wrappers)


def test_a_question_leaves_its_agent_as_it_is(agent):
    before = agent.table()
    ms.solve(agent, "How many words has 'a b'?")
    assert agent.table() == before


def test_a_command_and_objects_are_tables_that_name_them():
    class Scripted(ms.Engine):
        name = "scripted"

        async def sample(self, request):
            raise NotImplementedError

    agent = ms.OwnAgent(["sh", "agent.sh"], model="ollama/m")
    assert agent.table()["agent"] == {"type": "command", "command": ["sh", "agent.sh"], "engine": "model"}
    engine, tool = Scripted(), ms.tool(double)
    changed = ms.Interleaved(model=engine, tools=[tool]).table()
    assert load(changed["engines"]["model"]["type"]) is engine
    assert load(changed["tools"]["double"]["type"]) is tool


def test_a_run_is_evaluated_and_does_not_learn_further(finished_run):
    run = ms.Run(finished_run)
    for agent in (run, run.agent):
        with raises("wrong-kind-of-run", finished_run):
            ms.train(agent, ms.tasks("gpqa").train)
