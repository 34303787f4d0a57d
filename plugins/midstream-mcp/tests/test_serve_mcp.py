"""`midstream mcp` as clients of the protocol use it: a process that they ask over its pipes."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from support.serving import ENGINE

RECIPE = """
extends = "tool-calling"
name = "multiplier"
[engines.model]
type = "parts.py:ENGINE"
[tools.python]
type = "parts.py:times"
alias = "times"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "parts.py").write_text(ENGINE)
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("ENGINE", "answer"))
    return tmp_path / "recipe.toml"


async def _in_client(words: list[str], use: Any, **client: Any) -> Any:
    arguments = ["-m", "midstream.cli.main", "mcp", *words]
    async with Client(StdioServerParameters(command=sys.executable, args=arguments), **client) as connected:
        return await use(connected)


@pytest.mark.slow
def test_mcp_clients_get_steps_answers_and_lessons(recipe, tmp_path):
    lessons = tmp_path / "lessons.json"
    steps: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append(message or "")

    async def use(client: Any) -> tuple[str, bool]:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["ask"]
        found = await client.call_tool("ask", {"question": "What is 6 * 7 ?"}, progress_callback=note)
        return found.content[0].text, found.is_error

    assert asyncio.run(_in_client([str(recipe)], use)) == ("42", False)
    assert [step.strip().split(":")[0] for step in steps] == ["1. times", "42"]

    lesson_set = {"lessons": [{"id": "L1", "module": "policy", "text": "Multiply with the tool."}]}
    lessons.write_text(json.dumps(lesson_set))

    async def read(client: Any) -> tuple[str, str]:
        [resource] = (await client.list_resources()).resources
        shown = (await client.read_resource(resource.uri)).contents[0].text
        return shown, (await client.call_tool("ask", {"question": "Hello"})).content[0].text

    words = [str(recipe), "--lessons", str(lessons), "--set", "agent.template=native"]
    shown, answer = asyncio.run(_in_client(words, read))
    assert "Multiply with the tool." in shown
    assert answer == "a lesson"


@pytest.mark.slow
def test_the_clients_own_model_may_be_the_engine(recipe):
    recipe.write_text(RECIPE.replace("parts.py:ENGINE", "mcp_client"))
    asked: list[str] = []

    async def sample(context: Any, parameters: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        asked.append(str(parameters.messages[-1].content))
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(type="text", text="of the client"), model="theirs"
        )

    async def use(client: Any) -> str:
        return (await client.call_tool("ask", {"question": "Who are you ?"})).content[0].text

    words = [str(recipe)]
    assert asyncio.run(_in_client(words, use, sampling_callback=sample, mode="legacy")) == "of the client"
    assert len(asked) == 1

    async def without(client: Any) -> bool:
        return (await client.call_tool("ask", {"question": "Who are you ?"})).is_error

    assert asyncio.run(_in_client([str(recipe)], without)) is True
