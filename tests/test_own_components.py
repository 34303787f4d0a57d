"""Components of your own: from files, packages and Python; moved and resumed; and what is refused."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import sys
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any, get_args

import pytest

from midstream import api
from midstream.cli.main import main
from midstream.components import kinds, own
from midstream.components.component import Kind
from midstream.components.kinds import COMPONENTS
from midstream.components.tables import parse_component
from midstream.core.data import Settings, classes_in
from midstream.core.errors import MidstreamError, RecipeError, RepeatedError, RunError, TrainingError, UsageError
from midstream.core.events import Note
from midstream.core.trajectory import Call, Score, Trajectory
from midstream.lessons.reflector import about_rollouts, transcript
from midstream.recipe.build import Build
from midstream.recipe.files import read_table, to_toml
from midstream.recipe.overrides import changed_recipe
from midstream.recipe.schema import parse_recipe
from midstream.report.evaluation import evaluated_trajectories
from midstream.rewards.exact_match import F1Config
from midstream.rollout import rollout
from midstream.runs import RunDirectory
from support.errors import coded, raises
from support.hf_models import save_chat_model

MINE = '''
import re

import midstream as ms


def questions(split):
    """Three sums."""
    return [{"question": f"What is {n} + {n}?", "answer": 2 * n} for n in (1, 2, 3)] if split == "test" else []


def close(answer, gold, within: float = 0.0):
    """1 near the gold answer."""
    right = abs(float(answer) - float(gold)) <= within
    return ms.Score(value=float(right), feedback="right" if right else f"off by {float(answer) - float(gold):g}")


def model(messages, off_by: int = 0) -> str:
    """Adds."""
    first, second = re.findall(r"[0-9]+", messages[-1]["content"])[:2]
    return str(int(first) + int(second) + off_by)


def add(first: int, second: int) -> int:
    """Adds two numbers."""
    return first + second


async def agent(question, tools, model, models, tries: int = 1):
    """Asks and checks."""
    answer = await model(question)
    for _ in range(tries):
        await tools["add"](first=1, second=1)
    return str(await models["critic"](f"{question} {answer}")) if "critic" in models else answer


def rank(rewards, spread: float = 1.0):
    return [spread * (reward - 0.5) for reward in rewards]


def cispo(logprobs, old_logprobs, advantages, bound: float = 5.0):
    return -(logprobs - old_logprobs).exp().clamp(max=bound).detach() * advantages * logprobs

'''


def table(place: str) -> dict[str, Any]:
    return {
        "name": "mine",
        "tasks": {"type": f"{place}:questions"},
        "reward": {"type": f"{place}:close", "within": 0.25},
        "agent": {"type": f"{place}:agent", "engine": "model", "tries": 2},
        "engines": {"model": {"type": f"{place}:model"}},
        "tools": {"add": {"type": f"{place}:add"}},
        "evaluation": {"sets": [{"name": "test", "split": "test"}], "temperatures": [1.0]},
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def write(place: Path, source: str) -> str:
    (place / "bad.py").write_text(source)
    return "bad.py"


# --- where they can be named ------------------------------------------------------------------------------------------


def test_every_kind_from_a_file(place: Path):
    run = api.evaluate(table("mine.py"), out="run").directory
    [result] = run.evaluations.read()
    assert (result.success, result.errors) == (1.0, 0)
    recorded = {own.name_of(component.reference) for component in run.info().own}
    assert recorded == {"questions", "close", "agent", "model", "add"}
    assert len(list(run.own_dir.iterdir())) == 1
    [trajectory, *_] = evaluated_trajectories(run, run.evaluations.read()[0])
    assert [turn.action.tool for turn in trajectory.turns] == ["add", "add"]
    assert [call.role for call in trajectory.calls] == ["policy"]
    assert trajectory.reward == Score(value=1.0, feedback="right")


def test_a_run_is_resumed_from_another_directory_and_without_the_file(place: Path, monkeypatch: pytest.MonkeyPatch):
    # A command with --trust sets it for its process.
    monkeypatch.delenv(own.TRUST, raising=False)
    run = api.evaluate(table("mine.py"), out=place / "run").directory
    run.set_status("interrupted")
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert api.resume(place / "run").directory.status().state == "finished"
    (place / "mine.py").unlink()
    run.set_status("interrupted")
    shutil.move(place / "run", elsewhere / "moved")
    with raises("code-not-trusted", "mine.py", "--trust"):
        api.resume("moved")
    monkeypatch.setenv(own.TRUST, "1")
    heard: list[Any] = []
    assert api.resume("moved", listener=heard.append).directory.status().state == "finished"
    assert any("the run's copy is used" in event.text for event in heard if isinstance(event, Note))


@pytest.fixture
def evil(place: Path) -> Path:
    """A run of others: its copy of the code was altered to write a file when it is imported."""
    run = api.evaluate(table("mine.py"), out="run").directory
    run.set_status("interrupted")
    (place / "mine.py").unlink()
    [copy] = run.own_dir.rglob("*.py")
    copy.write_text(f"open({str(place / 'ran')!r}, 'w').close()\n{MINE}")
    return place / "run"


def test_an_altered_copy_of_code_is_never_imported(evil: Path, monkeypatch: pytest.MonkeyPatch):
    for trust in ("", "1"):
        monkeypatch.setenv(own.TRUST, trust)
        with raises("inputs-changed", "mine.py"):
            api.resume(evil)
    assert not (evil.parent / "ran").exists()


def test_code_in_a_run_that_was_recorded_so_needs_trust(
    evil: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv(own.TRUST, "")
    [copy] = RunDirectory(evil).own_dir.rglob("*.py")
    text, digest = (evil / "run.json").read_text(), copy.parent.name.rpartition("-")[2]
    (evil / "run.json").write_text(text.replace(digest, own._digest(copy.read_bytes())))
    copy.parent.rename(copy.parent.with_name(f"mine-{own._digest(copy.read_bytes())}"))
    assert main(["resume", str(evil), "--quiet"]) == 2
    assert "error[code-not-trusted]" in capsys.readouterr().err
    assert not (evil.parent / "ran").exists()


def test_a_module_in_a_run_needs_trust_by_its_name_too(evil: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(own.TRUST, "0")
    monkeypatch.syspath_prepend(evil)
    (evil / "midstream_evil").mkdir()
    (evil / "midstream_evil/inside.py").write_text(f"open({str(evil.parent / 'ran')!r}, 'w').close()")
    with raises("code-not-trusted", "midstream_evil"):
        own.load("midstream_evil.inside:anything")
    assert not (evil.parent / "ran").exists()


def test_changed_code_is_refused_before_it_is_imported(place: Path):
    run = api.evaluate(table("mine.py"), out="run").directory
    run.set_status("interrupted")
    (place / "mine.py").write_text(f"open({str(place / 'ran')!r}, 'w').close()\n{MINE}")
    with raises("inputs-changed", "mine.py:agent"):
        api.resume("run")
    assert not (place / "ran").exists()


def test_paths_are_relative_to_the_recipe(place: Path, monkeypatch: pytest.MonkeyPatch):
    rows = '{"question": "What is 2 + 3?", "answer": 5}'
    files = {"base/base.toml": "", "base/prompt.md": "", "mine/data/rows.jsonl": rows, "rows.jsonl": "", "here.md": ""}
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    shutil.copy("mine.py", "mine/mine.py")
    shutil.copy("mine/data/rows.jsonl", "mine/rows.jsonl")
    own_table = table("mine.py") | {
        "extends": "../base/base.toml",
        "tasks": {"type": "file", "path": "data/rows.jsonl"},
    }
    (place / "mine" / "mine.toml").write_text(to_toml(own_table))
    assert read_table("mine/mine.toml")["tasks"]["path"] == str(place / "mine/data/rows.jsonl")
    prompts = 'extends = "flow-grpo-tiny"\n[agent.planner]\ntype = "prompted"\nprompt_file = "prompt.md"\n'
    (place / "base" / "base.toml").write_text(prompts)
    (place / "mine" / "other.toml").write_text(
        'extends = "../base/base.toml"\n[tasks]\ntype = "file"\npath = "rows.jsonl"\n'
        '[agent.executor]\ntype = "prompted"\nprompt_file = "here.md"\n'
    )
    other = read_table("mine/other.toml")
    assert other["tasks"]["path"] == str(place / "mine/rows.jsonl"), "and not the one of the working directory"
    assert other["agent"]["planner"]["prompt_file"] == str(place / "base/prompt.md")
    assert other["agent"]["executor"]["prompt_file"] == "here.md", "which the working directory alone has"
    (place / "base" / "base.toml").write_text("")

    run = api.evaluate(Path("mine/mine.toml"), out=place / "mine/runs/first").directory
    assert run.evaluations.read()[0].success == 1.0


def test_a_reward_that_has_scored_nothing_may_be_corrected(place: Path):
    made = table("mine.py") | {"reward": {"type": f"{write(place, 'def fn(answer): return 1 / 0')}:fn"}}
    made["evaluation"] = {"sets": [{"name": "test", "split": "test"}], "temperatures": [1.0], "trials": 5}
    with pytest.raises(RepeatedError, check=coded("reward-failed", "last 5", "ZeroDivisionError")):
        api.evaluate(made, out="run")
    write(place, "def fn(answer): return True")
    run = api.resume("run").directory
    [result] = run.evaluations.read()
    assert (result.success, result.errors) == (1.0, 0)
    [changed] = [part for part in run.info().own if part.reference.endswith("bad.py:fn")]
    assert (run.own_dir / changed.copy_name).read_text() == "def fn(answer): return True"
    run.set_status("interrupted")
    write(place, "def fn(answer): return False")
    with pytest.raises(RunError, check=coded("inputs-changed", "bad.py:fn")):
        api.resume("run")


def test_only_the_named_file_is_copied(place: Path):
    (place / "mine.py").write_text(MINE + "def score(answer):\n    import near_mine\n    return 1.0\n")
    (place / "near_mine.py").write_text("KEY = 'sk-secret'\n")
    run = api.evaluate(table("mine.py") | {"reward": {"type": "mine.py:score"}}, out="run").directory
    assert [path.name for path in run.own_dir.rglob("*.py")] == ["mine.py"]


def test_a_file_that_changed_is_imported_again(place: Path):
    assert own.load("mine.py:add")(1, 2) == 3
    (place / "mine.py").write_text(MINE.replace("return first + second", "return first - second"))
    assert own.load("mine.py:add")(1, 2) == -1


@pytest.fixture
def package(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as pip installs it: a module, and its metadata with entry points."""
    site = place / "site"
    info = site / "my_package-1.2.dist-info"
    info.mkdir(parents=True)
    (site / "my_package.py").write_text(MINE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.2\n")
    names = {"tasks": "questions", "reward": "close", "engine": "model", "tool": "add", "agent": "agent",
             "advantage": "rank", "loss": "cispo"}  # fmt: skip
    lines = [f"{kind}.own_{kind} = my_package:{name}" for kind, name in names.items()]
    (info / "entry_points.txt").write_text("\n".join(["[midstream.components]", *lines, ""]))
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    kinds.installed.cache_clear()
    yield site
    kinds.installed.cache_clear()
    sys.modules.pop("my_package", None)


def test_every_kind_from_an_installed_package(package: Path, capsys: pytest.CaptureFixture[str]):
    named = json.loads(json.dumps(table("my_package")))
    for kind in ("tasks", "reward", "agent"):
        named[kind]["type"] = f"own_{kind}"
    named["engines"]["model"]["type"], named["tools"]["add"]["type"] = "own_engine", "own_tool"
    run = api.evaluate(named, out="run").directory
    assert run.evaluations.read()[0].success == 1.0
    assert {component.reference for component in run.info().own} == {
        f"my_package:{name}" for name in ("questions", "close", "agent", "model", "add")
    }
    for kind in get_args(Kind):
        if f"own_{kind}" in kinds.installed(kind):
            assert main(["list", "tools" if kind == "tool" else kind, f"own_{kind}", "--json"]) == 0
            [record] = json.loads(capsys.readouterr().out)
            assert record["from"] == "my-package 1.2"
    (package / "my_package.py").write_text(MINE + "# changed\n")
    run.set_status("interrupted")
    with pytest.raises(RunError, check=coded("inputs-changed", "my_package:")):
        api.resume("run")


def test_of_two_with_one_name_midstreams_own_stays(package: Path):
    info = package / "another-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[midstream.components]\nreward.f1 = my_package:close\n")
    kinds.installed.cache_clear()
    assert PathDistribution(info).name == "another"
    assert parse_component("reward", {"type": "f1"}, "reward").config == F1Config()


