"""`midstream serve` as people use it: a process that clients ask over HTTP, and callers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from socket import create_server
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

import midstream as ms
from midstream import serve
from midstream.gateway.settings import ServeConfig
from midstream.process import STOP, Stop
from support.errors import raises

MIDSTREAM = (sys.executable, "-m", "midstream.cli.main")
ENGINE = '''
import re
import midstream as ms

async def answer(messages):
    """Calls the tool, then repeats what it said."""
    last = messages[-1]
    if last["role"] == "tool":
        return last["content"]
    if "Lessons" in str(messages):
        return "a lesson"
    numbers = re.findall(r"[0-9]+", last["content"])
    if len(numbers) < 2:
        return "I need two numbers."
    return f'<tool_call>{{"name": "times", "arguments": {{"a": {numbers[-2]}, "b": {numbers[-1]}}}}}</tool_call>'

async def broken(messages):
    raise OSError("no model here")

@ms.tool
def times(a: int, b: int) -> int:
    """Multiply."""
    return a * b
'''
RECIPE = """
extends = "tool-calling"
name = "multiplier"
[engines.model]
type = "parts.py:ENGINE"
[tools.python]
type = "parts.py:times"
alias = "times"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "parts.py").write_text(ENGINE)
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("ENGINE", "answer"))
    return tmp_path / "recipe.toml"


@contextmanager
def serving(*words: Any, ends: bool = False, kills: bool = False) -> Iterator[str]:
    """A `midstream serve` process; yields its address. It `ends` itself, or is ended as by a service manager."""
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*MIDSTREAM, "serve", *map(str, words), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        address, until = f"http://127.0.0.1:{port}", time.monotonic() + 90
        while True:
            try:
                assert json.load(urllib.request.urlopen(f"{address}/healthz", timeout=5))["status"] == "ok"
                break
            except (URLError, ConnectionError):
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < until
                time.sleep(0.05)
        yield address
    finally:
        if not ends:
            process.send_signal(signal.SIGKILL if kills else signal.SIGTERM)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if kills else 0), shown


@contextmanager
def serving_here(recipe: Path, out: Path | None = None) -> Iterator[str]:
    """The same in a thread of this process: an agent for everyone, or with `out` sessions."""
    stop, address = Stop(), Queue[Any]()

    def work() -> None:
        config = ServeConfig(port=0)
        STOP.set(stop)
        if out is None:
            serve.serve_agent(recipe, config=config, ready=address.put)
        else:
            serve.serve_sessions(str(recipe), out, config=config, ready=address.put)

    served = ThreadPoolExecutor(1).submit(work)
    served.add_done_callback(lambda _: address.put(""))  # it could not begin, or has ended
    try:
        yield address.get(timeout=60) or served.result()
    finally:
        stop()
        served.result(timeout=60)


def post(url: str, body: Any, key: str = "") -> tuple[int, Any]:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60) as got:
            text = got.read().decode()
            return got.status, json.loads(text) if text.startswith("{") else text
    except HTTPError as refused:
        return refused.code, json.load(refused)["error"]


def chat(question: str, **more: Any) -> dict[str, Any]:
    return {"model": "midstream", "messages": [{"role": "user", "content": question}], **more}


# -- an agent for everyone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [serving_here, pytest.param(serving, marks=pytest.mark.slow)])
def test_clients_of_three_apis_get_the_agents_answer(recipe, server):
    with server(recipe) as address:
        status, whole = post(f"{address}/v1/chat/completions", chat("What is 6 * 7 ?"))
        assert (status, whole["choices"][0]["message"]["content"]) == (200, "42")
        assert whole["usage"]["completion_tokens"] > 0
        _, found = post(f"{address}/v1/responses", {"model": "midstream", "input": "What is 6 * 8 ?"})
        assert found["output"][-1]["content"][0]["text"] == "48"
        _, found = post(f"{address}/v1/messages", chat("What is 6 * 9 ?", max_tokens=50))
        assert found["content"][0]["text"] == "54"
        _, stream = post(f"{address}/v1/chat/completions", chat("What is 6 * 7 ?", stream=True))
        events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
        deltas = [event["choices"][0]["delta"] for event in events]
        steps = "".join(delta.get("reasoning_content", "") for delta in deltas)
        assert "times" in steps
        assert "42" in steps
        assert "".join(delta.get("content") or "" for delta in deltas) == "42"
        before = [{"role": "user", "content": "What is 2 * 3 ?"}, {"role": "assistant", "content": "6"}]
        later = chat("and 5 * 5 ?")
        _, whole = post(f"{address}/v1/chat/completions", {**later, "messages": [*before, *later["messages"]]})
        assert whole["choices"][0]["message"]["content"] == "25"
        with ThreadPoolExecutor(8) as pool:
            asked = pool.map(lambda n: post(f"{address}/v1/chat/completions", chat(f"What is {n} * 7 ?"))[1], range(24))
            assert [int(each["choices"][0]["message"]["content"]) for each in asked] == [7 * n for n in range(24)]
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        status, error = post(f"{address}/v1/chat/completions", chat("What is 1 * 2 ?", tools=[tool]))
        assert (status, error["param"]) == (400, "tools")


