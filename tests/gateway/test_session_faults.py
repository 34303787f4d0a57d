"""Whole evaluations of agents of other programs: faults of clients and engines, and `kill -9`."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import midstream as ms
from midstream.cli.main import main
from midstream.runs import RunDirectory
from support.killed_evaluation import ended, finish, kill_after, start
from support.llm_server import LLMServer, prompt_of

AGENT = """
import asyncio, random, sys
from collections import Counter
import aiohttp
attempts = Counter()
async def solve(question, session):
    attempts[question] += 1
    attempt, number = attempts[question], int(question.split()[1])
    kind = random.Random(question * attempt).choice(
        ["none"] * 14 + ["hang up", "hang up, ask again", "hang up and raise", "raise", "exit", "retry", "duplicate"])
    body = {"model": session.model, "messages": [{"role": "user", "content": f"{question}, attempt {attempt}, {kind}"}]}
    async with aiohttp.ClientSession(headers={"authorization": "Bearer " + session.api_key}) as http:
        async def asks(retry=0, timeout=30):
            headers = {"x-stainless-retry-count": str(retry)}
            async with http.post(session.base_url + "/chat/completions", json=body, headers=headers,
                                 timeout=aiohttp.ClientTimeout(total=timeout)) as reply:
                reply.raise_for_status()
                return await reply.json()
        if "hang up" in kind:
            try:
                await asks(timeout=0.2)
            except TimeoutError:
                if kind == "hang up and raise":
                    raise
        reply = await asks(retry=int(kind == "hang up"))
        if kind in ("retry", "duplicate"):
            again = await asks(retry=int(kind == "retry"))
            assert (again == reply) == (kind == "retry")
        if kind == "raise":
            raise ConnectionError(session.base_url)
        if kind == "exit":
            sys.exit(1)
    return "wrong" if number % 10 == 0 else "right"
"""

MODEL = """
import asyncio, random
from midstream.core.errors import EngineError
async def answer(messages, seed):
    draw = random.Random(seed)
    await asyncio.sleep(0.4 if "hang up" in messages[-1]["content"] else 0.03 * draw.random())
    if draw.random() < 0.15:
        raise EngineError("the server is down")
    return str(seed)
