"""The dry run names what a recipe needs and this machine lacks, and runs nothing to find it."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from midstream import api
from midstream.cli.main import main
from midstream.cli.options import parse_count
from midstream.components import kinds
from midstream.core.seeds import SEED_MEANING
from midstream.recipe import overrides
from midstream.recipe.build import Build
from midstream.recipe.overrides import agent_recipe, changed_recipe
from midstream.recipe.schema import parse_recipe
from midstream.rewards import math
from support.errors import coded, printed

FUNCTION = 'def word_count(text: str) -> int:\n    """Count words."""\n    return len(text.split())\n'


def dry_run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["solve", "q", "--model", "m", "--dry-run", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["--tools", "nowhere.py:word_count"], "file-not-found", "nowhere.py"),
        (["--tools", "mine.py:words"], "name-not-found", "words"),
        (["--tools", "no_such_package.tools:words"], "module-not-found", "no_such_package"),
        (["--set", "tools.x={type='nowhere.py:word_count'}"], "file-not-found", "tools.x: no file"),
        (["--set", "tools.x={type='mcp',command=['no-such-program']}"], "command-not-found", "tools.x.command"),
        (["--set", "tools.x={type='mcp',command=['./serve']}"], "command-not-found", "./serve"),
        (["--set", "tools.local_search.index=none.db"], "file-not-found", "tools.local_search.index"),
        (["--set", "agent.planner.prompt_file=none.md"], "file-not-found", "agent.planner.prompt_file"),
        (
            ["--set", "tasks={type='file',path='none.jsonl'}"],
            "file-not-found",
            "tasks.path",
        ),
        (["--replay", "nowhere"], "file-not-found", "nowhere"),
    ],
)
def test_what_is_missing_is_named_after_the_recipe(words, code, named, capsys, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FUNCTION)
    exit_code, out, err = dry_run(capsys, *words)
    assert (exit_code, "[agent.planner]" in out) == (2, True)
    assert coded(code, named)(printed(err))
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["mine.py"]


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("networkx", ["--set", "tools.graph={}"], "graphs"),
        ("datasets", ["--set", "tasks={type='benchmark',name='bamboogle'}"], "data"),
        ("torch", ["--tools", "python", "--set", "engines.model={type='transformers_local',model='m'}"], "train"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(package, words, extra, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = dry_run(capsys, *words)
    assert code == 2
    assert coded("missing-extra", package, fix=f"midstream[{extra}]")(printed(err))


def test_nothing_is_missing_for_what_is_there_or_replayed(capsys, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FUNCTION)
    (tmp_path / "serve").write_text("#!/bin/sh\ntouch started\n")
    (tmp_path / "serve").chmod(0o755)
    served = "tools.x={type='mcp',command=['./serve']}"
    with_key = "tools.web_search={provider='serper'}"
    assert dry_run(capsys, "--tools", "mine.py:word_count")[0] == 0
    assert dry_run(capsys, "--set", served, "--set", with_key)[0] == 0
    assert not (tmp_path / "started").exists()


def test_a_component_that_cannot_be_imported_is_named(capsys, monkeypatch):
    monkeypatch.setitem(kinds._REGISTRY["tool"], "broken", "no_such_package.tools:Config")
    code, out, err = dry_run(capsys, "--set", "tools.broken={}")
    assert (code, out) == (2, "")
    assert coded("module-not-found", "no_such_package.tools")(printed(err))


SET = "evaluation.sets=[{name='test',tasks={type='file',path='q.jsonl'}%s}]"


@pytest.mark.matrix(5)
@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["eval", "direct", "--tasks", "none.jsonl"], "file-not-found", "none.jsonl"),
        (["eval", "direct", "--tasks", "q.jsonl", "--count", "3"], "too-few-tasks", "3 tasks"),
        (["eval", "direct", "--tasks", "q.jsonl", "--reward", "numeric"], "task-unfit", "yes"),
        (["eval", "direct", "--set", "evaluation.sets=[]"], "missing-key", "nothing to evaluate on"),
        (["train", "direct"], "not-trainable", "trains nothing"),
        (["train", "flow-grpo-tiny", "--set", "tasks.countries=16"], "setting-range", "countries"),
        (["train", "flow-grpo-tiny", "--set", "agent.planner.sampling.top_p=0.5"], "not-trainable", "top_p"),
        (["train", "flow-grpo-tiny", "--set", SET % ",reward={type='numeric'}"], "task-unfit", "yes"),
        (["train", "lessons-simulated", "--set", "lessons.tasks=1000000"], "too-few-tasks", "lessons.tasks"),
        (["train", "lessons-simulated", "--set", "lessons.start='none.json'"], "file-not-found", "none.json"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_refuse(words, code, named, capsys, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.jsonl").write_text('{"question": "Is 7 prime ?", "answer": "yes"}\n')
    for more in (["--dry-run"], ["--quiet"]):
        assert main([*words, *more]) == 2
        error = printed(capsys.readouterr().err)
        assert coded(code)(error)
        assert named in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["q.jsonl"]


def test_a_dry_run_downloads_nothing_and_names_what_it_did_not_draw(capsys):
    assert main(["eval", "direct", "--benchmark", "bamboogle", "--dry-run"]) == 0
    assert "# Not drawn, because they would be downloaded: the tasks of bamboogle" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["solve q", "eval direct --tasks q.jsonl", "train flow-grpo-tiny", "demo"])
def test_a_dry_run_as_json_is_one_object(command, capsys, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    assert main([*command.split(), "--dry-run", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert parse_recipe(record["recipe"]).table()["agent"] == record["recipe"]["agent"]
    assert ("at_most" in record) is (command != "solve q")


def test_a_recipe_is_parsed_once(monkeypatch, tmp_path: Path):
    parsed = []
    monkeypatch.setattr(overrides, "parse_recipe", lambda table: parsed.append(table) or parse_recipe(table))
    monkeypatch.setattr(api, "_work_in", lambda root, run, recipe, options: recipe)
    chosen = changed_recipe("flow-grpo-tiny", seed=3)
    assert api.train(chosen, out=tmp_path / "run") is chosen
    assert api.train(chosen, out=tmp_path / "run", steps=7).training.steps == 7
    assert len(parsed) == 2


def test_a_wrong_seed_on_the_command_line_says_what_a_seed_is(capsys):
    assert main(["train", "flow-grpo-tiny", "--seed", "banana"]) == 2
    assert SEED_MEANING in " ".join(capsys.readouterr().err.split())


def test_a_key_that_is_not_set_is_named_before_any_work(capsys, tmp_path: Path, monkeypatch):
    """`solve`, `eval`, `train`, without a request and without a run directory; the dry run warns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    (tmp_path / "sums.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    hosted = "engines.model={type='openai_compatible',model='gpt-4o-mini'}"
    lessons = ["lessons-simulated", "--set", hosted, "--set", "lessons.critic.engine=model"]
    for words in (["solve", "q"], ["eval", "agentflow-prompted", "--tasks", "sums.jsonl"], ["train", *lessons]):
        assert main(words) == 2
        assert coded("key-not-set", "OPENAI_API_KEY", "engines.model")(printed(capsys.readouterr().err))
    assert [path.name for path in tmp_path.iterdir()] == ["sums.jsonl"]
    assert main(["solve", "q", "--dry-run"]) == 0
    assert "OPENAI_API_KEY is not set" in capsys.readouterr().err
    # A server on this machine gets no key.
    assert main(["solve", "q", "--provider", "ollama", "--model", "m", "--dry-run"]) == 0
    assert "not set" not in capsys.readouterr().err


def test_solve_needs_nothing_that_only_scores(monkeypatch):
    monkeypatch.setattr(math, "find_installed", lambda names: False)
    with Build(agent_recipe("artist-prompted")) as build:
        assert build.environment().reward.name == "exact match"


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "two", "", "1" * 10, "\u00b2"])
def test_what_is_no_count_is_refused(text):
    with pytest.raises(ArgumentTypeError):
        parse_count(text)


def test_counts_are_read():
    assert [parse_count(text) for text in ("1", "007", "999999999")] == [1, 7, 999_999_999]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--set", "tools.no_such={}"], "unknown-type"),
        (["--tools", "no_such"], "unknown-tool"),
        (["--recipe", "no_such"], "unknown-recipe"),
    ],
)
def test_what_is_unknown_may_be_in_a_package(words, code, capsys):
    exit_code, _, err = dry_run(capsys, *words)
    assert exit_code == 2
    assert coded(code, "no_such", fix=kinds.IN_A_PACKAGE)(printed(err))
