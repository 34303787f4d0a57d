"""The Python tool: code that runs in the sandbox."""

from __future__ import annotations

import asyncio

import pytest

from midstream.components.component import Sandbox
from midstream.core.tool import Tool, ToolResult
from midstream.tools.python import PythonConfig, PythonTool
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
