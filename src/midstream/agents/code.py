"""The executor's code mode: the model writes a short program around the action's tool."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.agents.prompted import ExecutorConfig
from midstream.core.protocols import ModuleContext, Tool
from midstream.core.trajectory import Action, Call, Command


class CodeExecutor:
    """`core.protocols.Executor` on an engine that writes programs."""

    def __init__(self, config: ExecutorConfig) -> None:
        self.config = config

    async def command(
        self, action: Action, tools: Sequence[Tool], context: ModuleContext
    ) -> tuple[Command, tuple[Call, ...]]:
        """Write the program."""
        raise NotImplementedError