def test_objects_of_a_program(place: Path):
    async def explained(question, model):
        return await model(question)

    kept = {"type": own.reference_of(explained), "engine": "model"}
    made = table("mine.py") | {"agent": kept, "reward": {"type": own.reference_of(lambda answer, gold: answer == gold)}}
    run = api.evaluate(made, out="run").directory
    assert run.evaluations.read()[0].success == 1.0
    del own._live[kept["type"]]  # another program
    run.set_status("interrupted")
    with pytest.raises(RecipeError, check=coded("component-not-here", "explained")):
        api.resume("run")


# --- agents -----------------------------------------------------------------------------------------------------------


def run_agent(place: Path, source: str, **changes: Any) -> Trajectory:
    made = table("mine.py")
    made["agent"] = {"type": f"{write(place, source)}:agent", "engine": "model", **changes}
    with Build(parse_recipe(made)) as build:
        tasks = build.set_tasks(build.recipe.evaluation.sets[0])
        return asyncio.run(rollout(build.environment(), tasks[:1], seed=0))[0].trajectories[0]


def test_an_agent_needs_no_tools(place: Path):
    made = table("mine.py")
    del made["tools"]
    assert parse_recipe(made).tools == {}


def test_a_limit_in_dollars_needs_the_price_of_a_function(place: Path):
    made = table("mine.py") | {"budget": {"cost_usd": 2.0}}
    with raises("setting-conflict", "engines.model", "has no price"):
        api.evaluate(made, out="run")
    made["agent"]["tries"], made["engines"]["model"]["price_prompt_usd"] = 0, 1e6
    run = api.evaluate(made | {"budget": {"cost_usd": 1000.0}}, out="run").directory
    [trajectory, *_] = evaluated_trajectories(run, run.evaluations.read()[0])
    [call] = trajectory.calls
    assert call.usage.cost_usd == call.usage.prompt_tokens > 0
    made["engines"]["model"]["price_prompt_usd"] = 0.0
    assert api.evaluate(made, out="free").directory.status().state == "finished"


