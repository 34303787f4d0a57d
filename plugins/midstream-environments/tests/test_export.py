"""Recipes as environments of others: the rewards there are midstream's own, on the same replies."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import midstream as ms
from midstream.cli.main import main
from midstream.core.errors import MidstreamError
from midstream.recipe.build import Build
from midstream.recipe.overrides import changed_recipe
from midstream_environments.export import export
from midstream_environments.exported import World

OWN = {
    "helper.py": "def upper(text):\n    return text.upper()\n",
    "my_tools.py": "from helper import upper\n\ndef shout(text: str) -> str:\n"
    '    """Write a text in capital letters."""\n    return upper(text)\n',
    "my_rewards.py": "def close(answer: str, gold: str, slack: float = 0.5) -> float:\n"
    "    return 1.0 if answer == gold else slack if answer.lower() == gold.lower() else 0.0\n\n"
    "def long(trajectory) -> float:\n    return 0.0\n\n"
    'def broken(answer: str) -> float:\n    raise KeyError("a bug in the reward")\n',
    "my.toml": 'extends = "direct"\nname = "shouting"\ntasks = { type = "file", path = "my.jsonl" }\n'
    '[tools.shout]\ntype = "function"\nfunction = "my_tools.py:shout"\n'
    '[reward]\ntype = "my_rewards.py:close"\nslack = 0.25\n',
}


@pytest.fixture
def own(tmp_path):
    """A recipe with a tool and a reward of its own, and 100 questions in two splits."""
    rows = [
        {
            "question": f"Shout word{number}",
            "answer": f"WORD{number}",
            "split": "train" if number < 40 else "test",
            "size": number,
        }
        for number in range(100)
    ]
    for name, text in (OWN | {"my.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)}).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / "my.toml"


def exported(recipe, out, **options):
    return export(changed_recipe(str(recipe)), out=out, **options)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_are_read_back_as_the_same_tasks(tmp_path):
    rows = [
        {"question": "How high?", "answer": ["12 m", "12 meters"], "family": "height", "source": "a book"},
        {"question": "Which?", "answer": "B", "options": ["a cat", "a dog"], "split": "train"},
        {"question": "Why?", "answer": "because", "rubric": "names the cause", "reward": "f1"},
    ]
    for row in rows:
        row.setdefault("split", "test")
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "a.toml").write_text('extends = "direct"\nname = "a"\ntasks = { type = "file", path = "rows.jsonl" }\n')
    assert exported(tmp_path / "a.toml", tmp_path / "out", form="jsonl").tasks == {"train": 1, "test": 2}

    def read(path):
        source = Build(changed_recipe("direct", tasks=str(path))).source
        found = [*source.fixed("train", seed=1), *source.fixed("test", seed=1)]
        return [task.model_copy(update={"metadata": {**task.metadata, "row": ""}}) for task in found]

    assert read(tmp_path / "out" / "tasks.jsonl") == read(tmp_path / "rows.jsonl")
    [row] = map(json.loads, (tmp_path / "out" / "train.jsonl").read_text().splitlines())
    assert row["prompt"] == [{"role": "user", "content": "Which?\nA. a cat\nB. a dog"}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "B"}


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "changes", "code", "named"),
    [
        ("function-calling-tiny", {}, "dialogues-not-supported", "'desks'"),
        ("artist-tiny", {}, "export-not-supported", "reward.type = 'artist_math'"),
        ("lessons-small", {}, "export-not-supported", "tools.base_generator"),
        (
            "tool-use-small",
            {"reward": {"type": "judge", "engine": "policy"}},
            "export-not-supported",
            "reward.type = 'judge'",
        ),
        ("direct", {}, "no-tasks", "no tasks"),
    ],
)
def test_what_cannot_be_exported_is_named_and_nothing_is_written(tmp_path, recipe, changes, code, named):
    with pytest.raises(MidstreamError, match=named) as raised:
        export(changed_recipe(recipe, **changes), form="verifiers", out=tmp_path / "out")
    assert raised.value.code == code
    assert not (tmp_path / "out").exists()


def test_more_tasks_than_there_are_is_refused(own, tmp_path):
    with pytest.raises(MidstreamError, match="there are 40"):
        exported(own, tmp_path / "out", form="jsonl", split="train", count=41)
    assert not (tmp_path / "out").exists()


def test_a_reward_that_reads_the_trajectory_is_refused(own, tmp_path):
    with pytest.raises(MidstreamError, match="takes `trajectory`"):
        export(
            changed_recipe(str(own), reward=f"{own.parent}/my_rewards.py:long"), form="openenv", out=tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "code"), [("taken", "file-exists"), ("json", "name-clash"), ("2fast", "name-invalid")]
)
def test_a_folder_that_is_there_or_has_no_name_of_a_package_is_refused(own, tmp_path, name, code, capsys):
    (tmp_path / "taken").mkdir()
    words = ["environments", "export", str(own), "--format", "verifiers", "--out", str(tmp_path / name)]
    assert main(words) == 2
    assert f"error[{code}]" in capsys.readouterr().err
    assert not [*(tmp_path / "taken").iterdir()]


# -- the world of a package --------------------------------------------------------------------------------------------


def test_a_package_holds_all_that_its_recipe_needs(own, tmp_path, capsys):
    out = tmp_path / "shout_env"
    words = ["environments", "export", str(own), "--format", "openenv", "--out", str(out), "--count", "7", "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"path": str(out), "format": "openenv", "tasks": {"train": 7, "test": 7}, "tools": ["shout"]}
    for name in ("my_tools.py", "my_rewards.py", "helper.py", "my.toml", "my.jsonl"):
        own.with_name(name).unlink()
    world = World(out / "shout_env" / "world")
    case = world.cases("test")[0]
    run, word = world.open(case), world.tasks[case].answer

    async def work():
        called = await run.call("shout", {"text": "abc"})
        wrong = await run.call("shout", {"text": 3})
        unknown = await run.call("whisper", {})
        replies = (word, f"It is <answer>{word.lower()}</answer>", "no", "", None)
        return called, wrong, unknown, [(await run.score(reply)).value for reply in replies]

    called, wrong, unknown, scores = asyncio.run(work())
    world.close()
    assert (called.text, called.ok) == ("ABC", True)
    assert not wrong.ok
    assert "is not of type" in wrong.text
    assert unknown.text == "no tool is called 'whisper' (tools: shout)"
    assert scores == [1.0, 0.25, 0.0, 0.0, 0.0]
    with pytest.raises(MidstreamError, match="no task 'test/other'"):
        world.open("test/other")
    with pytest.raises(MidstreamError, match="no split 'validation'"):
        world.cases("validation")


def test_a_reward_that_raises_is_an_error(own, tmp_path):
    export(
        changed_recipe(str(own), reward=f"{own.parent}/my_rewards.py:broken"),
        form="openenv",
        out=tmp_path / "bad_world",
    )
    world = World(tmp_path / "bad_world" / "bad_world" / "world")
    with pytest.raises(MidstreamError, match="a bug in the reward"):
        asyncio.run(world.open(world.cases("test")[0]).score("x"))
    world.close()


def test_the_libraries_are_listed(capsys):
    assert main(["environments", "list", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out):
        assert set(row) == {"type", "library", "installed", "tested"}


# -- with the libraries ------------------------------------------------------------------------------------------------


@contextmanager
def served(replies: Path):
    """The address of a server that gives these replies."""
    script = Path(__file__).with_name("scripted_server.py")
    with subprocess.Popen([sys.executable, str(script), str(replies)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def scripted(world: Path, tool: str, argument: str, split: str = "test") -> dict[str, object]:
    """Right, wrong and empty replies, some after calls of a tool with right and wrong arguments."""
    lines = [json.loads(line) for line in (world / "tasks.jsonl").read_text().splitlines()]
    tasks = [line["task"] for line in lines if line["split"] == split]
    found = {}
    for number, task in enumerate(tasks):
        answer = task["answer"]
        call = [tool, {argument: f"print({answer!r})"}]
        found[task["question"]] = [
            {"reply": f"So it is <answer>{answer}</answer>"},
            {"reply": "I think it is 17."},
            {"reply": answer.lower()},
            {"calls": [call], "reply": "<answer>{0}</answer>"},
            {"calls": [[tool, {"wrong": 1}], call], "reply": f"{answer}"},
            {"reply": ""},
            {"reply": f"Not {answer}, or is it?"},
        ][number % 7]
    return found


def rewards_of_midstream(world: Path, rows: Path, address: str, out: Path) -> dict[str, float]:
    """The rewards of midstream's own agent with the same recipe and the same server, by task."""
    recipe = str(world / "recipe.toml")
    reward = changed_recipe(recipe).reward.table()
    run = ms.evaluate(recipe, ms.tasks(rows).test, reward=reward, base_url=address, model="m", out=out, quiet=True)
    return {run.task_id: run.reward.value for run in run.trajectories() if run.reward is not None}


