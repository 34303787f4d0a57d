"""`midstream serve` as people use it: a process that clients ask over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from midstream import serve
from midstream.gateway.settings import ServeConfig
from support.errors import raises
from support.serving import post, serving, serving_here, write_recipe


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


def chat(question: str, **more: Any) -> dict[str, Any]:
    return {"model": "midstream", "messages": [{"role": "user", "content": question}], **more}


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
    write_recipe(recipe.parent, "broken")
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


def test_a_strategy_is_refused_before_anything_answers(recipe: Path):
    with recipe.open("a") as file:
        file.write('[evaluation]\nstrategy = "dser:K=2,T=1"\n')

    def ready(address: str) -> None:
        raise AssertionError(address)

    with raises("setting-conflict"):
        serve.serve_agent(str(recipe), config=ServeConfig(), ready=ready)
