"""Tasks of Inspect for tests: what may be in one, and what may go wrong in it. Inspect loads this file."""

import asyncio
import os

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, get_model
from inspect_ai.scorer import INCORRECT, Score, accuracy, match, scorer
from inspect_ai.solver import generate, solver
from inspect_ai.util import sandbox


@scorer(metrics=[accuracy()])
def odd():
    """Does what a sample's metadata names."""

    async def score(state, target):
        wrong = state.metadata["wrong"]
        if wrong == "raises":
            raise ValueError("a bug in the scorer")
        if wrong == "hangs":
            await asyncio.sleep(1000)
        if wrong == "exits":
            os._exit(3)
        if wrong == "none":
            return None
        if wrong == "asks":
            return Score(value=(await get_model().generate("right?")).completion)
        if wrong == "asks a role":
            said = (await get_model(role="grader").generate("right?")).completion
            return Score(value="C" if "right" in said else "I", explanation=said)
        if wrong == "unscored":
            return Score.unscored(reason="no grade found")
        values = {"nan": float("nan"), "text": "excellent", "table": {"a": 1, "b": 0.25}, "list": [1]}
        return Score(value=values[wrong])

    return score


@solver
def broken():
    async def solve(state, generate):
        if state.metadata["wrong"] == "solver":
            raise ValueError("a bug in the solver")
        return state

    return solve


@task
def wrongs(wrong: list[str]):
    """Samples with something wrong in each."""
    samples = [Sample(input=f"{n} + {n}?", id=each, metadata={"wrong": each}) for n, each in enumerate(wrong)]
    return Task(dataset=samples, solver=[broken(), generate()], scorer=odd())


@task
def sums(chat: bool = False):
    """Sums, with two scorers."""
    asked = [f"{n} + {n}?" for n in range(3)]
    samples = [
        Sample(
            input=[ChatMessageSystem(content="Add."), ChatMessageUser(content=text)] if chat else text,
            target=str(2 * n),
            metadata={"wrong": "table"},
        )
        for n, text in enumerate(asked)
    ]
    return Task(dataset=MemoryDataset(samples), scorer=[match(numeric=True), odd()])


@task
def repeated():
    """A question that occurs twice, with two answers."""
    return Task(dataset=[Sample(input="a number?", target=str(n), id=f"n{n}") for n in (1, 2)], scorer=match())


@task
def unstable():
    """Another dataset with each load."""
    return Task(dataset=[Sample(input=os.urandom(4).hex(), target="1")], scorer=match())


@scorer(metrics=[accuracy()])
def commands():
    """Has the sandbox do what a sample's metadata names, and scores its success."""

    async def score(state, target):
        here, what = sandbox(), state.metadata["what"]
        if what == "files":
            await here.write_file("pkg/a.py", "def three():\n    return 3\n")
            await here.write_file(
                "main.py", "import os, sys\nfrom pkg.a import three\nos.mkdir('out')\n"
                "open('out/x', 'w').write(sys.argv[1])\nprint(three())\nsys.exit(4)\n"
            )  # fmt: skip
            done = await here.exec(["python3", "main.py", "hello"])
            wrote = await here.read_file("out/x")
            assert (done.returncode, done.stdout, wrote) == (4, "3\n", "hello"), done
            done = await here.exec(["python", "-c", "import os; os.remove('out/x')"])
            try:
                await here.read_file("out/x")
            except FileNotFoundError:
                return Score(value="C")
        try:
            command, given = state.metadata["command"], state.metadata.get("input")
            done = await here.exec(command, input=given, timeout=1)
        except TimeoutError:
            return Score(value=INCORRECT, explanation="it took too long")
        return Score(value="C" if done.success else "I", explanation=f"{done.stdout}|{done.stderr}")

    return score


COMMANDS = {
    "right": ["python", "-c", "print(open('data.txt').read()); assert 1 + 1 == 2"],
    "wrong": ["python", "-c", "assert 1 + 1 == 3"],
    "endless": ["python", "-c", "while True: pass"],
    "exit": ["python", "-c", "import os; os._exit(0)"],
    "tool": ["bash", "--login", "-c", "python3 -"],
    "module": ["python3", "-m", "unittest", "-q", "test_it"],
    "shell": ["bash", "-c", "ls"],
    "files": [],
}


@task
def programs():
    """Commands in a sandbox."""
    files = {
        "data.txt": "hello",
        "test_it.py": "import unittest\nclass T(unittest.TestCase):\n  def test(self): pass\n",
    }
    samples = [
        Sample(input=name, id=name, files=files, metadata={"what": name, "command": command, "input": "print(1)"})
        for name, command in COMMANDS.items()
    ]
    return Task(dataset=samples, scorer=commands(), sandbox="docker")
