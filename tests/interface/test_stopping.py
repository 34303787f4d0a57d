"""Cancelling and Ctrl-C leave a run that anyone can resume; runs of Python and of the command line are the same."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import midstream as ms
from midstream.cli.main import main
from midstream.report.progress import Progress
from support.counting import counting, write_questions
from support.errors import coded
from support.llm_server import LLMServer

HEAD = '''
import midstream as ms

@ms.tool
def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())

@ms.reward
def exact(answer, gold) -> float:
    return float(answer == gold)

agent = ms.AgentFlow(model="ollama/m", tools=[word_count], settings={"rollout.concurrency": 1})
tasks = ms.tasks("questions.jsonl")
'''


class Slow:
    """The scripted model, which after `quick` requests takes its time until it is `open`."""

    def __init__(self, quick: int) -> None:
        self.left, self.reached, self.open = quick, threading.Event(), threading.Event()

    def __call__(self, body):
        self.left -= 1
        if self.left < 0:
            self.reached.set()
            self.open.wait(20)
        return counting(body)


@pytest.fixture(autouse=True)
def slow(tmp_path, monkeypatch):
    """A directory with questions, and a server that answers four tasks (16 requests) and then waits."""
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path / "questions.jsonl", 12)
    slow = Slow(9)
    with LLMServer(slow) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.base_url.removesuffix("/v1"))
        yield slow
        slow.open.set()


def test_a_cancelled_evaluation_is_resumed_by_the_same_call(slow):
    names: dict[str, object] = {"__name__": "script"}
    exec(HEAD, names)
    evaluation = ms.aevaluate(names["agent"], names["tasks"].test, reward=names["exact"], out="runs/e")

    async def cancelled() -> None:
        work = asyncio.create_task(evaluation)
        await asyncio.to_thread(slow.reached.wait, 20)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(cancelled())
    run = ms.Run("runs/e")
    assert run.status == "interrupted"
    slow.open.set()
    again = ms.evaluate(names["agent"], names["tasks"].test, reward=names["exact"], out="runs/e")
    assert again.status == "finished"
    assert len(again.frame()) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    ["ms.evaluate({0})", pytest.param("asyncio.run(ms.aevaluate({0}))", marks=pytest.mark.slow)],
    ids=["plain", "awaited"],
)
def test_a_script_that_gets_ctrl_c_is_resumed_by_the_command_line(work, slow, tmp_path, capsys):
    call = work.format('agent, tasks.test, reward=exact, out="runs/e"')
    (tmp_path / "script.py").write_text(f"import asyncio\n{HEAD}\nif __name__ == '__main__':\n    {call}\n")
    script = subprocess.Popen([sys.executable, "script.py"], stderr=subprocess.PIPE, text=True)
    assert slow.reached.wait(30)
    script.send_signal(signal.SIGINT)
    _, errors = script.communicate(timeout=30)
    assert script.returncode == -signal.SIGINT or "KeyboardInterrupt" in errors
    assert ms.Run("runs/e").status == "interrupted"
    slow.open.set()
    assert main(["resume", "runs/e", "--quiet"]) == 0
    assert len(ms.Run("runs/e").frame()) == 6
    assert "6" in capsys.readouterr().out


@pytest.mark.slow
def test_a_script_without_a_guard_says_so(slow, tmp_path):
    slow.open.set()
    (tmp_path / "script.py").write_text(HEAD + 'ms.evaluate(agent, tasks.test, reward=exact, out="runs/e")\n')
    subprocess.run([sys.executable, "script.py"], check=True, capture_output=True)
    (tmp_path / "runs/e/status.json").unlink()
    with pytest.raises(ms.MidstreamError, check=coded("work-while-importing", "script.py", "evaluate")):
        ms.resume("runs/e")


@pytest.mark.slow
def test_a_reward_of_another_program_is_not_here(slow, tmp_path):
    slow.open.set()
    made = "import midstream as ms\nfrom functools import partial\n" + HEAD.replace("def exact(", "def _exact(")
    made += 'ms.evaluate(agent, tasks.test, reward=lambda answer, gold: answer == gold, out="runs/e")\n'
    (tmp_path / "script.py").write_text(made)
    subprocess.run([sys.executable, "script.py"], check=True, capture_output=True)
    (tmp_path / "runs/e/status.json").unlink()
    with pytest.raises(ms.MidstreamError, check=coded("component-not-here", "lambda")):
        ms.resume("runs/e")


# --- the same numbers -------------------------------------------------------------------------------------------------


def records(root: Path) -> list[bytes]:
    names = ["metrics.jsonl", "evaluations.jsonl"]
    return [(root / name).read_bytes() for name in names if (root / name).exists()]


@pytest.mark.slow
def test_a_recipe_leaves_the_same_records_either_way(ten_steps, finished_run, tmp_path):
    mine = ms.train(ten_steps, out=tmp_path / "mine", quiet=True)
    assert records(mine.path) == records(finished_run)


def at_four(event: object) -> None:
    if getattr(getattr(event, "metrics", None), "step", 0) == 4:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_begun_in_python_is_resumed_by_the_command_line(ten_steps, finished_run, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        ms.train(ten_steps, out=tmp_path / "mine", listener=at_four)
    assert ms.Run(tmp_path / "mine").status == "interrupted"
    assert main(["resume", str(tmp_path / "mine"), "--quiet"]) == 0
    assert records(tmp_path / "mine") == records(finished_run)


@pytest.mark.slow
def test_a_run_begun_by_the_command_line_is_resumed_in_python(ten_steps, finished_run, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Progress, "__call__", lambda self, event: at_four(event))
        assert main(["train", str(ten_steps), "--out", str(tmp_path / "theirs"), "--quiet"]) == 130
    assert ms.resume(tmp_path / "theirs", quiet=True).status == "finished"
    assert records(tmp_path / "theirs") == records(finished_run)