def installed(python: Path, package: Path, into: Path) -> dict[str, str]:
    """Install a package next to those of an interpreter; the environment variables with which it finds it."""
    words = [
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--target",
        str(into),
        str(package),
    ]
    subprocess.run([python, *words], check=True, capture_output=True)
    return os.environ | {"PYTHONPATH": str(into), "KEY": "x", "PATH": f"{python.parent}:{os.environ['PATH']}"}


def compared(own, tmp_path, form, count, recipe=None, tool="shout", argument="text"):
    """An exported package, its rows in midstream's form, and the replies to its test questions."""
    source = recipe or own
    out, world = tmp_path / "other_world", tmp_path / "other_world" / "other_world" / "world"
    exported(source, out, form=form, split="test", count=count)
    exported(source, tmp_path / "rows", form="jsonl", split="test", count=count)
    replies = tmp_path / "replies.json"
    replies.write_text(json.dumps(scripted(world, tool, argument)))
    return out, world, tmp_path / "rows" / "tasks.jsonl", replies


CLASSIC = """
import asyncio, json, sys
import verifiers as vf
from verifiers.types import ClientConfig

async def main():
    env = vf.load_environment("other-world")
    rows = env.get_eval_dataset()
    client = ClientConfig(api_key_var="KEY", api_base_url=sys.argv[1])
    found = await env.generate(rows, client=client, model="m", max_concurrent=8)
    print(json.dumps([[row["info"]["case"], row["reward"], row.get("error")] for row in found["outputs"]]))

asyncio.run(main())
"""


