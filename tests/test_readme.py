"""README.md: its length, and every command and Python block in it, run in one directory as a reader would.

A served model is a scripted server; long trainings are cut to a step or two by settings.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from midstream.cli.main import main
from support.hf_models import save_chat_model
from support.learned import write_run
from support.llm_server import AgentFlowReplies, LLMServer

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
LINES = [line for language, block in BLOCKS if not language for line in block.splitlines()]
LINES += re.findall(r"^\| `(midstream [^`]+)`", README, re.MULTILINE)
COMMANDS = [line for line in LINES if re.match(r"(OPENAI_API_KEY=\S+ )?midstream ", line)]
# A step of little work, by kind of recipe.
STEP = ["training.steps=1", "training.tasks_per_step=2", "evaluation.sets=[]"]
STEP += ["evaluation.validation={name='validation',split='validation',per_family=1}"]
WARM = ["warm_start.steps=2", "warm_start.transcripts=20", "warm_start.min_copy_rate=0"]
LESSONS_TABLE = ["budget.updates=1", "lessons.tasks=4", "lessons.batch_size=2", "lessons.gate.enabled=false"]


def test_it_is_short():
    assert len(README.splitlines()) <= 250


def test_every_block_is_run_here():
    assert {language for language, _ in BLOCKS} == {"", "python", "toml"}
    others = [line for line in LINES if line not in COMMANDS and re.match(r"(make|python|\.venv/bin)\b", line)]
    assert [line.split("#")[0].strip() for line in others] == ["make demo", "make test"]


@pytest.fixture(scope="module")
def server():
    with LLMServer(AgentFlowReplies()) as server:
        yield server.base_url


@pytest.fixture(scope="module")
def directory(tmp_path_factory, finished_run, ten_steps):
    """The reader's directory: the runs, recipe, questions and documents that the page names."""
    place = tmp_path_factory.mktemp("reader")
    (place / "runs").mkdir()
    write_run(place / "runs" / "lessons")
    for name in ("demo", "a", "b"):
        shutil.copytree(finished_run, place / "runs" / name)
    config = save_chat_model(place / "model", "qwen2") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 8192}))
    [recipe] = [block for language, block in BLOCKS if language == "toml"]
    recipe = recipe.replace("Qwen/Qwen2.5-0.5B-Instruct", str(place / "model")).replace('"cuda"', '"cpu"')
    recipe = recipe.replace("group_size = 8", "group_size = 2").replace("max_tokens = 512", "max_tokens = 8")
    (place / "mine.toml").write_text(recipe)
    study = f'name = "two"\n[[arms]]\nname = "itself"\nrecipe = "{ten_steps}"\n'
    (place / "two.toml").write_text(study)
    (place / "bamboogle.json").write_text(json.dumps([{"question": "How much is 1 plus 1 ?", "golden_answers": ["2"]}]))
    questions = [{"question": f"How much is {i} plus 1 ?", "answer": str(i + 1)} for i in range(100)]
    (place / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    (place / "documents.jsonl").write_text(json.dumps({"id": "1", "text": "Harbors are by the sea."}))
    return place


# Trainings and studies, however short, take seconds.
LONG = re.compile(r"midstream (train(?!.*--dry-run)|demo|study|doctor|report|view|eval .*--count 100)")


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=pytest.mark.slow) if LONG.search(line) else line for line in COMMANDS]
)
def test_every_command_runs(line, directory, server, monkeypatch, capsys):
    monkeypatch.chdir(directory)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    words = [word for word in shlex.split(line, comments=True) if not word.startswith("OPENAI_API_KEY=")]
    code = main(as_run_here(words[1:], server))
    assert code == 0 or (words[1] == "doctor" and code == 1), capsys.readouterr().err


def as_run_here(words: list[str], url: str) -> list[str]:
    """A command of the page with a scripted server as its model, and with little work."""
    if "--provider" in words:
        place = words.index("--provider")
        words[place : place + 2] = ["--base-url", url]
    elif "--base-url" in words:
        words[words.index("--base-url") + 1] = url
    elif "--model" in words:
        words += ["--base-url", url]
    words = [f"{word}=bamboogle.json" if word == "bamboogle" else word for word in words]
    if "--planner" in words:  # the run of this test has another, smaller world
        words[1] = "What is 45 plus 17 ?"
    match words:
        case ["demo"]:
            return [*words, "--out", "runs/demo-short", *with_settings(STEP, WARM)]
        case ["view", *_]:
            return [*words[:2], "--file", *words[3:]]  # it would serve until Ctrl-C
        case ["train", "lessons-simulated", *_]:
            return [*words[:-1], "runs/lessons-again", *with_settings(LESSONS_TABLE, ["evaluation.sets=[]"])]
        case ["train", "mine.toml", *_]:
            return [*words, *with_settings(STEP, [f"engines.model.base_url={url}", "agent.max_turns=1"])]
        case ["train", *_]:
            return [*words, *with_settings(STEP, WARM)]
        case ["eval", "function-calling-simulated"]:
            return [*words, "--count", "2"]
        case ["study", *_]:
            return ["study", "two.toml", "--seeds", "1"]
    return words


def with_settings(*groups: list[str]) -> list[str]:
    return [word for group in groups for setting in group for word in ("--set", setting)]