def test_a_lost_run_is_503_and_an_admin_key_is_required_once_it_is_set(recipe, monkeypatch):
    recipe.write_text(RECIPE.replace("ENGINE", "broken"))
    monkeypatch.setenv("MIDSTREAM_ADMIN_KEY", "an-admin-key")
    with serving_here(recipe) as address:
        status, error = post(f"{address}/v1/chat/completions", chat("What is 6 * 7 ?"), "an-admin-key")
        assert (status, error["code"]) == (503, "agent-failed")
        assert post(f"{address}/v1/chat/completions", chat("What is 6 * 7 ?"))[0] == 401
        assert post(f"{address}/v1/chat/completions", chat("What is 6 * 7 ?"), "another")[0] == 401


@pytest.mark.slow
def test_another_address_needs_an_admin_key(recipe):
    command = [sys.executable, "-m", "midstream.cli.main", "serve", str(recipe), "--host", "0.0.0.0", "--port", "0"]
    environment = {key: value for key, value in os.environ.items() if key != "MIDSTREAM_ADMIN_KEY"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment)
    assert (done.returncode, "error[admin-key-missing]" in done.stderr) == (2, True)


# -- sessions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("here", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_callers_own_tasks_are_scored_and_recorded(recipe, tmp_path, here):
    out = tmp_path / "run"
    with serving_here(recipe, out) if here else serving(recipe, "--sessions", "--out", out) as address:

        def session(name: str, ending: dict[str, Any], answer: str = "42") -> None:
            opening = {"id": name, "task": {"question": "What is 6 * 7 ?", "answer": answer, "metadata": {"level": 1}}}
            status, opened = post(f"{address}/v1/sessions", opening)
            assert status == 200
            assert post(f"{address}/v1/sessions", opening)[1] == opened
            assert opened["task"] == {"id": name, "question": "What is 6 * 7 ?", "metadata": {"level": 1}}
            body = {"model": opened["model"], "messages": [{"role": "user", "content": opened["task"]["question"]}]}
            assert post(f"{opened['base_url']}/chat/completions", body, opened["key"])[0] == 200
            there = opened["base_url"].removesuffix("/v1")
            assert post(f"{there}/end", ending)[0] == 200
            time.sleep(0.2)
            assert post(f"{opened['base_url']}/chat/completions", body, opened["key"])[0] == 409
            assert post(f"{address}/v1/sessions", opening)[0] == 409

        session("right", {"answer": "42"})
        session("wrong", {"answer": "43"})
        session("own", {"answer": "?", "reward": 0.25, "feedback": "half of a half"})
        session("none", {"answer": "42"}, answer="")
        session("broken", {"error": "out of memory"})
        assert post(f"{address}/v1/sessions", {"id": "no task"})[0] == 400
    found = {trajectory.task_id: trajectory for trajectory in ms.Run(str(out)).trajectories()}
    rewards = {name: ended.reward.value if ended.reward else ended.error.type for name, ended in found.items()}
    assert rewards == {"right": 1.0, "wrong": 0.0, "own": 0.25, "none": "RewardError", "broken": "InfrastructureError"}
    assert found["own"].reward.feedback == "half of a half"
    assert all(len(ended.calls) == 1 for ended in found.values())