def test_verifiers_0_1_gives_the_same_rewards(own, tmp_path, interpreter):
    python = interpreter("verifiers01")
    out, world, rows, replies = compared(own, tmp_path, "verifiers", 80, "tool-use-small", "python", "code")
    variables = installed(python, out, tmp_path / "site")
    with served(replies) as address:
        expected = rewards_of_midstream(world, rows, address, tmp_path / "run")
        ran = subprocess.run(
            [python, "-c", CLASSIC, address], env=variables, capture_output=True, text=True, check=True
        )
    found = json.loads(ran.stdout.splitlines()[-1])
    assert {case.removeprefix("test/"): reward for case, reward, _ in found} == expected
    assert len(expected) == 80
    assert 0 < sum(expected.values()) < 80
    # What it makes of an empty reply.
    assert sum(error is not None for _, _, error in found) == 80 // 7
    assert all("EmptyModelResponseError" in str(error) for _, _, error in found if error is not None)


def test_verifiers_0_4_gives_the_same_rewards(own, tmp_path, interpreter):
    python = interpreter("verifiers")
    out, world, rows, replies = compared(own, tmp_path, "verifiers", 7)
    variables = installed(python, out, tmp_path / "site")
    with served(replies) as address:
        expected = rewards_of_midstream(world, rows, address, tmp_path / "run")
        words = ["--model", "m", "--client.base-url", address, "--client.api-key-var", "KEY"]
        command = [python.with_name("vf-eval"), "other-world", *words]
        subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, check=True)
    [traces] = (tmp_path / "outputs").rglob("traces.jsonl")
    found = [json.loads(line) for line in traces.read_text().splitlines()]
    assert all(episode["ok"] for episode in found)
    scores = {episode["task"]["data"]["name"]: episode["traces"][0]["rewards"]["reward"]["score"] for episode in found}
    assert scores == expected
    assert len(scores) == 7


