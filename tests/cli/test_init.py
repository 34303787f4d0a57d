"""`midstream init`: each kind of project is written, and its README followed word for word, with a scripted model.

The recipes' own models are replaced: the one at Ollama by a scripted server, the one of the Hub by random weights.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

from midstream.cli.init import KINDS
from midstream.cli.main import main
from support.errors import printed
from support.hf_models import TEMPLATE, save_chat_model
from support.llm_server import LLMServer


def commands(project: Path) -> list[str]:
    blocks = re.findall(r"^```\n(.*?)^```$", (project / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Write a project and work in it."""

    def write(kind: str) -> Path:
        place = tmp_path / "mine"
        assert main(["init", str(place), "--kind", kind, "--quiet"]) == 0
        monkeypatch.chdir(place)
        return place

    return write


@pytest.fixture(scope="module")
def server():
    """A model as served: the project's own stand-in, behind HTTP."""
    path = Path(importlib.util.find_spec("midstream").origin).parent / "init_files/lessons/stand_in.py"
    spec = importlib.util.spec_from_file_location("stand_in", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Asked:
        def __init__(self, body):
            text = "\n".join(message["content"] or "" for message in body["messages"])
            self.role = "critic" if '"operations"' in text else "summariser" if '"summary"' in text else "policy"

    def answer(body):
        return module.reply(body["messages"], Asked(body), body.get("seed", 0))

    with LLMServer(answer) as running:
        yield running.base_url


def follow(project: Path, capsys) -> dict[str, str]:
    """Run each command of the README; returns what each printed."""
    printed: dict[str, str] = {}
    for line in commands(project):
        words = shlex.split(line, comments=True)
        assert words[0] == "midstream"
        capsys.readouterr()
        code = main(words[1:])
        captured = capsys.readouterr()
        assert code == 0, f"{line}\n{captured.err}"
        printed[line] = captured.out
    return printed


@pytest.mark.matrix(1)
@pytest.mark.parametrize("kind", ["solve", "evaluate", pytest.param("lessons", marks=pytest.mark.slow)])
def test_the_readme_is_followed(kind, project, server, capsys):
    place = project(kind)
    recipe = (place / "recipe.toml").read_text()
    (place / "recipe.toml").write_text(recipe.replace('"ollama"', f'"ollama"\nbase_url = "{server}"'))
    shown = follow(place, capsys)
    assert len(shown) >= 4
    assert any("%" in text for text in shown.values())  # a newcomer sees numbers
    if kind == "solve":  # its first command calls the tool, whatever the seed
        first = next(iter(shown.values()))
        assert "word_count" in first
        assert re.search(r"^ +answer +4 ", first, re.MULTILINE)
    if kind == "lessons":  # without a model too
        assert "call word_count instead" in " ".join(shown["midstream lessons show runs/offline"].split())


@pytest.mark.slow
def test_the_readme_of_train_is_followed(project, capsys):
    place = project("train")
    model = save_chat_model(place / "model", "qwen2", template="{{ tools | tojson if tools }}" + TEMPLATE)
    config = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 8192}
    (model / "config.json").write_text(json.dumps(config))
    recipe = (place / "recipe.toml").read_text()
    changes = {"Qwen/Qwen2.5-0.5B-Instruct": str(model), '"cuda"': '"cpu"', "steps = 50": "steps = 1"}
    changes |= {"tasks_per_step = 8": "tasks_per_step = 2", "group_size = 8": "group_size = 2", "256": "8"}
    for old, new in changes.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (place / "recipe.toml").write_text(recipe)
    follow(place, capsys)


def test_the_recipes_of_train_are_valid(project, capsys):
    project("train")
    assert main(["train", "offline.toml", "--dry-run"]) == 0
    assert main(["train", "recipe.toml", "--set", "engines.model.device=cpu", "--dry-run"]) == 0
    assert "word_count" in capsys.readouterr().out


def test_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "tools.py").write_text("mine\n")
    assert main(["init", str(tmp_path)]) == 2
    error = printed(capsys.readouterr().err)
    assert (error.code, "tools.py" in error.what) == ("file-exists", True)
    assert [path.name for path in tmp_path.iterdir()] == ["tools.py"]


def test_every_kind_has_its_files(tmp_path, capsys):
    for kind in KINDS:
        assert main(["init", str(tmp_path / kind), "--kind", kind]) == 0
        assert "# " in capsys.readouterr().out
        files = {path.name: path for path in (tmp_path / kind).iterdir()}
        assert {"README.md", "recipe.toml", "offline.toml", "questions.jsonl"} <= files.keys()
        assert ("stand_in.py" in files) == ("stand_in.py" in files["offline.toml"].read_text())
