"""Tasks of Harbor, with a command that stands for docker: no real container is run here."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import midstream as ms
from midstream.cli.main import main
from midstream.core.errors import MidstreamError
from midstream_environments.containers import Machine, Runtime
from midstream_environments.harbor import HarborConfig, HarborTasks

TOML = """
version = "1.0"
[metadata]
difficulty = "easy"
category = "files"
tags = ["trivial"]
[verifier]
timeout_sec = 30.0
[agent]
timeout_sec = 60.0
[environment]
cpus = 1
memory_mb = 512
allow_internet = false
"""
# The reward is the share of three lines that are in the file.
TEST = """#!/bin/bash
count=$(grep -c hello /app/out.txt)
echo "found $count"
mkdir -p /logs/verifier
awk "BEGIN { print $count / 3 }" > /logs/verifier/reward.txt
"""


def task(root, name, *, toml=TOML, test=TEST, instruction="", changed=()):
    """A task's folder; None in place of a file's text leaves it out."""
    folder = root / name
    files = {
        "task.toml": toml,
        "instruction.md": instruction or f"Write three lines 'hello {name}' to /app/out.txt.\n",
        "environment/Dockerfile": "FROM python:3.11-slim\n",
        "tests/test.sh": test,
    } | dict(changed)
    for place, text in files.items():
        if text is not None:
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text(text)
    return folder


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A folder with the boxes and the log of a command that stands for docker."""
    root, commands = tmp_path / "docker", tmp_path / "bin"
    commands.mkdir()
    (root / "boxes").mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("fake_docker.py"), commands / "docker")
    (commands / "docker").write_text(
        (commands / "docker").read_text().replace("#!/usr/bin/env python3", f"#!{sys.executable}", 1)
    )
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_DOCKER", str(root))
    return root


def scripted(tmp_path, replies):
    """An engine that calls `bash` with each of the replies, and then says that it is done."""
    script = tmp_path / "engine.py"
    script.write_text(f"COMMANDS = {replies!r}\n" + ENGINE)
    return f"{script}:answer"


ENGINE = """
import json

def answer(messages):
    done = sum(message["role"] == "tool" for message in messages)
    if done < len(COMMANDS):
        call = {"name": "bash", "arguments": {"command": COMMANDS[done]}}
        return f"<tool_call>\\n{json.dumps(call)}\\n</tool_call>"
    return "It is done."
"""


def evaluated(tmp_path, replies, **settings) -> list[Any]:
    """The runs of an agent that gives these commands."""
    changes = {
        "tasks.path": str(tmp_path / "tasks"),
        "engines.model": {"type": scripted(tmp_path, replies)},
        "rollout.max_attempts": 1,
        **settings,
    }
    run = ms.evaluate("harbor", settings=changes, out=tmp_path / "run", quiet=True)
    return list(run.trajectories())


def errors(tmp_path) -> list[Any]:
    """The runs of an evaluation that ended in an error."""
    return list(ms.Run(tmp_path / "run").trajectories())


WORK = ["echo hello > out.txt", "for n in 1 2; do echo hello >> out.txt; done; cat out.txt; ls nowhere"]


def test_the_verifier_s_reward_is_that_of_the_run(tmp_path, docker):
    task(tmp_path / "tasks", "one")
    [run] = evaluated(tmp_path, WORK)
    assert run.status == "ok", run.error
    assert run.reward.value == 1.0
    assert run.question.startswith("Write three lines 'hello one'")
    first, second = [turn.observation for turn in run.turns if turn.observation is not None]
    assert first.text == "(no output)"
    assert second.status == "error"
    assert second.text.startswith("hello\nhello\nhello\n")
    assert second.text.endswith("[exit code 2]")
    words = [json.loads(line) for line in (docker / "log").read_text().splitlines()]
    made = next(command for command in words if command[0] == "run")
    for pair in (["--cpus", "1"], ["--memory", "512m"], ["--network", "none"]):
        assert made[made.index(pair[0]) + 1] == pair[1]
    assert [command[0] for command in words if command[0] != "exec"] == ["info", "build", "run", "cp", "rm"]
    assert not [*(docker / "boxes").iterdir()]


