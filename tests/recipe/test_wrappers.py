"""Wrappers of tools: `[wrappers.TOOL.TYPE]`, of a recipe, an evaluation set and a warm start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.core.tool import PerRun, RunProgress, ToolRun
from midstream.core.tool_calls import call_tool
from midstream.evaluation.settings import SetConfig
from midstream.recipe.build import Build
from midstream.recipe.check import wrappers_of
from midstream.recipe.overrides import evaluation_recipe
from midstream.recipe.schema import Recipe, load_recipe
from support.errors import coded

SUFFIX = '''
from midstream.components.component import WrapperConfig
from midstream.core.tool import PerRun, ToolResult
from midstream.core.tool import Wrapper

class Suffix(WrapperConfig):
    """Adds a word to each result."""
    word: str

    def wrap(self, tools, context):
        return [Suffixed(tool, self) for tool in tools]

class Suffixed(Wrapper):
    def __init__(self, tool, config):
        super().__init__(tool)
        self.tool, self.config, self.close = tool, config, tool.close

    async def call(self, arguments):
        return await self.tool.call(arguments)

    def for_run(self, run):
        inner = self.tool.for_run(run) if isinstance(self.tool, PerRun) else self.tool
        return Changed(inner, self.config.word) if run.progress or self.config.everywhere else inner

    def probabilities(self, progress):
        return {}

class Changed(Wrapper):
    def __init__(self, tool, word):
        super().__init__(tool)
        self.tool, self.word = tool, word

    async def call(self, arguments):
        found = await self.tool.call(arguments)
        return ToolResult(text=f"{found.text} {self.word}")
'''
END = RunProgress(step=1, steps=1)


@pytest.fixture
def recipe(tmp_path):
    """Load a recipe whose wrappers `first`, `second` and so on add these words."""
    (tmp_path / "mine.py").write_text(SUFFIX)

    def load(*words: str, at: str = "wrappers", more: Sequence[str] = ()) -> Recipe:
        tables = [f"{at}.python.{word}={{type='{tmp_path}/mine.py:Suffix',word='{word}'}}" for word in words]
        return load_recipe("gazetteer-prompted", ["sandbox.tier=arithmetic", *tables, *more])

    return load


def answer(recipe: Recipe, progress: RunProgress | None, chosen: SetConfig | None = None) -> str:
    """The answer of the recipe's tool `python` in a run."""

    async def ask() -> str:
        async with Build(recipe) as build:
            tools = build.tool_tables.wrapped(chosen.wrappers) if chosen else build.tools
            tool = next(tool for tool in tools if tool.name == "python")
            task = Task(id="t", question="?", answer="3")
            mine = tool.for_run(ToolRun(task=task, seed=1, progress=progress)) if isinstance(tool, PerRun) else tool
            return (await call_tool(mine, {"code": "1 + 2"})).text

    return asyncio.run(ask())


def test_they_wrap_a_tool_in_training_one_after_the_other(recipe):
    assert answer(recipe("one", "two"), END) == "3 one two"
    assert answer(recipe("one", "two"), None) == "3"


def test_one_may_hold_everywhere(recipe):
    kept = ["wrappers.python.two.everywhere=true"]
    assert answer(recipe("one", "two", more=kept), None) == "3 two"


def test_those_of_a_set_hold_in_all_its_runs(recipe):
    wrapped = recipe("one", at="evaluation.validation.wrappers")
    assert answer(wrapped, None, wrapped.evaluation.validation) == "3 one"
    assert answer(wrapped, None) == "3"
    assert [where for where, _ in wrappers_of(wrapped)] == ["evaluation.validation.wrappers.python.one"]


def test_an_evaluation_keeps_those_that_hold_everywhere(tmp_path):
    (tmp_path / "mine.py").write_text(SUFFIX)
    tables = [f"wrappers.python.{word}={{type='{tmp_path}/mine.py:Suffix',word='{word}'}}" for word in ("a", "b")]
    kept = evaluation_recipe("gazetteer-prompted", overrides=[*tables, "wrappers.python.b.everywhere=true"])
    assert list(kept.wrappers["python"]) == ["b"]
    assert evaluation_recipe("gazetteer-prompted", overrides=tables).wrappers == {}


def test_one_of_a_tool_that_is_not_there_is_refused(recipe):
    with pytest.raises(RecipeError, check=coded("unknown-tool", "wrappers.nothing")):
        Build(recipe("one", more=["wrappers.nothing.degraded.error=0.5"]))


def test_a_type_that_no_package_has_is_refused():
    with pytest.raises(RecipeError, check=coded("unknown-type", "wrappers.python.doubled.type")):
        load_recipe("gazetteer-prompted", ["wrappers.python.doubled={}"])
