"""`midstream list` as people see it: the kinds, those of each, one in full; in 80 columns and as JSON."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tomllib
from typing import get_args

import pytest

from midstream.cli import list as command
from midstream.cli.main import main
from midstream.components.component import Kind
from midstream.components.kinds import config_class, registered
from midstream.recipe.files import shipped_recipes
from midstream.sources.benchmarks import BENCHMARKS
from support.errors import printed


@pytest.fixture(autouse=True)
def _apart(monkeypatch, tmp_path):
    """A terminal of 80 columns, and nothing downloaded before."""
    import huggingface_hub.constants

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # the command sets it; this puts it back
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "none"))


def output(capsys, *arguments, code=0):
    assert main(["list", *map(str, arguments)]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def found(capsys, *arguments):
    return {entry["name"]: entry for entry in json.loads(output(capsys, *arguments, "--json"))}


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def names(kind):
    known = {"recipes": shipped_recipes(), "benchmarks": BENCHMARKS, "tools": registered("tool")}
    return {*(known[kind] if kind in known else registered(kind))}


# -- every kind --------------------------------------------------------------------------------------------------------


def test_the_kinds_are_listed_with_their_numbers(capsys):
    assert {kind: entry["count"] for kind, entry in found(capsys).items()} == {
        kind: len(names(kind)) for kind in command.KINDS
    }
    assert command.KINDS.keys() - {"recipes", "benchmarks", "tools"} == {*get_args(Kind)} - {"tool"}
    assert max(map(len, output(capsys).splitlines())) <= 80


@pytest.mark.parametrize("kind", command.KINDS)
def test_all_of_a_kind_are_listed(capsys, kind):
    entries = found(capsys, kind)
    assert {*entries} == {*output(capsys, kind, "--quiet").split()} == names(kind)
    assert all(entry["what"] for entry in entries.values())
    lines = output(capsys, kind).splitlines()
    assert max(map(len, lines)) <= 80
    assert names(kind) <= {line.split()[0] for line in lines if line.strip()}


def test_a_list_makes_nothing_and_asks_nobody(capsys, monkeypatch):
    """No socket, no process, no tool: every way of making one is taken away."""

    def never(*args, **kwargs):
        raise AssertionError("something was made or asked")

    monkeypatch.setattr(socket.socket, "connect", never)
    monkeypatch.setattr(subprocess, "Popen", never)
    for name in registered("tool"):
        monkeypatch.setattr(config_class("tool", name), "build", never)
    for kind in command.KINDS:
        output(capsys, kind)


@pytest.mark.slow
def test_it_is_quick_to_ask_and_loads_no_torch():
    code = (
        "import sys; from midstream.cli.main import main; main(['list', 'tools', '--quiet']); "
        "print(sorted({'torch', 'numpy', 'ddgs', 'trafilatura', 'mcp'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("reward", "numerc"), "unknown-type"),
        (("recipes", "flow-grpo-tinny"), "unknown-recipe"),
        (("benchmarks", "zebra"), "unknown-benchmark"),
        (("reward", "--file", "own.jsonl"), "option-without-effect"),
        (("--file", "own.jsonl"), "option-without-effect"),
        (("benchmarks", "--file", "own.jsonl"), "option-without-effect"),
    ],
)
def test_wrong_words_are_refused(capsys, words, code):
    assert printed(output(capsys, *words, code=2)).code == code


# -- components --------------------------------------------------------------------------------------------------------


def test_a_component_shows_its_settings(capsys):
    [entry] = found(capsys, "reward", "numeric").values()
    assert entry["from"] == "midstream"
    assert entry["settings"][0] == {
        "name": "relative_tolerance", "required": False, "meaning": "a share of the gold number", "default": 0.0,
    }  # fmt: skip
    [needed] = [one for one in found(capsys, "tools", "function")["function"]["settings"] if one["required"]]
    assert needed["name"] == "function"


def test_one_of_your_own_is_shown(capsys, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text('def words(text: str) -> int:\n    """Counts words."""\n    return len(text.split())\n')
    [entry] = found(capsys, "tools", f"{path}:words").values()
    assert (entry["what"], entry["from"]) == ("Counts words.", f"file {path}")
    assert entry["arguments"] == f"midstream call {path}:words shows them"


def test_what_a_tool_needs_is_looked_for(capsys, monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "sk-canary")
    tools = found(capsys, "tools")
    assert tools["graph"]["needs"]["extra graphs"] == "installed"
    assert tools["web_search"]["may_use"]["key SERPER_API_KEY"] == "set"
    assert tools["base_generator"]["needs"].keys() == {"a model"}
    assert tools["python"]["needs"].keys() == {"a sandbox"}
    assert tools["mcp"]["needs"]["settings"] == "give either `command` or `url`"
    assert "canary" not in output(capsys, "tools") + output(capsys, "tools", "web_search")
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    monkeypatch.setenv("SERPER_API_KEY", " ")
    tools = found(capsys, "tools")
    assert tools["graph"]["needs"]["extra graphs"].endswith("pip install 'midstream[graphs]'")
    assert tools["web_search"]["may_use"]["key SERPER_API_KEY"].startswith("not set")
    assert "extra graphs (missing)" in output(capsys, "tools")


# -- recipes -----------------------------------------------------------------------------------------------------------


def test_recipes_say_what_they_learn_and_need(capsys):
    about = {name: (one["learns"], one["agent"], one["needs"]) for name, one in found(capsys, "recipes").items()}
    assert about["tool-calling"] == ("nothing", "direct", ["a model server"])
    assert about["flow-grpo-tiny"] == ("weights", "agentflow", ["PyTorch"])
    assert about["lessons-simulated"] == ("lessons", "agentflow", [])
    assert about["agentflow-7b"] == ("weights", "agentflow", ["a model server", "a GPU"])


def test_a_recipe_is_printed_as_one_that_can_be_saved_and_changed(capsys, tmp_path):
    text = output(capsys, "recipes", "lessons-simulated")
    assert tomllib.loads(text)["tasks"]["type"] == "workshop"
    assert text.startswith("# lessons-simulated: learns lessons; agent agentflow; needs nothing\n")
    (tmp_path / "mine.toml").write_text(
        output(capsys, "recipes", "tool-calling").replace("name = ", "name = 'mine' # ")
    )
    shown = found(capsys, "recipes", tmp_path / "mine.toml")["mine"]
    assert (shown["agent"], "# ours" in shown["text"]) == ("direct", True)


# -- benchmarks --------------------------------------------------------------------------------------------------------


def test_benchmarks_are_listed_with_size_reward_and_licence(capsys):
    lines = output(capsys, "benchmarks").splitlines()
    for one in BENCHMARKS.values():
        [at] = [place for place, line in enumerate(lines) if line.split()[:1] == [one.name]]
        about = " ".join(" ".join(lines[at : at + 5]).split())
        size = one.sizes.get(one.main_split)
        assert size is None or f"{size:,} questions" in about
        assert f"scored by {one.reward}" in about
        assert one.licence in about


def test_one_without_its_questions(capsys):
    text = " ".join(output(capsys, "benchmarks", "gpqa").split())
    for part in ("GPQA (diamond)", "sizes test 198", "CC BY 4.0", "republish no", "then: hf auth login"):
        assert part in text
    [entry] = found(capsys, "benchmarks", "gpqa").values()
    assert "questions" not in entry


def test_one_with_a_file(capsys, tmp_path):
    rows = [{"Question": f"Which {n}?", "Final answer": "elm", "Level": 1 + n % 2, "file_name": ""} for n in range(4)]
    rows.append(rows[0] | {"file_name": "a.png"})
    path = write(tmp_path / "gaia.jsonl", rows)
    text = output(capsys, "benchmarks", "gaia", "--file", path)
    assert max(map(len, text.splitlines())) <= 80
    for part in ("test 4", "it comes with a file 1", "level 1 2, level 2 2", "Which 0?", "answer: elm"):
        assert part in text
    [entry] = found(capsys, "benchmarks", "gaia", "--file", path).values()
    assert entry["evaluate"] == f"midstream eval RECIPE --benchmark gaia={path}"
    assert entry["recipe"] == f'tasks = {{ type = "benchmark", name = "gaia", file = "{path}" }}'
    assert entry["questions"] == {"test": 4}
    assert entry["left_out"] == {"it comes with a file": 1}
    assert entry["first"]["answer"] == "elm"


def test_a_file_of_another_benchmark_is_refused_and_its_texts_are_shown_as_text(capsys, tmp_path):
    path = write(tmp_path / "own.jsonl", [{"question": "\x1b[31mWhich?", "answer": 4}])
    said = output(capsys, "benchmarks", "medqa", "--file", path, code=2)
    assert "benchmark medqa in " in said
    assert "\x1b" not in said


def test_worlds_are_shown_with_questions(capsys):
    [entry] = found(capsys, "benchmarks", "gazetteer").values()
    assert set(entry["families"]) >= {"lookup", "hop", "compare"}
    assert entry["address"] == "made here"
    [entry] = found(capsys, "benchmarks", "gameof24").values()
    assert entry["questions"] == {"test": 273}
