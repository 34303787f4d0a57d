"""README's ten lines, against a scripted server: as a file, in a running event loop, in a notebook."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import midstream as ms
from support.counting import LESSON, counting, write_questions
from support.llm_server import LLMServer

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
[BLOCK] = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
SCRIPT = re.sub(r" +#.*", "", BLOCK)
# The same with tasks of a function.
OWN_TASKS = SCRIPT.replace(
    'tasks = ms.tasks("questions.jsonl")\nprint(ms.solve(agent, "How many words has \'to be or not\'?").answer)',
    """
def questions():
    return [{"question": f"How many words has '{'to ' * i}be'?", "answer": str(i + 1)} for i in range(24)]

tasks = ms.tasks(questions).split(train=0.5)
""",
)


@pytest.fixture(autouse=True)
def server(tmp_path, monkeypatch):
    """A directory with questions, and a scripted server where Ollama's is looked for."""
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path / "questions.jsonl")
    with LLMServer(counting) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.base_url.removesuffix("/v1"))
        yield server


def shows_the_gain(printed: str) -> bool:
    return printed.startswith(("4\n", "A  runs/eval")) and "B is better than A by" in printed


@pytest.mark.parametrize("script", [SCRIPT, OWN_TASKS])
def test_it_is_short(script):
    assert len(list(filter(None, script.splitlines()))) <= 15


@pytest.mark.slow
def test_as_a_file(tmp_path):
    (tmp_path / "script.py").write_text(BLOCK + "print(run.lessons[0].text)\n")
    done = subprocess.run([sys.executable, "-W", "error", "script.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert shows_the_gain(done.stdout)
    assert LESSON in done.stdout
    assert "test T=0.7: success 100.0%" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("script", [SCRIPT, OWN_TASKS], ids=["tasks of a file", "tasks of a function"])
def test_in_a_running_event_loop(script, capsys):
    async def main() -> None:
        exec(script, {"__name__": "script"})

    asyncio.run(main())
    assert shows_the_gain(capsys.readouterr().out)


@pytest.mark.slow
def test_as_a_notebook(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="could not import nbformat")
    nbclient = pytest.importorskip("nbclient", reason="could not import nbclient")
    pytest.importorskip("ipykernel", reason="could not import ipykernel")
    head, work = SCRIPT.split("agent = ")
    cells = [head, f"agent = {work}", "agent", "tasks.test", "before", "ms.compare(before, before)", "run"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [output.get("text", "") for output in book.cells[1]["outputs"] if output.get("name") == "stdout"]
    assert shows_the_gain("".join(printed))
    shown = [cell["outputs"][0]["data"]["text/html"] for cell in book.cells[2:]]
    words = ["planner", "How many words has", "success", "the same", LESSON]
    assert [word in html for word, html in zip(words, shown, strict=True)] == [True] * 5


def test_awaited_and_several_at_once(server):
    """Three evaluations in one loop, and the plain function in the same loop."""

    @ms.tool
    def word_count(text: str) -> int:
        """Count the words of a text."""
        return len(text.split())

    async def main() -> list[ms.Run]:
        agent = ms.AgentFlow(model="ollama/m", tools=[word_count])
        assert ms.solve(agent, "How many words has 'to be or not'?").answer == "4"
        sample = ms.tasks("questions.jsonl").test.sample(3)
        return await asyncio.gather(*(ms.aevaluate(agent, sample, seed=seed) for seed in range(3)))

    runs = asyncio.run(main())
    assert len({run.path for run in runs}) == 3
    assert [run.status for run in runs] == ["finished"] * 3
    assert all(len(run.frame()) == 3 for run in runs)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_unless_it_is_quiet(monkeypatch, capsys, terminal):
    agent, two = ms.Interleaved(model="ollama/m"), ms.tasks("questions.jsonl").test.sample(2)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    ms.evaluate(agent, two, quiet=True)
    assert not capsys.readouterr().err
    ms.evaluate(agent, two)
    assert "success" in capsys.readouterr().err


@pytest.mark.slow
def test_a_user_script_passes_a_strict_type_checker(tmp_path):
    script = BLOCK.replace("(task, trajectory)", "(task: ms.Task, trajectory: ms.Trajectory)")
    script += "import asyncio\nawaited: ms.Run = asyncio.run(ms.aevaluate(agent, tasks.test, reward=exact))\n"
    (tmp_path / "script.py").write_text(script)
    settings = {
        "typeCheckingMode": "strict",
        "extraPaths": [str(Path(ms.__file__).parents[1])],
        "include": ["script.py"],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
