import asyncio

import pytest

from midstream.core.protocols import Tool, ToolResult
from midstream.sandbox.tiers import Sandbox
from midstream.tools.python import Config, PythonTool
from support.sandboxes import sandbox

ARITHMETIC = Sandbox(tier="arithmetic")
PLAIN = Config(libraries=())


def call(*codes: str, config: Config = PLAIN, held: Sandbox | None = None) -> list[ToolResult]:
    async def go() -> list[ToolResult]:
        tool = PythonTool(config, held or sandbox("standard"))
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


def test_what_code_does_wrong_is_an_answer():
    raised, late = call("1 / 0", "while True: pass", config=Config(timeout_s=0.2, libraries=()))
    assert not raised.ok
    assert raised.text.endswith("ZeroDivisionError: division by zero")
    assert late == ToolResult(text="TimeoutError: not finished after 0.2 s", ok=False)


def test_code_is_held_back():
    [reached] = call("import socket\nsocket.create_connection(('127.0.0.1', 9))")
    assert (reached.ok, "PermissionError" in reached.text) == (False, True)


def test_says_which_libraries_there_are():
    pytest.importorskip("numpy")
    held = Sandbox(tier="standard")
    assert "numpy" not in PythonTool(PLAIN, held).description
    tool = PythonTool(Config(libraries=("numpy", "no_such_library")), held)
    assert "numpy" in tool.description
    assert "no_such_library" not in tool.description


def test_is_a_tool_and_says_what_it_can():
    tool = PythonTool(Config(timeout_s=3), ARITHMETIC)
    assert isinstance(tool, Tool)
    assert "arithmetic expression" in tool.description
    assert tool.timeout_s > 3
    assert call("3 * 4", held=ARITHMETIC) == [ToolResult(text="12")]
