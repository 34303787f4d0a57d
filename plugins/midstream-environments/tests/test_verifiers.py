"""Environments of verifiers, of both generations, against verifiers' own runner."""

import json
import random
import re
import subprocess
from pathlib import Path

import pytest

from chat_server import ChatServer, called
from midstream import api
from midstream.core.errors import InfrastructureError, RecipeError
from midstream.recipe.files import read_table
from midstream.recipe.schema import parse_recipe

MODULES = Path(__file__).with_name("verifiers_modules")
OLD, NEW, TOOLS = (str(MODULES / name) for name in ("sums_01.py", "sums_04.py", "doubles_04.py"))
GENERATIONS = pytest.mark.parametrize(("environment", "module"), [("verifiers01", OLD), ("verifiers", NEW)])


def reply(messages):
    """Sums are wrong where the number ends in 3; guesses go up and down; the tool's answer is the answer."""
    last = messages[-1]
    text = last["content"] if isinstance(last["content"], str) else last["content"][0]["text"]
    number = int("".join(re.findall(r"\d+", text)[-1:]) or 0)
    if last["role"] == "tool":
        return text
    if "+" in text:
        return str(2 * number) if number % 10 != 3 else "I do not know that one"
    if text.startswith("Double"):
        return called(("math_" if "system" not in messages[0]["role"] else "") + "double", {"number": number})
    if text.startswith("Guess"):
        return str(number - number % 10)
    return str(number + (1 if "More" in text else -1)) if "than" in text[:9] else written(text)


def written(text):
    """Some lines with claims and quotes, other ones for each text."""
    draw = random.Random(text)
    words = text.split()
    starts = [draw.randrange(len(words)) for _ in range(draw.randint(1, 6))]
    return "\n".join(f"<claim>{words[at]}</claim> <cite>{' '.join(words[at : at + 9])}</cite>" for at in starts)


def recipe(python, module, server, *, arguments=None, agent=None, sets=("train", "validation", "test"), **tasks):
    table = {
        "name": "verifiers",
        "agent": {"type": "environment", "engine": "model", **(agent or {})},
        "engines": {"model": {"type": "openai_compatible", "model": "m", "base_url": server.base_url}},
        "tools": {},
        "reward": {"type": "environment"},
        "tasks": {"type": "verifiers", "environment": module, "arguments": arguments or {}, "python": str(python)},
        "rollout": {"max_attempts": 1, "concurrency": 16},
        "evaluation": {"temperatures": ["own"], "sets": [{"name": f"all-{name}", "split": name} for name in sets]},
    }
    table["tasks"] |= {"range": [0.0, 3.5], **tasks}
    return parse_recipe(table)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def own(python, module, arguments, server, tmp_path):
    """What verifiers' own runner says: the reward and the parts of each question."""
    words = [module, json.dumps(arguments), server.base_url, str(tmp_path)]
    for _ in range(3):
        server.requests.clear()
        done = subprocess.run(
            [str(python), MODULES / "own_runner.py", *words], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "own.json").read_text())
        # On a busy machine some of its runs break down, which it counts as 0 without parts.
        if all(parts for _, parts in found.values()):
            break
    return found


def contents(server):
    """The conversations that a server was asked to continue."""
    return sorted([str(message["content"]) for message in request["messages"]] for request in server.requests)


@pytest.mark.parametrize(
    ("environment", "module", "arguments", "sets", "count"),
    [
        ("verifiers01", OLD, {"count": 67}, ["test"], 201),
        ("verifiers", NEW, {"count": 200}, ["train", "validation", "test"], 200),
        # Packages of the index, which nobody here wrote.
        ("verifiers01", "stardata.envs.constraint_gym", {"topics_per_form": 24}, ["train", "validation", "test"], 200),
        ("verifiers01", "sophistry-bench-sprint", {}, ["train", "validation", "test"], 50),
    ],
    ids=["0.1", "0.4", "stardata", "sophistry"],
)
def test_rewards_are_those_of_its_own_runner(interpreter, tmp_path, environment, module, arguments, sets, count):
    python = interpreter(environment)
    with ChatServer(reply) as server:
        expected = own(python, module, arguments, server, tmp_path)
        asked = contents(server)
        server.requests.clear()
        run = api.evaluate(recipe(python, module, server, arguments=arguments, sets=sets), out=tmp_path / "run")
        assert contents(server) == asked
    found = {trajectory.question: trajectory.reward for trajectory in run.trajectories()}
    assert found.keys() == expected.keys()
    assert len(found) >= count
    for question, (reward, parts) in expected.items():
        assert found[question].value * 3.5 == pytest.approx(reward)
        # A metric that fails is left out here, and 0 there.
        assert {**dict.fromkeys(parts, 0.0), **found[question].parts} == parts
    assert len({reward for reward, _ in expected.values()}) > 2


def errors(run):
    """What the runs ended with, by kind: a reward, or an error's words."""
    return {trajectory.error.message if trajectory.error else "a reward" for trajectory in run.trajectories()}


