import asyncio

from midstream.core.protocols import Tool, ToolResult
from midstream.tools.python import Config, PythonTool


def call(*codes: str, config: Config | None = None) -> list[ToolResult]:
    async def go() -> list[ToolResult]:
        tool = PythonTool(config)
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
    raised, late = call("1 / 0", "while True: pass", config=Config(timeout_s=0.2))
    assert not raised.ok
    assert raised.text.endswith("ZeroDivisionError: division by zero")
    assert late == ToolResult(text="TimeoutError: not finished after 0.2 s", ok=False)


def test_is_a_tool_and_says_what_it_can():
    tool = PythonTool(Config(tier="arithmetic", timeout_s=3))
    assert isinstance(tool, Tool)
    assert "arithmetic expression" in tool.description
    assert tool.timeout_s > 3
    assert call("3 * 4", config=Config(tier="arithmetic")) == [ToolResult(text="12")]
