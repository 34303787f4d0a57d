"""The Python coder: an engine writes a program for a request in words, and the sandbox runs it.

Source: arXiv 2510.05592, the tool "Python Coder": it gets a request in words, an engine at temperature 0 writes the
code, and the tool has 500 s for all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field, JsonValue

from midstream.components.component import Context
from midstream.core.engine import Engine
from midstream.core.errors import SandboxError
from midstream.core.text import fill, find_program
from midstream.core.text_file import shipped_prompt
from midstream.core.tool import Tool, ToolResult
from midstream.core.tool_calls import text_arguments
from midstream.core.trajectory import Sampling
from midstream.tools.base_generator import ask
from midstream.tools.python import PythonConfig, PythonTool

CODER_TIMEOUT_S = 500.0


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
        self._prompt = shipped_prompt("midstream_web", "python_coder")
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


class PythonCoderConfig(PythonConfig):
    """Has a model write Python for a request in words, and runs it in the sandbox.

    The settings are `sandbox.settings.CodeLimits`, and how the model samples.

    Attributes:
        temperature: of the model that writes the program; 0 is greedy
        max_tokens: its most new tokens
    """

    component = PythonCoder
    asks = "always"

    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=2048, ge=1)

    def build(self, context: Context) -> Tool:
        """The tool for requests in words."""
        assert context.engine is not None
        sampling = Sampling(temperature=self.temperature, max_tokens=self.max_tokens)
        return PythonCoder(PythonTool(self, context.sandbox), context.engine, sampling)
