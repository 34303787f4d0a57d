"""docs/any-agent.md: its blocks in the page's order, in one directory, with a scripted server as the model."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.interface.results import Run
from midstream.recipe import check as recipe_check
from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory
from support.llm_server import Body, LLMServer

pytest.importorskip("openai")
PAGE = (Path(__file__).parents[1] / "docs" / "any-agent.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]
LESSONS_TABLE = ["lessons.tasks=2", "lessons.batch_size=2", "lessons.epochs=1", "lessons.group_size=2"]
LESSONS_TABLE += ["lessons.gate.enabled=false"]
STEP = ["training.steps=1", "training.tasks_per_step=2", "training.group_size=2", "training.minibatches=1"]
STEP += ["learner.threads=1", "evaluation.sets=[]"]
STEP += ["evaluation.validation={name='validation',split='validation',per_family=1}"]


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """The reader's directory, with the page's files and questions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for _, block in BLOCKS:
        if written := re.match(r"# ([\w-]+\.\w+)\n", block):
            (tmp_path / written[1]).write_text(block, encoding="utf-8")
    rows = [{"question": f"What is {number} + 1 ?", "answer": str(number + 1)} for number in range(30)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    yield tmp_path
    for name in ("my_agent", "caller"):
        sys.modules.pop(name, None)


def adds(body: Body) -> str:
    """The model, and a reflector without proposals."""
    if body["messages"][0]["content"].startswith("# "):
        return json.dumps({"summary": "It added.", "operations": []})
    return str(int(re.findall(r"\d+", body["messages"][-1]["content"])[0]) + 1)


def words_of(line: str, url: str) -> list[str]:
    """A command of the page, with a scripted server and little work."""
    words = shlex.split(line, comments=True)[1:]
    if "--provider" in words:
        place = words.index("--provider")
        words[place : place + 2] = ["--base-url", url]
    if words[0] in ("train", "serve"):
        settings = LESSONS_TABLE if "--tasks" in words else STEP
        words += [word for setting in settings for word in ("--set", setting)]
    return words


def test_the_page_is_short():
    assert len(PAGE.splitlines()) <= 150


@pytest.mark.slow
def test_every_command_runs(directory, capsys):
    with LLMServer(adds) as server:
        for line in COMMANDS:
            if not line.startswith("midstream serve"):
                assert main([*words_of(line, server.base_url), "--quiet"]) == 0, capsys.readouterr().err
    assert [one.success for one in Run("runs/before").evaluations] == [1.0]
    assert len(COMMANDS) == 5


@pytest.mark.slow
def test_the_function_runs_in_python(directory):
    [block] = [block for language, block in BLOCKS if language == "python" and block.startswith("import midstream")]
    with LLMServer(adds) as server:
        changed = block.replace('model="ollama/qwen2.5:7b"', f'model="m", base_url="{server.base_url}"')
        assert changed != block
        values = {"__name__": "page"}
        exec(compile(changed, "page", "exec"), values)
    assert values["run"].evaluations[0].success == 1.0


def test_the_recipe_is_valid(directory):
    recipe_check.resolve(recipe := load_recipe("names.toml"))
    assert {name: model.engine for name, model in recipe.serve.models.items()} == {"my-model": "model", "*": "judge"}


@pytest.mark.slow
def test_a_caller_from_elsewhere_trains(directory, monkeypatch):
    [line] = [line for line in COMMANDS if line.startswith("midstream serve")]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    file = directory / "caller.py"
    file.write_text(file.read_text(encoding="utf-8").replace("8321", port), encoding="utf-8")
    running = subprocess.Popen([sys.executable, "-m", "midstream", *words_of(line, ""), "--port", port])
    import caller

    try:
        done, until = 0, time.monotonic() + 120
        while running.poll() is None and time.monotonic() < until:
            try:
                caller.work()
                done += 1
            except (urllib.error.HTTPError, OSError):
                time.sleep(0.2)
    finally:
        running.terminate()
    assert running.wait(30) == 0
    [metrics] = RunDirectory.open(Path("runs/elsewhere")).metrics.read()
    assert (metrics.trajectories, metrics.trajectories_error) == (4, 0)
    assert metrics.rows == 4
    assert done >= 4
