"""The Python tool: runs code in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from midstream.components.component import Context, Sandbox, ToolConfig
from midstream.core.text import find_program
from midstream.core.tool import Tool, ToolResult
from midstream.core.tool_calls import text_arguments
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits
from midstream.sandbox.tiers import choose

# The pool bounds its own waits and runs; this only ends a pool that hangs.
NEVER_S = 3600.0


class PythonTool:
    """Runs Python in a separate process, without state between calls; `libraries` lists what code can import.

    Code that raises, runs too long or uses too much memory is an answer with `ok=False`; too much output is cut and
    marked. The sandbox's tier (`sandbox.tiers`) determines how the code is confined.
    """

    name = "python"
    parameters: Mapping[str, JsonValue] = text_arguments(code="Python code, for example: 105 + 7")

    def __init__(self, config: PythonConfig | None = None, sandbox: Sandbox | None = None) -> None:
        config = config or PythonConfig()
        self.pool = PythonPool(config, sandbox or choose())
        self.timeout_s = NEVER_S
        self.output_tokens = config.output_limit
        if self.pool.tier == "arithmetic":
            self.libraries = (
                "nothing but one arithmetic expression: + - * / // % **, comparisons, min, max, abs, round, sum"
            )
            self.description = f"Evaluates arithmetic; it takes {self.libraries}."
        else:
            self.libraries = ", ".join(("the standard library", *self.pool.libraries))
            confined = "" if self.pool.tier == "unsafe" else ", and it reaches neither your files nor the network"
            self.description = (
                "Runs Python code and returns what it prints and the value of its last expression, or its error. The "
                f"code can import {self.libraries}; nothing is kept between calls{confined}. For arithmetic and exact "
                "computation, not for facts."
            )

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Run `arguments["code"]`, without a fence around it; raises `SandboxError` if no process could run it."""
        written = str(arguments["code"])
        program, _ = find_program(written)
        # What does not compile gets Python's own error.
        result = await self.pool.run(program or written)
        return ToolResult(text=result.text or "(no output)", ok=result.usable)

    async def close(self) -> None:
        """End the processes."""
        await self.pool.close()


class PythonConfig(CodeLimits, ToolConfig):
    """Runs Python in the sandbox. The settings are `sandbox.settings.CodeLimits`."""

    component = PythonTool
    sandboxed = True

    def build(self, context: Context) -> Tool:
        """The tool."""
        return PythonTool(self, context.sandbox)