def test_an_agent_asks_several_models_at_once(place: Path):
    made = table("mine.py")
    made["engines"]["big"] = {"type": "mine.py:model", "off_by": 0}
    made["agent"]["engines"] = {"critic": "big"}
    run = api.evaluate(made, out="run").directory
    [trajectory, *_] = evaluated_trajectories(run, run.evaluations.read()[0])
    assert [(call.role, call.engine) for call in trajectory.calls] == [("policy", "model"), ("critic", "big")]
    source = (
        "import asyncio\nasync def agent(question, model):\n"
        "    found = await asyncio.gather(*(model(f'{question} {n}') for n in range(3)))\n    return found[0]\n"
    )
    trajectory = run_agent(place, source)
    assert [call.messages[0].content[-1] for call in trajectory.closing_calls] == ["0", "1", "2"]
    assert len({call.sampling for call in trajectory.calls}) == 1


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("    await model('1 2')\n    return 1 / 0", "agent 'agent' raised ZeroDivisionError"),
        ("    await model('1 2')\n    return 3", "agent 'agent' returned 3"),
        ("    await model('1 2')\n    return await tools['none'](a=1)", "agent 'agent' raised KeyError"),
    ],
)
def test_an_agent_that_fails_is_an_error_with_its_calls(place: Path, body: str, text: str):
    trajectory = run_agent(place, f"async def agent(question, model, tools):\n{body}\n")
    assert (trajectory.status, trajectory.reward, len(trajectory.calls)) == ("error", None, 1)
    assert trajectory.error is not None
    assert text in trajectory.error.message
    assert trajectory.attempts == 1


