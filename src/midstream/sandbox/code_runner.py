"""Runs an executor's program, which reaches its tool through a pipe to the host."""

from __future__ import annotations

from midstream.core.protocols import Tool
from midstream.core.trajectory import Observation


class ProgramRunner:
    """`core.protocols.CodeRunner` on a `PythonPool`."""

    async def run(self, code: str, tool: Tool) -> Observation:
        """Run a program."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the processes."""
