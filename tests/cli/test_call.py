"""`midstream call`: a tool called by hand, what it takes, and how it says no."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from midstream.cli.call import type_in_words
from midstream.cli.main import main
from support.errors import coded, printed
from support.llm_server import LLMServer

HONEST = Path(__file__).parents[2] / "plugins" / "midstream-mcp" / "tests" / "mcp_servers" / "honest.py"
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
    code = main(["call", *map(str, options)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def taken(capsys, *options):
    """What tools take, by name."""
    code, out, err = run(capsys, *options, "--json")
    assert (code, err) == (0, "")
    return {tool["name"]: tool for tool in json.loads(out)}


# -- without arguments -------------------------------------------------------------------------------------------------


def test_a_tool_shows_what_it_takes(capsys, mine):
    code, out, err = run(capsys, "mine.py:convert")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[:2] == ["convert", "Converts a length."]
    assert lines[5:9] == ["value number how long", 'unit "m" or "km"', 'to string = "km"', "again boolean = false"]
    assert lines[10:] == [
        "limits 5 s, 2,000 tokens of output",
        'call it midstream call mine.py:convert value="..." unit="..."',
    ]
    [tool] = taken(capsys, "mine.py:convert").values()
    assert tool["parameters"]["required"] == ["value", "unit"]
    assert run(capsys, "mine.py:convert", "--quiet") == (0, "convert\n", "")


def test_a_tool_of_a_recipe_has_its_name(capsys, mine):
    [tool] = taken(capsys, "lengths", "--recipe", "mine.toml").values()
    assert (tool["name"], tool["timeout_s"]) == ("lengths", 5)
    assert tool["example"] == 'midstream call lengths --recipe mine.toml value="..." unit="..."'


def test_a_tool_that_cannot_be_made_says_why(capsys, mine):
    code, out, err = run(capsys, "local_search", "--set", "tools.local_search.index=nowhere.db")
    assert (code, out) == (2, "")
    assert coded("file-not-found", "nowhere.db")(printed(err))


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
    views = taken(capsys, "far", *served)
    assert views["far_echo"]["parameters"]["required"] == ["text"]
    code, out, _ = run(capsys, "far_echo", *served)
    assert code == 0
    example = views["far_echo"]["example"]
    assert example in out
    assert example == 'midstream call far_echo --recipe served.toml "..."'
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
    "a type without its settings": (["function", "a"], "recipe-invalid", "tools.function", "known keys"),
    "no file": (["none.py:f"], "file-not-found", "none.py", "give its absolute path"),
    "an argument that is missing": (["mine.py:convert", "value=3"], "invalid-arguments", '"unit"', "shows"),
    "an argument of another type": (["mine.py:convert", "value=x", "unit=m"], "invalid-arguments", '"x"', "shows"),
    "an argument that is not allowed": (
        ["mine.py:convert", "value=3", "unit=ft"],
        "invalid-arguments",
        '"ft"',
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
        ["guess", "--provider", "acme", "--model", "m"],
        "recipe-invalid",
        "provider = 'acme'",
        "known keys here: model, provider",
    ),
}


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
    assert type_in_words(schema, whole) == words


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
