"""The Python tool: runs code and shows what it printed and the value of its last expression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, JsonValue

from midstream.core.protocols import ToolResult
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import Limits
from midstream.sandbox.tiers import Sandbox, choose

NEVER_S = 3600.0  # the pool bounds its own waits and runs; this is only for a pool that hangs


class Config(Limits):
    """Settings of the Python tool: `sandbox.settings.Limits`, and how its coder samples, where it has an engine."""

    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    max_tokens: int = Field(default=2048, ge=1)


class PythonTool:
    """Runs Python in a process of its own, with no memory of earlier calls; `libraries` says what code can import.

    Code that raises, runs too long or uses too much is an answer with `ok=False`. What holds it back is the sandbox's
    tier (`sandbox.tiers`).
    """

    name = "python"
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "Python code, for example: 105 + 7"}},
        "required": ["code"],
        "additionalProperties": False,
    }

    def __init__(self, config: Config | None = None, sandbox: Sandbox | None = None) -> None:
        config = config or Config()
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
            held = "" if self.pool.tier == "unsafe" else ", and it reaches neither your files nor the network"
            self.description = (
                "Runs Python code and returns what it prints and the value of its last expression, or its error. The "
                f"code can import {self.libraries}; nothing is kept between calls{held}. For arithmetic and exact "
                "computation, not for facts."
            )

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Run `arguments["code"]`; raises `SandboxError` if no process could run it."""
        result = await self.pool.run(str(arguments["code"]))
        return ToolResult(text=result.text or "(no output)", ok=result.ok)

    async def close(self) -> None:
        """End the processes."""
        await self.pool.close()