@pytest.mark.slow
def test_a_killed_server_continues_and_the_limits_of_the_agent_hold(recipe, tmp_path):
    own = recipe.with_name("own.toml")
    own.write_text('extends = "own-agent"\nname = "own"\n[engines.model]\ntype = "parts.py:answer"\n')
    words = (own, "--sessions", "--out", tmp_path / "run", "--set", "agent.max_calls=2", "--set", "agent.idle_s=50")
    opening = {"id": "mine", "task": {"question": "6 * 7 ?", "answer": "42"}}
    with serving(*words, kills=True) as address:
        _, opened = post(f"{address}/v1/sessions", opening)
        body = {"model": opened["model"], "messages": [{"role": "user", "content": "6 * 7 ?"}]}
        asked = [post(f"{opened['base_url']}/chat/completions", body, opened["key"])[0] for _ in range(3)]
        assert asked == [200, 200, 400]
        assert post(opened["base_url"].removesuffix("/v1") + "/end", {"answer": "42"})[0] == 200
    shown = subprocess.run([*MIDSTREAM, "show", str(tmp_path / "run")], capture_output=True, text=True, timeout=90)
    assert f"serve {tmp_path}/run/recipe.toml --sessions --out {tmp_path}/run" in shown.stdout
    with serving(*words) as address:
        assert post(f"{address}/v1/sessions", opening)[0] == 409
    [found] = ms.Run(str(tmp_path / "run")).trajectories()
    assert (found.task_id, found.reward.value) == ("mine", 1)


@pytest.mark.slow
def test_a_session_whose_run_ends_before_it_begins_is_answered_at_once_and_recorded_once(recipe, tmp_path):
    own = recipe.with_name("own.toml")
    own.write_text('extends = "own-agent"\nname = "own"\n[engines.model]\ntype = "parts.py:answer"\n')
    with serving(own, "--sessions", "--out", tmp_path / "run", "--budget", "1 rollouts") as address:
        found = []
        for name in ("first", "second", "second"):
            status, opened = post(f"{address}/v1/sessions", {"id": name, "task": {"question": "6 * 7 ?"}})
            found.append(status)
            if status == 200:
                post(opened["base_url"].removesuffix("/v1") + "/end", {"answer": "42", "reward": 1})
    assert found == [200, 503, 503]
    assert [one.task_id for one in ms.Run(str(tmp_path / "run")).trajectories()] == ["first", "second"]


def test_an_address_that_cannot_be_had_is_a_plain_error(recipe, tmp_path, monkeypatch):
    monkeypatch.delenv("MIDSTREAM_ADMIN_KEY", raising=False)
    with create_server(("127.0.0.1", 0)) as taken:
        configs = {"admin-key-missing": {"host": "0.0.0.0"}, "address-taken": {"port": taken.getsockname()[1]}}
        for code, config in configs.items():
            with raises(code):
                serve.serve_sessions(str(recipe), tmp_path / code, config=ServeConfig(**config))


@pytest.mark.slow
def test_callers_run_the_agent_that_learns(tmp_path):
    small = ["training.steps=1", "training.tasks_per_step=2", "training.group_size=2", "training.minibatches=1"]
    small += ["training.warmup_steps=1", "training.decay_steps=0", "evaluation.at=none", "learner.threads=1"]
    words = ["text-tiny", "--train", "--quiet", "--out", tmp_path / "run", *(w for s in small for w in ("--set", s))]
    places: list[str] = []
    with serving(*words, ends=True) as address:
        for number in range(4):
            status, opened = post(f"{address}/v1/sessions", {"id": f"caller-{number}"})
            assert status == 200
            places.append(opened["task"]["id"])
            question = [{"role": "user", "content": opened["task"]["question"]}]
            body = {"model": opened["model"], "messages": question, "max_tokens": 20}
            status, reply = post(f"{opened['base_url']}/chat/completions", body, opened["key"])
            assert status == 200
            reward = {"answer": reply["choices"][0]["message"]["content"], "reward": number % 2}
            assert post(opened["base_url"].removesuffix("/v1") + "/end", reward)[0] == 200
    assert len(set(places)) == 2
    run = ms.Run(str(tmp_path / "run"))
    assert run.status == "finished"
    [step] = ms.RunDirectory.open(tmp_path / "run").metrics.read()
    assert step.trajectories == 4


@pytest.mark.parametrize("serves", [serve.serve_agent, serve.serve_sessions, serve.serve_training])
def test_a_strategy_is_refused_before_anything_answers(serves: Any, recipe: Path):
    with recipe.open("a") as file:
        file.write('[evaluation]\nstrategy = "dser:K=2,T=1"\n')

    def ready(address: str) -> None:
        raise AssertionError(address)

    with raises("setting-conflict"):
        serves(str(recipe), config=ServeConfig(), ready=ready)
