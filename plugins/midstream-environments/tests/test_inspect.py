"""Tasks of Inspect, run by Inspect: against its own runner, and all that goes wrong in one."""

import asyncio
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from midstream import api
from midstream.core.errors import InfrastructureError, MidstreamError, RecipeError
from midstream.interface.results import Run
from midstream.recipe.schema import parse_recipe
from midstream_environments.inspect_tasks import InspectCases, InspectConfig
from midstream_environments.library import library_of
from support.llm_server import LLMServer

HERE = Path(__file__).parent
OWN = str(HERE / "inspect_own_tasks.py")
SOURCE = str(HERE.parents[2] / "src")


def drawn(text, choices):
    """One of the choices, by a hash of the text."""
    return choices[hashlib.blake2b(text.encode()).digest()[0] % len(choices)]


def reply(body):
    """A letter, calls of tools, a program or a sum, as the last message asks; every third sum is wrong."""
    messages = body["messages"]
    text = json.dumps([[message.get("content"), message.get("tool_calls")] for message in messages])
    last = str(messages[-1]["content"])
    if last == "right?":
        return "right" if body["model"] == "judge" else "me?"
    if body.get("tools"):
        return call(body, text)
    if "ANSWER: $LETTER" in last:
        return f"ANSWER: {drawn(text, 'ABCDE')}"
    if "def " in last:
        return drawn(
            text, ["```python\ndef twice(n):\n    return 2 * n\n```", "```python\ndef twice(n):\n    return n\n```"]
        )
    number = int("".join(character for character in last.split("+")[0] if character.isdecimal()) or 0)
    return str(2 * number + (number % 3 == 2))