MODULES = """
import midstream as ms

def plan(question):
    return ms.Action(sub_goal="add", tool="add", context=question)

def command(action):
    return ms.Command(tool="add", arguments={"first": 1, "second": 1})

def generate(memory):
    return memory.records[-1].result

class Strict:
    async def verify(self, query, tools, memory, newest, context):
        return RESULT
"""


def run_with_verifier(place: Path, result: str) -> Trajectory:
    made = table("mine.py") | {"engines": {}}
    (place / "modules.py").write_text(MODULES.replace("RESULT", result))
    names = {"planner": "plan", "executor": "command", "verifier": "Strict", "generator": "generate"}
    made["agent"] = {module: {"type": f"modules.py:{name}"} for module, name in names.items()}
    with Build(parse_recipe(made)) as build:
        tasks = build.set_tasks(build.recipe.evaluation.sets[0])
        return asyncio.run(rollout(build.environment(), tasks[:1], seed=0))[0].trajectories[0]


@pytest.mark.parametrize("result", ["{}", "({}, ())"])
def test_a_class_as_a_module_returns_its_result_with_or_without_calls(result: str, place: Path):
    verdict = "ms.Verdict(result_valid=True, memory_sufficient=True)"
    trajectory = run_with_verifier(place, result.format(verdict))
    assert (trajectory.status, trajectory.answer, trajectory.stop_reason) == ("ok", "2", "verified")


