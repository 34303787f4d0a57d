"""Functions named in a recipe, of a file or a package, and the errors."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import pytest

from midstream import Build, RecipeError, UsageError, parse_recipe
from midstream.core.tool_calls import call_tool
from midstream.recipe.check import resolve
from midstream.recipe.files import read_table
from midstream.tools.function import FunctionConfig
from support.errors import coded

TOOLS = '''
from midstream import tool
from helper_here import SUFFIX

COUNT = 0
NUMBER = 3

@tool(timeout_s=7, output_tokens=9)
def shout(text: str) -> str:
    """Repeats it in capitals."""
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

class Endless(Whole):
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {}}
    parameters = {"type": "object", "$ref": "#/$defs/d0", "$defs": definitions}

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
    (tmp_path / "helper_here.py").write_text("SUFFIX = '!'\n")
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def make(reference, name="named"):
    return FunctionConfig(function=reference).build(SimpleNamespace(name=name))


def say(tool, **arguments):
    return asyncio.run(call_tool(tool, arguments)).text


def recipe(**tables):
    return parse_recipe({**read_table("agentflow-prompted"), "tools": tables})


def test_a_function_of_a_file_is_a_tool_under_the_recipes_name(place):
    tool = make("my_tools.py:shout", "louder")
    assert (tool.name, tool.description, tool.timeout_s, tool.output_tokens) == (
        "louder",
        "Repeats it in capitals.",
        7,
        9,
    )
    assert say(tool, text="a") == "A!"
    assert say(make(str(place / "my_tools.py") + ":shout"), text="b") == "B!"


def test_a_tool_whose_schema_cannot_be_checked_is_refused_when_it_is_made(place):
    with pytest.raises(RecipeError, check=coded("tool-schema-invalid", "my_tools.py:Endless", "too many checks")):
        make("my_tools.py:Endless")


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
    own = [module for name, module in sys.modules.items() if name.startswith("midstream_own_")]
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
    assert resolve(chosen)["tools"]["loud"] == {"type": "function", "function": f"{place / 'my_tools.py'}:shout"}
    build = Build(chosen)
    assert not (place / "imported").exists()
    [tool] = build.tools
    assert (place / "imported").exists()
    assert tool.name == "loud"


@pytest.mark.parametrize("reference", ["my_tools.py", "my_tools:", ":f", "a:b c", "a:1"])
def test_a_malformed_reference_is_refused_by_the_check(reference):
    with pytest.raises(RecipeError, check=coded("recipe-invalid", f"tools.f.function = {reference!r}")):
        resolve(recipe(f={"type": "function", "function": reference}))


REFUSED = {
    "no file": ("none.py:f", "file-not-found", "none.py", "give its absolute path"),
    "no module": ("no_such_module:f", "module-not-found", "'no_such_module'", "name the file"),
    "no such name": ("my_tools.py:shoot", "name-not-found", "'shoot'", "shout, count, unclear"),
    "no such part": ("my_tools.py:box.open", "name-not-found", "'box.open'", "name one of"),
    "a number": ("my_tools.py:NUMBER", "tool-invalid", ": 3", "docs/tools.md"),
    "no hints": ("my_tools.py:unclear", "tool-invalid", "unclear: argument 'text'", "text: str"),
    "a class with arguments": ("my_tools.py:Needy", "recipe-invalid", ".key: Field required", "known keys here: key"),
    "a file that raises": ("bad.py:f", "import-failed", "ZeroDivisionError", "line 2"),
    "a file that exits": ("exits.py:f", "import-failed", "SystemExit", "line 1"),
    "a file that is not Python": ("typo.py:f", "import-failed", "SyntaxError", "typo.py, line 1"),
    "a file that lacks a module": ("lacks.py:f", "import-failed", "No module named 'not_here'", "line 1"),
    "a package that lacks a module": ("lacking:f", "import-failed", "ModuleNotFound", "line 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_reference_that_cannot_be_loaded_is_refused(case, place):
    (place / "bad.py").write_text("a = 0\n1 / a\n")
    (place / "exits.py").write_text("raise SystemExit\n")
    (place / "typo.py").write_text("def f(:\n")
    (place / "lacks.py").write_text("import not_here\n")
    (place / "lacking.py").write_text("import not_here\n")
    sys.path.append(str(place))
    reference, code, value, hint = REFUSED[case]
    with pytest.raises(UsageError) as refused:
        make(reference)
    assert refused.value.code == code
    assert value in refused.value.what
    assert hint in refused.value.cause + refused.value.fix


def test_a_file_that_was_corrected_is_imported_again(place):
    (place / "late.py").write_text("1 / 0\n")
    with pytest.raises(RecipeError):
        make("late.py:f")
    (place / "late.py").write_text('def f() -> int:\n    """One."""\n    return 1\n')
    assert say(make("late.py:f")) == "1"
