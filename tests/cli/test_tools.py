"""`midstream tools`: the list, one tool in full, a call by hand; what it needs, and how it says no."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from midstream.cli import tools
from midstream.cli.main import main
from midstream.core.errors import UsageError
from midstream.core.kinds import config_class, registered
from midstream.recipe.overrides import chosen_tools
from midstream.report import tools as report
from support.errors import coded, printed
from support.llm_server import LLMServer

HONEST = Path(__file__).parents[1] / "support" / "mcp_servers" / "honest.py"
MINE = '''
from typing import Literal
from midstream import ToolServerError, tool

@tool(timeout_s=5)
def convert(value: float, unit: Literal["m", "km"], to: str = "km", again: bool = False) -> str:
    """Converts a length.

    Args:
        value: how long
    """
    if value < 0:
        raise ValueError("a length is not negative")
    return f"{value} {unit} {to} {again}"

@tool
def broken(text: str) -> str:
    """Breaks."""
    raise ToolServerError("the server is down", cause="nobody started it", fix="start it")

@tool
def steer(text: str) -> str:
    """Steers the terminal: \\x1b[31m."""
    return "\\x1b[2Jgone"

@tool
def free(first: str = "", second: str = "") -> str:
    """Wants nothing."""
    return f"{first}|{second}"
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A directory with `mine.py` and a recipe that names a function of it, midstream running there, 80 columns."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.toml").write_text(
        'extends = "gazetteer-prompted"\nname = "mine"\n[tools.lengths]\ntype = "function"\n'
        'function = "mine.py:convert"\n[tools.writer]\ntype = "base_generator"\nengine = "model"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    return tmp_path


def run(capsys, *options):
    """(exit code, standard output, standard error)."""
    capsys.readouterr()
    code = main(["tools", *map(str, options)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def listed(capsys, *options):
    code, out, err = run(capsys, *options, "--json")
    assert (code, err) == (0, "")
    return {view["name"]: view for view in json.loads(out)}


# -- the list --------------------------------------------------------------------------------------------------------


def test_every_type_of_tool_is_listed(capsys):
    views = listed(capsys)
    assert set(views) == set(registered("tool"))
    assert all(view["description"] for view in views.values())
    assert views["guess"]["parameters"]["required"] == ["question"]
    assert views["wikipedia"]["description"].startswith("Looks things up in Wikipedia")
    assert views["local_search"]["settings"]


def test_the_list_makes_no_tool_and_asks_nobody(capsys, monkeypatch):
    """No socket, no process, no tool: every way of making one is taken away."""

    def never(*args, **kwargs):
        raise AssertionError("something was made or asked")

    monkeypatch.setattr(socket.socket, "connect", never)
    monkeypatch.setattr(subprocess, "Popen", never)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name in registered("tool"):
        monkeypatch.setattr(config_class("tool", name), "build", never)
    assert set(listed(capsys)) == set(registered("tool"))


def test_the_screen_has_a_block_for_each(capsys, mine):
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert {*registered("tool")} <= {*lines}
    at = lines.index("guess")
    assert lines[at + 1].startswith("  An expert oracle")
    assert lines[at + 2] == "  arguments  question: string"
    assert lines[at + 3] == ""
    assert lines[lines.index("web_page") + 1] == "  Reads one web page."
    assert max(map(len, lines)) <= 80


def test_a_recipes_own_tools_alone(capsys, mine):
    assert list(listed(capsys, "--recipe", "mine.toml")) == ["python", "local_search", "lengths", "writer"]
    code, out, _ = run(capsys, "--recipe", "control-random", "--quiet")
    assert (code, out.split()) == (0, ["local_search", "python", "guess"])


def test_settings_are_the_recipes_and_the_command_lines(capsys):
    settings = {one["name"]: one for one in listed(capsys, "--set", "tools.guess.largest=7")["guess"]["settings"]}
    assert (settings["largest"]["value"], settings["largest"]["default"]) == (7, 999)
    settings = {
        one["name"]: one for one in listed(capsys, "--recipe", "gazetteer-prompted")["local_search"]["settings"]
    }
    assert (settings["top_k"]["value"], settings["top_k"]["default"]) == (3, 1)


# -- what a tool needs -----------------------------------------------------------------------------------------------


def needs(capsys, name, *options):
    return {need["what"]: need for need in listed(capsys, *options)[name]["needs"]}


def test_a_key_is_looked_for_and_never_shown(capsys, mine, monkeypatch):
    found = needs(capsys, "base_generator")["a model (model)"]
    assert (found["there"], found["state"]) == (True, "gpt-4o-mini at https://api.openai.com/v1")
    assert "canary" not in "".join(run(capsys)[1:] + run(capsys, "base_generator")[1:])
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    found = needs(capsys, "base_generator")["a model (model)"]
    assert not found["there"]
    assert found["state"].endswith("OPENAI_API_KEY is not set")
    assert "export OPENAI_API_KEY=" in found["fix"]
    assert needs(capsys, "base_generator", "--provider", "ollama", "--model", "m")["a model (model)"]["there"]


def test_a_search_key_is_wanted_where_the_provider_wants_one(capsys, monkeypatch):
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    assert "a key" not in needs(capsys, "web_search")
    found = needs(capsys, "web_search", "--set", "tools.web_search.provider=serper")
    assert (found["a key"]["there"], found["a key"]["state"]) == (False, "SERPER_API_KEY is not set")
    assert "extra web" not in found


def test_an_extra_that_is_missing_is_named_with_its_command(capsys, monkeypatch):
    assert needs(capsys, "web_search")["extra web"]["state"] == "installed"
    monkeypatch.setattr(tools, "find_spec", lambda name: None)
    found = needs(capsys, "web_search")["extra web"]
    assert (found["there"], found["state"]) == (False, "ddgs is not installed")
    assert found["fix"] == "pip install 'midstream[web]'"


def test_an_engine_that_a_tool_cannot_ask_is_said(capsys):
    recipe = ("--recipe", "flow-grpo-tiny")
    for engine, state in (("nobody", "no engine 'nobody'"), ("policy", "samples in process")):
        options = (
            "--set",
            "tools.base_generator.type=base_generator",
            "--set",
            f"tools.base_generator.engine={engine}",
        )
        found = needs(capsys, "base_generator", *recipe, *options)
        assert [(need["there"], state in need["state"]) for need in found.values()] == [(False, True)]


# -- one in full -----------------------------------------------------------------------------------------------------


def test_a_tool_shows_its_arguments_settings_and_schema(capsys, mine):
    code, out, err = run(capsys, "mine.py:convert")
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[:7] == [
        "convert  function",
        "  Converts a length.",
        '  arguments  value  number           how long',
        '             unit   "m" or "km"',
        '             to     string = "km"',
        "             again  boolean = false",
        "  limits     5 s, 2,000 tokens of output",
    ]  # fmt: skip
    assert f'function"{Path("mine.py").absolute()}:convert"(required)' in "".join(out.split())  # over several lines
    assert json.loads(out[out.index("{") : out.rindex("}") + 1])["required"] == ["value", "unit"]
    assert lines[-1] == '  midstream tools mine.py:convert value="..." unit="..."'


def test_a_tool_of_a_recipe_has_its_name(capsys, mine):
    [view] = listed(capsys, "lengths", "--recipe", "mine.toml").values()
    assert (view["name"], view["type"], view["timeout_s"]) == ("lengths", "function", 5)
    [view] = listed(capsys, "writer", "--recipe", "mine.toml").values()
    assert view["settings"][0] == {"name": "engine", "value": "model", "default": None, "required": True}


def test_a_type_that_needs_settings_says_which(capsys):
    for name, said in (("function", "and: function"), ("mcp", "and: give either `command` or `url`")):
        code, out, _ = run(capsys, name)
        assert code == 0
        assert f'type = "{name}", {said}' in " ".join(out.split())


def test_a_tool_that_cannot_be_made_is_shown_as_far_as_it_is_known(capsys, mine):
    options = ("local_search", "--set", "tools.local_search.index=nowhere.db")
    code, out, err = run(capsys, *options)
    assert (code, err) == (0, "")
    assert "It cannot be made here: no search index at nowhere.db" in out
    assert "query" in out
    assert listed(capsys, *options)["local_search"]["problem"]


# -- called by hand --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ['{"value": 3, "unit": "m", "again": true}'],
        ["value=3", "unit=m", "again=true"],
        ["unit=m", "value=3.0", "again=true", "to=km"],
    ],
)
def test_arguments_come_as_json_or_as_words(capsys, mine, words):
    code, out, err = run(capsys, "mine.py:convert", *words)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "3.0 m km True"
    assert lines[-1].startswith("ok  0.")


def test_one_word_is_enough_for_one_argument(capsys, mine):
    assert run(capsys, "python", "105 + 7", "--quiet") == (0, "112\n", "")
    assert run(capsys, "python", "x=3", "--quiet")[1] == "(no output)\n"  # `x` is no argument: it is code
    assert run(capsys, "mine.py:free", "second=a=b", "--quiet")[1] == "|a=b\n"


def test_arguments_may_stand_after_options(capsys, mine):
    assert run(capsys, "mine.py:free", "--quiet", "first=a") == (0, "a|\n", "")
    with pytest.raises(SystemExit) as ended:
        run(capsys, "mine.py:free", "--quick", "first=a")
    assert ended.value.code == 2
    assert "unrecognized arguments: --quick" in capsys.readouterr().err


def test_code_says_in_which_sandbox_it_ran(capsys, mine):
    _, out, _ = run(capsys, "python", "code=print(1)", "--json")
    called = json.loads(out)
    assert (called["ok"], called["text"], called["arguments"]) == (True, "1", {"code": "print(1)"})
    assert called["sandbox"].partition(":")[0] in ("strong", "standard")
    _, out, _ = run(capsys, "python", "print(1)", "--unsafe", "--json")
    assert json.loads(out)["sandbox"].startswith("unsafe")
    assert json.loads(run(capsys, "guess", "why?", "--json")[1])["sandbox"] == ""


def test_an_answer_that_is_no_result_is_still_an_answer(capsys, mine):
    code, out, err = run(capsys, "mine.py:convert", "value=-1", "unit=m")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "a length is not negative"
    assert out.splitlines()[-1].startswith("not ok  0.")


def test_a_tool_asks_the_model_that_the_command_line_names(capsys, mine):
    with LLMServer(lambda body: "from the model") as server:
        options = ("--base-url", server.base_url, "--model", "m")
        code, out, err = run(capsys, "base_generator", "say it", *options)
        assert (code, err) == (0, "")
        assert out.splitlines()[0] == "from the model"
        assert out.splitlines()[-1].endswith("1 request to a model")
        assert server.bodies[0]["messages"][0]["content"] == "say it"


def test_what_would_steer_the_terminal_is_written_out(capsys, mine):
    for options in (["text=a"], ["text=a", "--quiet"], []):
        _, out, _ = run(capsys, "mine.py:steer", *options)
        assert "\x1b[2J" not in out
        assert "\x1b[31m" not in out
        assert "\\x1b[" in out


def test_a_call_is_recorded_and_replayed(capsys, mine):
    assert run(capsys, "mine.py:free", "first=a", "--quiet", "--record", "kept") == (0, "a|\n", "")
    (mine / "mine.py").unlink()
    assert run(capsys, "mine.py:free", "first=a", "--quiet", "--replay", "kept") == (0, "a|\n", "")
    assert run(capsys, "mine.py:free", "first=b", "--replay", "kept")[0] == 1


# -- servers with several tools --------------------------------------------------------------------------------------


@pytest.fixture
def served(mine):
    """A recipe with an MCP server's tools."""
    command = json.dumps([sys.executable, str(HONEST), "stdio"])
    return served_by(mine, command)


def served_by(mine, command):
    (mine / "served.toml").write_text(
        f'extends = "gazetteer-prompted"\n[tools.far]\ntype = "mcp"\ncommand = {command}\n'
    )
    return ("--recipe", "served.toml")


def test_a_servers_tools_are_shown_once_it_is_named(capsys, mine):
    # It needs no SDK, which takes seconds to import; this mode is an honest one.
    served = served_by(mine, json.dumps([sys.executable, "-S", str(HONEST.with_name("hostile.py")), "windows_lines"]))
    views = listed(capsys, "far", *served)
    assert views["far_echo"]["parameters"]["required"] == ["text"]
    assert {view["type"] for view in views.values()} == {"mcp"}
    code, out, _ = run(capsys, "far_echo", *served)
    assert code == 0
    assert "Settings, in [tools.far]\n" in out
    example = out.splitlines()[-1].strip()
    assert example == 'midstream tools far_echo --recipe served.toml "..."'
    assert run(capsys, *example.replace('"..."', "2").split()[2:], "--quiet") == (0, "echo: 2\n", "")


def test_a_server_of_several_tools_is_called_by_the_name_of_one(capsys, mine):
    served = served_by(
        mine, json.dumps([sys.executable, "-S", str(HONEST.with_name("hostile.py")), "long_description"])
    )
    code, _, err = run(capsys, "far", "text=2", *served)
    assert code == 2
    assert coded("too-many", "'far'", fix="far_echo")(printed(err))
    code, _, err = run(capsys, "near_echo", "text=2", *served)
    assert code == 2
    assert coded("unknown-tool", "'near_echo'")(printed(err))


@pytest.mark.slow
def test_a_tool_of_a_server_is_called_by_its_own_name(capsys, served):
    assert run(capsys, "far_add", "a=2", "b=3", "--quiet", *served) == (0, "5\n", "")
    code, _, err = run(capsys, "far", "a=2", *served)
    assert code == 2
    assert coded("too-many", "'far'", "13 tools", fix="far_add, far_person")(printed(err))
    code, _, err = run(capsys, "near_add", "a=2", *served)
    assert code == 2
    assert coded("unknown-tool", "'near_add'")(printed(err))


# -- how it says no --------------------------------------------------------------------------------------------------

REFUSED = {
    "an unknown tool": (["browser"], "unknown-tool", "'browser'", "python, base_generator"),
    "no name": ([""], "empty-value", "''", "local_search"),
    "two tools": (["python,guess"], "too-many", "'python,guess'", "name one"),
    "a type without its settings": (["function", "a"], "missing-key", "'function'", "midstream tools function"),
    "no file": (["none.py:f"], "file-not-found", "none.py", "give its absolute path"),
    "an argument that is missing": (["mine.py:convert", "value=3"], "invalid-arguments", "'unit'", "shows"),
    "an argument of another type": (["mine.py:convert", "value=x", "unit=m"], "invalid-arguments", "'x'", "shows"),
    "an argument that is not allowed": (
        ["mine.py:convert", "value=3", "unit=ft"],
        "invalid-arguments",
        "'ft'",
        "shows",
    ),
    "an argument that is unknown": (
        ["mine.py:convert", "value=3", "size=m"],
        "invalid-arguments",
        "'value=3 size=m'",
        "shows",
    ),
    "an argument twice": (["mine.py:convert", "value=3", "value=4"], "invalid-arguments", "'value=3 value=4'", "shows"),
    "a word without a name": (["mine.py:convert", "3"], "invalid-arguments", "'3'", "shows"),
    "JSON that is broken": (["guess", '{"question": }'], "invalid-arguments", '{"question": ', "shows"),
    "JSON without an end": (["guess", '{"question": ' + "[" * 100_000], "invalid-arguments", '{"question": ', "shows"),
    "half a character": (["guess", '{"question": "\\ud800"}'], "invalid-arguments", "\\ud800", "shows"),
    "JSON with more": (["guess", '{"question": "a", "b": 1}'], "invalid-arguments", "'b'", "shows"),
    "an unknown setting": (["guess", "--set", "tools.guess.size=3"], "recipe-invalid", "tools.guess.size", "largest"),
    "an unknown provider": (
        ["--provider", "acme", "--model", "m"],
        "recipe-invalid",
        "provider = 'acme'",
        "known keys here: model, provider",
    ),
}


def test_a_type_without_its_settings_is_no_tool_that_can_be_named():
    with pytest.raises(UsageError, check=coded("missing-key", "'function'")):
        chosen_tools({"python": {}}, "python,function")


@pytest.mark.matrix(8)
@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_refused_with_its_fix(case, capsys, mine):
    words, kind, value, fix = REFUSED[case]
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert coded(kind, value, fix=fix)(printed(err))


def test_a_broken_back_end_is_a_failure(capsys, mine):
    code, out, err = run(capsys, "mine.py:broken", "a")
    assert (code, out) == (1, "")
    assert err == "error[tool-failed]: the server is down\n  cause: nobody started it\n  fix: start it\n"


@pytest.mark.slow
def test_it_is_quick_to_ask_and_loads_no_torch():
    code = (
        "import sys; from midstream.cli.main import main; main(['tools', '--quiet']); "
        "print(sorted({'torch', 'numpy', 'ddgs', 'trafilatura', 'mcp'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


# -- types in words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer"}, "integer"),
        ({}, "anything"),
        ({"type": ["string", "null"]}, "string or null"),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, "number or null"),
        ({"enum": ["é", 3]}, '"é" or 3'),
        ({"const": "x"}, '"x"'),
        ({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, "list of list of string"),
        ({"type": "array", "items": {}}, "array"),
        ({"$ref": "#/$defs/Unit"}, '"m" or "mi"'),
        ({"$ref": "#/$defs/Point"}, "Point"),
        ({"$ref": "#/$defs/Missing"}, "Missing"),
    ],
)
def test_types_in_words(schema, words):
    whole = {"$defs": {"Unit": {"enum": ["m", "mi"]}, "Point": {"type": "object"}}}
    assert report.words_of(schema, whole) == words


# -- graphs ----------------------------------------------------------------------------------------------------------


def test_a_call_by_hand_reads_the_graphs_that_the_settings_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.edges").write_text("a b\nb c")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "h.csv").write_text("source,target\nx,y\ny,z")
    graphs = ("--set", 'tools.graph.files=["g.edges", "more"]')
    words = ["graph=g.edges", "algorithm=diameter"]
    assert run(capsys, "graph", *words, *graphs, "--quiet") == (0, "diameter of g.edges: 2\n", "")
    call = {"graph": "g.edges", "algorithm": "is_isomorphic", "arguments": {"other": "more/h.csv"}}
    assert run(capsys, "graph", json.dumps(call), *graphs, "--quiet")[1].endswith(": yes\n")
    unnamed = json.dumps({**call, "arguments": {"other": "none.csv"}})
    assert json.loads(run(capsys, "graph", unnamed, *graphs, "--json")[1])["ok"] is False
    code, _, err = run(capsys, "graph", "graph=g.edges", "algorithm=diametre", *graphs)
    assert code == 2
    assert coded("invalid-arguments", "'diameter'")(printed(err))
