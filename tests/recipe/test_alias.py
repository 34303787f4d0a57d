"""Tools under other names: `alias`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from midstream.core.errors import RecipeError
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from support.errors import coded


def test_an_alias_is_what_agents_call_a_tool():
    with Build(load_recipe("gazetteer-prompted", ["tools.python.alias=calculator"])) as build:
        assert [tool.name for tool in build.tools] == ["calculator", "local_search"]
    assert load_recipe("gazetteer-prompted", ["tools.python.alias=calculator"]).table()["tools"]["python"]["alias"]


def test_a_template_calls_a_tool_by_its_alias():
    changed = ["agent.template=search-r1", 'tools={ wikipedia = { alias = "search" }, python = false }']
    with Build(load_recipe("artist-prompted", changed)) as build:
        assert [tool.name for tool in build.tools] == ["search"]
    with pytest.raises(RecipeError, check=coded("unknown-tool", "search", "python")):
        Build(load_recipe("artist-prompted", changed[:1]))


@pytest.mark.parametrize(
    ("alias", "code"), [("two words", "recipe-invalid"), ("", "recipe-invalid"), ("local_search", "name-clash")]
)
def test_an_alias_is_a_name_that_no_other_tool_has(alias: str, code: str):
    with (
        pytest.raises(RecipeError, check=coded(code, alias)),
        Build(load_recipe("gazetteer-prompted", [f'tools.python.alias="{alias}"'])) as build,
    ):
        assert build.tools


def test_an_alias_renames_any_tool(tmp_path: Path):
    """A tool of one's own whose name is a property, or that has slots, cannot be changed in place."""
    (tmp_path / "mine.py").write_text(
        "from midstream.core.tool import ToolResult\n"
        "class Slotted:\n"
        "    __slots__ = ()\n"
        "    name = property(lambda self: 'own')\n"
        "    description, parameters = 'Echoes.', {'type': 'object', 'properties': {}}\n"
        "    timeout_s, output_tokens = 1.0, 10\n"
        "    async def call(self, arguments):\n"
        "        return ToolResult(text='called')\n"
        "    async def close(self):\n"
        "        pass\n"
    )
    own = f"tools.mine={{type='{tmp_path}/mine.py:Slotted',alias='search'}}"
    with Build(load_recipe("gazetteer-prompted", [own])) as build:
        [tool] = [tool for tool in build.tools if tool.name == "search"]
        assert asyncio.run(tool.call({})).text == "called"
