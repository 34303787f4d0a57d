"""The Python coder: programs that a model writes for a request, run in the sandbox."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from midstream.components.component import Sandbox
from midstream.core.errors import RecipeError, SandboxError, ToolServerError
from midstream.core.tool import Tool, ToolResult
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.sandbox.tiers import choose
from midstream.tools.python import PythonTool
from midstream_web.python_coder import CODER_TIMEOUT_S, PythonCoder, PythonCoderConfig
from midstream_worlds.scripted_engine import ScriptedEngine
from support.errors import coded
from support.llm_server import LLMServer, prompt_of

QUICK = PythonCoderConfig(workers=1, libraries=())


def coder(*replies: str, sandbox: Sandbox | None = None) -> tuple[PythonCoder, ScriptedEngine]:
    engine = ScriptedEngine(replies)
    tool = QUICK.build(SimpleNamespace(sandbox=sandbox or choose(), engine=engine))
    assert isinstance(tool, PythonCoder)
    assert isinstance(tool, Tool)
    return tool, engine


def request(tool: PythonCoder, text: str) -> ToolResult:
    async def go() -> ToolResult:
        try:
            return await tool.call({"query": text})
        finally:
            await tool.close()

    return asyncio.run(go())


def test_the_program_is_written_run_and_kept_in_the_call():
    tool, engine = coder("Surely.\n```python\nprint('sum:', 45 + 17)\n45 - 17\n```\nDone.")
    result = request(tool, "the sum of 45 and 17, and the difference")
    assert (result.text, result.ok) == ("sum: 62\n28", True)
    [call] = result.calls
    assert "45 + 17" in call.completion
    assert (call.role, call.sampling.temperature, call.sampling.max_tokens) == ("python", 0.0, 2048)
    [asked] = engine.requests
    prompt = asked.messages[0].content
    assert "# Request\n\nthe sum of 45 and 17, and the difference\n" in prompt
    assert "What it can use: the standard library." in prompt


def test_a_requests_braces_stay_as_they_are():
    tool, engine = coder("1")
    request(tool, "what is {{libraries}} and {request} and \\1 ?")
    assert "what is {{libraries}} and {request} and \\1 ?" in engine.requests[0].messages[0].content


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("```python\nprint(1\n```", "the coder wrote no program: SyntaxError: "),
        ("I cannot do that.", "the coder wrote no program: SyntaxError: "),
        ("<think>for ever", "the model gave no answer"),
        ("", "the model gave no answer"),
        ("```python\nprint('so far')\n1 / 0\n```", "ZeroDivisionError: division by zero"),
        ("```\nraise SystemExit(3)\n```", "SystemExit: 3"),
    ],
)
def test_a_wrong_reply_of_the_coder_is_an_answer_and_not_retried(reply, text):
    tool, engine = coder(reply)
    result = request(tool, "anything")
    assert not result.ok
    assert text in result.text
    assert len(result.calls) == len(engine.requests) == 1


def test_a_broken_engine_and_a_broken_sandbox_are_errors_that_keep_the_request():
    tool, _ = coder()
    with pytest.raises(ToolServerError) as failed:
        request(tool, "anything")
    assert "tool python" in failed.value.what
    tool, _ = coder("print(1)")
    asyncio.run(tool.close())
    with pytest.raises(SandboxError) as caught:
        asyncio.run(tool.call({"query": "anything"}))
    assert [call.completion for call in caught.value.calls] == ["print(1)"]


def test_its_description_lists_the_libraries():
    libraries = PythonTool(PythonCoderConfig(workers=1)).libraries
    tool = PythonCoderConfig(workers=1).build(SimpleNamespace(sandbox=choose(), engine=ScriptedEngine(["1"])))
    assert libraries.startswith("the standard library")
    assert f"can use {libraries}." in tool.description
    assert (tool.name, tool.timeout_s, list(tool.parameters["properties"])) == ("python", CODER_TIMEOUT_S, ["query"])


def test_the_coder_knows_that_it_has_only_arithmetic():
    tool, engine = coder("2 ** 10", sandbox=Sandbox(tier="arithmetic"))
    assert request(tool, "two to the tenth").text == "1024"
    assert "What it can use: nothing but one arithmetic expression" in engine.requests[0].messages[0].content


def test_a_recipe_names_its_engine():
    def reply(body):
        assert "# Request\n\nsix times seven" in prompt_of(body)
        return "print(6 * 7)"

    with LLMServer(reply) as server:
        settings = (
            'tools.python={type="python_coder", engine="model"}',
            "tools.local_search=false",
            f"engines.model.base_url={server.base_url}",
        )
        tool = Build(load_recipe("gazetteer-prompted", settings)).tools[-1]
        assert asyncio.run(_called(tool, {"query": "six times seven"})).text == "42"
        assert json.dumps(server.bodies[0]).count("six times seven") == 1
    with pytest.raises(RecipeError, check=coded("unknown-engine", "tools.python.engine = 'nobody'")):
        Build(load_recipe("gazetteer-prompted", ['tools.python={type="python_coder", engine="nobody"}']))


async def _called(tool: Tool, arguments: dict) -> ToolResult:
    try:
        return await tool.call(arguments)
    finally:
        await tool.close()
