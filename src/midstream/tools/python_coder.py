"""The Python tool with a coder: a model writes the program for a request, and the sandbox runs it once.

Source: arXiv 2510.05592, the tool "Python Coder": it gets a request in words, an engine at temperature 0 writes the
code, and the tool has 500 s for all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from typing import Any

from pydantic import JsonValue

from midstream.core.errors import SandboxError
from midstream.core.protocols import Engine, Tool, ToolResult
from midstream.core.replies import find_program
from midstream.core.trajectory import Sampling
from midstream.sandbox.tiers import Sandbox
from midstream.tools.python import Config, PythonTool
from midstream.tools.web.asking import ask

TIMEOUT_S = 500.0
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def make(config: Config, sandbox: Sandbox, engine: Engine | None) -> Tool:
    """The Python tool: it takes code, or, with an engine that writes that, a request in words."""
    tool = PythonTool(config, sandbox)
    sampling = Sampling(temperature=config.temperature, max_tokens=config.max_tokens)
    return tool if engine is None else PythonCoder(tool, engine, sampling)


class PythonCoder:
    """Writes a program for a request and runs it in `python`'s sandbox; it is not asked a second time.

    A reply without a program that compiles, and a program that raises, are answers with `ok=False`. The result is what
    the program printed; the program itself is in the call.
    """

    name = "python"
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "request": {"type": "string", "description": "what to compute, with every value and fact it needs"}
        },
        "required": ["request"],
        "additionalProperties": False,
    }
    timeout_s = TIMEOUT_S

    def __init__(self, python: PythonTool, engine: Engine, sampling: Sampling) -> None:
        self._python, self._engine, self._sampling = python, engine, sampling
        self._prompt = (resources.files("midstream.tools") / "prompts" / "python_coder.md").read_text(encoding="utf-8")
        self.output_tokens = python.output_tokens
        self.description = (
            "A programmer who writes Python for a request in words and runs it once. Give the request with every value "
            f"it needs; nothing is kept between requests. The program can use {python.libraries}. Returns what it "
            "prints or its error. For exact arithmetic, counting, symbolic mathematics and search by brute force; not "
            "for facts, and it reaches neither files nor the network."
        )

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Run the program that the engine writes for `arguments["request"]`.

        Raises:
            ToolServerError: the engine failed.
            SandboxError: no process could run the program; its `calls` hold the request.
        """
        values = {"libraries": self._python.libraries, "request": str(arguments["request"])}
        prompt = _PLACE.sub(lambda place: values[place[1]], self._prompt)  # one pass: a request's own braces stay
        written = await ask(self._engine, self.name, prompt, self._sampling)
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
        """End the processes; the engine belongs to whoever made it."""
        await self._python.close()
