"""Functions named in a recipe: from a file, from a package, and what is said where that fails."""

from __future__ import annotations

import asyncio
import sys

import pytest

from midstream import Build, RecipeError, UsageError, parse_recipe
from midstream.core.tool_calls import call_tool
from midstream.recipe.check import check
from midstream.recipe.schema import read_table
from midstream.tools.named_function import Config, load

TOOLS = '''
from midstream import tool
from helper_beside import SUFFIX

COUNT = 0
NUMBER = 3

@tool(timeout_s=7, output_tokens=9)
def shout(text: str) -> str:
    """Says it louder."""
    return text.upper() + SUFFIX

def count() -> int:
    """Counts its calls."""
    global COUNT
    COUNT += 1
    return COUNT

def unclear(text):
    """Has no hint."""
    return text

class Box:
    def __init__(self, kept="k"):
        self.kept = kept

    def look(self) -> str:
        """Looks into the box."""
        return self.kept

class Whole:
    name, description, parameters = "whole", "Is a tool as it stands.", {"type": "object", "properties": {}}
    timeout_s, output_tokens = 3.0, 50

    async def call(self, arguments):
        from midstream import ToolResult

        return ToolResult(text="whole")

    async def close(self):
        COUNT_CLOSED.append(1)

class Needy:
    def __init__(self, key):
        pass

COUNT_CLOSED = []
box = Box()
'''


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with `my_tools.py` and what it imports, midstream running in it."""
    (tmp_path / "my_tools.py").write_text(TOOLS)
    (tmp_path / "helper_beside.py").write_text("SUFFIX = '!'\n")
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def make(reference, name="named"):
    return load(Config(function=reference), name)


def say(tool, **arguments):
    return asyncio.run(call_tool(tool, arguments)).text


def recipe(**tables):
    return parse_recipe({**read_table("agentflow-prompted"), "tools": tables})


def test_a_function_of_a_file_is_a_tool_under_the_recipes_name(place):
    tool = make("my_tools.py:shout", "louder")
    assert (tool.name, tool.description, tool.timeout_s, tool.output_tokens) == ("louder", "Says it louder.", 7, 9)
    assert say(tool, text="a") == "A!"
    assert say(make(str(place / "my_tools.py") + ":shout"), text="b") == "B!"


def test_tools_of_one_file_share_its_state(place):
    assert [say(make("my_tools.py:count", name)) for name in ("one", "two")] == ["1", "2"]


def test_a_method_of_an_object_in_the_file(place):
    assert say(make("my_tools.py:box.look")) == "k"


def test_a_class_of_tools_takes_the_recipes_name(place):
    tool = make("my_tools.py:Whole")
    assert (tool.name, tool.description, tool.timeout_s, tool.output_tokens) == (
        "named",
        "Is a tool as it stands.",
        3,
        50,
    )
    assert say(tool) == "whole"
    asyncio.run(tool.close())
    own = [module for name, module in sys.modules.items() if name.startswith("midstream_tools_")]
    assert [vars(module)["COUNT_CLOSED"] for module in own if "COUNT_CLOSED" in vars(module)] == [[1]]


def test_a_module_is_named_with_dots(place):
    sys.path.append(str(place))
    package = place / "package_here"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text('def f() -> int:\n    """One."""\n    return 1\n')
    assert say(make("package_here.inner:f")) == "1"


def test_a_recipe_builds_it_and_checks_without_importing(place):
    (place / "my_tools.py").write_text("open('imported', 'w').close()\n" + TOOLS)
    chosen = recipe(loud={"type": "function", "function": "my_tools.py:shout"})
    assert check(chosen)["tools"]["loud"] == {"type": "function", "function": "my_tools.py:shout"}
    build = Build(chosen)
    assert not (place / "imported").exists()
    [tool] = build.tools
    assert (place / "imported").exists()
    assert tool.name == "loud"


@pytest.mark.parametrize("reference", ["my_tools.py", "my_tools:", ":f", "a:b c", "a:1"])
def test_what_names_no_function_is_refused_by_the_check(reference):
    with pytest.raises(RecipeError, match=r"tools\.f\.function = "):
        check(recipe(f={"type": "function", "function": reference}))


REFUSED = {
    "no file": ("none.py:f", "no file ", "relative to the directory", "run midstream where the file is"),
    "no module": ("no_such_module:f", "no module 'no_such_module'", "misspelt", "name the file"),
    "no such name": ("my_tools.py:shoot", "my_tools.py has no 'shoot'", "misspelt", "shout, count, unclear"),
    "no such part": ("my_tools.py:box.open", "has no 'box.open'", "misspelt", "name one of"),
    "a number": ("my_tools.py:NUMBER", "is no function and no tool: 3", "a tool has name", "docs/own-tool.md"),
    "no hints": ("my_tools.py:unclear", "unclear: argument 'text'", "no type hint", "text: str"),
    "a class with needs": ("my_tools.py:Needy", "cannot be made without arguments", "objects need", "make the object"),
    "a file that raises": ("bad.py:f", "bad.py cannot be imported: ZeroDivisionError", "line 2", "until"),
    "a file that exits": ("exits.py:f", "exits.py cannot be imported: SystemExit", "line 1", "until"),
    "a file that is no Python": ("typo.py:f", "typo.py cannot be imported: SyntaxError", "typo.py, line 1", "until"),
    "a file that misses a module": ("lacks.py:f", "No module named 'not_here'", "line 1", "until"),
    "a package that misses a module": ("lacking:f", "lacking cannot be imported: ModuleNotFound", "line 1", "correct"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_loaded_says_why_and_what_to_do(case, place):
    (place / "bad.py").write_text("a = 0\n1 / a\n")
    (place / "exits.py").write_text("raise SystemExit\n")
    (place / "typo.py").write_text("def f(:\n")
    (place / "lacks.py").write_text("import not_here\n")
    (place / "lacking.py").write_text("import not_here\n")
    sys.path.append(str(place))
    reference, said, cause, fix = REFUSED[case]
    with pytest.raises(UsageError) as refused:
        make(reference)
    assert said in refused.value.what
    assert cause in refused.value.cause
    assert fix in refused.value.fix


def test_a_file_that_was_mended_is_imported_again(place):
    (place / "late.py").write_text("1 / 0\n")
    with pytest.raises(RecipeError):
        make("late.py:f")
    (place / "late.py").write_text('def f() -> int:\n    """One."""\n    return 1\n')
    assert say(make("late.py:f")) == "1"
