"""docs/python.md: its blocks run one after the other, its table has every command, and its calls exist."""

from __future__ import annotations

import json
import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

import midstream as ms
from midstream.cli.main import COMMANDS
from support.counting import counting, write_questions
from support.hf_models import save_chat_model
from support.llm_server import LLMServer

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
TRAIN = [block for block in BLOCKS if block.startswith("# train")]
ROWS = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE)


@pytest.fixture(autouse=True)
def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path / "questions.jsonl")
    with LLMServer(counting) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.base_url.removesuffix("/v1"))
        yield server


def run_blocks(blocks: list[str]) -> dict[str, object]:
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    return names


@pytest.mark.slow
def test_every_block_runs(capsys):
    run_blocks([block for block in BLOCKS if block not in TRAIN])
    assert "B is better than A" in capsys.readouterr().out


@pytest.mark.slow
def test_the_block_that_trains_runs(tmp_path):
    config = save_chat_model(tmp_path / "model", "qwen2") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 4096}))
    [block] = TRAIN
    block = block.replace("Qwen/Qwen2.5-0.5B-Instruct", str(tmp_path / "model"))
    block = block.replace("steps=50, group_size=8", 'steps=1, group_size=2, settings={"agent.max_tokens": 24}')
    block = block.replace(", tools=[word_count]", "")  # the small model's chat template knows no tools
    block = block.replace("steps=10", 'steps=1, settings={"warm_start.steps": 2, "warm_start.min_copy_rate": 0}')
    names = run_blocks([BLOCKS[0].partition("print(")[0], block])
    assert ms.Run("runs/trained").status == "finished"
    assert isinstance(names["trained"], ms.Run)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_call(name):
    calls = re.findall(r"`([\w.]+)(?:\(.*?\))?`", dict(ROWS)[name]) if name in dict(ROWS) else []
    assert calls or name in ("init", "completion"), f"docs/python.md names no call for {name}"
    for call in filter(lambda call: call != "print", calls):
        first, *rest = call.split(".")
        if first == "ms":
            assert reduce(getattr, rest, ms)
        else:
            assert hasattr(import_module(call.rpartition(".")[0]), rest[-1])


def test_every_public_name_has_a_docstring_and_stands_in_a_block_that_is_run():
    extending = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    shown = "\n".join([*BLOCKS, *re.findall(r"^```python\n(.*?)^```$", extending, re.DOTALL | re.MULTILINE)])
    missing = [name for name in ms.__all__ if not re.search(rf"\b{name}\b", shown)]
    assert missing == ["Engine", "InfrastructureError", "MidstreamError", "atrain"]  # named in the text alone
    assert not [name for name in ms.__all__ if not getattr(ms, name).__doc__]


def test_only_commands_have_rows():
    assert {name for name, _ in ROWS} <= {*COMMANDS}
