"""Tasks of Inspect, run by Inspect: against its own runner, and all that goes wrong in one."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from midstream import api
from midstream.core.errors import InfrastructureError, MidstreamError, RecipeError, RewardError
from midstream.recipe.schema import parse_recipe
from midstream_environments.inspect_tasks import InspectConfig
from midstream_environments.library import library_of
from support.llm_server import LLMServer

HERE = Path(__file__).parent
OWN = str(HERE / "inspect_own_tasks.py")
SOURCE = str(HERE.parents[2] / "src")


def drawn(text, choices):
    """One of the choices, by a hash of the text."""
    return choices[hashlib.blake2b(text.encode()).digest()[0] % len(choices)]


def reply(body):
    """Letters where a letter is asked for, calls of tools where there are some, and sums, of which every third is wrong."""
    messages = body["messages"]
    text = json.dumps([[message.get("content"), message.get("tool_calls")] for message in messages])
    last = str(messages[-1]["content"])
    if last == "right?":
        return "right" if body["model"] == "judge" else "me?"
    if tools := body.get("tools"):
        return call(body, text, tools) if len(messages) < 8 else "Done."
    if "ANSWER: $LETTER" in last:
        return f"ANSWER: {drawn(text, 'ABCDE')}"
    if "def " in last:
        return drawn(
            text, ["```python\ndef twice(n):\n    return 2 * n\n```", "```python\ndef twice(n):\n    return n\n```"]
        )
    number = int("".join(character for character in last.split("+")[0] if character.isdecimal()) or 0)
    return str(2 * number + (number % 3 == 2))


def call(body, text, tools):
    """A tool call with arguments that tasks of AgentDojo name, or the end."""
    words = ["Alice", "Bob", "general", "www.informations.com", "www.secure-systems-252.com", "GB29NWBK60161331926819"]
    function = drawn(text, tools)["function"]
    arguments = {
        name: drawn(text + name, words) if spec.get("type") == "string" else 1
        for name, spec in function["parameters"]["properties"].items()
    }
    called = {"name": function["name"], "arguments": json.dumps(arguments)}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{len(body['messages'])}", "type": "function", "function": called}],
    }
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message, "logprobs": None}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    # What inspect keeps of data sets, and its sandbox, which is midstream's.
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    with LLMServer(reply) as server:
        yield server


def recipe(python, server, task, *, agent=None, engines=None, serve=None, attempts=1, **tasks):
    model = {"type": "openai_compatible", "base_url": server.base_url}
    table = {
        "name": "inspect",
        "agent": {"type": "environment", "engine": "model", **(agent or {})},
        "engines": {name: model | {"model": of} for name, of in ({"model": "m"} | (engines or {})).items()},
        "tools": {},
        "reward": {"type": "environment"},
        "tasks": {"type": "inspect", "task": task, "python": str(python), **tasks},
        "rollout": {"max_attempts": attempts, "concurrency": 16},
        "evaluation": {"temperatures": ["own"], "sets": [{"name": "test", "split": "test"}]},
    }
    return parse_recipe(table | ({"serve": serve} if serve else {}))


def rewards(recipe, out):
    """The score of each sample."""
    run = api.evaluate(recipe, out=out, quiet=True)
    source = recipe.tasks_config if hasattr(recipe, "tasks_config") else None
    assert source is None
    samples = {task.id: task.metadata["sample"] for task in tasks_of(recipe)}
    return {samples[each.task_id]: each.reward for each in run.trajectories()}


def tasks_of(recipe):
    """The tasks of a recipe's test set."""
    settings = {name: value for name, value in recipe.table()["tasks"].items() if name != "type"}
    cases = InspectConfig(**settings)
    from midstream_environments.inspect_tasks import InspectCases

    return InspectCases(library_of(cases), cases.splits).fixed("test", seed=0)


def own(python, server, task, arguments, *, sandbox="", score=""):
    """What inspect's own runner says of each sample."""
    command = [str(python), str(HERE / "inspect_own_runner.py"), task, json.dumps(arguments)]
    done = subprocess.run(
        [*command, server.base_url, sandbox, score], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.rpartition("RESULT")[2])


def write(directory, name, rows):
    """Rows where `datasets` looks for a data set of that name: beneath the working directory."""
    file = Path(directory, name)
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def commonsense_qa(directory):
    rows = [
        {
            "id": f"q{n}",
            "question": f"Where is thing {n}?",
            "question_concept": "thing",
            "choices": {"label": [*"ABCDE"], "text": [f"place {n * 7 % 13 + place}" for place in range(5)]},
            "answerKey": "ABCDE"[n * 3 % 5],
        }
        for n in range(200)
    ]
    write(directory, "tau/commonsense_qa/validation.jsonl", rows)


def test_two_hundred_multiple_choices_have_the_scores_of_inspects_own_run(interpreter, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commonsense_qa(tmp_path)
    python, task = interpreter("inspect"), "inspect_evals/commonsense_qa"
    theirs = own(python, server, task, {})
    ours = rewards(recipe(python, server, task), tmp_path / "run")
    assert {name: score.value for name, score in ours.items()} == theirs
    assert len(theirs) == 200
    assert 10 < sum(theirs.values()) < 100
