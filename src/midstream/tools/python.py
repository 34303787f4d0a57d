"""The Python tool: runs code and shows what it printed and the value of its last expression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, JsonValue

from midstream.core.data import Frozen
from midstream.core.protocols import ToolResult
from midstream.sandbox.pool import PythonPool

NEVER_S = 3600.0  # the pool bounds its own waits and runs; this is only for a pool that hangs


class Config(Frozen):
    """Settings of the Python tool; `sandbox.pool.PythonPool` says what each limit bounds.

    `timeout_s` is CPU-seconds of one run, `memory_mb` its address space, `output_limit` characters it prints.
    """

    workers: int = Field(default=2, ge=1)
    timeout_s: float = Field(default=2.0, gt=0)
    memory_mb: int = Field(default=512, ge=64)
    output_limit: int = Field(default=4000, ge=1)
    tier: Literal["auto", "process", "arithmetic"] = "auto"


class PythonTool:
    """Runs Python in a process of its own, with the standard library and no memory of earlier calls.

    Code that raises, runs too long or uses too much is an answer with `ok=False`. Not a security boundary: see
    `sandbox.pool`.
    """

    name = "python"
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "Python code, for example: 105 + 7"}},
        "required": ["code"],
        "additionalProperties": False,
    }

    def __init__(self, config: Config | None = None) -> None:
        config = config or Config()
        self.pool = PythonPool(
            config.workers, config.timeout_s, config.memory_mb, config.output_limit, tier=config.tier
        )
        self.timeout_s = NEVER_S
        self.description = (
            "Runs Python code (standard library only; nothing is kept between calls) and returns what it prints and "
            "the value of its last expression. For arithmetic and exact computation."
            if self.pool.tier == "process"
            else "Evaluates one arithmetic expression: + - * / // % **, comparisons, min, max, abs, round, sum."
        )

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Run `arguments["code"]`; raises `SandboxError` if no process could run it."""
        result = await self.pool.run(str(arguments["code"]))
        return ToolResult(text=result.text or "(no output)", ok=result.ok)

    async def close(self) -> None:
        """End the processes."""
        await self.pool.close()