@pytest.mark.parametrize(
    ("result", "text"),
    [("True", "verifier 'Strict' returned True"), ("1 / 0", "verifier 'Strict' raised ZeroDivisionError")],
)
def test_a_class_as_a_module_that_fails_is_named(result: str, text: str, place: Path):
    trajectory = run_with_verifier(place, result)
    assert trajectory.error is not None
    assert trajectory.error.type == "InfrastructureError"
    assert text in trajectory.error.message
    assert trajectory.attempts == 1


def test_invalid_arguments_are_an_observation(place: Path):
    source = (
        "async def agent(question, model, tools):\n    found = await tools['add'](first='x')\n"
        "    return None if not found.ok else found\n"
    )
    trajectory = run_agent(place, source)
    assert trajectory.turns[0].observation.status == "error"
    assert (trajectory.status, trajectory.stop_reason, trajectory.reward.value) == ("ok", "ended", 0.0)


# --- learning ---------------------------------------------------------------------------------------------------------


def test_feedback_stands_next_to_the_reward_and_changes_nothing_without():
    plain = Trajectory(id="a", task_id="t", answer="3", reward=Score(value=0.5))
    explained = plain.model_copy(update={"reward": Score(value=0.5, feedback="off by 1")})
    assert about_rollouts([plain], [None]) == '{"rollout":1,"reward":0.5,"answer":"3","summary":null}'
    assert '"reward":0.5,"feedback":"off by 1","answer"' in about_rollouts([explained], [None])
    assert transcript(explained) == transcript(plain).replace('"reward":0.5', '"reward":0.5,"feedback":"off by 1"')


def test_settings_of_an_advantage_and_a_loss(place: Path):
    recipe = changed_recipe("flow-grpo-tiny", overrides=[
        "training.advantage=mine.py:rank", "training.loss.type=mine.py:cispo", "training.loss.bound=2.0",
    ])  # fmt: skip
    training: Any = recipe.training
    assert training.advantage.config.build(None)([1.0, 0.0], [], [[], []]) == [0.5, -0.5]
    assert (training.loss.bound, training.loss.kl_coefficient) == (2.0, 0.001)
    resolved = recipe.table()
    assert parse_recipe(resolved).table() == resolved
    assert [own.name_of(reference) for reference in own.references(resolved)] == ["cispo", "rank"]
    with pytest.raises(RecipeError, check=coded("recipe-invalid", "baseline")):
        changed_recipe("flow-grpo-tiny", overrides=[
            "training.advantage=mine.py:rank", "training.baseline=leave_one_out",
        ])  # fmt: skip


