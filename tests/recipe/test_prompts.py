"""Prompts that leave: what `lessons export` prints is what midstream sends, and holds nothing else."""

from __future__ import annotations

import asyncio
import json

import pytest

import midstream as ms
from midstream.cli.main import main
from midstream.process import build_for
from midstream.recipe.prompts import formats, prompts_of
from midstream.recipe.schema import load_recipe
from support.llm_server import LLMServer

QUESTION = "How high is {query} with {braces} and \\u003c ?"
LESSONS = '{"lessons": [{"id": "L1", "module": "%s", "text": "Use a tool {query} before you answer"}]}'


@pytest.fixture
def exported(tmp_path):
    """A function that writes an agent with a lesson, and returns it and what a program makes of its prompts."""

    def export(recipe: str, module: str):
        lessons = tmp_path / "lessons.json"
        lessons.write_text(LESSONS % module, encoding="utf-8")
        agent = tmp_path / "agent.toml"
        agent.write_text(
            f'name = "mine"\nextends = "{recipe}"\ntasks = {{ type = "none" }}\n[agent]\nlessons = "lessons.json"\n',
            encoding="utf-8",
        )
        with build_for(load_recipe(str(agent)), {}) as build:
            prompts = prompts_of(build)
        return str(agent), lambda name, **values: {
            "messages": prompts[name].messages(**values),
            **prompts[name].options,
        }

    return export


def first_request(agent: str) -> dict:
    """What midstream sends first."""
    with LLMServer(lambda body: "<answer>5</answer>") as server:
        ms.solve(agent, QUESTION, base_url=server.base_url, model="m", listener=lambda event: None)
        return server.bodies[0]


def test_a_plain_client_sends_the_messages_that_midstream_sends(exported):
    agent, prompt = exported("direct", "policy")
    sent = first_request(agent)
    mine = prompt("policy", query=QUESTION)
    assert {key: sent[key] for key in mine} == mine
    assert "Use a tool" in mine["messages"][0]["content"]
    assert QUESTION in mine["messages"][1]["content"]


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_run_gives_what_stood_in_its_prompts(exported, tmp_path, in_loop):
    agent, _ = exported("direct", "policy")
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"question": QUESTION, "answer": "5"}) + "\n", encoding="utf-8")
    with LLMServer(lambda body: "<answer>5</answer>") as server:
        run = ms.evaluate(
            agent, ms.tasks(str(questions)).test, base_url=server.base_url, model="m", out=tmp_path / "run", quiet=True
        )

    async def in_notebook():
        return run.prompts()

    prompts = asyncio.run(in_notebook()) if in_loop else run.prompts()
    assert prompts["policy"].messages(query=QUESTION) == server.bodies[0]["messages"]


def test_tools_in_the_apis_form_are_part_of_it(exported):
    agent, prompt = exported("tool-calling", "policy")
    sent = first_request(agent)
    mine = prompt("policy", query=QUESTION)
    assert {key: sent[key] for key in ("messages", "tools")} == mine


def test_what_stops_a_reply_is_part_of_it(exported):
    agent, prompt = exported("artist-prompted", "policy")
    mine = prompt("policy", query=QUESTION)
    assert {key: first_request(agent)[key] for key in ("messages", "stop")} == mine


@pytest.mark.parametrize("recipe", ["flow-grpo-tiny", "tool-use-small"])
def test_what_no_chat_client_could_send_is_refused(recipe, capsys):
    assert main(["lessons", "export", recipe]) in (1, 2)
    assert "error[prompt-invalid]" in capsys.readouterr().err


def test_each_module_of_agentflow_has_its_prompt(exported):
    agent, prompt = exported("agentflow-prompted", "planner")
    sent = first_request(agent)
    assert prompt("planner", query=QUESTION, memory="")["messages"] == sent["messages"]
    for module, places in {"executor": {"action": "A"}, "verifier": {"query": "Q", "memory": "M"}}.items():
        text = json.dumps(prompt(module, **places))
        assert all(value in text for value in places.values())
        assert "Use a tool" not in text


@pytest.mark.parametrize("form", formats())
def test_no_path_and_no_key_is_in_it(form, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-long-secret-of-somebody")
    (tmp_path / "lessons.json").write_text(LESSONS % "policy", encoding="utf-8")
    (tmp_path / "a.toml").write_text('name = "a"\nextends = "direct"\nagent = { lessons = "lessons.json" }\n')
    assert main(["lessons", "export", str(tmp_path / "a.toml"), "--format", form]) == 0
    text = capsys.readouterr().out
    assert "Use a tool" in text
    assert str(tmp_path) not in text
    assert "sk-a-long" not in text
