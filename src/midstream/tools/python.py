"""The Python tool: runs code, or writes it for a request in words and runs it.

Source of the coder: arXiv 2510.05592, the tool "Python Coder": it gets a request in words, an engine at temperature 0
writes the code, and the tool has 500 s for all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field, JsonValue

from midstream.components.component import Context, Sandbox, ToolConfig
from midstream.core.engine import Engine
from midstream.core.errors import SandboxError
from midstream.core.text import fill, find_program
from midstream.core.text_file import shipped_prompt
from midstream.core.tool import Tool, ToolResult
from midstream.core.tool_calls import text_arguments
from midstream.core.trajectory import Sampling
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits
from midstream.sandbox.tiers import choose
from midstream.tools.base_generator import ask

# The pool bounds its own waits and runs; this only ends a pool that hangs.
NEVER_S = 3600.0
CODER_TIMEOUT_S = 500.0


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


class PythonCoder:
    """Has an engine write a program for a request and runs it once in `python`'s sandbox; the engine is not retried.

    A reply without a program that compiles, and a program that raises, are answers with `ok=False`. The result is what
    the program printed; the program itself is in the call.
    """

    name = "python"
    parameters: Mapping[str, JsonValue] = text_arguments(query="what to compute, with every value and fact it needs")
    timeout_s = CODER_TIMEOUT_S

    def __init__(self, python: PythonTool, engine: Engine, sampling: Sampling) -> None:
        self._python, self._engine, self._sampling = python, engine, sampling
        self._prompt = shipped_prompt("midstream.tools", "python_coder")
        self.output_tokens = python.output_tokens
        self.description = (
            "A programmer who writes Python for a request in words and runs it once. Give the request with every value "
            f"it needs; nothing is kept between requests. The program can use {python.libraries}. Returns what it "
            "prints or its error. For exact arithmetic, counting, symbolic mathematics and search by brute force; not "
            "for facts, and it reaches neither files nor the network."
        )

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Run the program that the engine writes for `arguments["query"]`.

        Raises:
            ToolServerError: the engine failed.
            SandboxError: no process could run the program; its `calls` hold the request.
        """
        values = {"libraries": self._python.libraries, "query": str(arguments["query"])}
        written = await ask(self._engine, self.name, fill(self._prompt, values), self._sampling)
        if not written.ok:
            return written
        code, problem = find_program(written.text)
        if code is None:
            return replace(written, text=f"the coder wrote no program: {problem}", ok=False)
        try:
            result = await self._python.call({"code": code})
        except SandboxError as failure:
            failure.calls = (*written.calls, *failure.calls)
            raise
        return replace(result, calls=written.calls)

    async def close(self) -> None:
        """End the processes; the engine's owner closes it."""
        await self._python.close()


class PythonConfig(CodeLimits, ToolConfig):
    """Runs Python in the sandbox; with an engine, a model writes the code.

    The settings are `sandbox.settings.CodeLimits`, and how the model samples.

    Attributes:
        temperature: of the model that writes the program; 0 is greedy
        max_tokens: its most new tokens
    """

    component = PythonTool
    asks = "optional"
    sandboxed = True

    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=2048, ge=1)

    def build(self, context: Context) -> Tool:
        """The Python tool for code, or with an engine that writes code, the one for requests in words."""
        tool = PythonTool(self, context.sandbox)
        if context.engine is None:
            return tool
        return PythonCoder(tool, context.engine, Sampling(temperature=self.temperature, max_tokens=self.max_tokens))