@GENERATIONS
def test_a_rubric_that_fails_is_an_error(interpreter, tmp_path, environment, module):
    """verifiers 0.1 counts a reward function that raises, or returns nothing, as 0."""
    arguments = {"count": 20, "wrong": ["", "raises", "none", "nan"]} | ({"families": ["sum"]} if module == OLD else {})
    with ChatServer(reply) as server:
        chosen = recipe(interpreter(environment), module, server, arguments=arguments, sets=["train"])
        run = api.evaluate(chosen, out=tmp_path / "run")
    found = "\n".join(sorted(errors(run)))
    assert re.search(r"ValueError: a bug at \d+", found)
    assert "TypeError: float() argument must be" in found
    assert "the environment gave nan as its reward" in found
    for trajectory in run.trajectories():
        if trajectory.error is None:
            # Without a weight in the reward, what fails is no error, and no number.
            assert "fourth" not in trajectory.reward.parts
            assert trajectory.reward.parts["third"] == 0.5
    assert 0 < sum(trajectory.error is None for trajectory in run.trajectories()) < 6


def test_a_rubric_that_hangs_is_an_error_and_its_process_ends(interpreter, tmp_path):
    python, changes = interpreter("verifiers"), {"agent": {"idle_s": 1.0}, "sets": ["train"]}
    with ChatServer(reply) as server:
        chosen = recipe(python, NEW, server, arguments={"count": 3, "wrong": ["hangs"]}, **changes)
        with pytest.raises(InfrastructureError, match="asked nothing for 1 s"):
            api.evaluate(chosen, out=tmp_path / "run")


def test_tools_and_a_harness_of_verifiers_own(interpreter, tmp_path):
    with ChatServer(reply) as server:
        chosen = recipe(interpreter("verifiers"), TOOLS, server, count=2, sets=["train"])
        run = api.evaluate(chosen, out=tmp_path / "run")
    assert errors(run) == {"a reward"}
    assert [trajectory.reward.parts for trajectory in run.trajectories()] == [{"correct": 1.0, "used": 1.0}] * 2
    assert [len(trajectory.calls) for trajectory in run.trajectories()] == [2, 2]


def test_a_game_that_comes_with_verifiers(interpreter, tmp_path, monkeypatch):
    """TextArena's Hangman, with words in the format of NLTK's, which are elsewhere downloaded."""
    python = interpreter("verifiers")
    words = tmp_path / "corpora" / "words"
    words.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (words / name).write_text("stone\napple\nriver\n")
    (words / "README").write_text("")
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    with ChatServer(lambda messages: f"[{'stonexyzqj'[len(messages) // 2 - 1]}]") as server:
        chosen = recipe(python, "textarena", server, arguments={"game": "Hangman-v0"}, count=2, sets=["train"])
        run = api.evaluate(chosen, out=tmp_path / "run")
    assert errors(run) == {"a reward"}
    for trajectory in run.trajectories():
        assert len(trajectory.calls) >= 5
        assert trajectory.reward.parts.keys() == {"game_reward"}


@pytest.mark.parametrize(
    ("environment", "tasks", "message"),
    [
        ("verifiers01", {"environment": "no-such-environment"}, "Could not import 'no-such-environment' environment"),
        ("verifiers01", {"arguments": {"wrong": ["group"]}}, "scores a group of rollouts at once"),
        ("verifiers01", {"env": {"id": "best-of-n"}}, "tasks.env is for verifiers 0.4"),
        ("verifiers", {"environment": "no-such-environment"}, "taskset 'no-such-environment' not found"),
        ("verifiers", {"environment": TOOLS}, "has no end of tasks: set tasks.count"),
        ("verifiers", {"env": {"id": "user-sim"}}, "has the agents assistant, user"),
        ("verifiers", {"env": {"player": {"harness": {"id": "bash"}}}}, "runs commands of the model"),
    ],
)
def test_what_is_not_mapped_is_refused(interpreter, environment, tasks, message):
    with ChatServer(reply) as server:
        module = OLD if environment == "verifiers01" else NEW
        chosen = recipe(interpreter(environment), module, server, **tasks)
        with pytest.raises(RecipeError, match=re.escape(message)):
            chosen.tasks.config.check_machine("tasks")


@GENERATIONS
def test_a_step_of_grpo_trains_what_the_environment_asked(interpreter, tmp_path, environment, module):
    """The reward `short` differs between replies of a model that knows no sums."""
    python = str(interpreter(environment))
    tasks = {
        "type": "verifiers",
        "environment": module,
        "arguments": {"count": 30},
        "python": python,
        "range": [0.0, 3.5],
    }
    if module == OLD:
        tasks["arguments"]["families"] = ["sum", "double"]
    small = {"steps": 1, "tasks_per_step": 4, "group_size": 4, "warmup_steps": 1, "decay_steps": 0, "minibatches": 1}
    file = tmp_path / "recipe.toml"
    file.write_text('extends = "own-agent-tiny"\nname = "verifiers-tiny"\n')
    table = read_table(str(file))
    table |= {
        "tasks": tasks,
        "agent": {"type": "environment", "engine": "policy", "sampling": {"max_tokens": 24}},
        "reward": {"type": "environment"},
        "tools": {},
    }
    table["training"] |= small
    table["evaluation"] = {"at": "none", "sets": [], "validation": {"per_family": 1}}
    run = api.train(parse_recipe(table), out=tmp_path / "run").directory
    [step] = run.metrics.read()
    assert (step.trajectories, step.trajectories_error) == (16, 0)
    assert step.rows > 0