def test_a_share_and_named_parts_are_kept(tmp_path, docker):
    task(tmp_path / "tasks", "share")
    parts = (
        'mkdir -p /logs/verifier; echo \'{"reward": 0.75, "style": 0.5, "speed": 2}\' > /logs/verifier/reward.json\n'
    )
    task(tmp_path / "tasks", "parts", test=parts + "echo 1 > /logs/verifier/reward.txt; exit 3\n")
    runs = {run.task_id: run for run in evaluated(tmp_path, WORK[:1])}
    assert runs["share"].reward.value == pytest.approx(1 / 3, abs=1e-5)
    assert runs["parts"].reward.value == 0.75
    assert runs["parts"].reward.parts == {"style": 0.5, "speed": 2.0}


def test_a_run_that_meets_a_limit_is_tested_all_the_same(tmp_path, docker):
    task(tmp_path / "tasks", "one")
    [run] = evaluated(tmp_path, WORK[:1] * 5, **{"agent.max_turns": 1})
    assert (run.status, run.stop_reason) == ("ok", "turn_limit")
    assert run.reward.value == pytest.approx(1 / 3, abs=1e-5)


@pytest.mark.parametrize(
    ("test", "toml", "named"),
    [
        ("echo nothing here; exit 1\n", TOML, "wrote no reward, and ended with exit code 1"),
        ("sleep 60\n", TOML.replace("timeout_sec = 30.0", "timeout_sec = 0.5"), "took more than 0.5 s"),
        ("echo many > /logs/verifier/reward.txt\n", TOML, "'many' as reward.txt"),
        ("echo '[1]' > /logs/verifier/reward.json\n", TOML, "as reward.json"),
        ("echo nan > /logs/verifier/reward.txt\n", TOML, "nan as its reward"),
        ('echo \'{"a": 1, "b": 0}\' > /logs/verifier/reward.json\n', TOML, "only a, b: set tasks.reward_key"),
        ("echo 3 > /logs/verifier/reward.txt\n", TOML, "outside of 0 to 1"),
    ],
)
def test_a_verifier_that_writes_no_reward_is_an_error(tmp_path, docker, test, toml, named):
    task(tmp_path / "tasks", "one", test=test, toml=toml)
    with pytest.raises(MidstreamError):
        evaluated(tmp_path, WORK)
    [run] = errors(tmp_path)
    assert run.status == "error"
    assert run.reward is None
    assert named in run.error.message
    assert not [*(docker / "boxes").iterdir()]


@pytest.mark.parametrize(
    ("dockerfile", "image", "named"),
    [("FROM x\nRUN false\n", "", "returned a code of 1"), (None, "missing", "pull access denied")],
)
def test_an_image_that_is_not_there_is_an_error(tmp_path, docker, dockerfile, image, named):
    toml = TOML + f'docker_image = "{image}"\n' if image else TOML
    task(tmp_path / "tasks", "one", toml=toml, changed={"environment/Dockerfile": dockerfile})
    with pytest.raises(MidstreamError):
        evaluated(tmp_path, WORK)
    [run] = errors(tmp_path)
    assert run.status == "error"
    assert named in run.error.message


def test_a_command_that_takes_too_long_is_ended(tmp_path, docker):
    task(tmp_path / "tasks", "one")
    commands = ["echo begun; sleep 600 & sleep 600", *WORK]
    [run] = evaluated(tmp_path, commands, **{"tasks.command_s": 1.0})
    assert run.turns[0].observation.text == "begun\n\n[ended after 1 s]"
    assert run.reward.value == 1.0


def test_variables_are_those_of_the_task_and_of_this_process(tmp_path, docker, monkeypatch):
    monkeypatch.setenv("SECRET", "hello secret")
    toml = TOML + 'env = { WORD = "${WORD:-hello}" }\n[verifier.env]\nKEY = "${SECRET}"\n'
    test = 'mkdir -p /logs/verifier; [ "$KEY" = "hello secret" ] && echo 1 > /logs/verifier/reward.txt\n'
    task(tmp_path / "tasks", "one", toml=toml.replace("[verifier]\ntimeout_sec = 30.0\n", ""), test=test)
    [run] = evaluated(tmp_path, WORK)
    assert run.reward.value == 1.0
    assert "hello secret" not in (docker / "log").read_text()