"""

RECIPE = """
extends = "own-agent"
name = "faults"
[agent]
type = "{agent}"
engine = "model"
[engines.model]
type = "{model}"
[rollout]
concurrency = 32
max_attempts = 2
"""


def write_tasks(path: Path, count: int) -> Path:
    lines = [json.dumps({"question": f"question {number} ?", "answer": "right"}) for number in range(count)]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.slow
def test_two_hundred_sessions_with_faults(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "model.py").write_text(MODEL)
    recipe = tmp_path / "faults.toml"
    recipe.write_text(RECIPE.format(agent="agent.py:solve", model="model.py:answer"))
    tasks = write_tasks(tmp_path / "tasks.jsonl", 200)
    out = tmp_path / "run"
    words = ["eval", recipe, "--tasks", tasks, "--out", out, "--quiet"]
    assert main(list(map(str, words))) == 0
    found = ended(out)
    assert sorted(one.question for one in found) == sorted(f"question {number} ?" for number in range(200))
    assert len({one.id for one in found}) == 200
    errors = [one for one in found if one.status == "error"]
    assert 5 < len(errors) < 100
    assert all(one.reward is None and one.attempts == 2 for one in errors)
    assert any(one.attempts == 2 for one in found if one.status == "ok")
    for one in found:
        if one.status == "ok":
            assert one.reward is not None
            assert (one.reward.value == 0) == (int(one.question.split()[1]) % 10 == 0)
    assert sum(not call.delivered for one in found for call in one.calls)
    assert sum(result.errors for result in RunDirectory.open(out).evaluations.read()) == len(errors)
    assert not [one for one in found if "/s/" in one.model_dump_json().replace("/s/KEY", "")]


COMMAND = """
import json, os, subprocess, sys, time, urllib.request
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)", sys.argv[1]], start_new_session=True, env={})
question = json.load(open(os.environ["MIDSTREAM_TASK"]))["question"]
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": question}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
urllib.request.urlopen(request).read()
time.sleep(0.1 * (hash(question) % 3))
open(os.environ["MIDSTREAM_ANSWER"], "w").write("right")
"""


def running(tag: str) -> list[int]:
    """Processes with `tag` in their arguments."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if tag.encode() in words and b"eval" not in words:
            found.append(int(place.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")
def test_a_killed_evaluation_leaves_no_command_and_runs_none_twice(tmp_path):
    tag = f"scratch-{random.getrandbits(64):x}"
    (tmp_path / "agent.py").write_text(COMMAND)
    tasks, recipe, root = write_tasks(tmp_path / "tasks.jsonl", 24), tmp_path / "killed.toml", tmp_path / "run"
    asked: list[str] = []

    def say(body):
        asked.append(prompt_of(body))
        return "fine"

    with LLMServer(say) as server:
        engine = f'type = "openai_compatible"\nmodel = "scripted"\nbase_url = "{server.base_url}"\n'
        table = RECIPE.replace('type = "{model}"', engine).replace('type = "{agent}"', 'type = "command"')
        command = json.dumps([sys.executable, str(tmp_path / "agent.py"), tag])
        table = table.replace('engine = "model"', f'engine = "model"\ncommand = {command}')
        recipe.write_text(table.replace("concurrency = 32", "concurrency = 4"))
        assert kill_after(start("eval", recipe, "--tasks", tasks, "--out", root), root, 8, 0.05)
        until = time.monotonic() + 8
        while running(tag) and time.monotonic() < until:
            time.sleep(0.05)
        assert not running(tag)
        done = {one.question for one in ended(root)}
        assert 8 <= len(done) < 24
        before = asked.copy()
        finish("resume", root)
    again = asked[len(before) :]
    assert not done & set(again)
    found = ended(root)
    assert len(found) == len({one.id for one in found}) == 24
    assert {one.answer for one in found} == {"right"}
    assert not running(tag)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")
def test_ctrl_c_leaves_no_command_and_a_run_that_resumes(tmp_path):
    tag = f"scratch-{random.getrandbits(64):x}"
    (tmp_path / "agent.py").write_text(COMMAND + "time.sleep(0.5)")
    (tmp_path / "model.py").write_text("def answer(messages): return 'fine'")
    tasks, recipe, root = write_tasks(tmp_path / "tasks.jsonl", 8), tmp_path / "stopped.toml", tmp_path / "run"
    command = json.dumps([sys.executable, str(tmp_path / "agent.py"), tag])
    table = RECIPE.format(agent="command", model="model.py:answer")
    recipe.write_text(table.replace('engine = "model"', f'engine = "model"\ncommand = {command}'))
    process = start("eval", recipe, "--tasks", tasks, "--out", root, "--set", "rollout.concurrency=4")
    until = time.monotonic() + 30
    while not running(tag) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert not running(tag)
    finish("resume", root)
    assert len({one.id for one in ended(root)}) == 8


@pytest.mark.parametrize("awaited", [False, True])
def test_in_a_running_loop_as_in_a_notebook(awaited, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "model.py").write_text("def answer(messages): return 'fine'")
    (tmp_path / "mine.toml").write_text(RECIPE.format(agent="agent.py:solve", model="model.py:answer"))
    tasks = ms.tasks(str(write_tasks(tmp_path / "tasks.jsonl", 4)))

    async def cell():
        if awaited:
            return await ms.aevaluate("mine.toml", tasks, quiet=True, out="run")
        return ms.evaluate("mine.toml", tasks, quiet=True, out="run")

    run = asyncio.run(cell())
    assert run.evaluations[0].success >= 0.5
    assert not [thread for thread in threading.enumerate() if thread.name == "gateway"]