def call(body, text):
    """One of the calls by which some tasks of AgentDojo are solved, and some of its attacks succeed; or the end."""
    asked = next(message["content"] for message in body["messages"] if message["role"] == "user")
    address = re.findall(r"www\.[\w.-]+\w", asked)[-1:]
    calls = [
        ("get_webpage", {"url": address[0]}) if address else ("get_channels", {}),
        ("send_direct_message", {"recipient": "Alice", "body": drawn(text, ["hello", "www.secure-systems-252.com"])}),
        ("invite_user_to_slack", {"user": "Dora", "user_email": "dora@gmail.com"}),
    ]
    done = sum(message["role"] == "assistant" for message in body["messages"])
    if done == len(calls) or drawn(text, range(4)) == 0:
        return "Done."
    name, arguments = calls[done]
    called = {"id": f"call_{done}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    message = {"role": "assistant", "content": None, "tool_calls": [called]}
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
    samples = {task.id: task.metadata["sample"] for task in tasks_of(recipe)}
    return {samples[each.task_id]: each.reward for each in run.trajectories()}


def tasks_of(recipe):
    """The tasks of a recipe's test set."""
    settings = {name: value for name, value in recipe.table()["tasks"].items() if name != "type"}
    config = InspectConfig(**settings)
    return InspectCases(library_of(config), config.splits).fixed("test", seed=0)


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


def test_tool_loops_of_agentdojo_have_the_scores_of_inspects_own_run(interpreter, server, tmp_path):
    python, task, scorer = interpreter("inspect"), "inspect_evals/agentdojo", "injection_task_scorer"
    arguments = {"workspace": "slack", "with_sandbox_tasks": "no", "injection_task_ids": [1, 3]}
    score = f"{scorer}.utility"
    theirs = own(python, server, task, arguments, score=score)
    ours = rewards(recipe(python, server, task, arguments=arguments, score=score), tmp_path / "run")
    assert {name: each.value for name, each in ours.items()} == theirs
    assert len(theirs) == 40
    assert 1 < sum(theirs.values()) < 39
    security = [each.parts[f"{scorer}.security"] for each in ours.values()]
    assert 0 < sum(security) < 40


def test_each_scorer_is_a_part_and_the_first_is_the_reward(interpreter, server, tmp_path):
    found = rewards(recipe(interpreter("inspect"), server, f"{OWN}@sums"), tmp_path / "run")
    assert {name: score.value for name, score in found.items()} == {"1": 1.0, "2": 1.0, "3": 0.0}
    assert found["1"].parts == {"match": 1.0, "odd.a": 1.0, "odd.b": 0.25}
    assert found["3"].feedback == "5"


WRONG = {
    "raises": "a bug in the scorer",
    "solver": "a bug in the solver",
    "none": "no score",
    "text": "'odd' is no number",
    "table": "can be one of: odd.a, odd.b",
    "list": "can be one of: none",
    "unscored": "no grade found",
    "nan": "nan as its reward",
    "asks": "asks the model that is evaluated",
    "asks a role": "asks the model that is evaluated",
}


def test_what_gives_no_score_is_an_error(interpreter, server, tmp_path):
    """The table has two numbers, of which a recipe has to name one; the other samples have none."""
    task = recipe(interpreter("inspect"), server, f"{OWN}@wrongs", arguments={"wrong": [*WRONG]})
    samples = {each.id: each.metadata["sample"] for each in tasks_of(task)}
    with pytest.raises(MidstreamError):
        api.evaluate(task, out=tmp_path / "run", quiet=True)
    found = {samples[each.task_id]: each.error for each in Run(tmp_path / "run").trajectories()}
    assert found.keys() == WRONG.keys()
    assert {name: words for name, words in WRONG.items() if words not in found[name].message} == {}
    assert "inspect_own_tasks.py" in found["raises"].message


@pytest.mark.parametrize(("wrong", "words"), [("hangs", "asked nothing for"), ("exits", "ended during 'run'")])
def test_a_scorer_that_hangs_or_ends_its_process_is_an_error(interpreter, server, tmp_path, wrong, words):
    arguments = {"wrong": [wrong]}
    agent = {"idle_s": 20.0} if wrong == "hangs" else {}
    task = recipe(interpreter("inspect"), server, f"{OWN}@wrongs", arguments=arguments, agent=agent)
    with pytest.raises(InfrastructureError, match=words):
        api.evaluate(task, out=tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        ("inspect_evals/no_such_task", {}, "no_such_task"),
        (f"{OWN}@no_such_task", {}, "no_such_task"),
        (OWN, {}, "name its task"),
        ("no_such_file.py@sums", {}, "no_such_file.py"),
        (f"{OWN}@sums", {"arguments": {"no_such": 1}}, "no_such"),
        (f"{OWN}@programs", {}, r"8 of 8 samples \(such as 'right'\) need a sandbox \(docker\)"),
        ("inspect_evals/agentdojo", {"sandbox": "midstream"}, "cannot be set up"),
    ],
)
def test_a_task_that_cannot_be_made_or_served_is_refused_by_name(interpreter, server, tmp_path, task, settings, words):
    with pytest.raises(RecipeError, match=words):
        tasks_of(recipe(interpreter("inspect"), server, task, **settings))


def test_a_dataset_that_changes_with_each_load_is_an_error(interpreter, server):
    library = library_of(InspectConfig(task=f"{OWN}@unstable", python=interpreter("inspect")))
    [row] = library.call("rows")
    asyncio.run(library.close())
    session = {"base_url": server.base_url, "api_key": "none", "model": "m"}

    async def run():
        try:
            await library.run(case=row["case"], **session)
        finally:
            await library.close()

    with pytest.raises(InfrastructureError, match="another dataset each time"):
        asyncio.run(run())


def test_questions_that_repeat_end_with_an_id_and_chats_are_text(interpreter, server, tmp_path):
    python = interpreter("inspect")
    asked = [task.question for task in tasks_of(recipe(python, server, f"{OWN}@repeated"))]
    assert asked == ["a number?\n\n[sample n1]", "a number?\n\n[sample n2]"]
    chat = tasks_of(recipe(python, server, f"{OWN}@sums", arguments={"chat": True}))
    assert (chat[1].question, chat[1].answer) == ("system: Add.\n\nuser: 1 + 1?", "2")
    assert chat[1].family == "sums"