TRAINED = """
def questions(split):
    letters = {"train": "abcdef", "validation": "gh"}.get(split, "ij")
    return [{"question": f"{letter}?", "answer": "no"} for letter in letters]


def odd(answer):
    return len(answer) % 2


async def agent(question, model):
    first = await model(question)
    return await model([{"role": "user", "content": first[:2] + question}], max_tokens=3)
"""


@pytest.mark.slow
def test_an_agent_of_your_own_is_trained_with_its_advantage_and_loss(place: Path):
    (place / "trained.py").write_text(MINE + TRAINED)
    model = save_chat_model(place / "model", "qwen3")
    made = {
        "name": "trained",
        "tasks": {"type": "trained.py:questions"},
        "reward": {"type": "trained.py:odd"},
        "tools": {},
        "agent": {"type": "trained.py:agent", "engine": "policy", "sampling": {"temperature": 1.0, "max_tokens": 6}},
        "engines": {"policy": {"type": "transformers_local", "model": str(model), "device": "cpu"}},
        "training": {
            "steps": 2, "tasks_per_step": 3, "group_size": 4, "minibatches": 1, "learning_rate": 0.01,
            "advantage": {"type": "trained.py:rank", "spread": 2.0}, "loss": {"type": "trained.py:cispo"},
        },
        "evaluation": {"validation": {"name": "validation", "split": "validation", "count": 2}},
    }  # fmt: skip
    run = api.train(parse_recipe(made), out="run").directory
    steps = run.metrics.read()
    assert [step.rows for step in steps] == [24, 24]  # two calls of each of twelve trajectories
    assert all(step.grad_norm > 0 for step in steps)
    assert {own.name_of(part.reference) for part in run.info().own} == {"questions", "odd", "agent", "rank", "cispo"}


def test_an_advantage_may_be_a_number_for_each_call(place: Path):
    source = "def fn(rewards, calls): return [[reward] * len(own) for reward, own in zip(rewards, calls)]"
    made: Any = parse_component("advantage", {"type": f"{write(place, source)}:fn"}, "a")
    calls = [[Call(role="planner")] * 2, [Call(role="planner")]]
    assert made.config.build(None)([0.0, 1.0], [], calls) == [[0.0, 0.0], [1.0]]
    source = "def fn(rewards):\n    import torch\n    return torch.tensor(rewards) - 0.5"
    made = parse_component("advantage", {"type": f"{write(place, source)}:fn"}, "a")
    assert made.config.build(None)([0.0, 1.0], [], calls) == [-0.5, 0.5]


@pytest.mark.parametrize(
    "source",
    [
        "[0.0]",
        "[float('nan')] * len(rewards)",
        "None",
        "1 / 0",
        "['a', 'b']",
        "[[0.0], [0.0]]",
        "[0.0, [float('inf')]]",
    ],
)
def test_an_advantage_that_is_no_number_for_each_reward(place: Path, source: str):
    made: Any = parse_component("advantage", {"type": f"{write(place, f'def fn(rewards): return {source}')}:fn"}, "a")
    with pytest.raises(TrainingError, check=coded("component-failed", "advantage 'fn'")):
        made.config.build(None)([0.0, 1.0], [], [[Call(role="planner")] * 2, [Call(role="planner")]])


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED = {
    "a parameter that is neither": ("reward", "def fn(anwser): return 1.0", "component-invalid", "'anwser'"),
    "a generator": ("reward", "def fn(answer): yield 1.0", "component-invalid", "yield"),
    "an async generator": ("agent", "async def fn(question): yield 'a'", "component-invalid", "yield"),
    "a number": ("reward", "fn = 3", "component-invalid", "no reward"),
    "a class of another kind": ("reward", "class fn: pass", "component-invalid", "no reward"),
    "a class that lacks a method": ("engine", "class fn:\n def sample(self, request): ...", "component-invalid", ""),
    "other parameters": (
        "planner", "class fn:\n  async def plan(self, question): ...", "component-invalid", "too many positional",
    ),
    "the parameters of an older version": (
        "agent",
        "class fn:\n  name = ''\n  async def close(self): ...\n  async def run(self, task, tools, engines): ...",
        "component-invalid", "(task, context)",
    ),
    "a constructor that raises": (
        "planner", "class fn:\n  def __init__(self): 1 / 0\n  def plan(self): ...", "component-invalid", "ZeroDivision",
    ),
    "a function whose parameters are not known": ("reward", "fn = max", "component-invalid", "max"),
    "a setting that a table has": ("reward", "def fn(type: str = ''): return 1.0", "component-invalid", "'type'"),
    "a type that no file has": ("reward", "def fn(answer, k: open = 3): return 1.0", "component-invalid", "cannot be"),
    "an async task function": ("tasks", "async def fn(): return []", "component-invalid", "no tasks"),
    "an import that fails": ("reward", "import no_such_module", "import-failed", "no_such_module"),
    "no such name": ("reward", "other = 3", "name-not-found", "'fn'"),
    "work while importing": (
        "reward", "import midstream as ms\nms.solve('direct', 'a')", "work-while-importing", "",
    ),
}  # fmt: skip