def test_tasks_are_read_without_a_runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    task(tmp_path / "tasks", "deep/one", toml=TOML.replace("memory_mb = 512", 'memory = "2G"'))
    task(tmp_path / "tasks", "two")
    source = HarborTasks(HarborConfig(path=tmp_path / "tasks"))
    one, two = source.fixed("test", seed=1)
    assert (one.id, one.family, one.metadata["difficulty"]) == ("deep/one", "files", "easy")
    assert one.metadata["tags"] == ["trivial"]
    assert two.question == "Write three lines 'hello two' to /app/out.txt."
    assert source.cases["deep/one"].machine.memory_mb == 2048
    assert source.cases["two"].verifier_s == 30.0


def test_without_a_runtime_a_run_ends_before_any_request(tmp_path, docker, capsys):
    (docker / "no-daemon").touch()
    task(tmp_path / "tasks", "one")
    with pytest.raises(MidstreamError, match="no container runtime answers") as raised:
        evaluated(tmp_path, WORK)
    assert raised.value.code == "container-runtime-missing"
    assert "Cannot connect to the Docker daemon; podman is not installed" in str(raised.value)
    assert main(["eval", "harbor", "--set", f"tasks.path={tmp_path / 'tasks'}", "--dry-run"]) == 2
    said = capsys.readouterr()
    assert 'type = "harbor"' in said.out
    assert "error[container-runtime-missing]" in said.err


def test_bad_tasks_are_named_with_their_reasons(tmp_path):
    root = tmp_path / "tasks"
    task(root, "good")
    task(root, "no-tests", changed={"tests/test.sh": None})
    task(root, "no-image", changed={"environment/Dockerfile": None})
    task(root, "empty", instruction=" ")
    task(root, "toml", toml="version = ")
    task(root, "time", toml=TOML.replace("60.0", '"long"'))
    task(root, "compose", changed={"environment/docker-compose.yaml": "services: {}"})
    task(root, "steps", toml='steps = [{ name = "a" }]\n' + TOML)
    with pytest.raises(MidstreamError) as raised:
        HarborTasks(HarborConfig(path=root)).fixed("test", seed=1)
    said = str(raised.value)
    for reason in (
        "no-tests: it has no tests/test.sh",
        "no-image: it has neither environment.docker_image nor environment/Dockerfile",
        "empty: instruction.md is empty",
        "toml: task.toml is no TOML",
        "time: task.toml: timeout_sec must be a positive number, not 'long'",
        "compose: it needs several containers",
        "steps: it needs several steps",
    ):
        assert reason in said
    for name in ("no-tests", "no-image", "empty", "toml", "time"):
        shutil.rmtree(root / name)
    source = HarborTasks(HarborConfig(path=root, not_mapped="leave_out"))
    assert [task.id for task in source.fixed("test", seed=1)] == ["good"]
    assert source.left_out[""].total() == 2


def test_a_container_that_is_created_late_is_removed(tmp_path, docker):
    """The first `rm` finds none, and `run` is killed after it has created one, before it starts it."""

    async def opened():
        runtime = Runtime("docker")
        opening = asyncio.ensure_future(runtime.open(Machine(name="", image="late")))
        while not (docker / "log").exists() and not opening.done():
            await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(opened())
    assert '"late"' in (docker / "log").read_text()
    assert not [*(docker / "boxes").iterdir()]


@pytest.mark.parametrize("when", ['["run"', '["exec"'])
def test_kill_9_leaves_no_container(tmp_path, docker, when):
    task(tmp_path / "tasks", "one")
    words = ["midstream", "eval", "harbor", "--out", "run", "--quiet"]
    words += ["--set", f"tasks.path={tmp_path / 'tasks'}"]
    words += ["--set", f"engines.model={{type={scripted(tmp_path, ['sleep 100'])!r}}}"]
    process = subprocess.Popen([sys.executable, "-m", *words], cwd=tmp_path, start_new_session=True)
    _until(lambda: any((docker / "boxes").iterdir()) and when in (docker / "log").read_text())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _until(lambda: not any((docker / "boxes").iterdir()))


def _until(true):
    ends = time.monotonic() + 20
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.05)