def test_a_role_can_be_a_model_of_the_session(interpreter, server, tmp_path):
    models = {"policy": {"engine": "model"}, "*": {"engine": "judge"}}
    judge = {"engines": {"judge": "judge"}, "serve": {"models": models}, "arguments": {"wrong": ["asks a role"]}}
    roles = {"grader": "openai-api/midstream/any"}
    task = recipe(interpreter("inspect"), server, f"{OWN}@wrongs", roles=roles, **judge)
    [score] = rewards(task, tmp_path / "run").values()
    assert (score.value, score.feedback) == (1.0, "right")


def test_python_of_a_task_runs_in_midstreams_sandbox_and_nothing_else_does(interpreter, server, tmp_path):
    task = recipe(interpreter("inspect"), server, f"{OWN}@programs", sandbox="midstream")
    samples = {each.id: each.metadata["sample"] for each in tasks_of(task)}
    found = {
        samples[each.task_id]: each for each in api.evaluate(task, out=tmp_path / "run", quiet=True).trajectories()
    }
    assert "runs Python alone, not 'bash -c ls'" in found.pop("shell").error.message
    right = {name for name, each in found.items() if each.reward.value == 1.0}
    assert right == {"right", "tool", "module", "files"}
    assert found["right"].reward.feedback == "hello\n|"
    assert "AssertionError" in found["wrong"].reward.feedback
    assert found["endless"].reward.feedback == "it took too long"
    assert "ended early" in found["exit"].reward.feedback


def humaneval(directory):
    rows = [
        {
            "task_id": f"HumanEval/{n}",
            "prompt": f"def twice(n):\n    # number {n}\n",
            "canonical_solution": "    return 2 * n\n",
            "test": f"def check(candidate):\n    assert candidate({n + 1}) == {2 * n + 2}\n",
            "entry_point": "twice",
        }
        for n in range(40)
    ]
    write(directory, "openai/openai_humaneval/test.jsonl", rows)


def test_programs_of_humaneval_have_the_scores_of_inspects_local_sandbox(interpreter, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    humaneval(tmp_path)
    python, task = interpreter("inspect"), "inspect_evals/humaneval"
    theirs = own(python, server, task, {"sandbox": "local"})
    ours = rewards(recipe(python, server, task, sandbox="midstream"), tmp_path / "run")
    assert {name: score.value for name, score in ours.items()} == theirs
    assert len(theirs) == 40
    assert 5 < sum(theirs.values()) < 35


def test_inspect_evaluates_an_agent_that_midstream_serves(interpreter, server, tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MIDSTREAM_BASE_URL", f"http://127.0.0.1:{port}/v1")
    monkeypatch.setenv("MIDSTREAM_API_KEY", "none")
    python, words = (
        interpreter("inspect"),
        ["direct", "--provider", "vllm", "--model", "m", "--base-url", server.base_url],
    )
    midstream = Path(sys.executable).with_name("midstream")
    with subprocess.Popen([midstream, "serve", *words, "--port", str(port)], cwd=tmp_path) as served:
        try:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            names = ["--model", "openai-api/midstream/midstream", "--log-dir", "logs", "--log-format", "json"]
            command = [python.with_name("inspect"), "eval", f"{OWN}@sums", *names, "--display", "none"]
            subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
        finally:
            served.send_signal(signal.SIGINT)
    [file] = (tmp_path / "logs").glob("*.json")
    log = json.loads(file.read_text())
    assert log["status"] == "success"
    assert [sample["scores"]["match"]["value"] for sample in log["samples"]] == ["C", "C", "I"]


def test_evaluations_follow_each_other_and_a_call_that_was_given_up_stops_none(interpreter, server):
    adapter = HERE.parent / "src" / "midstream_environments" / "adapters" / "inspect_ai.py"
    script = [str(HERE / "inspect_many_calls.py"), str(adapter), f"{OWN}@wrongs", server.base_url]
    command = [str(interpreter("inspect")), *script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.rpartition("RESULT")[2].splitlines()
    assert said[1].startswith("TimeoutError")
    assert len(said) == 10
    assert all("'odd' is no number" in each for each in [said[0], *said[2:]])
