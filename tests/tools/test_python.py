"""The Python tool: code that runs in the sandbox, and the coder that writes it for a request."""

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
from midstream.tools.python import CODER_TIMEOUT_S, PythonCoder, PythonConfig, PythonTool
from midstream_worlds.scripted_engine import ScriptedEngine
from support.errors import coded
from support.llm_server import LLMServer, prompt_of
from support.sandboxes import sandbox

ARITHMETIC = Sandbox(tier="arithmetic")
PLAIN = PythonConfig(libraries=())


def call(*codes: str, config: PythonConfig = PLAIN, tier: Sandbox | None = None) -> list[ToolResult]:
    async def go() -> list[ToolResult]:
        tool = PythonTool(config, tier or sandbox("standard"))
        try:
            return [await tool.call({"code": code}) for code in codes]
        finally:
            await tool.close()

    return asyncio.run(go())


def test_runs_code():
    assert call("105 + 7", "print(2)", "x = 1") == [
        ToolResult(text="112"),
        ToolResult(text="2"),
        ToolResult(text="(no output)"),
    ]


def test_code_that_raises_or_runs_too_long_is_an_answer():
    raised, late = call("1 / 0", "while True: pass", config=PythonConfig(timeout_s=0.5, libraries=()))
    assert not raised.ok
    assert raised.text.endswith("ZeroDivisionError: division by zero")
    # Half a second is rounded up to one; a busy machine may take 2.5 s on the clock for it.
    assert late.text in [f"TimeoutError: not finished after {passed}" for passed in ("1 s of CPU time", "2.5 s")]
    assert not late.ok


@pytest.mark.matrix(3)
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("```python\n105 + 7\n```", "112"),
        ("```\nx = 105\nx + 7\n```", "112"),
        ("Let us see:\n```py\n105 + 7\n```\nThat is it.", "112"),
        ("    x = 105\n    x + 7", "112"),
        ("\n  ```python\n  for x in (105,):\n      print(x + 7)\n  ```", "112"),
        ("'```python\\n1\\n```'", "'```python\\n1\\n```'"),  # code with a fence in a string
        ("'</think>'", "'</think>'"),  # code is no reply: nothing of it is a thought
    ],
)
def test_fenced_and_indented_code_runs(code: str, text: str):
    assert call(code) == [ToolResult(text=text)]


def test_code_that_does_not_compile_gets_pythons_error():
    [wrong] = call("```python\n105 +\n```")
    assert not wrong.ok
    assert "SyntaxError" in wrong.text


def test_too_much_output_is_cut_and_marked():
    [cut] = call("for x in range(10**9): print('ab')", config=PythonConfig(output_limit=5, libraries=()))
    assert cut == ToolResult(text="ab\nab\n[output cut after 5 characters]")


def test_code_cannot_open_a_connection():
    [reached] = call("import socket\nsocket.create_connection(('127.0.0.1', 9))")
    assert (reached.ok, "PermissionError" in reached.text) == (False, True)


def test_the_description_lists_the_libraries():
    pytest.importorskip("numpy")
    standard = Sandbox(tier="standard")
    assert "numpy" not in PythonTool(PLAIN, standard).description
    tool = PythonTool(PythonConfig(libraries=("numpy", "no_such_library")), standard)
    assert "numpy" in tool.description
    assert "no_such_library" not in tool.description


def test_the_arithmetic_tier_is_described():
    tool = PythonTool(PythonConfig(timeout_s=3), ARITHMETIC)
    assert isinstance(tool, Tool)
    assert "arithmetic expression" in tool.description
    assert tool.timeout_s > 3
    assert call("3 * 4", tier=ARITHMETIC) == [ToolResult(text="12")]


# --- coder ----------------------------------------------------------------------------------------------------------

QUICK = PythonConfig(workers=1, libraries=())


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
    libraries = PythonTool(PythonConfig(workers=1)).libraries
    tool = PythonConfig(workers=1).build(SimpleNamespace(sandbox=choose(), engine=ScriptedEngine(["1"])))
    assert libraries.startswith("the standard library")
    assert f"can use {libraries}." in tool.description
    assert (tool.name, tool.timeout_s, list(tool.parameters["properties"])) == ("python", CODER_TIMEOUT_S, ["query"])


def test_without_an_engine_it_takes_code():
    assert isinstance(QUICK.build(SimpleNamespace(sandbox=choose(), engine=None)), PythonTool)


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
            "tools.python.engine=model",
            "tools.local_search=false",
            f"engines.model.base_url={server.base_url}",
        )
        tool = Build(load_recipe("gazetteer-prompted", settings)).tools[-1]
        assert asyncio.run(_called(tool, {"query": "six times seven"})).text == "42"
        assert json.dumps(server.bodies[0]).count("six times seven") == 1
    with pytest.raises(RecipeError, check=coded("unknown-engine", "tools.python.engine = 'nobody'")):
        Build(load_recipe("gazetteer-prompted", ["tools.python.engine=nobody"]))


async def _called(tool: Tool, arguments: dict) -> ToolResult:
    try:
        return await tool.call(arguments)
    finally:
        await tool.close()
