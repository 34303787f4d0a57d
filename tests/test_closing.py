"""What a build made is closed: by every command, and also where an error leaves it half made."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.core.errors import RecipeError
from midstream.engines.openai import settings as openai_settings
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream_worlds.scripted_engine import ScriptedEngine
from support.errors import coded

DOORS = """
from midstream import ToolResult

made, closed = [], []

class Door:
    name, description, timeout_s, output_tokens = "door", "Opens.", 5.0, 100
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    def __init__(self):
        made.append(self)
    async def call(self, arguments):
        return ToolResult(text="open")
    async def close(self):
        closed.append(self)

class Stuck(Door):
    async def close(self):
        raise ZeroDivisionError
"""


@pytest.fixture
def doors(tmp_path, monkeypatch):
    """A module of tools that notes which were made and which were closed; midstream runs next to it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "doors.py").write_text(DOORS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "doors", raising=False)
    return importlib.import_module("doors")


def write_recipe(*tools: str) -> str:
    """The name of a recipe with these of the module's tools, in this order."""
    tables = (f'[tools.t{place}]\ntype = "function"\nfunction = "doors:{one}"\n' for place, one in enumerate(tools))
    Path("mine.toml").write_text('extends = "gazetteer-prompted"\nname = "mine"\n' + "".join(tables))
    return "mine.toml"


def test_a_tool_that_cannot_be_closed_keeps_no_other_open(doors):
    with pytest.raises(ZeroDivisionError), Build(load_recipe(write_recipe("Door", "Stuck", "Door"))) as build:
        _ = build.tools
    assert len(doors.made) == 3
    assert doors.closed == [doors.made[2], doors.made[0]]


def test_an_engine_that_only_a_tool_asks_is_closed_and_nothing_is_closed_twice(doors, monkeypatch):
    class Engine(ScriptedEngine):
        async def close(self):
            doors.closed.append(self)

    engine = Engine([])
    monkeypatch.setattr(openai_settings.OpenAIConfig, "build", lambda config, context: engine)
    overrides = [
        "engines.server={type='openai_compatible',model='m',base_url='http://127.0.0.1:9/v1'}",
        "tools.base_generator={engine='server'}",
    ]
    with Build(load_recipe(write_recipe(), overrides)) as build:
        _ = build.tools
    assert doors.closed == [engine]
    asyncio.run(build.close())
    assert doors.closed == [engine]


@pytest.mark.parametrize("record", [False, True])
def test_what_was_made_before_an_error_is_closed(doors, record):
    build = Build(load_recipe(write_recipe("Door", "Missing")), record=Path("kept") if record else None)
    with pytest.raises(RecipeError, check=coded("name-not-found", "doors", "'Missing'")), build:
        _ = build.tools
    assert doors.closed == doors.made != []


SERVED = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m")


@pytest.mark.parametrize("words", [("call", "t0", "a", "--recipe"), ("solve", "Why?", *SERVED, "--recipe"), ("eval",)])
def test_every_command_closes_what_it_made(words, doors, capsys):
    second = "Door" if words[0] == "call" else "Missing"  # it makes one alone
    code = main([*words, write_recipe("Door", second), "--quiet"])
    assert code == (0 if words[0] == "call" else 2), capsys.readouterr().err
    assert doors.closed == doors.made != []


def test_training_that_cannot_begin_closes_what_it_made(doors, ten_steps, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(
        f'extends = "{ten_steps.stem}"\n[tools.door]\ntype = "function"\nfunction = "doors:Door"\n'
    )
    (tmp_path / ten_steps.name).write_text(ten_steps.read_text())
    assert main(["train", str(tmp_path / "mine.toml"), "--out", "doors.py", "--quiet"]) != 0  # a file is there
    assert doors.closed == doors.made != [], capsys.readouterr().err
