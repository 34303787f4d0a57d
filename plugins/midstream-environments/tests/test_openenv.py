"""Environments of OpenEnv as episodes: servers, actions, tools, rewards, and how they compare with its own client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import midstream as ms
from midstream.core.errors import InfrastructureError, RecipeError
from midstream.recipe.schema import parse_recipe
from midstream.training.rows import row_of, runs_of
from midstream_environments.episodes import EpisodeCases
from midstream_environments.library import library_of
from midstream_environments.openenv import OpenEnvConfig
from playing import evaluated, heard, played, replies, run_script

FAKE = Path(__file__).with_name("fake_openenv")

# The library's own client, in the way of its documentation, with the same server in the background.
OPENENV_LOOP = """
import importlib, json, socket, sys, threading, time
import uvicorn
from openenv.core import GenericEnvClient

sys.path.insert(0, sys.argv[1])
app = importlib.import_module(sys.argv[2]).app
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.05)
field, episodes = sys.argv[3], json.load(sys.stdin)
scores = []
for actions in episodes:
    with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as env:
        result = env.reset()
        total = result.reward or 0.0
        for action in actions:
            result = env.step({field: action})
            total += result.reward or 0.0
        scores.append(total)
print(json.dumps(scores))
"""
# What a person who writes an environment gets from `openenv init`.
INIT = """
import subprocess, sys
from pathlib import Path
Path(sys.argv[1]).mkdir(exist_ok=True)
command = [str(Path(sys.executable).with_name("openenv")), "init", "word_env", "-o", sys.argv[1]]
subprocess.run(command, check=True, capture_output=True)
print("true")
"""
INSTALLED = "import importlib.util, json; print(json.dumps(importlib.util.find_spec('med_safety_gym') is not None))"
# A question in the format of the environment's data.
MEDICAL = """
{"messages": [{"role": "user", "content": "<context>It was safe in 3 of 4 trials.</context><question>Safe?</question>"},
 {"role": "assistant", "content": "<answer>Mostly.</answer>"}]}
