"""`midstream serve --sessions` and `--train` as people use them: callers elsewhere open sessions and end them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from socket import create_server
from typing import Any

import pytest

import midstream as ms
from midstream.cli.main import main
from midstream.gateway.settings import ServeConfig
from midstream_extra.sessions import serve_sessions, serve_training
from support.errors import raises
from support.serving import MIDSTREAM, post, serving, serving_here, write_recipe


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


@pytest.mark.parametrize("here", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_callers_own_tasks_are_scored_and_recorded(recipe, tmp_path, here):
    out = tmp_path / "run"
    with serving_here(recipe, serve_sessions, out) if here else serving(recipe, "--sessions", "--out", out) as address:

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
    assert "status" in shown.stdout
    assert "resume with" not in shown.stdout
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
                serve_sessions(str(recipe), tmp_path / code, config=ServeConfig(**config))


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


@pytest.mark.parametrize("serves", [serve_sessions, serve_training])
def test_a_strategy_is_refused_before_anything_answers(serves: Any, recipe: Path):
    with recipe.open("a") as file:
        file.write('[evaluation]\nstrategy = "dser:K=2,T=1"\n')

    def ready(address: str) -> None:
        raise AssertionError(address)

    with raises("setting-conflict"):
        serves(str(recipe), config=ServeConfig(), ready=ready)


@pytest.mark.parametrize("words", [("--out", "run"), ("--tasks", "questions.jsonl"), ("--reward", "f1")])
def test_what_records_nothing_takes_no_option_of_sessions(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "direct", *words]) == 2
    assert "error[option-without-effect]" in capsys.readouterr().err