@pytest.mark.parametrize("name", ["verifiers01", "verifiers"])
def test_a_reward_that_raises_is_an_error_in_verifiers(own, tmp_path, interpreter, name):
    python = interpreter(name)
    recipe = changed_recipe(str(own), reward=f"{own.parent}/my_rewards.py:broken")
    out, replies = tmp_path / "other_world", tmp_path / "replies.json"
    export(recipe, form="verifiers", out=out, split="test", count=1)
    replies.write_text(json.dumps(scripted(out / "other_world" / "world", "shout", "text")))
    variables = installed(python, out, tmp_path / "site")
    with served(replies) as address:
        words = ["--model", "m", "--client.base-url", address, "--client.api-key-var", "KEY"]
        command = [python.with_name("vf-eval"), "other-world", *words]
        command = [python, "-c", CLASSIC, address] if name == "verifiers01" else command
        ran = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=True)
    if name == "verifiers01":
        [[_, _, error]] = json.loads(ran.stdout.splitlines()[-1])
    else:
        [traces] = (tmp_path / "outputs").rglob("traces.jsonl")
        [trace] = json.loads(traces.read_text())["traces"]
        assert not trace["ok"]
        error = trace["errors"]
    assert "a bug in the reward" in json.dumps(error)


OPENENV = """
import json, sys
from other_world import WorldAction, WorldClient

replies, rewards = json.load(open(sys.argv[2])), {}
with WorldClient(base_url=sys.argv[1]).sync() as env:
    for case in json.load(open(sys.argv[3])):
        result, texts = env.reset(task=case), []
        assert "gold" not in repr(result) and result.observation.tools and not result.done
        scripted = replies[result.observation.text]
        for name, arguments in scripted.get("calls", ()):
            texts.append(env.step(WorldAction(tool=name, arguments=arguments)).observation.text)
        result = env.step(WorldAction(answer=scripted["reply"].replace("{0}", (texts or [""])[0])))
        assert result.done
        rewards[case] = result.reward
    for wrong in (lambda: env.step(WorldAction(answer="again")), lambda: env.reset(task="test/none")):
        try:
            wrong()
        except RuntimeError:
            continue
        raise AssertionError("no error")
print(json.dumps(rewards))
"""


@pytest.mark.parametrize(
    ("name", "recipe", "tool", "argument", "count"),
    [("openenv10", "", "shout", "text", 57), ("openenv", "text-tiny", "local_search", "query", 63)],
)
def test_openenv_gives_the_same_rewards(own, tmp_path, interpreter, name, recipe, tool, argument, count):
    python = interpreter(name)
    out, world, rows, replies = compared(own, tmp_path, "openenv", count, recipe, tool, argument)
    variables = installed(python, out, tmp_path / "site")
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps(World(world).cases("test")))
    with served(replies) as address:
        expected = rewards_of_midstream(world, rows, address, tmp_path / "run")
    words = [python, "-m", "uvicorn", "other_world.server.app:app", "--port", "0"]
    with subprocess.Popen(words, env=variables, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
        try:
            line = next(line for line in server.stderr or () if "http://" in line)
            address = f"http://{line.partition('http://')[2].split()[0]}"
            script = [python, "-c", OPENENV, address, replies, cases]
            ran = subprocess.run(script, env=variables, capture_output=True, text=True, check=True, timeout=100)
        finally:
            server.kill()
    found = json.loads(ran.stdout.splitlines()[-1])
    assert {case.removeprefix("test/"): reward for case, reward in found.items()} == expected
    assert len(found) == count
    assert 0 < sum(found.values()) < count