"""


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tasks of an environment whose client and server are those of `fake_openenv`."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    made: list[EpisodeCases] = []

    def make(kind: str = "text", room: int = 8, **settings: Any) -> EpisodeCases:
        command = [sys.executable, str(FAKE / "server.py"), "{port}", kind, str(room)]
        config = OpenEnvConfig.model_validate({"command": command, "call_s": 10.0, **settings})
        made.append(EpisodeCases(library_of(config)))
        return made[-1]

    yield make
    for each in made:
        asyncio.run(each.library.close())


def test_the_reply_fills_the_only_text_field_and_rewards_add_up(source: Any) -> None:
    words = source()
    said, episode = played(words, "one", "free", "stop")
    assert said[1:] == ["one", "free", "stop (over)"]
    assert re.fullmatch(r"Say a word \(\d+\)\.", said[0])
    assert episode.system == ""
    # 0.5 at the reset, 0.25 for two of the three steps.
    assert episode.outcome() == {"reward": 1.0, "feedback": "", "turns": 3, "range": [0.0, 1.0]}
    assert {task.family for task in words.tasks("train")} == {"Words"}
    assert played(source(reward="last"), "stop")[1].outcome()["reward"] == 0.25


def test_an_action_of_several_fields_is_json_and_a_wrong_one_is_answered(source: Any) -> None:
    said, episode = played(
        source("json", max_turns=4), 'I say {"word": "a", "times": 2}', "no", '{"word": 1}', '{"word": "b", "times": 1}'
    )
    assert said[1] == "a"
    assert "no action" in said[2]
    assert "schema" in said[3]
    assert said[4] == "b (over)"
    assert '"times"' in episode.system
    assert "metadata" not in episode.system
    outcome = {"reward": 1.0, "feedback": "the episode was not finished", "turns": 4, "range": [0.0, 1.0]}
    assert episode.outcome() == outcome
    assert played(source("json", max_turns=1, unfinished=-1.0), "no")[1].outcome()["reward"] == -1.0


def test_tools_are_offered_and_a_reply_without_a_call_ends_the_episode(source: Any) -> None:
    words = source("tools")
    episode = words.open(words.tasks("train")[0], seed=0)

    async def play() -> list[Any]:
        turn = await episode.begin()
        (tool,) = turn.tools
        results = [await tool.call({"word": word}) for word in ("one", "wrong", 7, "stop", "late")]
        over = (await episode.reply("done")).over
        await episode.close()
        return [
            tool.name,
            tool.description,
            tool.parameters["properties"],
            over,
            *((one.text, one.ok) for one in results),
        ]

    name, description, properties, over, *results = asyncio.run(play())
    assert (name, description, [*properties], over) == ("say", "Says a word.", ["word"], True)
    assert results[0] == ("one", True)
    assert results[1] == ("wrong", False)
    assert not results[2][1]
    assert results[3:] == [("stop", True), ("the episode is over", False)]
    assert episode.outcome()["reward"] == pytest.approx(1.25)


@pytest.mark.parametrize(("word", "raises"), [("invalid_args", False), ("timeout", True)])
def test_a_tool_that_the_environment_cannot_ask_is_an_error_and_a_wrong_call_is_not(
    source: Any, word: str, raises: bool
) -> None:
    words = source("tools")
    episode = words.open(words.tasks("train")[0], seed=0)

    async def play() -> Any:
        (tool,) = (await episode.begin()).tools
        return await tool.call({"word": word})

    if raises:
        with pytest.raises(InfrastructureError, match="too late"):
            asyncio.run(play())
    else:
        assert not asyncio.run(play()).ok


def test_an_episode_waits_until_its_server_has_room(source: Any) -> None:
    words = source(room=1)

    async def play(task: Any) -> str:
        episode = words.open(task, seed=0)
        await episode.begin()
        turn = await episode.reply("stop")
        await episode.close()
        return turn.text

    async def together() -> list[str]:
        return await asyncio.gather(*(play(task) for task in words.tasks("train")[:4]))

    assert asyncio.run(together()) == ["stop"] * 4


@pytest.mark.parametrize(
    ("word", "code", "words"),
    [
        ("raise", "environment-failed", "no such word"),
        ("exit", "environment-failed", "these are its last words"),
        ("hang", "environment-timeout", "more than 3 s"),
    ],
)
def test_what_goes_wrong_in_a_server_is_an_error_and_the_next_episode_has_one_again(
    source: Any, word: str, code: str, words: str
) -> None:
    toy = source(call_s=3.0 if word == "hang" else 30.0)
    with pytest.raises(InfrastructureError) as caught:
        played(toy, word)
    assert caught.value.code == code
    assert words in str(caught.value)
    assert played(toy, "stop")[0][-1] == "stop (over)"


def test_a_server_ends_with_its_build_and_its_children_too(source: Any) -> None:
    words = source()
    pid = int(played(words, "child")[0][1])
    os.kill(pid, 0)
    asyncio.run(words.library.close())
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"command": ["python", "-c", "print('no such module'); raise SystemExit(4)", "{port}"]}, "ended with 4"),
        ({"command": ["no-such-command", "{port}"]}, "no-such-command"),
        ({"command": [], "url": "http://127.0.0.1:9"}, "no OpenEnv server answers at http://127.0.0.1:9"),
    ],
)
def test_a_server_that_does_not_start_is_an_error_with_its_cause(
    source: Any, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(RecipeError, match=problem):
        source(**settings).library.call("rows")


def test_a_command_needs_a_port() -> None:
    with pytest.raises(ValidationError, match="port"):
        OpenEnvConfig.model_validate({"command": ["uvicorn", "app:app"]})


@pytest.mark.slow
def test_a_tiny_model_in_process_trains_on_episodes_and_observations_are_not_its_tokens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    command = [sys.executable, str(FAKE / "server.py"), "{port}", "luck", "8"]
    table = {
        "name": "luck",
        "tasks": {"type": "openenv", "command": command, "max_turns": 2},
        "agent": {
            "type": "interleaved",
            "template": "text",
            "max_tokens": 300,
            "policy": {"type": "model", "engine": "policy", "sampling": {"temperature": 1.0, "max_tokens": 60}},
        },
        "engines": {"policy": {"type": "tiny_text", "weights": "atlas"}},
        "tools": {},
        "reward": {"type": "environment"},
        "training": {"steps": 1, "tasks_per_step": 2, "group_size": 4, "minibatches": 1, "validate_every": 1000},
        "evaluation": {
            "sets": [{"name": "test", "split": "test", "count": 1}],
            "validation": {"name": "validation", "split": "validation", "count": 1},
        },
    }
    run = ms.train(parse_recipe(table), out=tmp_path / "run", quiet=True)
    (metrics,) = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert metrics["rows"] > 0
    assert metrics["grad_norm"] > 0
    for one in run.trajectories("step-*"):
        (calls,) = runs_of(one.calls, "merged")
        row = row_of(calls, advantage=1.0, kl_weight=0.0, trajectory_id=one.id)
        assert sum(row.sampled or [True] * len(row.completion_ids)) == sum(len(call.completion_ids) for call in calls)
        assert len(calls) == 1 or not all(row.sampled)
    assert max(len(one.calls) for one in run.trajectories("step-*")) == 2


@pytest.mark.parametrize("library", ["openenv", "openenv10"])
def test_scores_of_an_environment_made_by_the_library_are_those_of_its_client(
    interpreter: Any, tmp_path: Path, library: str
) -> None:
    python = interpreter(library)
    run_script(python, INIT, None, str(tmp_path / "made"))
    tasks = {
        "type": "openenv",
        "command": ["uvicorn", "word_env.server.app:app", "--port", "{port}", "--app-dir", str(tmp_path / "made")],
        "python": python,
        "max_turns": 3,
        "episodes": 300,
        "range": [0, 20],
    }
    settings = {"evaluation.sets": [{"name": "all", "split": "train", "count": 200}]}
    done = evaluated(tmp_path, "openenv", tasks, player="echo", **settings)
    assert not [one.error for one in done if one.status != "ok"]
    said = [[text.strip() for text in replies(one)] for one in done]
    scores = run_script(python, OPENENV_LOOP, said, str(tmp_path / "made"), "word_env.server.app", "message")
    assert [one.reward.value * 20 for one in done if one.reward] == pytest.approx(scores)
    assert len(set(scores)) > 5


def test_scores_of_a_published_environment_are_those_of_its_client(
    interpreter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = interpreter("openenv")
    if not run_script(python, INSTALLED, None):
        pytest.skip("openenv-dipg-safety is not installed there")
    (tmp_path / "data.jsonl").write_text(MEDICAL.replace("\n", ""))
    monkeypatch.setenv("DIPG_DATASET_PATH", str(tmp_path / "data.jsonl"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    tasks = {
        "type": "openenv",
        "command": ["uvicorn", "med_safety_gym.app:app", "--port", "{port}"],
        "python": python,
        "observation": ["context", "question"],
        "episodes": 300,
        "range": [-100, 100],
    }
    settings = {"evaluation.sets": [{"name": "all", "split": "train", "count": 200}]}
    done = evaluated(tmp_path, "openenv", tasks, player="medic", **settings)
    assert not [one.error for one in done if one.status != "ok"]
    scores = run_script(python, OPENENV_LOOP, [replies(one) for one in done], "", "med_safety_gym.app", "llm_response")
    assert [one.reward.value * 200 - 100 for one in done if one.reward] == pytest.approx(scores)
    assert len(set(scores)) > 1
    assert heard(done[0]) == ['{"context": "It was safe in 3 of 4 trials.", "question": "Safe?"}']