def test_a_setting_whose_type_is_not_known_here_takes_any_value(place: Path):
    source = "from __future__ import annotations\ndef fn(answer, k: Nowhere = 3): return float(k == answer)"
    reference = f"{write(place, source)}:fn"
    for value in (3, "x", [1]):
        made: Any = parse_component("reward", {"type": reference, "k": value}, "reward")
        assert made.config.k == value


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_a_component_is_refused(case: str, place: Path):
    kind, source, code, text = REFUSED[case]
    reference = f"{write(place, source)}:fn"
    with pytest.raises(UsageError) as refused:
        parse_component(kind, {"type": reference}, kind).config.build(None)  # type: ignore[arg-type]
    causes = [refused.value, refused.value.__cause__]
    assert code in [error.code for error in causes if isinstance(error, MidstreamError)]
    assert text in str(refused.value)


@pytest.mark.matrix(6)
@pytest.mark.parametrize("value", ["float('nan')", "1.5", "-0.1", "'yes'", "None", "[1]", "{}", "ms.Score(value=2)"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_reward_that_is_no_reward_is_an_error_and_never_0(value: str, empty: bool, place: Path):
    """It is called on an empty answer before anything is made; what it raises there says nothing."""
    source = f"import midstream as ms\ndef fn(answer): return {value if empty else f'{value} if answer else 1 / 0'}\n"
    made = table("mine.py") | {"reward": {"type": f"{write(place, source)}:fn"}}
    with raises("reward-out-of-range" if empty else "no-results", "reward 'fn'"):
        api.evaluate(made, out="run")
    assert (place / "run").exists() != empty


# --- recordings -------------------------------------------------------------------------------------------------------


def test_the_fix_for_a_reward_of_your_own_that_fails_can_be_followed(place: Path):
    bad = write(place, "def bad(answer): return float('nan') if answer else 0")
    made = table("mine.py") | {"reward": {"type": f"{bad}:bad"}}
    with raises("no-results", "reward 'bad' returned nan", "midstream resume run,", "another --out"):
        api.evaluate(made, out="run")


def test_a_recording_holds_where_the_file_lies_elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch):
    first = api.evaluate(table("mine.py"), out="run", record=place / "tape").directory
    other = place / "other"
    other.mkdir()
    os.rename(place / "mine.py", other / "mine.py")
    monkeypatch.chdir(other)
    again = api.evaluate(table("mine.py"), out="run", replay=place / "tape").directory
    assert [part.evaluations.read()[0].success for part in (first, again)] == [1.0, 1.0]
    assert isinstance(again, RunDirectory)


def test_a_recording_of_other_data_is_not_replayed(place: Path):
    def looked_up(directory: str, **tape: Any) -> RunDirectory:
        made = table("mine.py")
        made["tools"]["add"] = {"type": f"{write(place, LOOK)}:Look", "path": f"{directory}/index"}
        return api.evaluate(made, out=f"{directory}-{next(iter(tape))}", **tape).directory

    for name in ("c1", "c2"):
        (place / name).mkdir()
        (place / name / "index").touch()
    looked_up("c1", record=place / "tape")
    looked_up("c1", replay=place / "tape")
    with pytest.raises(UsageError, check=coded("not-recorded", "tools.add")) as refused:
        looked_up("c2", replay=place / "tape")
    assert str(place / "c2" / "index") in refused.value.cause
    first, other = ({"tools": {"a": {"type": "local_search", "index": f"{name}/index"}}} for name in ("c1", "c2"))
    assert own.portable(first) != own.portable(other)


LOOK = """
from midstream import Tool, ToolResult


class Look(Tool):
    name, description = "add", "Adds."
    parameters = {"type": "object", "properties": {"first": {"type": "integer"}, "second": {"type": "integer"}}}
    timeout_s, output_tokens = 5.0, 100

    def __init__(self, path: str) -> None:
        self.path = path

    async def call(self, arguments):
        return ToolResult(text=self.path)
"""


@pytest.mark.parametrize(
    ("source", "code", "texts"),
    [
        ("def fn(): rows = []", "tasks-failed", ("bad.py:fn", "returned None", "fn ends without")),
        ("def fn(): return 'a question'", "tasks-failed", ("bad.py:fn", '"a question"')),
        (
            "def fn(split): return [{'question': 'a', 'answer': 'b'}]",
            "bad-rows",
            ("fn", "row 1 of validation", "it repeats row 1 of train"),
        ),
    ],
)
def test_a_function_that_returns_no_rows_is_named(source: str, code: str, texts: tuple[str, ...], place: Path):
    made: Any = parse_component("tasks", {"type": f"{write(place, source)}:fn"}, "tasks")
    with raises(code, *texts):
        made.config.build(None).tasks("test")


def test_every_path_that_a_recipe_can_name_is_found_next_to_it(place: Path):
    """What runs write stays relative to the working directory: `cache`, `runs`, and a run's `policy` as `weights`."""

    def below(cls: type) -> list[type]:
        return [cls, *(inner for child in cls.__subclasses__() for inner in below(child))]

    for kind in COMPONENTS:
        for name in kinds.registered(kind):
            kinds.config_class(kind, name)
    settings = [cls for cls in below(Settings) if cls.__module__.startswith("midstream")]
    keys = {key for cls in settings for key, field in cls.model_fields.items() if Path in classes_in(field.annotation)}
    Path("present").touch()
    anchored = {key for key in keys if own.anchored({key: "present"}, Path.cwd())[key] != "present"}
    assert "prompt_file" in keys
    # That of votes is in the text of a strategy.
    assert keys - anchored - {"votes"} == {"cache", "python", "runs", "weights"}
    assert keys >= own.PATHS


def test_a_setting_that_is_no_path_of_what_is_there_stays_as_it_is(place: Path):
    (place / "numpy").mkdir()
    theirs = {"type": "mine.py:agent", "start": "numpy", "index": "https://host/idx/", "cache_path": "s3://b//x"}
    nested = {"options": {"start": "numpy", "day": "./a"}, "data_file": "mine.py", "there_path": "./none//x"}
    assert own.anchored(theirs | nested, place) == {
        **theirs, **nested, "type": f"{place}/mine.py:agent", "data_file": f"{place}/mine.py",
    }  # fmt: skip
    ordinary = {"type": "direct", "day_file_name": "2024/05", "date_start": "2024/05"}
    assert own.portable(ordinary) == ordinary
    assert own.anchored({"lessons": {"start": "numpy"}}, place) == {"lessons": {"start": f"{place}/numpy"}}
    parsed: Any = parse_component("agent", {"type": f"{write(place, STARTED)}:agent", "start": "numpy"}, "agent")
    assert parsed.config.start == "numpy"


STARTED = "async def agent(question, start: str = ''): return start"
